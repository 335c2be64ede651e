//! Nothing that a client does, and no way for a holder to end, keeps the port: after each it binds again at once, for a
//! contender with SO_REUSEADDR and for one without.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use xtask::lock::wait::Accepted;
use xtask::lock::{port, stranger};

use crate::lock_caller::{Caller, LONG};
use crate::lock_contender::Contender;
use crate::world::{PATIENCE, Ports, until};

fn address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

pub fn connect(port: u16) -> TcpStream {
    TcpStream::connect_timeout(&address(port).into(), Duration::from_secs(30)).expect("a connection")
}

/// Reads a holder's line.
pub fn banner(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a whole line");
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("text")
}

/// Waits for the end of the connection, however it comes.
#[track_caller]
fn hung_up(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    if let Err(e) = stream.read_to_end(&mut Vec::new()) {
        assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "nobody hangs up");
    }
}

/// Whether it burns the CPU: it is given as much as a loop here, however busy the machine is.
pub fn spins(pid: Pid) -> bool {
    let mine = || {
        let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
        u64::try_from(Duration::from(time).as_nanos()).expect("not so long")
    };
    // Of all threads; the first word of schedstat is nanoseconds on a CPU.
    let theirs = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        let path = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("a thread").path().join("schedstat");
        let text = threads.map(|entry| std::fs::read_to_string(path(entry)).expect("its times"));
        text.map(|text| text.split(' ').next().expect("a word").parse::<u64>().expect("nanoseconds")).sum::<u64>()
    };
    let (begun, before) = (mine(), theirs());
    while mine() - begun < 200_000_000 {
        std::hint::spin_loop();
    }
    theirs() - before > 40_000_000
}

// At once, but for this: a child that another thread of the test program has just forked has a copy of every socket until
// it execs. What these tests are about, a connection that keeps the port, would last a minute.
#[track_caller]
fn assert_free(port: u16) {
    let begun = Instant::now();
    let plain = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&address(port).into()).and_then(|()| socket.listen(1)).is_ok()
    };
    for (who, takes) in [("without", &plain as &dyn Fn() -> bool), ("with", &|| !is_busy(port))] {
        while !takes() {
            assert!(begun.elapsed() < Duration::from_secs(10), "not free for a contender {who} SO_REUSEADDR");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_busy(port: u16) -> bool {
    port::listen(port).expect("no error").is_none()
}

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
fn garbage_ends_the_connection_and_costs_no_time() {
    let ports = Ports::take(1);
    let holder = Contender::holding(ports.first);
    // A wait that is longer than the machine is up is garbage too.
    let liar = b"xtask-wait/1 {\"waited_us\":18446744073709551615,\"run\":\"r\"}\n";
    // And a good line with so much behind it that both are longer than a line can be.
    let mut more = b"xtask-wait/1 {\"waited_us\":1,\"run\":\"r\"}\n".to_vec();
    more.resize(xtask::lock::banner::ANSWER_MAX + 1, b' ');
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 600], b"xtask-wait/1 {}\n", b"\n", liar, &more] {
        let mut client = connect(ports.first);
        banner(&mut client);
        client.write_all(words).expect("written");
        hung_up(&mut client);
    }
    // Not even the beginning of a line makes it spin.
    let mut slow = connect(ports.first);
    slow.write_all(b"xtask-wait/1 ").expect("written");
    banner(&mut slow);
    let mut half = connect(ports.first);
    banner(&mut half);
    half.shutdown(Shutdown::Write).expect("half closed");
    hung_up(&mut half);
    assert!(!spins(holder.pid()));
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
fn a_holder_without_descriptors_keeps_the_lock_and_recovers() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    // It allowed itself more connections before the limit fell.
    holder.tell("descriptors 24");
    holder.hear("limited");
    let clients: Vec<TcpStream> = (0..200).map(|_| connect(ports.first)).collect();
    assert!(is_busy(ports.first));
    assert!(!spins(holder.pid()));
    // Those that only sit there are hung up on to make room, so somebody who asks is answered meanwhile.
    let mut asks = connect(ports.first);
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"));
    drop(clients);
    let mut asks = connect(ports.first);
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"));
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn a_holder_that_may_open_few_files_keeps_fewer_connections() {
    let ports = Ports::take(1);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 40 && exec \"$@\"", "sh"]).arg(std::env::current_exe().expect("this program"));
    let mut holder = Contender::start_by(command, ports.first);
    holder.hear("held");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", holder.pid())).expect("it lives").count();
    let before = open();
    // Each is answered before the next one comes, so none of them waits in the queue.
    let clients: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut client = connect(ports.first);
            banner(&mut client);
            client
        })
        .collect();
    until("the oldest to be hung up on", || open() <= before + 5);
    drop(clients);
    holder.kill();
}

#[test]
fn a_holder_with_no_descriptor_left_sleeps_until_there_is_one() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.tell("descriptors 64");
    holder.hear("limited");
    holder.tell("exhaust");
    holder.hear("exhausted");
    let mut asks = connect(ports.first);
    assert!(!spins(holder.pid()));
    assert!(is_busy(ports.first));
    holder.tell("recover");
    holder.hear("recovered");
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"));
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn connections_never_use_up_the_descriptors_of_the_run() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let clients: Vec<TcpStream> = (0..600).map(|_| connect(ports.first)).collect();
    let mut asks = connect(ports.first);
    banner(&mut asks);
    let open = std::fs::read_dir(format!("/proc/{}/fd", holder.pid())).expect("it lives").count();
    assert!(open < 300, "{open} descriptors open");
    drop(clients);
    holder.tell("child");
    let child: i32 = holder.hear("child").parse().expect("a pid");
    holder.kill();
    kill(Pid::from_raw(child), Signal::SIGKILL).expect("the child lives on");
}

#[test]
fn waiters_stay_when_idle_clients_make_room() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let mut waiter = connect(ports.first);
    banner(&mut waiter);
    waiter.write_all(b"xtask-wait/1 {\"waited_us\":5,\"run\":\"r\"}\n").expect("written");
    until("the waiter to be counted", || banner(&mut connect(ports.first)).contains("\"waiting\":1"));
    let idle: Vec<TcpStream> = (0..600).map(|_| connect(ports.first)).collect();
    assert!(banner(&mut connect(ports.first)).contains("\"waiting\":1"));
    drop(idle);
    holder.kill();
    hung_up(&mut waiter);
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
    let _lock = Caller::new("ci", Duration::ZERO).acquire(ports.first).expect("free for us");
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
    let waiter = Caller::new("local", Duration::from_millis(500));
    waiter.acquire(ports.first).expect_err("held");
    assert!(waiter.said.borrow()[0].contains("by one that says it is contender"), "{:?}", waiter.said);
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
    // It is stopped for longer than any silence that is allowed to a stranger.
    std::thread::sleep(Duration::from_secs(6));
    holder.kill();
    let (lock, said) = waits.join().expect("no panic").expect("won");
    assert_eq!(said.len(), 2, "it knew who it waited for, and had nothing to add: {said:?}");
    drop(lock);
    assert_free(ports.first);
}

/// A client that waits, by its own words; it has not read what it was told.
fn asks(port: u16, run: &str, waited_us: u64) -> TcpStream {
    let mut client = connect(port);
    let line = format!("xtask-wait/1 {{\"waited_us\":{waited_us},\"run\":\"{run}\"}}\n");
    client.write_all(line.as_bytes()).expect("written");
    client
}

/// Waits until one of them is hung up on, and says of each whether it is. The kernel looks at them in this order: it cannot
/// miss the hang-up of a later one and see that of an earlier one which came after it.
pub fn hung_up_on<const N: usize>(clients: [&TcpStream; N]) -> [bool; N] {
    let mut fds = clients.map(|client| PollFd::new(client.as_fd(), PollFlags::empty()));
    assert!(poll(&mut fds, PollTimeout::NONE).expect("it can be polled") > 0);
    fds.map(|fd| fd.any().unwrap_or(true))
}

#[test]
fn a_run_that_asks_twice_is_counted_once() {
    let ports = Ports::take(1);
    let _holder = Contender::holding(ports.first);
    let _one = [asks(ports.first, "r-1", 5), asks(ports.first, "r-1", 5)];
    // An hour would be longer than some machine is up.
    let _other = asks(ports.first, "r-2", 30_000_000);
    let mut said = serde_json::Value::Null;
    until("the last of them to be counted", || {
        let line = banner(&mut connect(ports.first));
        said = serde_json::from_str(line.strip_prefix("xtask-lock/1 ").expect("a holder")).expect("JSON");
        let now_ms = xtask::sys::clocks().wall_ms;
        said["waiting_since_ms"].as_u64().is_some_and(|since| now_ms - since >= 29_000)
    });
    let since = said["waiting_since_ms"].as_u64().expect("a moment");
    assert!(xtask::sys::clocks().wall_ms - since < 3_600_000, "{said}");
    assert_eq!(said["waiting"], 2, "{said}");
}

#[test]
fn a_word_that_comes_in_the_last_moment_counts() {
    // Those that are accepted in the very turn in which the holder sees that it shall let go.
    for _ in 0..5 {
        let ports = Ports::take(1);
        let mut holder = Contender::holding(ports.first);
        holder.tell("mute");
        holder.hear("muted");
        let first = connect(ports.first);
        let mine = first.local_addr().expect("a port").port();
        until("the holder to be stuck with it", || stranger::accepted(ports.first, mine) == Accepted::Yes);
        // As many as it takes at once; then those that wait, the longest waiting last.
        let _idle: Vec<TcpStream> = (0..63).map(|_| connect(ports.first)).collect();
        let [young, younger, old] =
            [("r-1", 1_000), ("r-2", 1), ("r-3", 5_000)].map(|(run, us)| asks(ports.first, run, us));
        holder.tell("go");
        let ready = hung_up_on([&first, &young, &younger, &old]);
        assert!(ready[3], "another one first: {ready:?}");
    }
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
        stranger::rows(&table).into_iter().find(|row| row.remote.port() == ports.first)
    };
    // At once, but for a child that has just been forked and has a copy of it; otherwise for a minute.
    while let Some(row) = left() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{row:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_longest_waiting_is_hung_up_on_first() {
    // On a machine that is busy enough all of them are hung up on before anybody looks: that round says nothing.
    until("a round in which the longest waiting alone is hung up on", || {
        let ports = Ports::take(1);
        let mut holder = Contender::holding(ports.first);
        let waits = |waited_us: u64| asks(ports.first, &format!("r-{waited_us}"), waited_us);
        let (young, old, younger) = (waits(1_000_000), waits(5_000_000), waits(1_000));
        let looks = connect(ports.first);
        until("all of them to be counted", || banner(&mut connect(ports.first)).contains("\"waiting\":3"));
        holder.tell("release");
        let ready = hung_up_on([&young, &younger, &looks, &old]);
        assert!(ready[3], "another one first: {ready:?}");
        ready == [false, false, false, true]
    });
}
