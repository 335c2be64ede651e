//! A client of a lock made by hand, and what it can see of the holder: its line, its hang-up, whether it spins, whether the
//! port is free.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use xtask::lock::port;

use crate::world::PATIENCE;

pub fn address(port: u16) -> SocketAddrV4 {
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

/// A client that waits, by its own words; it has not read what it was told.
pub fn asks(port: u16, run: &str, waited_us: u64) -> TcpStream {
    let mut client = connect(port);
    let line = format!("xtask-wait/1 {{\"waited_us\":{waited_us},\"run\":\"{run}\"}}\n");
    client.write_all(line.as_bytes()).expect("written");
    client
}

/// Waits for the end of the connection, however it comes.
#[track_caller]
pub fn hung_up(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    if let Err(e) = stream.read_to_end(&mut Vec::new()) {
        assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "nobody hangs up");
    }
}

/// Waits until one of them is hung up on, and says of each whether it is. The kernel looks at them in this order: it cannot
/// miss the hang-up of a later one and see that of an earlier one which came after it.
pub fn hung_up_on<const N: usize>(clients: [&TcpStream; N]) -> [bool; N] {
    let mut fds = clients.map(|client| PollFd::new(client.as_fd(), PollFlags::empty()));
    assert!(poll(&mut fds, PollTimeout::NONE).expect("it can be polled") > 0);
    fds.map(|fd| fd.any().unwrap_or(true))
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

pub fn is_busy(port: u16) -> bool {
    port::listen(port).expect("no error").is_none()
}

// At once, but for this: a child that another thread of the test program has just forked has a copy of every socket until
// it execs. What these tests are about, a connection that keeps the port, would last a minute.
#[track_caller]
pub fn assert_free(port: u16) {
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
