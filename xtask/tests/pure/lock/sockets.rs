//! The kernel's table of connections: who has a port, and who has accepted a connection to it.

use xtask::lock::sockets;
use xtask::lock::wait::Accepted;

#[test]
fn the_kernels_table_is_read() {
    let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
        0: 0100007F:6FB7 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0000000000000000 100 0 0 10 0\n   \
        1: 0000000000000000FFFF00000100007F:6FB7 0000000000000000FFFF00000100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0\n\
        not a row\n";
    let rows = sockets::rows(text);
    if cfg!(target_endian = "little") {
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!((rows[0].local.to_string(), rows[0].uid, rows[0].inode), ("127.0.0.1:28599".to_owned(), 1000, 4242));
        assert_eq!((rows[1].remote.to_string(), rows[1].inode), ("127.0.0.1:49153".to_owned(), 0));
    }
}

/// A row of the kernel's table, as `the_kernels_table_is_read` has it in whole.
fn row(local: &str, remote: &str, state: u8, inode: u64) -> sockets::Row {
    let [local, remote] = [local, remote].map(|address| address.parse().expect("an address"));
    sockets::Row { local, remote, state, uid: 0, inode }
}

#[test]
fn a_connection_is_accepted_when_a_program_has_it() {
    const ESTABLISHED: u8 = 1;
    const LISTEN: u8 = 10;
    let listens = |address: &str| row(address, "0.0.0.0:0", LISTEN, 7);
    let theirs = |inode| row("127.0.0.1:28599", "127.0.0.1:5000", ESTABLISHED, inode);
    let ours = row("127.0.0.1:5000", "127.0.0.1:28599", ESTABLISHED, 9);
    let judge = |rows: &[sockets::Row]| sockets::accepted_by(rows, 28599, 5000);
    assert_eq!(judge(&[listens("127.0.0.1:28599"), ours.clone(), theirs(8)]), Accepted::Yes);
    assert_eq!(judge(&[listens("127.0.0.1:28599"), ours.clone(), theirs(0)]), Accepted::No);
    // A listener, but not our connection: of another program's only, or of none.
    let others = [row("127.0.0.1:28599", "127.0.0.1:5001", ESTABLISHED, 8), row("127.0.0.1:1", "127.0.0.1:5000", 1, 8)];
    for address in ["127.0.0.1:28599", "0.0.0.0:28599", "[::]:28599"] {
        assert_eq!(judge(&[&others[..], &[listens(address)]].concat()), Accepted::Unknown, "{address}");
    }
    // Nobody of this kernel whom 127.0.0.1 reaches.
    for address in ["127.0.0.2:28599", "[::1]:28599", "127.0.0.1:28598"] {
        assert_eq!(judge(&[listens(address), ours.clone()]), Accepted::Nowhere, "{address}");
    }
    let odd = row("127.0.0.1:28599", "127.0.0.1:5000", LISTEN, 8);
    assert_eq!(judge(&[odd]), Accepted::Unknown, "a listener is no connection");
    assert_eq!(judge(&[]), Accepted::Nowhere);
}

#[test]
fn a_connection_that_keeps_the_port_is_found_and_told_by_its_state() {
    let [ours, closed] =
        [("127.0.0.1:28599", 1), ("127.0.0.1:28599", 6)].map(|(at, state)| row(at, "10.0.0.1:443", state, 7));
    let [listens, other] =
        [("0.0.0.0:28599", 10), ("127.0.0.1:28598", 1)].map(|(at, state)| row(at, "0.0.0.0:0", state, 7));
    let found = |rows: &[&sockets::Row]| {
        let rows: Vec<sockets::Row> = rows.iter().map(|&row| row.clone()).collect();
        sockets::connection(&rows, 28599).cloned()
    };
    assert_eq!(found(&[&other, &listens, &closed, &ours]), Some(ours));
    assert_eq!(found(&[&other, &listens, &closed]), Some(closed));
    assert_eq!(found(&[&other, &listens]), None);
    let told = |state, inode| {
        sockets::keeps(&row("127.0.0.1:28599", "10.0.0.1:443", state, inode), |row| format!("socket {}", row.inode))
    };
    assert_eq!(told(1, 7), "a connection to 10.0.0.1:443 uses it as its own port: socket 7");
    let rest = "the rest of a connection to 10.0.0.1:443 keeps it";
    for (state, inode) in [(1, 0), (4, 0), (8, 7)] {
        assert_eq!(told(state, inode), rest, "{state}");
    }
    assert_eq!(told(6, 0), "a closed connection to 10.0.0.1:443 keeps it for up to a minute (TIME_WAIT)");
}
