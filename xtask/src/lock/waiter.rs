//! The hands of the wait: they listen, connect, read and sleep as `wait` says, and tell it what they saw.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Socket, Type};

use crate::lock::banner::{Asking, BANNER_MAX, Claim, PREFIX, clean};
use crate::lock::port::{address, listen};
use crate::lock::stranger;
use crate::lock::wait::{Accepted, Failure, News, Seen, Step, Wait};
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

/// How a wait ended.
pub(super) enum Ended {
    /// With the lock.
    Won(Socket),
    /// Without it.
    Failed(Failure),
    /// The port cannot be listened on, for this reason.
    Error(io::Error),
}

/// Waits for `port` as `wait` decides.
pub(super) fn drive(
    wait: &mut Wait,
    port: u16,
    asking: &dyn Fn(Moment) -> Asking,
    stop: StopAsked,
    tell: &mut dyn FnMut(&Wait, &News),
) -> Ended {
    let mut line: Option<Line> = None;
    let mut won = None;
    let mut step = Step::Try;
    loop {
        let seen = match step {
            Step::Keep => return Ended::Won(won.expect("nothing else is kept")),
            // What was won is closed here, and nobody else's.
            Step::Fail(failure) => return Ended::Failed(failure),
            Step::Try => match listen(port) {
                Ok(Some(socket)) => {
                    won = Some(socket);
                    Seen::Won
                }
                Ok(None) => Seen::Busy,
                Err(error) => return Ended::Error(error),
            },
            Step::Connect(until) => {
                let (seen, new) = connect(port, until, stop);
                line = new;
                seen
            }
            Step::Hear(until) => {
                let Some(heard) = line.as_mut() else { unreachable!("only a connection is listened to") };
                let seen = heard.hear(until, stop);
                match &seen {
                    // If it cannot be told, it does not know our age: no more than that.
                    Seen::Banner(_) => drop(heard.socket.send(&asking(sys::now()).line())),
                    Seen::HungUp { .. } => line = None,
                    _ => {}
                }
                seen
            }
            Step::Pause(until) => {
                line = None;
                sleep(until, stop, None);
                Seen::Passed
            }
        };
        let (next, news) = wait.on(sys::now(), (stop.which)(), seen);
        step = next;
        if let Some(news) = news {
            tell(wait, &news);
        }
    }
}

// A connection to whoever has the port.
struct Line {
    socket: Socket,
    port: u16,
    mine: u16,
    got: Vec<u8>,
    greeted: bool,
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
    let refused = |e: &io::Error| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset);
    let no_answer = |e: io::Error| if refused(&e) { Seen::Refused } else { Seen::NoAnswer(e.to_string()) };
    let socket = match begin() {
        Ok((socket, true)) => socket,
        Ok((socket, false)) => {
            if !sleep(until, stop, Some((socket.as_fd(), PollFlags::POLLOUT))) {
                return (Seen::NoAnswer("its queue of connections is full".to_owned()), None);
            }
            match socket.take_error() {
                Ok(None) => socket,
                Ok(Some(e)) | Err(e) => return (no_answer(e), None),
            }
        }
        Err(e) => return (no_answer(e), None),
    };
    let ports = |end: io::Result<socket2::SockAddr>| end.ok().and_then(|end| Some(end.as_socket_ipv4()?.port()));
    match (ports(socket.local_addr()), ports(socket.peer_addr())) {
        // On a free port of the ephemeral range a connection can reach itself: nobody listens.
        (Some(mine), Some(theirs)) if mine == theirs => (Seen::Refused, None),
        (Some(mine), Some(_)) => (Seen::Connected, Some(Line { socket, port, mine, got: Vec::new(), greeted: false })),
        // It was closed before it could be looked at.
        _ => (Seen::NoAnswer("the connection was closed at once".to_owned()), None),
    }
}

impl Line {
    fn hear(&mut self, until: Moment, stop: StopAsked) -> Seen {
        let mut buffer = [0; 1024];
        loop {
            match nix::unistd::read(self.socket.as_fd(), &mut buffer) {
                Ok(count) if count > 0 => {
                    self.got.extend(&buffer[..count]);
                    // A holder has said its line; one that goes on talking is left, and asked again later.
                    if self.greeted && self.got.len() > BANNER_MAX {
                        return Seen::HungUp { reset: true };
                    }
                    if let (false, Some(seen)) = (self.greeted, self.understood()) {
                        return seen;
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => {
                    if !sleep(until, stop, Some((self.socket.as_fd(), PollFlags::POLLIN))) {
                        return self.whole_line().unwrap_or_else(|| self.quiet());
                    }
                }
                end => return self.ended(end.is_err()),
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
        Seen::Bytes(clean(text.lines().next().unwrap_or_default(), 80))
    }

    fn quiet(&self) -> Seen {
        Seen::Quiet(if self.greeted { Accepted::Yes } else { stranger::accepted(self.port, self.mine) })
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
        if seen && fds.get(1).is_some_and(|fd| fd.any().unwrap_or(true)) {
            return true;
        }
        if (seen && fds[0].any().unwrap_or(true)) || left.is_zero() {
            return false;
        }
    }
}
