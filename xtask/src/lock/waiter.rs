//! The hands of the wait: they listen, connect, read and sleep as `wait` says, and tell it what they saw.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Socket, Type};

use crate::clean::visible;
use crate::lock::banner::{Asking, BANNER_MAX, Claim, PREFIX};
use crate::lock::port::{self, address};
use crate::lock::sockets;
use crate::lock::wait::{Accepted, Seen, Step};
use crate::sys;
use crate::time::Moment;
use crate::verdict::Stop;

/// How a process is asked to stop, whoever catches the signals.
#[derive(Clone, Copy)]
pub struct StopAsked<'a> {
    /// Readable from the moment when a stop was asked for.
    pub fd: BorrowedFd<'a>,
    /// Which, if one was asked for.
    pub which: &'a dyn Fn() -> Option<Stop>,
}

/// The hands: what they hold between two steps.
pub(super) struct Hands<'a> {
    port: u16,
    // How to take the port, or only to see whether it could be taken.
    take: fn(u16) -> io::Result<Option<Socket>>,
    // What to tell a holder; nothing if one only looks.
    asking: Option<&'a dyn Fn(Moment) -> Asking>,
    stop: StopAsked<'a>,
    line: Option<Line>,
    won: Option<Socket>,
}

impl<'a> Hands<'a> {
    /// Hands for a waiter, which says of itself what `asking` says.
    pub(super) fn of_waiter(port: u16, asking: &'a dyn Fn(Moment) -> Asking, stop: StopAsked<'a>) -> Self {
        Self { port, take: port::listen, asking: Some(asking), stop, line: None, won: None }
    }

    /// Hands for somebody who only looks, and never takes the lock.
    pub(super) fn of_onlooker(port: u16, stop: StopAsked<'a>) -> Self {
        Self { port, take: port::probe, asking: None, stop, line: None, won: None }
    }

    /// What was won.
    pub(super) fn won(self) -> Option<Socket> {
        self.won
    }

    /// Does one step and says what came of it. Errors if the port cannot be listened on, for another reason than that it
    /// is in use.
    pub(super) fn perform(&mut self, step: &Step) -> io::Result<Seen> {
        Ok(match *step {
            Step::Try => match (self.take)(self.port)? {
                Some(socket) => {
                    self.won = Some(socket);
                    Seen::Won
                }
                None => Seen::Busy,
            },
            Step::Connect(until) => {
                let (seen, line) = connect(self.port, until, self.stop);
                self.line = line;
                seen
            }
            Step::Hear(until) => {
                let line = self.line.as_mut().expect("one hears only what is connected");
                let seen = line.hear(until, self.stop);
                match (&seen, self.asking) {
                    // If it cannot be told, it does not know our age: no more than that.
                    (Seen::Banner(_), Some(asking)) => drop(line.socket.send(&asking(sys::now()).line())),
                    (Seen::HungUp { .. }, _) => self.line = None,
                    _ => {}
                }
                seen
            }
            Step::Pause(until) => {
                self.line = None;
                sleep(until, self.stop, None);
                Seen::Passed
            }
            Step::Keep | Step::Fail(_) => unreachable!("nothing is left to do"),
        })
    }
}

// A connection to whoever has the port.
struct Line {
    socket: Socket,
    port: u16,
    mine: u16,
    got: Vec<u8>,
    greeted: bool,
    // The other side has reset it, and the kernel has told that once already.
    reset: bool,
}

fn connect(port: u16, until: Moment, stop: StopAsked) -> (Seen, Option<Line>) {
    let begin = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // A waiter that asks again and again leaves no closed connections behind.
        socket.set_linger(Some(Duration::ZERO))?;
        match socket.connect(&address(port).into()) {
            Err(e) if e.raw_os_error() == Some(nix::libc::EINPROGRESS) => Ok((socket, false)),
            other => other.map(|()| (socket, true)),
        }
    };
    let no_answer = |e: io::Error| match e.kind() {
        io::ErrorKind::ConnectionRefused => Seen::Refused,
        _ => Seen::NoAnswer(e.to_string()),
    };
    let (socket, reset) = match begin() {
        Ok((socket, true)) => (socket, false),
        Ok((socket, false)) => {
            if !sleep(until, stop, Some((socket.as_fd(), PollFlags::POLLOUT))) {
                return (Seen::NoAnswer("its queue of connections is full".to_owned()), None);
            }
            match socket.take_error() {
                Ok(None) => (socket, false),
                // It was there, so somebody listens; a banner may have come with it. That is how a holder with too many
                // waiters looks to the next one, and how one that dies looks to whom it had not yet accepted.
                Ok(Some(e)) if e.kind() == io::ErrorKind::ConnectionReset => (socket, true),
                Ok(Some(e)) | Err(e) => return (no_answer(e), None),
            }
        }
        Err(e) => return (no_answer(e), None),
    };
    let ports = |end: io::Result<socket2::SockAddr>| end.ok().and_then(|end| Some(end.as_socket_ipv4()?.port()));
    match (ports(socket.local_addr()), ports(socket.peer_addr())) {
        // On a free port of the ephemeral range a connection can reach itself: nobody listens.
        (Some(mine), Some(theirs)) if mine == theirs => (Seen::Refused, None),
        (mine, _) => {
            let mine = mine.unwrap_or_default();
            (Seen::Connected, Some(Line { socket, port, mine, got: Vec::new(), greeted: false, reset }))
        }
    }
}

impl Line {
    fn hear(&mut self, until: Moment, stop: StopAsked) -> Seen {
        let mut buffer = [0; 1024];
        loop {
            match nix::unistd::read(self.socket.as_fd(), &mut buffer) {
                Ok(count @ 1..) => {
                    self.got.extend(&buffer[..count]);
                    // A holder has said its line; one that goes on talking is left, and asked again later.
                    if self.greeted && self.got.len() > BANNER_MAX {
                        return Seen::HungUp { reset: true };
                    }
                    if let (false, Some(seen)) = (self.greeted, self.understood()) {
                        return seen;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    if !sleep(until, stop, Some((self.socket.as_fd(), PollFlags::POLLIN))) {
                        return self.whole_line().unwrap_or_else(|| self.stalled());
                    }
                }
                end => return self.ended(end.is_err() || self.reset),
            }
        }
    }

    // What has come so far, once it says who is there.
    fn understood(&mut self) -> Option<Seen> {
        let common = self.got.len().min(PREFIX.len());
        if self.got[..common] != PREFIX[..common] {
            return Some(self.bytes());
        }
        let whole = self.got.contains(&b'\n') || self.got.len() >= BANNER_MAX;
        if whole { self.whole_line() } else { None }
    }

    fn whole_line(&mut self) -> Option<Seen> {
        let end = self.got.iter().position(|&byte| byte == b'\n').unwrap_or(self.got.len());
        let claim = Claim::read(&self.got[..end.min(BANNER_MAX)])?;
        self.greeted = true;
        self.got = Vec::new();
        Some(Seen::Banner(Box::new(claim)))
    }

    fn ended(&mut self, reset: bool) -> Seen {
        if self.got.is_empty() || self.greeted {
            return Seen::HungUp { reset };
        }
        // Half a line of a holder is a holder that died; the next read says so again.
        self.whole_line().unwrap_or_else(|| self.bytes())
    }

    fn bytes(&self) -> Seen {
        let text = String::from_utf8_lossy(&self.got[..self.got.len().min(80)]).into_owned();
        Seen::Bytes(visible(text.lines().next().unwrap_or_default(), 80))
    }

    // A holder says its line at once, so part of its beginning is the word of somebody else.
    fn stalled(&self) -> Seen {
        if self.got.is_empty() || self.greeted { self.quiet() } else { self.bytes() }
    }

    fn quiet(&self) -> Seen {
        Seen::Quiet(if self.greeted { Accepted::Yes } else { sockets::accepted(self.port, self.mine) })
    }
}

// Sleeps until then, until a stop is asked for, or until the descriptor is ready; whether it was the last.
fn sleep(until: Moment, stop: StopAsked, what: Option<(BorrowedFd, PollFlags)>) -> bool {
    loop {
        let left = until.since(sys::now());
        // Whole milliseconds, rounded up: rounded down it would spin through the last one.
        let ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut fds = vec![PollFd::new(stop.fd, PollFlags::POLLIN)];
        fds.extend(what.map(|(fd, flags)| PollFd::new(fd, flags)));
        let seen = poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)).is_ok();
        let ready = |at: usize| seen && fds.get(at).is_some_and(|fd| fd.any().unwrap_or(true));
        if ready(1) {
            return true;
        }
        if ready(0) || left.is_zero() {
            return false;
        }
    }
}
