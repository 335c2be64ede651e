//! The socket pair between keeper and runner: what each tells the other, and the end of it when the other is gone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::order::{Message, Order};

/// Most bytes of a line. An order carries the suite's text.
const LINE_MAX: u64 = 64 << 20;

/// One end of the lifeline.
#[derive(Debug)]
pub struct Lifeline {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Lifeline {
    /// The two ends. Errors if the system has no pair of sockets.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        let end = |stream| Self { stream, pending: Vec::new() };
        Ok((end(one), end(other)))
    }

    /// The end that was handed over by the process that started this one.
    pub fn inherited(fd: OwnedFd) -> Self {
        Self { stream: UnixStream::from(fd), pending: Vec::new() }
    }

    /// Keeper's side: gives the order. Errors if the runner is gone already.
    pub fn give(&mut self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.stream.write_all(&line)?;
        self.stream.set_nonblocking(true)
    }

    /// Runner's side: waits for the order. Errors if the keeper is gone or speaks another language.
    pub fn take(&mut self) -> io::Result<Order> {
        let mut reader = BufReader::new((&self.stream).take(LINE_MAX));
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line)?;
        self.pending = reader.buffer().to_vec();
        self.stream.set_nonblocking(true)?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Tells the other end. That it is gone shows in `receive`; a message that finds no room is not worth waiting for.
    pub fn send(&mut self, message: Message) {
        if let Ok(mut line) = serde_json::to_vec(&message) {
            line.push(b'\n');
            let _ = self.stream.write_all(&line);
        }
    }

    /// What has come since the last call, and whether the other end is gone. Never blocks once the order was given.
    pub fn receive(&mut self) -> (Vec<Message>, bool) {
        let mut gone = false;
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => gone = true,
                Ok(count) => {
                    self.pending.extend_from_slice(&buffer[..count]);
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => gone |= e.kind() != io::ErrorKind::WouldBlock,
            }
            break;
        }
        let whole = self.pending.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.pending.drain(..whole).collect();
        let messages = lines.split(|&b| b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        (messages, gone)
    }
}

impl AsFd for Lifeline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
