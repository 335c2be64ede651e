//! What the lock relies on of the kernel, where no other test of the lock causes it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use xtask::lock::wait::Accepted;
use xtask::lock::{self, port, sockets};
use xtask::verdict::Exit;

use crate::lock_caller::Caller;
use crate::lock_client::{banner, connect};
use crate::lock_contender::Contender;
use crate::world::{Folder, Ports, may, may_mount, skipped};

#[test]
fn two_can_bind_and_the_listen_of_one_fails() {
    let ports = Ports::take(1);
    let bound = port::probe(ports.first).expect("no error").expect("free");
    let _holder = port::listen(ports.first).expect("no error").expect("who is only bound keeps nobody out");
    assert_eq!(bound.listen(8).expect_err("it is held").kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn of_those_that_try_at_once_one_wins_at_most_and_none_has_trouble() {
    const THREADS: usize = 4;
    let ports = Ports::take(1);
    let (start, end) = (Barrier::new(THREADS), Barrier::new(THREADS));
    let try_often = || {
        let mut won = Vec::new();
        for _ in 0..5_000 {
            start.wait();
            let tried = port::listen(ports.first);
            end.wait();
            won.push(tried.map(|socket| socket.is_some()).map_err(|e| e.to_string()));
        }
        won
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(try_often)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    for round in 0..all[0].len() {
        // "In use" of bind and "in use" of listen are the same to whoever tries.
        let winners = all.iter().filter(|won| won[round].clone().expect("busy is no error")).count();
        assert!(winners <= 1, "{winners} hold it in round {round}");
    }
}

#[test]
fn a_banner_that_was_not_read_yet_can_be_read_after_the_holders_death() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let mut client = connect(ports.first);
    let mut byte = [0];
    assert_eq!(client.peek(&mut byte).expect("it answers"), 1);
    holder.kill();
    assert!(banner(&mut client).starts_with("xtask-lock/1 {"));
    let end = client.read(&mut byte).expect_err("by a reset, which leaves no state behind");
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_connection_is_accepted_when_the_kernels_table_says_so() {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(port::address(ports.first)).expect("free");
    let client = connect(ports.first);
    let mine = client.local_addr().expect("a port").port();
    assert_eq!(sockets::accepted(ports.first, mine), Accepted::No);
    let _theirs = listener.accept().expect("a connection");
    assert_eq!(sockets::accepted(ports.first, mine), Accepted::Yes);
}

/// A program on the port that does this with each connection, before whoever made it has its next moment: both on one CPU,
/// and the program goes first. `None` where that cannot be had. Runs `then` on that CPU too.
fn before_anybody_looks<T: Send>(
    listener: &TcpListener,
    does: impl Fn(TcpStream) + Sync,
    then: impl FnOnce() -> T + Send,
) -> Option<T> {
    let cpus = sched_getaffinity(Pid::from_raw(0)).expect("its CPUs");
    let first = (0..CpuSet::count()).find(|&cpu| cpus.is_set(cpu).expect("a CPU")).expect("one at least");
    let pin = move || {
        let mut one = CpuSet::new();
        one.set(first).expect("a CPU");
        sched_setaffinity(Pid::from_raw(0), &one).expect("one of its own");
    };
    let (ready, is_ready) = std::sync::mpsc::channel();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin();
            let mut first = Command::new("chrt");
            first.args(["--fifo", "--pid", "1", &nix::unistd::gettid().to_string()]);
            let may = first.output().is_ok_and(|done| done.status.success());
            ready.send(may).expect("it waits");
            let going = |_: &std::io::Result<TcpStream>| !over.load(Ordering::SeqCst);
            if may {
                listener.incoming().take_while(going).for_each(|connection| does(connection.expect("a connection")));
            }
        });
        if !is_ready.recv().expect("it says so") {
            return None;
        }
        let result = scope.spawn(|| (pin(), then()).1).join().expect("no panic");
        over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(listener.local_addr().expect("an address")));
        Some(result)
    })
}

fn reset(connection: TcpStream) {
    Socket::from(connection).set_linger(Some(Duration::ZERO)).expect("an option");
}

#[test]
fn a_holder_that_hangs_up_before_anybody_looks_is_a_holder() {
    // As one does that has too many waiters.
    let ports = Ports::take(1);
    let listener = TcpListener::bind(port::address(ports.first)).expect("free");
    let greets = |mut connection: TcpStream| {
        connection.write_all(b"xtask-lock/1 {\"caller\":\"crowded\"}\n").expect("written");
        reset(connection);
    };
    let waits = || {
        let caller = Caller::new("local", Duration::from_secs(3));
        (caller.acquire(ports.first).map(drop), caller.said.take())
    };
    let Some((refused, said)) = before_anybody_looks(&listener, greets, waits) else {
        return skipped("a_holder_that_hangs_up_before_anybody_looks_is_a_holder", "no priority over others to be had");
    };
    let refused = refused.expect_err("held");
    assert_eq!(refused.exit(), Exit::NoLock, "{refused}");
    assert!(said[0].contains("by one that says it is crowded"), "{said:?}");
}

#[test]
fn a_connection_that_is_reset_before_anybody_looks_was_no_good_bye() {
    // A holder that dies does that to those that it has not accepted; it takes more than two to call it foreign.
    let ports = Ports::take(1);
    let listener = TcpListener::bind(port::address(ports.first)).expect("free");
    let count = AtomicU32::new(0);
    let resets = |connection| {
        count.fetch_add(1, Ordering::SeqCst);
        reset(connection);
    };
    let waits = || Caller::new("local", Duration::from_secs(60)).acquire(ports.first).map(drop);
    let Some(refused) = before_anybody_looks(&listener, resets, waits) else {
        return skipped("a_connection_that_is_reset_before_anybody_looks_was_no_good_bye", "no priority to be had");
    };
    let refused = refused.expect_err("foreign");
    assert!(refused.to_string().contains("it takes connections and ends them"), "{refused}");
    assert!(count.load(Ordering::SeqCst) > 2, "{count:?} connections");
}

/// Where the next test plays.
const NETWORK: &str = "XTASK_TEST_NETWORK_OF_ITS_OWN";

#[test]
fn a_port_of_the_ephemeral_range() {
    if !may(&["unshare", "--net", "true"]) {
        return skipped("a_port_of_the_ephemeral_range", "no network can be made here");
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c"]);
    command.arg("ip link set lo up && echo '20001 20001' > /proc/sys/net/ipv4/ip_local_port_range && exec \"$@\"");
    command.arg("sh").arg(std::env::current_exe().expect("this program"));
    command.args(["lock_facts::in_a_network_of_one_port", "--exact", "--ignored", "--nocapture"]);
    let done = command.env(NETWORK, "1").output().expect("unshare starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

/// In a network where the kernel has one port for outgoing connections, and that is the lock's.
#[test]
#[ignore = "a process that another test starts in a network of its own"]
fn in_a_network_of_one_port() {
    if std::env::var_os(NETWORK).is_none() {
        return;
    }
    const PORT: u16 = 20001;
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 20_002)).expect("free");
    let outgoing = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.connect(&server.local_addr().expect("an address").into()).map(|()| socket)
    };
    // A lock that is held is never given away.
    let held = Caller::new("ci", Duration::ZERO).acquire(PORT).expect("free");
    let none = outgoing().expect_err("no other port is left");
    assert_eq!(none.kind(), std::io::ErrorKind::AddrNotAvailable);
    // Nor is there a port to ask the holder from: that is no answer, and nobody is accused.
    let waiter = Caller::new("local", Duration::from_millis(200));
    assert_eq!(waiter.acquire(PORT).expect_err("held").exit(), Exit::NoLock);
    let said = waiter.said.borrow()[0].clone();
    assert!(said.contains("is taken and its holder cannot be asked: "), "{said}");
    drop(held);

    // An outgoing connection has it; and the waiter's own connect, which gets that port too, reaches itself. Nobody
    // listens there: it must not talk to itself and call the silence foreign.
    let taken = outgoing().expect("the one port");
    assert_eq!(taken.local_addr().expect("an address").as_socket_ipv4().expect("an address").port(), PORT);
    let probe = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    probe.set_linger(Some(Duration::ZERO)).expect("an option");
    probe.connect(&port::address(PORT).into()).expect("it reaches itself");
    drop(probe);
    let refused = Caller::new("local", Duration::from_secs(60)).acquire(PORT).expect_err("taken");
    assert_eq!(refused.exit(), Exit::Foreign, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("a connection to 127.0.0.1:20002 uses it as its own port"), "{text}");
}

#[test]
fn a_folder_has_one_port_in_every_mount_namespace() {
    if !may_mount() {
        return skipped("a_folder_has_one_port_in_every_mount_namespace", "nothing can be mounted here");
    }
    let folder = Folder::new();
    let (real, elsewhere) = (folder.path().join("real"), folder.path().join("elsewhere"));
    [&real, &elsewhere].iter().for_each(|path| std::fs::create_dir(path).expect("a folder"));
    let script = "mount --bind \"$1\" \"$2\" && cd \"$2\" && exec \"$3\" lock status --message-format json";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", script, "sh"]);
    command.args([&real, &elsewhere, Path::new(env!("CARGO_BIN_EXE_xtask"))]);
    command.env("XTASK_LOCK_PORT", "9999").env("XTASK_WORKTREE_PORTS", "10000-10999");
    let done = command.output().expect("unshare starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let line = said.lines().last().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&done.stderr)));
    let there: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(there["folder"], elsewhere.display().to_string(), "{said}");
    let here = lock::Ports { workstation: 9_999, worktrees: 10_000..=10_999 }.worktree_for(&real).expect("a port");
    assert_eq!(there["port"], here, "{said}");
}
