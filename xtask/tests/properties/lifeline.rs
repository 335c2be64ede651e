//! What keeper and runner tell each other.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use xtask::name::RunId;
use xtask::run::lifeline::Lifeline;
use xtask::run::order::{Message, Order};

/// Of these bytes an order is taken only if they begin with one, and what it says is what it is written as. The messages
/// behind it are the lines that are messages, however the bytes were cut on their way.
pub fn holds(bytes: &[u8]) {
    // More would have to wait for its reader.
    let bytes = &bytes[..bytes.len().min(64 << 10)];
    let (first, rest) = bytes.split_at(bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1));
    let (mut far, mut near) = ends();
    far.write_all(bytes).expect("there is room");
    far.shutdown(Shutdown::Write).expect("a socket");
    let taken = near.take();
    assert_eq!(taken.as_ref().ok(), serde_json::from_slice::<Order>(first).ok().as_ref());
    if let Ok(order) = &taken {
        RunId::parse(order.run().as_str()).expect("a run");
        assert_eq!(
            &serde_json::from_slice::<Order>(&serde_json::to_vec(order).expect("json")).expect("an order"),
            order
        );
        let _ = (order.deadline(), order.folder());
    }
    let whole = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let meant: Vec<Message> =
        rest[..whole].split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(near.receive(), (meant.clone(), true));
    // The same bytes in three parts.
    let (mut far, mut near) = ends();
    far.write_all(b"\n").expect("there is room");
    near.take().expect_err("no order");
    let mut heard = Vec::new();
    for part in [&rest[..rest.len() / 3], &rest[rest.len() / 3..rest.len() / 2], &rest[rest.len() / 2..]] {
        far.write_all(part).expect("there is room");
        let (messages, gone) = near.receive();
        assert!(!gone, "the other end is there");
        heard.extend(messages);
    }
    assert_eq!(heard, meant);
    drop(far);
    assert_eq!(near.receive(), (Vec::new(), true));
}

fn ends() -> (UnixStream, Lifeline) {
    let (far, near) = UnixStream::pair().expect("sockets");
    (far, Lifeline::inherited(near.into()))
}
