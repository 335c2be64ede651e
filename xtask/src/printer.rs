//! What this process prints. A thread of its own writes it, because a terminal that was stopped (Ctrl-S) and a pipe that
//! nobody empties (`| less`) take no more and say nothing: whoever holds a lock must not wait for them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::write;

/// Where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Data.
    Stdout,
    /// Words for people.
    Stderr,
}

/// So many bytes wait to be written before whoever prints more has to wait for its turn.
const ROOM: usize = 1 << 20;

/// Where nothing was written for so long, nobody reads, and what is oldest makes room.
const PATIENCE: Duration = Duration::from_secs(1);

/// Written in one go; pipes take so much at once or not at all.
const PIECE: usize = 4096;

#[derive(Default)]
struct State {
    queue: VecDeque<(To, Vec<u8>)>,
    // What the thread is writing now, and how much of it is written.
    writing: Option<(To, Vec<u8>, usize)>,
    bytes: usize,
    // When a piece was last written.
    moved: Option<Instant>,
    stuck: bool,
    left_out: usize,
    closed: [bool; 2],
    // What became of data that could not be written, though its reader is there.
    lost: Option<String>,
    // The thread has nothing to write, and nobody has woken it yet. To wake somebody is a system call also where nobody sleeps.
    asleep: bool,
    // How many wait for room, or until all is written.
    waiting: usize,
    // No thread could be had: whoever prints writes by itself.
    alone: bool,
}

impl State {
    // A pipe whose reader has gone had as much as that wanted; a disk that is full has lost something.
    fn close(&mut self, to: To, error: Errno) {
        self.closed[to as usize] = true;
        if to == To::Stdout && error != Errno::EPIPE {
            self.lost.get_or_insert_with(|| format!("stdout cannot be written: {}", io::Error::from(error)));
        }
    }
}

#[derive(Default)]
struct Printer {
    state: Mutex<State>,
    // For the thread: there is something to write.
    wanted: Condvar,
    // For all others: something was written.
    changed: Condvar,
}

static PRINTER: OnceLock<Printer> = OnceLock::new();

impl Printer {
    // That somebody panicked while printing spoils nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
        state.waiting -= 1;
        state
    }

    fn tell(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    fn write_on(&self) {
        let mut state = self.state();
        loop {
            let Some((to, bytes)) = state.queue.pop_front() else {
                let left_out = std::mem::take(&mut state.left_out);
                if left_out > 0 {
                    let text = not_shown(left_out);
                    state.bytes += text.len();
                    state.queue.push_back((To::Stderr, text));
                    continue;
                }
                state.asleep = true;
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let size = bytes.len();
            state.writing = Some((to, bytes, 0));
            while let Some((to, bytes, done)) = &state.writing
                && *done < size
                && !state.closed[*to as usize]
            {
                let (to, piece) = (*to, bytes[*done..size.min(done + PIECE)].to_vec());
                drop(state);
                let written = write_some(to, &piece);
                state = self.state();
                match (written, &mut state.writing) {
                    (Ok(count), Some((_, _, done))) => *done += count,
                    // Nobody will read any more.
                    (Err(error), _) => state.close(to, error),
                    (Ok(_), None) => {}
                }
                (state.moved, state.stuck) = (Some(Instant::now()), false);
                self.tell(&state);
            }
            state.bytes = state.bytes.saturating_sub(size);
            state.writing = None;
            self.tell(&state);
        }
    }
}

fn not_shown(count: usize) -> Vec<u8> {
    format!("({count} texts are not shown, because nobody read them)\n").into_bytes()
}

fn write_some(to: To, piece: &[u8]) -> nix::Result<usize> {
    loop {
        let written = match to {
            To::Stdout => write(io::stdout(), piece),
            To::Stderr => write(io::stderr(), piece),
        };
        match written {
            Err(Errno::EINTR) => {}
            // Another program at the same terminal may have made it so.
            Err(Errno::EAGAIN) => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
}

fn printer() -> &'static Printer {
    static START: Once = Once::new();
    let printer = PRINTER.get_or_init(Printer::default);
    START.call_once(|| {
        let thread = std::thread::Builder::new().name("printer".to_owned()).spawn(|| printer.write_on());
        printer.state().alone = thread.is_err();
    });
    printer
}

/// Prints that, in order with everything else of this process. Blocks where a reader is slow, but not for one that has
/// stopped. That nobody reads it is no error: the run and its receipt matter more than the words about it.
pub fn print(to: To, text: impl Into<Vec<u8>>) {
    let printer = printer();
    let text = text.into();
    let mut state = printer.state();
    if text.is_empty() || state.closed[to as usize] {
        return;
    }
    if state.alone {
        let mut done = 0;
        while let Some(rest) = text.get(done..).filter(|rest| !rest.is_empty()) {
            match write_some(to, rest) {
                Ok(count) => done += count,
                Err(error) => return state.close(to, error),
            }
        }
        return;
    }
    let begun = Instant::now();
    while state.bytes > 0 && state.bytes + text.len() > ROOM {
        let moved = state.moved.map_or(begun, |moved| moved.max(begun));
        if state.stuck || moved.elapsed() >= PATIENCE {
            state.stuck = true;
            // The end of a run says more than what came before it: the oldest goes.
            let Some((_, oldest)) = state.queue.pop_front() else { break };
            state.bytes -= oldest.len();
            state.left_out += 1;
            continue;
        }
        state = printer.wait(state, PATIENCE);
    }
    state.bytes += text.len();
    state.queue.push_back((to, text));
    let asleep = std::mem::take(&mut state.asleep);
    drop(state);
    if asleep {
        printer.wanted.notify_one();
    }
}

/// Whether something waits to be written: then there is no use in drawing the same again.
pub fn is_behind() -> bool {
    PRINTER.get().is_some_and(|printer| printer.state().bytes > 0)
}

/// Waits until everything is written, for so long at most (none: for as long as it takes). True if it is.
pub fn settle(limit: Option<Duration>) -> bool {
    let Some(printer) = PRINTER.get() else { return true };
    let begun = Instant::now();
    let mut state = printer.state();
    loop {
        if state.bytes == 0 && state.left_out == 0 {
            return true;
        }
        let left = limit.map_or(PATIENCE, |limit| limit.saturating_sub(begun.elapsed()));
        if left.is_zero() {
            return false;
        }
        state = printer.wait(state, left);
    }
}

/// Why data that was to be written is lost, if it is: whoever asked for it does not know what came of it.
pub fn lost() -> Option<String> {
    PRINTER.get().and_then(|printer| printer.state().lost.clone())
}

/// Takes back what was not written yet, for somebody else to print: the last `most` bytes of it at most.
pub fn take_back(most: usize) -> Vec<(To, String)> {
    let Some(printer) = PRINTER.get() else { return Vec::new() };
    let mut state = printer.state();
    let writing = state.writing.take().map(|(to, bytes, done)| (to, bytes[done..].to_vec()));
    let mut left: Vec<(To, Vec<u8>)> = writing.into_iter().chain(std::mem::take(&mut state.queue)).collect();
    // Whatever the thread is stuck in is over with this process.
    let mut left_out = std::mem::take(&mut state.left_out);
    (state.bytes, state.closed) = (0, [true; 2]);
    let mut size: usize = left.iter().map(|(_, bytes)| bytes.len()).sum();
    while size > most && !left.is_empty() {
        size -= left.remove(0).1.len();
        left_out += 1;
    }
    if left_out > 0 {
        left.insert(0, (To::Stderr, not_shown(left_out)));
    }
    // As few as can be: thousands of little ones may find no room on their way.
    let mut rest: Vec<(To, Vec<u8>)> = Vec::new();
    for (to, bytes) in left {
        match rest.last_mut() {
            Some((last, all)) if *last == to => all.extend(bytes),
            _ => rest.push((to, bytes)),
        }
    }
    rest.into_iter().map(|(to, bytes)| (to, String::from_utf8_lossy(&bytes).into_owned())).collect()
}
