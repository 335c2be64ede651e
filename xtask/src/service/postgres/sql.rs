//! Just enough of PostgreSQL's protocol to send SQL through a unix socket and to say where it went wrong. No `psql` is
//! needed, which server packages leave out, and no process is started for a query.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The most bytes of one message that are believed.
const MESSAGE_MAX: usize = 256 << 20;

/// A session of the superuser `postgres`, whom the socket's `trust` lets in.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Stream>,
}

// What waits for the server only so long, and only while the line is not hung up.
#[derive(Debug)]
struct Stream {
    socket: UnixStream,
    patience: Duration,
    line: Option<OwnedFd>,
}

/// What came of SQL that succeeded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The first column of every row, as text; empty for NULL.
    pub rows: Vec<String>,
    /// Whether a transaction was begun and neither committed nor rolled back.
    pub open_transaction: bool,
}

/// What the server says of SQL that failed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SqlError {
    /// The message, without severity.
    pub message: String,
    /// SQLSTATE.
    pub code: String,
    /// More about it, and what the server suggests.
    pub detail: Vec<String>,
    /// Where in the text, in characters from 1, if the server knows.
    pub position: Option<usize>,
    /// How many statements of the text had succeeded before.
    pub done: usize,
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)?;
        self.detail.iter().try_for_each(|line| write!(f, "; {line}"))
    }
}

impl std::error::Error for SqlError {}

impl Connection {
    /// Logs in through the socket at `path`. No answer of the server may take longer than `patience`, a day at most, and
    /// none is waited for once the other end of `line` is closed. Errors if nobody listens there, and with the server's
    /// own words (`SqlError`) if it refuses.
    pub fn open(path: &Path, database: &str, patience: Duration, line: Option<OwnedFd>) -> anyhow::Result<Self> {
        let socket = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
        socket.set_nonblocking(true)?;
        let mut body = 196_608_u32.to_be_bytes().to_vec(); // version 3.0 of the protocol
        for text in ["user", "postgres", "database", database, "application_name", "xtask", "client_encoding", "UTF8"] {
            body.extend(text.as_bytes());
            body.push(0);
        }
        body.push(0);
        let mut connection = Self { stream: BufReader::new(Stream { socket, patience, line }) };
        connection.send(None, &body)?;
        connection.answer()?;
        Ok(connection)
    }

    /// Sends SQL, as many statements as you like, in one piece: unless it says otherwise it is one transaction. Errors
    /// with an `SqlError` where the server refuses it, with others where the connection is lost or the patience over.
    pub fn run(&mut self, sql: &str) -> anyhow::Result<Answer> {
        if sql.contains('\0') {
            anyhow::bail!("a zero byte is not SQL");
        }
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        self.send(Some(b'Q'), &body)?;
        self.answer()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len() + 4).map_err(|_| io::Error::other("more than 4 GiB of SQL"))?;
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend(length.to_be_bytes());
        message.extend(body);
        self.stream.get_mut().write_all(&message)
    }

    // Everything up to "ready for the next query".
    fn answer(&mut self) -> anyhow::Result<Answer> {
        let (mut answer, mut error, mut done) = (Answer::default(), None::<SqlError>, 0);
        loop {
            let (kind, body) = match self.receive() {
                Ok(message) => message,
                // A refused login, or a server that is stopped, says why and hangs up.
                Err(e) => return Err(error.map_or_else(|| e.into(), anyhow::Error::from)),
            };
            match kind {
                b'Z' => {
                    answer.open_transaction = body != b"I";
                    return error.map_or(Ok(answer), |error| Err(error.into()));
                }
                b'E' if error.is_none() => error = Some(parse_error(&body, done)),
                b'C' => done += 1,
                b'D' => answer.rows.push(first_column(&body)),
                b'R' if body != [0; 4] => anyhow::bail!("the server asks for a password on its socket"),
                // COPY … FROM stdin: there is nothing to give. The server answers with an error.
                b'G' => self.send(Some(b'f'), b"COPY FROM stdin needs data that only psql can give\0")?,
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if !(4..MESSAGE_MAX).contains(&length) {
            return Err(io::Error::other("what answers is no PostgreSQL server"));
        }
        let mut body = vec![0; length - 4];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

impl AsFd for Connection {
    /// Readable, between queries, means that the server has ended the session.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().socket.as_fd()
    }
}

impl Stream {
    // Does it as soon as it can be done.
    fn once_ready(
        &mut self,
        event: PollFlags,
        mut act: impl FnMut(&mut UnixStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let timeout = PollTimeout::try_from(self.patience).map_err(io::Error::other)?;
        loop {
            match act(&mut self.socket) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                done => return done,
            }
            let mut fds = vec![PollFd::new(self.socket.as_fd(), event)];
            // No event is asked for: a hang-up is always told.
            fds.extend(self.line.as_ref().map(|line| PollFd::new(line.as_fd(), PollFlags::empty())));
            match poll(&mut fds, timeout) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
                Ok(_) if fds.get(1).and_then(PollFd::any).unwrap_or(false) => {
                    return Err(io::Error::other("the run is over"));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.once_ready(PollFlags::POLLIN, |socket| socket.read(buffer))
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.once_ready(PollFlags::POLLOUT, |socket| socket.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// Fields of an ErrorResponse: a letter and a text each, which a zero byte ends.
fn parse_error(body: &[u8], done: usize) -> SqlError {
    let mut error = SqlError { done, ..SqlError::default() };
    for field in body.split(|&b| b == 0).filter(|field| !field.is_empty()) {
        let text = String::from_utf8_lossy(&field[1..]).into_owned();
        match field[0] {
            b'M' => error.message = text,
            b'C' => error.code = text,
            b'D' | b'H' => error.detail.push(text.replace('\n', " ")),
            b'W' => error.detail.push(format!("in {}", text.replace('\n', ", "))),
            b'P' => error.position = text.parse().ok(),
            _ => {}
        }
    }
    error
}

// A DataRow: the number of columns (2 bytes), then length (4 bytes, -1 for NULL) and bytes of each.
fn first_column(body: &[u8]) -> String {
    let length = body.get(2..6).map_or(-1, |b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let end = usize::try_from(length).map_or(6, |length| 6 + length);
    String::from_utf8_lossy(body.get(6..end).unwrap_or_default()).into_owned()
}

/// Whether an error says nothing of the SQL, but that the session is lost: no answer, or that the server shuts down or
/// has crashed (SQLSTATE 57P01 to 57P03).
pub fn is_lost(error: &anyhow::Error) -> bool {
    error.downcast_ref::<SqlError>().is_none_or(|error| error.code.starts_with("57P"))
}

/// The line of `sql`, from 1, that this error is about: the position where the server gives one (errors of syntax and
/// of names), else the beginning of the statement that failed.
pub fn line_of(sql: &str, error: &SqlError) -> usize {
    let at = match error.position {
        Some(position) => sql.char_indices().nth(position.saturating_sub(1)).map_or(sql.len(), |(at, _)| at),
        None => statements(sql).get(error.done).copied().unwrap_or(sql.len()),
    };
    1 + sql.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count()
}

// Where each statement of `sql` begins, in bytes. It knows strings, quoted names, dollar quotes, comments,
// parentheses (rules hold statements in them) and the bodies of SQL functions (BEGIN ATOMIC … END). Only messages
// depend on it: the server itself takes the text apart.
fn statements(sql: &str) -> Vec<usize> {
    let bytes = sql.as_bytes();
    let (mut starts, mut inside, mut depth, mut blocks, mut last, mut at) = (Vec::new(), false, 0_i32, 0_i32, "", 0);
    while at < bytes.len() {
        let rest = &sql[at..];
        let first = bytes[at];
        let blank = first.is_ascii_whitespace();
        let comment = rest.starts_with("--") || rest.starts_with("/*");
        if !inside && !blank && !comment && first != b';' {
            inside = true;
            starts.push(at);
        }
        let word = rest.len() - rest.trim_start_matches(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$')).len();
        at += match first {
            b'-' if comment => rest.find('\n').unwrap_or(rest.len()),
            b'/' if comment => nested_comment(rest),
            b'\'' | b'"' => quoted(rest, first, first == b'\'' && last.eq_ignore_ascii_case("e")),
            b'$' => dollar_quoted(rest),
            _ if word > 0 => word,
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        match first {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b';' if depth <= 0 && blocks <= 0 => (inside, depth, blocks) = (false, 0, 0),
            _ => {}
        }
        if word > 0 {
            let now = &rest[..word];
            let is = |text| now.eq_ignore_ascii_case(text);
            blocks += i32::from(is("atomic") && last.eq_ignore_ascii_case("begin"));
            blocks += i32::from(blocks > 0 && is("case")) - i32::from(blocks > 0 && is("end"));
            last = now;
        } else if !blank {
            last = "";
        }
    }
    starts
}

fn nested_comment(rest: &str) -> usize {
    let (mut open, mut at) = (0, 0);
    while at < rest.len() {
        match rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (open, at) = (open + 1, at + 2),
            [b'*', b'/', ..] => (open, at) = (open - 1, at + 2),
            _ => at += 1,
        }
        if open == 0 {
            return at;
        }
    }
    rest.len()
}

// A doubled quote is two strings side by side for us. Only E'…' knows the backslash.
fn quoted(rest: &str, quote: u8, backslash: bool) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if backslash && bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn dollar_quoted(rest: &str) -> usize {
    let tag = rest[1..].find('$').map(|end| &rest[..end + 2]);
    let is_name = |tag: &str| tag[1..tag.len() - 1].chars().all(|c| c.is_alphanumeric() || c == '_');
    match tag.filter(|tag| is_name(tag) && !tag[1..].starts_with(|c: char| c.is_ascii_digit())) {
        Some(tag) => rest[tag.len()..].find(tag).map_or(rest.len(), |end| end + 2 * tag.len()),
        None => 1, // a parameter such as $1
    }
}
