//! Which ports are the locks, and the one way to take one: listen on it.

use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use socket2::{Domain, Socket, Type};

/// The ports of this machine's locks: of the machine, not of a suite, which could otherwise move itself out of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// The workstation's port.
    pub workstation: u16,
    /// The ports that folders share.
    pub worktrees: RangeInclusive<u16>,
}

impl Default for Ports {
    fn default() -> Self {
        Self { workstation: 28599, worktrees: 28600..=29599 }
    }
}

/// Why there are no ports to use. All are wrong use (exit 2); the text says what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortError {
    /// A variable has no port, or no range of ports, in it.
    Unreadable {
        /// The variable.
        variable: &'static str,
        /// What it says.
        text: String,
    },
    /// The workstation's port is one of the worktrees' ports.
    Overlap(Ports),
    /// The kernel may give this port to any outgoing connection.
    Ephemeral {
        /// The first such port.
        port: u16,
        /// The ports that need to be reserved.
        ports: Ports,
        /// What is reserved already, as the kernel writes it.
        reserved: String,
    },
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { variable, text } => {
                let example = if *variable == PORT_VARIABLE { "28599" } else { "28600-29599" };
                write!(f, "{variable}={text:?} is not of the form {example}")
            }
            Self::Overlap(ports) => write!(
                f,
                "{PORT_VARIABLE}={} is one of {RANGE_VARIABLE}={}-{}; the two locks need ports of their own",
                ports.workstation,
                ports.worktrees.start(),
                ports.worktrees.end()
            ),
            Self::Ephemeral { port, ports, reserved } => {
                let (first, last) = (ports.worktrees.start(), ports.worktrees.end());
                let ours = match ports.workstation.checked_add(1) {
                    Some(next) if next == *first => format!("{}-{last}", ports.workstation),
                    _ => format!("{},{first}-{last}", ports.workstation),
                };
                let all = if reserved.is_empty() { ours } else { format!("{reserved},{ours}") };
                write!(
                    f,
                    "port {port} lies in net.ipv4.ip_local_port_range, so any outgoing connection could take the lock; \
                     reserve it: sysctl -w net.ipv4.ip_local_reserved_ports={all}  (and in /etc/sysctl.d to keep it)"
                )
            }
        }
    }
}

impl std::error::Error for PortError {}

const PORT_VARIABLE: &str = "XTASK_LOCK_PORT";
const RANGE_VARIABLE: &str = "XTASK_WORKTREE_PORTS";

impl Ports {
    /// The ports that hold for this process: the machine's, unless `XTASK_LOCK_PORT` or `XTASK_WORKTREE_PORTS`
    /// (first-last) move them; and the kernel must not hand them out to others. Errors say what to change.
    pub fn from_env() -> Result<Self, PortError> {
        let variable = |name| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
        let kernel = |name| fs::read_to_string(Path::new("/proc/sys/net/ipv4").join(name)).unwrap_or_default();
        let ports = Self::parse(variable(PORT_VARIABLE).as_deref(), variable(RANGE_VARIABLE).as_deref())?;
        ports.check(&kernel("ip_local_port_range"), &kernel("ip_local_reserved_ports"))?;
        Ok(ports)
    }

    /// From the texts of `XTASK_LOCK_PORT` and `XTASK_WORKTREE_PORTS`, where they are set. Errors if one of them is no
    /// port or range, or they overlap.
    pub fn parse(port: Option<&str>, range: Option<&str>) -> Result<Self, PortError> {
        let mut ports = Self::default();
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|&port| port != 0);
        if let Some(text) = port {
            let wrong = || PortError::Unreadable { variable: PORT_VARIABLE, text: text.to_owned() };
            ports.workstation = number(text).ok_or_else(wrong)?;
        }
        if let Some(text) = range {
            let wrong = || PortError::Unreadable { variable: RANGE_VARIABLE, text: text.to_owned() };
            let (first, last) = text.split_once('-').ok_or_else(wrong)?;
            ports.worktrees = match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => first..=last,
                _ => return Err(wrong()),
            };
        }
        if ports.worktrees.contains(&ports.workstation) {
            return Err(PortError::Overlap(ports));
        }
        Ok(ports)
    }

    /// Refuses ports of the ephemeral range that are not reserved. `range` is the text of `ip_local_port_range`
    /// (`32768 60999`), `reserved` that of `ip_local_reserved_ports` (`8080,28599-29599`); an empty range checks nothing,
    /// as on systems that have no such files.
    pub fn check(&self, range: &str, reserved: &str) -> Result<(), PortError> {
        let mut bounds = range.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
        let (Some(low), Some(high)) = (bounds.next(), bounds.next()) else { return Ok(()) };
        let reserved = reserved.trim();
        let kept: Vec<(u16, u16)> = reserved
            .split(',')
            .filter_map(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
            })
            .collect();
        let loose = |port: &u16| {
            (low..=high).contains(port) && !kept.iter().any(|(first, last)| (first..=last).contains(&port))
        };
        match std::iter::once(self.workstation).chain(self.worktrees.clone()).find(loose) {
            Some(port) => Err(PortError::Ephemeral { port, ports: self.clone(), reserved: reserved.to_owned() }),
            None => Ok(()),
        }
    }

    /// The port of a folder, from what the file system calls it, so that every name of it (symbolic links, bind mounts,
    /// other mount namespaces) gives the same port. Errors if the folder cannot be looked at.
    pub fn worktree_for(&self, folder: &Path) -> io::Result<u16> {
        let data = fs::metadata(folder)?;
        Ok(self.worktree_of(data.dev(), data.ino()))
    }

    /// The port of the folder with this device and inode number. How it is derived is frozen: two versions of the
    /// program must agree on it.
    pub fn worktree_of(&self, device: u64, inode: u64) -> u16 {
        let digest = Sha256::new().chain_update(device.to_le_bytes()).chain_update(inode.to_le_bytes()).finalize();
        let head = u64::from_be_bytes(digest[..8].try_into().expect("eight of thirty-two"));
        let count = u64::from(*self.worktrees.end() - *self.worktrees.start()) + 1;
        self.worktrees.start() + u16::try_from(head % count).expect("less than the number of ports")
    }
}

/// Connections that may wait to be accepted. When it is full, a connect hangs, so it is generous.
const BACKLOG: i32 = 1024;

/// The literal address: other addresses of the loopback network do not conflict with it.
pub fn address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// Takes the lock if nobody has it. `Ok(None)` means busy; every error but "in use" is an error.
pub fn listen(port: u16) -> io::Result<Option<Socket>> {
    // Ours when `listen` returns, not `bind`: with SO_REUSEADDR two binds succeed and the second `listen` fails.
    let taken = bind(port).and_then(|socket| socket.listen(BACKLOG).map(|()| socket));
    unless_in_use(taken)
}

/// Sees whether the lock could be taken, without taking it: a socket that is bound so and does not listen keeps nobody
/// from binding and listening. `Ok(None)` means busy. Every error but "in use" is an error.
pub fn probe(port: u16) -> io::Result<Option<Socket>> {
    unless_in_use(bind(port))
}

fn bind(port: u16) -> io::Result<Socket> {
    // socket2 sets close-on-exec: a child that inherited the listener would hold the lock.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Without it a connection in TIME_WAIT blocks the port for a minute. It has to be set on both sides, so in every
    // version. SO_REUSEPORT must never be set: with it two sockets of one user both listen.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it: closing them sends a reset and leaves no state behind that could keep the port.
    socket.set_linger(Some(Duration::ZERO))?;
    // Nobody ever sleeps in accept: closing the listener would not wake it, and the lock would stay held.
    socket.set_nonblocking(true)?;
    socket.bind(&address(port).into())?;
    Ok(socket)
}

fn unless_in_use(taken: io::Result<Socket>) -> io::Result<Option<Socket>> {
    match taken {
        Ok(socket) => Ok(Some(socket)),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(e) => Err(e),
    }
}
