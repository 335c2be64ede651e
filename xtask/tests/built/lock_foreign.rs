//! Programs on the lock's port that are not xtask are told apart from holders and named; holders of every version are
//! holders.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use xtask::lock::{HeldLock, NotHeld, Scope, StopAsked};
use xtask::verdict::{Exit, Stop};

use crate::lock_caller::{Caller, LONG};
use crate::world::{Folder, Ports, Running, World, at_last};

fn address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// A program on the port that does this with each connection. It ends with the test.
fn stranger(listener: TcpListener, mut does: impl FnMut(TcpStream) + Send + 'static) {
    std::thread::spawn(move || listener.incoming().for_each(|connection| does(connection.expect("a connection"))));
}

#[track_caller]
fn foreign(result: Result<HeldLock, NotHeld>) -> String {
    let refused = result.expect_err("a stranger has it");
    assert_eq!(refused.exit(), Exit::Foreign, "{refused}");
    refused.to_string()
}

#[track_caller]
fn has(text: &str, part: &str) {
    assert!(text.contains(part), "no {part:?} in\n{text}");
}

#[test]
fn a_server_that_greets_is_named_at_once() {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    stranger(listener, |mut connection| drop(connection.write_all(b"220 \x1b[31mmail.example ESMTP\r\nmore\r\n")));
    let caller = Caller::new("local", LONG);
    let text = foreign(caller.acquire(ports.first));
    has(
        &text,
        &format!("127.0.0.1:{} is the workstation lock's port, and what listens there is not xtask", ports.first),
    );
    has(&text, "heard     \"220 [31mmail.example ESMTP\"");
    has(&text, &format!("(pid {})", std::process::id()));
    has(
        &text,
        &format!("user {}", nix::unistd::User::from_uid(nix::unistd::getuid()).expect("users").expect("me").name),
    );
    has(&text, "nothing   was run");
    has(&text, "XTASK_LOCK_PORT");
}

#[test]
fn a_server_that_waits_for_a_request_is_named_after_two_silences() {
    // Nobody may keep the port on another address meanwhile.
    let port = Ports::take(1).first;
    let listener = at_last(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    let mut kept = Vec::new();
    stranger(listener, move |connection| kept.push(connection));
    let text = foreign(Caller::new("local", LONG).acquire(port));
    has(&text, "heard     nothing for 2s, twice, on accepted connections");
    has(&text, &format!("on 0.0.0.0:{}", port));
    has(&foreign(Caller::new("local", Duration::ZERO).acquire(port)), "heard     nothing for 2s, twice");
}

#[test]
fn the_beginning_of_a_holders_line_and_then_silence_is_told_as_heard() {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    let mut kept = Vec::new();
    stranger(listener, move |mut connection| {
        connection.write_all(b"xtask-loc").expect("it fits");
        kept.push(connection);
    });
    has(&foreign(Caller::new("local", LONG).acquire(ports.first)), "heard     \"xtask-loc\"");
}

#[test]
fn a_server_on_every_address_of_both_families_is_found() {
    // Nobody may keep the port on another address meanwhile.
    let port = Ports::take(1).first;
    let listener = at_last(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)));
    stranger(listener, |mut connection| drop(connection.write_all(b"hello\n")));
    let text = foreign(Caller::new("local", LONG).acquire(port));
    has(&text, &format!("(pid {})", std::process::id()));
    has(&text, &format!("on [::]:{}", port));
}

#[test]
fn a_server_on_the_address_as_the_other_family_writes_it_is_found() {
    let ports = Ports::take(1);
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).expect("a socket");
    socket.set_only_v6(false).expect("both");
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    at_last(|| socket.bind(&std::net::SocketAddrV6::new(mapped, ports.first, 0, 0).into()));
    socket.listen(8).expect("free");
    stranger(socket.into(), |mut connection| drop(connection.write_all(b"hello\n")));
    let text = foreign(Caller::new("local", LONG).acquire(ports.first));
    has(&text, &format!("listener  {}", me()));
    has(&text, &format!("on 127.0.0.1:{}", ports.first));
}

#[test]
fn a_program_that_takes_and_closes_is_not_asked_in_a_loop() {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counts = std::sync::Arc::clone(&count);
    stranger(listener, move |connection| {
        counts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        drop(connection);
    });
    has(&foreign(Caller::new("local", LONG).acquire(ports.first)), "it takes connections and ends them");
    assert!(count.load(std::sync::atomic::Ordering::Relaxed) <= 3, "{count:?} connections");
    // One try is no shorter look.
    has(&foreign(Caller::new("local", Duration::ZERO).acquire(ports.first)), "it takes connections and ends them");
}

#[test]
fn a_program_that_takes_and_resets_is_not_asked_in_a_loop() {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    stranger(listener, |connection| {
        let socket = Socket::from(connection);
        socket.set_linger(Some(Duration::ZERO)).expect("an option");
    });
    has(&foreign(Caller::new("local", LONG).acquire(ports.first)), "it takes connections and ends them");
}

#[test]
fn a_program_that_never_accepts_is_waited_for_and_both_is_said() {
    let ports = Ports::take(1);
    let _listener = TcpListener::bind(address(ports.first)).expect("free");
    let caller = Caller::new("local", Duration::from_millis(2500));
    let refused = caller.acquire(ports.first).expect_err("taken");
    assert_eq!(refused.exit(), Exit::NoLock, "{refused}");
    has(&caller.said.borrow()[0], "a holder that is stopped or starved, or a program that never accepts");
    has(&refused.to_string(), &format!("listener  {}", me()));
    // One try names it too.
    let refused = Caller::new("local", Duration::ZERO).acquire(ports.first).expect_err("taken");
    assert_eq!(refused.exit(), Exit::NoLock, "{refused}");
    has(&refused.to_string(), "a budget of 0s is one try");
    has(&refused.to_string(), &format!("listener  {}", me()));
}

#[test]
fn a_port_that_is_bound_and_does_not_listen_is_named() {
    let ports = Ports::take(1);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    at_last(|| socket.bind(&address(ports.first).into()));
    let begun = Instant::now();
    let text = foreign(Caller::new("local", LONG).acquire(ports.first));
    assert!(begun.elapsed() >= Duration::from_secs(2), "two runs that bind at once look like that too");
    has(&text, &format!("a program has bound it and does not listen: {}", me()));
    assert!(!text.contains("listener"), "there is none: {text}");
    // One try is told the same.
    has(&foreign(Caller::new("local", Duration::ZERO).acquire(ports.first)), &me());
}

#[test]
fn a_socket_of_both_families_that_is_bound_and_does_not_listen_is_named() {
    // Nobody may keep the port on another address meanwhile.
    let port = Ports::take(1).first;
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).expect("a socket");
    socket.set_only_v6(false).expect("both");
    at_last(|| socket.bind(&std::net::SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0).into()));
    has(&foreign(Caller::new("local", Duration::ZERO).acquire(port)), &format!("does not listen: {}", me()));
}

/// How this program is named among the owners of a port, as far as it matters.
fn me() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    format!("{} (pid {})", name.trim(), std::process::id())
}

#[test]
fn an_outgoing_connection_from_the_port_is_named() {
    let ports = Ports::take(1);
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    at_last(|| socket.bind(&address(ports.first).into()));
    socket.connect(&server.local_addr().expect("an address").into()).expect("a connection");
    let text = foreign(Caller::new("local", LONG).acquire(ports.first));
    has(&text, "what has it is not xtask");
    has(&text, &format!("a connection to {} uses it as its own port", server.local_addr().expect("an address")));
    has(&text, &format!("(pid {})", std::process::id()));
}

#[test]
fn the_rest_of_an_outgoing_connection_is_named() {
    let ports = Ports::take(1);
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    at_last(|| socket.bind(&address(ports.first).into()));
    socket.connect(&server.local_addr().expect("an address").into()).expect("a connection");
    let (mut theirs, _) = server.accept().expect("a connection");
    drop(socket);
    theirs.read_to_end(&mut Vec::new()).expect("the end");
    drop(theirs);
    has(&foreign(Caller::new("local", LONG).acquire(ports.first)), "(TIME_WAIT)");
}

#[test]
fn other_addresses_of_the_loopback_are_not_the_lock() {
    let ports = Ports::take(1);
    let _other = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 9), ports.first)).expect("free");
    let _six = TcpListener::bind((Ipv6Addr::LOCALHOST, ports.first)).expect("free");
    assert_eq!(xtask::lock::sockets::listener(ports.first), None);
    let _lock = Caller::new("local", Duration::ZERO).acquire(ports.first).expect("free for us");
    // Nor is one that is bound there and does not listen who keeps the port.
    let (port, socket) = (Ports::take(1).first, Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket"));
    socket.bind(&std::net::SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), port).into()).expect("free");
    assert_eq!(xtask::lock::sockets::taken_by(port), "a program has bound it and does not listen");
}

#[test]
fn a_holder_of_any_version_is_waited_for() {
    for line in [
        &b"xtask-lock/99 {\"run\":\"r-new\",\"shape\":[{\"of\":\"things\"}],\"caller\":\"ci\"}\n"[..],
        b"xtask-lock/0\n",
        b"xtask-lock/1 not json at all\n",
        b"xtask-lock/",
    ] {
        let ports = Ports::take(1);
        let listener = TcpListener::bind(address(ports.first)).expect("free");
        let mut kept = Vec::new();
        stranger(listener, move |mut connection| {
            let _ = connection.write_all(line);
            kept.push(connection);
        });
        // A line without an end is read until a stranger would be silent for too long.
        has(&Caller::new("local", LONG).hears(ports.first), " is held");
    }
}

#[test]
fn a_line_that_comes_in_pieces_is_read_whole() {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    let mut kept = Vec::new();
    stranger(listener, move |mut connection| {
        for piece in ["xtask-l", "ock/1 {\"caller\":", "\"ci\"}\n"] {
            connection.write_all(piece.as_bytes()).expect("it fits");
            // Long enough to be read alone mostly; where it is not, this sees less, and fails for nobody.
            std::thread::sleep(Duration::from_millis(30));
        }
        kept.push(connection);
    });
    has(&Caller::new("local", LONG).hears(ports.first), "is held by one that says it is ci");
}

/// A later version may have more to say than its line, but not without an end.
#[test]
fn a_holder_that_goes_on_talking_is_listened_to_for_a_while() {
    let talked = talks_on(100, Duration::from_millis(1), usize::MAX);
    assert!(talked > 8 * 1024, "{talked} bytes");
    // More than the system keeps for a reader that has gone. One that stayed would read it all, and without end.
    let most = 256 << 20;
    assert!(talks_on(1 << 16, Duration::ZERO, most) < most, "it listens to whatever is said");
}

/// What a holder can say behind its line, in such pieces, until the waiter hangs up.
fn talks_on(piece: usize, pause: Duration, most: usize) -> usize {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    let (tell, told) = std::sync::mpsc::channel();
    stranger(listener, move |mut connection| {
        connection.write_all(b"xtask-lock/9 {}\n").expect("it fits");
        connection.set_nodelay(true).expect("an option");
        let mut talked = 0;
        while talked < most && connection.write_all(&vec![b'x'; piece]).is_ok() {
            talked += piece;
            // One piece at a time, mostly.
            std::thread::sleep(pause);
        }
        let _ = tell.send(talked);
    });
    let (asked, ask) = std::io::pipe().expect("a pipe");
    let heard = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (port, enough) = (ports.first, std::sync::Arc::clone(&heard));
    let waits = std::thread::spawn(move || {
        let which = || enough.load(std::sync::atomic::Ordering::Relaxed).then_some(Stop::Int);
        let stop = StopAsked { fd: std::os::fd::AsFd::as_fd(&asked), which: &which };
        Caller::new("local", LONG).acquire_unless(port, stop).map(drop)
    });
    let talked: usize = told.recv_timeout(LONG).expect("it hangs up before its time is over");
    heard.store(true, std::sync::atomic::Ordering::Relaxed);
    drop(ask);
    assert_eq!(waits.join().expect("no panic").expect_err("stopped").exit(), Exit::Cancelled(Stop::Int));
    talked
}

#[test]
fn a_holder_that_never_stops_talking_holds_up_nobodys_ctrl_c() {
    let ports = Ports::take(1);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counts = std::sync::Arc::clone(&count);
    stranger(listener, move |mut connection| {
        counts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        std::thread::spawn(move || {
            let _ = connection.write_all(b"xtask-lock/1 {\"caller\":\"\x1b]0;x\x07loud");
            while connection.write_all(&[b'x'; 65536]).is_ok() {}
        });
    });
    let (asked, ask) = std::io::pipe().expect("a pipe");
    let port = ports.first;
    let waits = std::thread::spawn(move || {
        use std::os::fd::AsFd;
        let pressed = || {
            use std::io::Read;
            let mut fds = [nix::poll::PollFd::new(asked.as_fd(), nix::poll::PollFlags::POLLIN)];
            let is = nix::poll::poll(&mut fds, 0u8).expect("it can be polled") > 0;
            is.then(|| drop((&asked).read(&mut [0]))).map(|()| Stop::Int)
        };
        let caller = Caller::new("local", LONG);
        let ended = caller.acquire_unless(port, StopAsked { fd: asked.as_fd(), which: &pressed });
        (ended.map(drop), caller.said.take())
    });
    // It does not take in what has no end: it hangs up, and asks again.
    crate::world::until("the waiter to ask again", || count.load(std::sync::atomic::Ordering::Relaxed) > 2);
    drop(ask);
    let (ended, said) = waits.join().expect("no panic");
    assert_eq!(ended.expect_err("cancelled").exit(), Exit::Cancelled(Stop::Int));
    has(&said[0], " is held");
    assert!(!said.concat().chars().any(char::is_control), "{said:?}");
}

/// `lock status` in a folder that is no repository.
fn status(ports: &Ports, args: &[&str]) -> crate::world::Done {
    let folder = Folder::new();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["lock", "status"]).args(args).current_dir(folder.path());
    command.env("XTASK_LOCK_PORT", ports.first.to_string());
    command.env("XTASK_WORKTREE_PORTS", format!("{}-{}", ports.first + 1, ports.first + 1));
    Running::start(command, &folder).wait()
}

#[test]
fn status_of_free_locks() {
    let ports = Ports::take(2);
    let done = status(&ports, &["--check"]).expect(0);
    let done = done.says(&format!("workstation lock 127.0.0.1:{}: free", ports.first));
    let done = done.says(&format!("worktree lock 127.0.0.1:{} of /", ports.first + 1));
    if let Some(namespace) = xtask::sys::namespace("net") {
        done.says(&format!("in network namespace {namespace}"));
    }
}

#[test]
fn status_of_a_held_lock_says_all_there_is_and_takes_nothing() {
    let ports = Ports::take(2);
    let lock = Caller::new("ci", LONG).acquire(ports.first).expect("free");
    lock.say(|claim| (claim.done, claim.tasks) = (Some(9), Some(13)));
    let done = status(&ports, &[]).expect(0);
    for part in
        ["held since ", "ci, ", "acme/orders", "9 of 13 tasks done", "free at ", "at the latest", "nobody waits for it"]
    {
        has(&done.err, part);
    }
    has(&done.err, &format!("process  {} in pid:[", std::process::id()));
    status(&ports, &["--check"]).expect(4);
    let json = status(&ports, &["--message-format", "json", "--check"]).expect(4).out;
    let lines: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{json}");
    assert_eq!((&lines[0]["state"], &lines[1]["state"]), (&"held".into(), &"free".into()), "{json}");
    assert_eq!(lines[0]["holder"]["tasks"], 13, "{json}");
    assert_eq!(lines[0]["holder"]["waiting"], 0, "a look is no wait: {json}");
    assert!(lines[0]["holder"]["free_at_ms"].as_u64() > lines[0]["holder"]["since_ms"].as_u64(), "{json}");
    assert_eq!(lines[0]["port"], ports.first, "{json}");
}

#[test]
fn a_look_never_listens() {
    let ports = Ports::take(1);
    let port = ports.first;
    std::thread::scope(|scope| {
        // Whoever listens, if only for a moment, is connected to.
        let reached = scope.spawn(move || (0..20_000).filter(|_| TcpStream::connect(address(port)).is_ok()).count());
        while !reached.is_finished() {
            xtask::lock::status::look(Scope::Workstation, port).expect("no error");
        }
        assert_eq!(reached.join().expect("no panic"), 0);
    });
}

#[test]
fn status_of_a_stranger_and_of_a_stopped_holder() {
    let ports = Ports::take(2);
    let listener = TcpListener::bind(address(ports.first)).expect("free");
    stranger(listener, |mut connection| drop(connection.write_all(b"hello\n")));
    let done = status(&ports, &["--check"]).expect(5);
    has(&done.err, "is not xtask");
    status(&ports, &[]).expect(0);

    let ports = Ports::take(2);
    let mut holder = crate::lock_contender::Contender::holding(ports.first);
    holder.stop();
    let done = status(&ports, &["--check"]).expect(4);
    has(&done.err, "taken, but it does not answer");
    has(&done.err, &format!("stopped  {0}; to let it go on: kill -CONT {0}", holder.pid()));
    let json = status(&ports, &["--message-format", "json"]).expect(0).out;
    has(&json, "\"state\":\"unanswered\"");
    holder.kill();
}

#[test]
fn status_of_a_run_whose_keeper_is_gone_names_who_holds_on() {
    let ports = Ports::take(2);
    let mut holder = crate::lock_contender::Contender::holding(ports.first);
    holder.tell("runner");
    let runner = holder.hear("runner");
    holder.kill();
    let done = status(&ports, &["--check"]).expect(4);
    has(&done.err, &format!("process  {runner} sleep 1000"));
    has(&done.err, &format!("kill {runner}"));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(runner.parse().expect("a pid")),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("it lives");
}

#[test]
fn ports_inside_the_ephemeral_range_are_refused_with_the_remedy() {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).expect("the kernel says it");
    let (range, reserved) = (read("ip_local_port_range"), read("ip_local_reserved_ports"));
    let loose = |port: &u16| {
        let ports = xtask::lock::Ports { workstation: *port, worktrees: 1..=1 };
        ports.check(&range, &reserved).is_err()
    };
    let inside = (1024..=u16::MAX).find(loose).expect("a port for outgoing connections");
    let world = World::new("");
    let mut command = world.command(&["lock", "status"]);
    command.env("XTASK_LOCK_PORT", inside.to_string());
    let done = Running::start(command, &world.folder).wait().expect(2);
    let done = done.says(&format!("port {inside} lies in net.ipv4.ip_local_port_range"));
    done.says("sysctl -w net.ipv4.ip_local_reserved_ports=");
    let mut command = world.command(&["lock", "status"]);
    command.env("XTASK_LOCK_PORT", "http");
    Running::start(command, &world.folder).wait().expect(2).says("XTASK_LOCK_PORT=\"http\" is not of the form 28599");
}
