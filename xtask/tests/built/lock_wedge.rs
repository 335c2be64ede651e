//! Nothing that a client does, and no way for a holder to end, keeps the port: after each it binds again at once, for a
//! contender with SO_REUSEADDR and for one without.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use xtask::lock::sockets;

use crate::lock_caller::{Caller, LONG};
use crate::lock_client::{address, assert_free, banner, connect, hung_up, is_busy};
use crate::lock_contender::Contender;
use crate::world::{Ports, until};

#[test]
fn a_free_port_is_free() {
    assert_free(Ports::take(1).first);
}

#[test]
fn release_with_clients_that_never_close() {
    // Without SO_LINGER 0 each would leave the port in FIN_WAIT2.
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| connect(ports.first)).collect();
    clients.iter_mut().for_each(|client| assert!(banner(client).starts_with("xtask-lock/1 {")));
    holder.tell("release");
    holder.hear("released");
    assert_free(ports.first);
    clients.iter_mut().for_each(hung_up);
}

#[test]
fn death_with_accepted_connections_wakes_each_of_them() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| connect(ports.first)).collect();
    clients.iter_mut().for_each(|client| assert!(banner(client).starts_with("xtask-lock/1 {")));
    holder.kill();
    assert_free(ports.first);
    clients.iter_mut().for_each(hung_up);
}

#[test]
fn death_with_connections_that_nobody_accepted() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.stop();
    let mut clients: Vec<TcpStream> = (0..20).map(|_| connect(ports.first)).collect();
    holder.kill();
    assert_free(ports.first);
    clients.iter_mut().for_each(hung_up);
}

#[test]
fn death_with_a_full_backlog() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.stop();
    let mut clients = Vec::new();
    let limit = Duration::from_millis(300);
    while let Ok(client) = TcpStream::connect_timeout(&address(ports.first).into(), limit) {
        clients.push(client);
    }
    assert!(clients.len() > 100, "only {} connections fill it", clients.len());
    // Who waits says why it cannot ask, and goes on waiting.
    let waiter = Caller::new("local", Duration::from_secs(2));
    let refused = waiter.acquire(ports.first).expect_err("held").to_string();
    assert!(refused.contains("did not come free within 2s"), "{refused}");
    assert!(waiter.said.borrow()[0].contains("its queue of connections is full"), "{:?}", waiter.said);
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn half_open_clients_and_garbage() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let mut clients = Vec::new();
    for round in 0..40 {
        let mut client = connect(ports.first);
        match round % 5 {
            0 => client.shutdown(Shutdown::Write).expect("half closed"),
            1 => client.shutdown(Shutdown::Read).expect("half closed"),
            2 => client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written"),
            // It may be hung up on in the middle of this.
            3 => drop(client.write_all(&[b'x'; 1 << 20])),
            _ => client.write_all(b"xtask-wait/1 {\"waited_us\":18446744073709551615,\"run\":\"r\"}").expect("written"),
        }
        clients.push(client);
    }
    let mut asks = connect(ports.first);
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"), "it still answers");
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn ten_thousand_connects_that_hang_up_at_once() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    for _ in 0..10_000 {
        let client = Socket::from(connect(ports.first));
        // A reset: ten thousand ports in TIME_WAIT would be trouble of other tests.
        client.set_linger(Some(Duration::ZERO)).expect("an option");
    }
    let mut asks = connect(ports.first);
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"), "it still answers");
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn clients_that_hang_up_politely_leave_nothing_on_the_port() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    (0..200).for_each(|_| drop(connect(ports.first)));
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn a_foreign_time_wait_does_not_block_the_lock() {
    let ports = Ports::take(1);
    // A server as most are: SO_REUSEADDR (std sets it), and it closes first.
    let server = TcpListener::bind(address(ports.first)).expect("free");
    let mut client = connect(ports.first);
    let (connection, _) = server.accept().expect("a connection");
    drop(connection);
    hung_up(&mut client);
    drop(client);
    drop(server);
    let plain = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    plain.bind(&address(ports.first).into()).expect_err("TIME_WAIT blocks one without SO_REUSEADDR");
    // TIME_WAIT lasts twice as long.
    let _lock = Caller::new("ci", Duration::from_secs(30)).acquire(ports.first).expect("free for us");
}

#[test]
fn nobody_can_share_the_port() {
    // SO_REUSEPORT, where both have it, lets two sockets of one user listen: ours must never have it.
    let ports = Ports::take(1);
    let _lock = Caller::new("ci", LONG).acquire(ports.first).expect("free");
    let other = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    other.set_reuse_address(true).expect("an option");
    nix::sys::socket::setsockopt(&other, nix::sys::socket::sockopt::ReusePort, &true).expect("an option");
    let listens = other.bind(&address(ports.first).into()).and_then(|()| other.listen(1));
    assert_eq!(listens.expect_err("it is held").kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn a_waiter_that_goes_leaves_no_connection_behind() {
    let ports = Ports::take(1);
    // Nobody there ends it from the other side.
    let _listener = TcpListener::bind(address(ports.first)).expect("free");
    Caller::new("local", Duration::ZERO).acquire(ports.first).expect_err("taken");
    let begun = Instant::now();
    let left = || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the table");
        sockets::rows(&table).into_iter().find(|row| row.remote.port() == ports.first)
    };
    // At once, but for a child that has just been forked and has a copy of it; otherwise for a minute.
    while let Some(row) = left() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{row:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_child_of_the_holder_keeps_neither_the_port_nor_the_waiters() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let mut client = connect(ports.first);
    banner(&mut client);
    holder.tell("child");
    let child: i32 = holder.hear("child").parse().expect("a pid");
    holder.kill();
    assert_free(ports.first);
    // It would wait until the child ends, if the child had inherited the connection.
    hung_up(&mut client);
    kill(Pid::from_raw(child), Signal::SIGKILL).expect("the child lives on");
}

#[test]
fn the_runners_copy_keeps_the_port_after_a_release() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.tell("runner");
    let runner: i32 = holder.hear("runner").parse().expect("a pid");
    holder.tell("release");
    holder.hear("released");
    runner_keeps(ports.first, runner);
}

#[test]
fn the_runners_copy_keeps_the_port_when_the_keeper_panics() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.tell("runner");
    let runner: i32 = holder.hear("runner").parse().expect("a pid");
    holder.tell("panic");
    holder.child.wait().expect("it is ours");
    runner_keeps(ports.first, runner);
}

#[test]
fn the_runners_copy_keeps_the_port_when_the_keeper_is_killed() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.tell("runner");
    let runner: i32 = holder.hear("runner").parse().expect("a pid");
    holder.kill();
    runner_keeps(ports.first, runner);
}

fn runner_keeps(port: u16, runner: i32) {
    assert!(is_busy(port), "the runner lives");
    let waiter = Caller::new("local", Duration::from_millis(2500));
    assert!(waiter.acquire(port).is_err(), "the runner lives");
    assert!(waiter.said.borrow()[0].contains("taken and nobody answers"), "{:?}", waiter.said);
    // A waiter that is connected to nobody but the runner's copy is woken by its end.
    let mut waiter = Contender::start(port);
    until("the waiter to be in the backlog", || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the table");
        table.lines().any(|row| row.contains(&format!("0100007F:{port:04X} 0100007F:")))
    });
    kill(Pid::from_raw(runner), Signal::SIGKILL).expect("the runner lives");
    waiter.hear("held");
    waiter.kill();
    assert_free(port);
}

#[test]
fn a_holder_stopped_before_its_banner_was_seen() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.stop();
    let waiter = Caller::new("local", Duration::from_secs(3));
    let refused = waiter.acquire(ports.first).expect_err("held");
    assert_eq!(refused.exit(), xtask::verdict::Exit::NoLock, "{refused}");
    assert!(waiter.said.borrow()[0].contains("a holder that is stopped or starved"), "{:?}", waiter.said);
    holder.signal(Signal::SIGCONT);
    let said = Caller::new("local", LONG).hears(ports.first);
    assert!(said.contains("by one that says it is contender"), "{said}");
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn a_holder_stopped_after_its_banner_was_seen() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let port = ports.first;
    let waits = std::thread::spawn(move || {
        let waiter = Caller::new("local", LONG);
        waiter.acquire(port).map(|lock| (lock, waiter.said.take()))
    });
    until("the waiter to be counted", || banner(&mut connect(ports.first)).contains("\"waiting\":1"));
    holder.stop();
    // It is stopped for longer than any silence that would be foreign.
    std::thread::sleep(Duration::from_secs(6));
    holder.kill();
    let (lock, said) = waits.join().expect("no panic").expect("won");
    assert_eq!(said.len(), 2, "it knew who it waited for, and had nothing to add: {said:?}");
    drop(lock);
    assert_free(ports.first);
}
