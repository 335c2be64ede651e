//! The ports of the locks: as they are set, as the kernel gives others away, and which is a folder's.

use xtask::lock::port::{PortError, Ports};

#[test]
fn ports_are_read_strictly() {
    let default = Ports::parse(None, None).expect("the machine's");
    assert_eq!((default.workstation, default.worktrees), (28599, 28600..=29599));
    let moved = Ports::parse(Some("1500"), Some("1600-1600")).expect("moved");
    assert_eq!((moved.workstation, moved.worktrees), (1500, 1600..=1600));
    for text in ["", "0", "65536", "-1", "28599x", "0x10"] {
        assert!(matches!(Ports::parse(Some(text), None), Err(PortError::Unreadable { .. })), "{text:?}");
    }
    for text in ["", "28600", "29599-28600", "0-5", "1-2-3", "a-b"] {
        assert!(matches!(Ports::parse(None, Some(text)), Err(PortError::Unreadable { .. })), "{text:?}");
    }
    assert!(matches!(Ports::parse(Some("28600"), None), Err(PortError::Overlap(_))));
    let words = |port, range| Ports::parse(port, range).expect_err("no ports").to_string();
    assert_eq!(words(Some("x"), None), "XTASK_LOCK_PORT=\"x\" is not of the form 28599");
    assert_eq!(words(None, Some("x")), "XTASK_WORKTREE_PORTS=\"x\" is not of the form 28600-29599");
    assert_eq!(
        words(Some("28600"), None),
        "XTASK_LOCK_PORT=28600 is one of XTASK_WORKTREE_PORTS=28600-29599; the two locks need ports of their own"
    );
}

#[test]
fn ports_that_the_kernel_gives_away_are_refused_with_the_remedy() {
    let ports = Ports::default();
    let check = |range, reserved| ports.check(range, reserved);
    assert_eq!(check("32768\t60999\n", "\n"), Ok(()));
    assert_eq!(check("", ""), Ok(()), "a system without such files");
    let loose = check("1024 65535", "").expect_err("inside");
    assert!(loose.to_string().contains("sysctl -w net.ipv4.ip_local_reserved_ports=28599-29599"), "{loose}");
    assert_eq!(check("1024 65535", "28599-29599\n"), Ok(()));
    assert_eq!(check("1024 65535", "22,28599,28600-29000,29001-29599"), Ok(()));
    let partly = check("1024 65535", "8080,28599-29598").expect_err("the last one");
    assert!(matches!(partly, PortError::Ephemeral { port: 29599, .. }), "{partly:?}");
    // The remedy keeps what is reserved already: writing the file replaces it all.
    assert!(partly.to_string().contains("=8080,28599-29598,28599-29599"), "{partly}");
    assert!(check("29599 29599", "").is_err(), "the edge counts");
    assert_eq!(check("29600 29700", ""), Ok(()));
    let moved = Ports::parse(Some("40000"), Some("9000-9001")).expect("ports");
    let text = moved.check("32768 60999", "").expect_err("inside").to_string();
    assert!(text.contains("ip_local_reserved_ports=40000,9000-9001"), "{text}");
}

#[test]
fn a_folders_port_is_the_same_for_ever_and_a_thousand_and_one_folders_share_one() {
    let ports = Ports::default();
    // Frozen: a caller with another version of the program must derive the same.
    assert_eq!([(1, 1), (2, 1), (1, 2)].map(|(dev, ino)| ports.worktree_of(dev, ino)), [29113, 29198, 28615]);
    let all: Vec<u16> = (0..1001).map(|ino| ports.worktree_of(66, ino)).collect();
    assert!(all.iter().all(|port| ports.worktrees.contains(port)));
    let mut different = all.clone();
    different.sort_unstable();
    different.dedup();
    assert!((550..=1000).contains(&different.len()), "{} of 1000 ports used", different.len());
}
