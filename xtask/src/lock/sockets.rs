//! Who has a port, by the kernel's own tables: whether our connection was accepted, and which program listens. Linux
//! only; elsewhere the tables are not there and nothing is known.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::clean::visible;
use crate::lock::wait::Accepted;

/// States of a connection in the kernel's tables, as numbers of `/proc/net/tcp`.
const ESTABLISHED: u8 = 1;
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

/// One row of `/proc/net/tcp` or `/proc/net/tcp6`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// This side.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// The state's number.
    pub state: u8,
    /// The user who made the socket.
    pub uid: u32,
    /// The socket; 0 while no program has it.
    pub inode: u64,
}

/// A process that has a socket open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its id, in this process's pid namespace.
    pub pid: i32,
    /// Its program's name.
    pub program: String,
    /// Its command line.
    pub command: String,
    /// Whether it is stopped.
    pub stopped: bool,
}

/// Whoever listens on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Where it listens.
    pub local: SocketAddr,
    /// Its user.
    pub uid: u32,
    /// The processes that have the socket, as far as they are visible from here.
    pub owners: Vec<Owner>,
}

/// The rows of a table's text. What is no row is left out.
pub fn rows(text: &str) -> Vec<Row> {
    text.lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(Row {
        local: address(words.get(1)?)?,
        remote: address(words.get(2)?)?,
        state: u8::from_str_radix(words.get(3)?, 16).ok()?,
        uid: words.get(7)?.parse().ok()?,
        inode: words.get(9)?.parse().ok()?,
    })
}

// `0100007F:6FB7`: the address as the kernel's words printed in hex, so in the machine's own byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let words: Vec<u32> = (0..host.len() / 8)
        .map(|i| u32::from_str_radix(host.get(i * 8..i * 8 + 8)?, 16).ok())
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn table() -> Option<Vec<Row>> {
    let four = fs::read_to_string("/proc/net/tcp").ok()?;
    let six = fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
    Some(rows(&four).into_iter().chain(rows(&six)).collect())
}

fn reaches(row: &Row, port: u16) -> bool {
    row.state == LISTEN && row.local.port() == port && is_ours(row.local.ip())
}

fn is_ours(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip == IpAddr::V4(Ipv4Addr::LOCALHOST)
}

/// Whether the program at `port` has accepted the connection that comes from our port `mine`.
pub fn accepted(port: u16, mine: u16) -> Accepted {
    table().map_or(Accepted::Unknown, |table| accepted_by(&table, port, mine))
}

/// The same by a table.
pub fn accepted_by(table: &[Row], port: u16, mine: u16) -> Accepted {
    let theirs = |row: &&Row| row.state != LISTEN && row.local.port() == port && row.remote.port() == mine;
    match table.iter().find(theirs) {
        Some(row) if row.inode != 0 => Accepted::Yes,
        Some(_) => Accepted::No,
        None if table.iter().any(|row| reaches(row, port)) => Accepted::Unknown,
        None => Accepted::Nowhere,
    }
}

/// Whoever listens on that port so that 127.0.0.1 reaches it.
pub fn listener(port: u16) -> Option<Listener> {
    let table = table()?;
    let row = table.iter().filter(|row| reaches(row, port)).min_by_key(|row| row.local.ip().is_unspecified())?;
    Some(Listener { local: row.local, uid: row.uid, owners: owners(row.inode) })
}

// The processes with this socket open, as far as this one may look.
fn owners(inode: u64) -> Vec<Owner> {
    let link = format!("socket:[{inode}]");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|fds| {
            fds.filter_map(Result::ok)
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == link.as_str()))
        })
    };
    let mut found: Vec<Owner> = pids
        .filter(has)
        .map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name stands in brackets and may contain any.
            let name = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
            let (program, rest) = name.unwrap_or(("?", ""));
            let stopped = rest.trim_start().starts_with(['T', 't']);
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
            Owner { pid, program: visible(program, 32), command: visible(&command, 160), stopped }
        })
        .collect();
    found.sort_by_key(|owner| owner.pid);
    found
}

/// What takes the port although nobody listens on it, as far as it can be seen.
pub fn taken_by(port: u16) -> String {
    match connection(&table().unwrap_or_default(), port) {
        Some(row) => keeps(row, |row| names(&owners(row.inode), row.uid)),
        None => {
            let who = bound(port).map(|(inode, uid)| format!(": {}", names(&owners(inode), uid)));
            format!("a program has bound it and does not listen{}", who.unwrap_or_default())
        }
    }
}

/// The connection, or what is left of one, whose own port this is: of several the liveliest.
pub fn connection(table: &[Row], port: u16) -> Option<&Row> {
    let here = |row: &&Row| row.state != LISTEN && row.local.port() == port;
    table.iter().filter(here).min_by_key(|row| row.state)
}

/// How a connection keeps the port, for people; `who` says whose it is.
pub fn keeps(row: &Row, who: impl FnOnce(&Row) -> String) -> String {
    match row.state {
        ESTABLISHED if row.inode != 0 => {
            format!("a connection to {} uses it as its own port: {}", row.remote, who(row))
        }
        TIME_WAIT => format!("a closed connection to {} keeps it for up to a minute (TIME_WAIT)", row.remote),
        _ => format!("the rest of a connection to {} keeps it", row.remote),
    }
}

// The socket that is bound to the port and does nothing else: its inode and user. No file of /proc has it; the kernel
// tells it over netlink alone, since Linux 6.8.
#[cfg(target_os = "linux")]
fn bound(port: u16) -> Option<(u64, u32)> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
    use nix::unistd::{read, write};
    // Numbers of linux/netlink.h, sock_diag.h and inet_diag.h.
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const REQUEST_DUMP: u16 = 0x301;
    const BOUND_INACTIVE: u32 = 1 << 13;
    let (flags, protocol) = (SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, SockProtocol::NetlinkSockDiag);
    let ask = |family: i32| {
        let socket = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol).ok()?;
        // A header (length, type, flags, number, port) and an inet_diag_req_v2, which goes on with zeroes: any address.
        let mut request = Vec::from(72_u32.to_ne_bytes());
        request.extend([SOCK_DIAG_BY_FAMILY, REQUEST_DUMP].map(u16::to_ne_bytes).concat());
        request.extend([1_u32, 0].map(u32::to_ne_bytes).concat());
        request.extend([family as u8, nix::libc::IPPROTO_TCP as u8, 0, 0]);
        request.extend(BOUND_INACTIVE.to_ne_bytes());
        request.extend(port.to_be_bytes());
        request.resize(72, 0);
        write(&socket, &request).ok()?;
        let mut answer = vec![0; 32 * 1024];
        // The answer is there at once, in one part or several.
        while let Ok(count) = read(&socket, &mut answer) {
            let mut rest = &answer[..count];
            while let Some(size) = word(rest, 0).map(|size| size as usize).filter(|size| *size >= 16) {
                if rest.get(4..6)? != SOCK_DIAG_BY_FAMILY.to_ne_bytes() {
                    return None; // the end, or an error
                }
                // inet_diag_msg: the port and, from byte 8 on, the address in network order; at the end user and inode.
                let message = rest.get(16..size)?;
                let ip = match family {
                    nix::libc::AF_INET => IpAddr::V4(<[u8; 4]>::try_from(message.get(8..12)?).ok()?.into()),
                    _ => Ipv6Addr::from(<[u8; 16]>::try_from(message.get(8..24)?).ok()?).to_canonical(),
                };
                if message.get(4..6)? == port.to_be_bytes() && is_ours(ip) {
                    return Some((u64::from(word(message, 68)?), word(message, 64)?));
                }
                rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        None
    };
    ask(nix::libc::AF_INET).or_else(|| ask(nix::libc::AF_INET6))
}

#[cfg(target_os = "linux")]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(not(target_os = "linux"))]
fn bound(_port: u16) -> Option<(u64, u32)> {
    None
}

/// The processes and the user, for people: `node (pid 7712), user build`.
pub fn names(owners: &[Owner], uid: u32) -> String {
    let user = user(uid);
    if owners.is_empty() {
        return format!("user {user}, a program of another distribution or user");
    }
    let one = |owner: &Owner| {
        let stopped = if owner.stopped { ", stopped" } else { "" };
        format!("{} (pid {}{stopped})", owner.program, owner.pid)
    };
    format!("{}, user {user}", owners.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The user's name, or `uid 1000` where it has none here.
pub fn user(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => visible(&user.name, 32),
        _ => format!("uid {uid}"),
    }
}
