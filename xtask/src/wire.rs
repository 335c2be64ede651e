//! JSON, a line each, through a socket pair between two processes of a run: keeper and runner, runner and service host. It
//! knows nothing of what they say. Its end means that the other process is gone.

use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use serde::Serialize;

use crate::sys;
use crate::time::Moment;

/// Most bytes of a line that is waited for: one may carry the text of a suite.
const LINE_MAX: usize = 64 << 20;

/// One end.
#[derive(Debug)]
pub struct Wire {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Wire {
    /// One end, and the other for the process at it. Errors if the system has no pair of sockets.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::inherited(ours.into()), theirs.into()))
    }

    /// The end that was handed over by the process that started this one.
    pub fn inherited(fd: OwnedFd) -> Self {
        Self { stream: fd.into(), unread: Vec::new() }
    }

    /// From here on nothing waits for the other process. Errors if the system refuses.
    pub fn never_block(&self) -> io::Result<()> {
        self.stream.set_nonblocking(true)
    }

    /// Says it. Where nothing waits and there is no room, room is waited for, but not longer than `patience`. Errors if the
    /// other process is gone, or there was no room.
    pub fn say(&mut self, what: &impl Serialize, patience: Duration) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        let until = sys::now() + patience;
        let mut said = 0;
        while said < line.len() {
            match self.stream.write(&line[said..]) {
                Ok(count) => said += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && sys::now() < until => self.wait_for_room(until)?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn wait_for_room(&self, until: Moment) -> io::Result<()> {
        self.wait_for(PollFlags::POLLOUT, until)
    }

    /// Waits until there is something to hear, but not longer than a second. Errors if the system cannot wait.
    pub fn wait_for_words(&self) -> io::Result<()> {
        self.wait_for(PollFlags::POLLIN, sys::now() + Duration::from_secs(1))
    }

    fn wait_for(&self, what: PollFlags, until: Moment) -> io::Result<()> {
        let left = until.since(sys::now()).as_millis().min(1000);
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(self.as_fd(), what)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads what is there, once. False if the other process is gone. Errors if it cannot be heard.
    pub fn read(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 16 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(count) => {
                    self.unread.extend_from_slice(&chunk[..count]);
                    return Ok(count > 0);
                }
            }
        }
    }

    /// Reads all that has come, without waiting for more. False if the other process is gone. Errors if it cannot be heard.
    pub fn hear(&mut self) -> io::Result<bool> {
        loop {
            match self.read() {
                Ok(true) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                end => return end,
            }
        }
    }

    /// Takes the first whole line, without its end, off what was read.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        let end = self.unread.as_slice().read_until(b'\n', &mut line).ok()?;
        line.pop_if(|byte| *byte == b'\n')?;
        self.unread.drain(..end);
        Some(line)
    }

    /// Waits for a line, and reads nothing behind it: whoever then waits for this end is woken by what is on the way, not by
    /// what was read along. Gives what there is of a line where the other process is gone. Errors if it cannot be heard, or
    /// has no end.
    pub fn wait_for_line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(line) = self.line() {
                return Ok(line);
            }
            if self.unread.len() > LINE_MAX {
                return Err(io::Error::other("a line without an end"));
            }
            if !self.read_to_the_end_of_a_line()? {
                return Ok(std::mem::take(&mut self.unread));
            }
        }
    }

    fn read_to_the_end_of_a_line(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 16 << 10];
        let there = loop {
            match recv(self.stream.as_raw_fd(), &mut chunk, MsgFlags::MSG_PEEK) {
                Err(Errno::EINTR) => {}
                there => break there?,
            }
        };
        let end = (&chunk[..there]).skip_until(b'\n')?;
        self.stream.read_exact(&mut chunk[..end])?;
        self.unread.extend_from_slice(&chunk[..end]);
        Ok(end > 0)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
