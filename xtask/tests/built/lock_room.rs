//! How a holder treats its clients: it has room for who asks, whatever comes and however few descriptors it has; it counts who
//! waits, and the longest waiting goes first.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use xtask::lock::sockets;
use xtask::lock::wait::Accepted;

use crate::lock_client::{asks, assert_free, banner, connect, hung_up, hung_up_on, is_busy, spins};
use crate::lock_contender::Contender;
use crate::world::{Ports, until};

#[test]
fn garbage_ends_the_connection_and_costs_no_time() {
    let ports = Ports::take(1);
    let holder = Contender::holding(ports.first);
    // A wait that is longer than the machine is up is garbage too.
    let liar = b"xtask-wait/1 {\"waited_us\":18446744073709551615,\"run\":\"r\"}\n";
    // And a good line with so much behind it that both are longer than a line can be.
    let mut more = b"xtask-wait/1 {\"waited_us\":1,\"run\":\"r\"}\n".to_vec();
    more.resize(xtask::lock::banner::ANSWER_MAX + 1, b' ');
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 600], b"xtask-wait/1 {}\n", b"\n", liar, &more] {
        let mut client = connect(ports.first);
        banner(&mut client);
        client.write_all(words).expect("written");
        hung_up(&mut client);
    }
    // Not even the beginning of a line makes it spin.
    let mut slow = connect(ports.first);
    slow.write_all(b"xtask-wait/1 ").expect("written");
    banner(&mut slow);
    let mut half = connect(ports.first);
    banner(&mut half);
    half.shutdown(Shutdown::Write).expect("half closed");
    hung_up(&mut half);
    assert!(!spins(holder.pid()));
}

#[test]
fn a_holder_without_descriptors_keeps_the_lock_and_recovers() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    // It allowed itself more connections before the limit fell.
    holder.tell("descriptors 24");
    holder.hear("limited");
    let clients: Vec<TcpStream> = (0..200).map(|_| connect(ports.first)).collect();
    assert!(is_busy(ports.first));
    assert!(!spins(holder.pid()));
    // Those that only sit there are hung up on to make room, so somebody who asks is answered meanwhile.
    let mut asks = connect(ports.first);
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"));
    drop(clients);
    let mut asks = connect(ports.first);
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"));
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn a_holder_that_may_open_few_files_keeps_fewer_connections() {
    let ports = Ports::take(1);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 40 && exec \"$@\"", "sh"]).arg(std::env::current_exe().expect("this program"));
    let mut holder = Contender::start_by(command, ports.first);
    holder.hear("held");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", holder.pid())).expect("it lives").count();
    let before = open();
    // Each is answered before the next one comes, so none of them waits in the queue.
    let clients: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut client = connect(ports.first);
            banner(&mut client);
            client
        })
        .collect();
    until("the oldest to be hung up on", || open() <= before + 5);
    drop(clients);
    holder.kill();
}

#[test]
fn a_holder_with_no_descriptor_left_sleeps_until_there_is_one() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    holder.tell("descriptors 64");
    holder.hear("limited");
    holder.tell("exhaust");
    holder.hear("exhausted");
    let mut asks = connect(ports.first);
    assert!(!spins(holder.pid()));
    assert!(is_busy(ports.first));
    holder.tell("recover");
    holder.hear("recovered");
    assert!(banner(&mut asks).starts_with("xtask-lock/1 {"));
    holder.kill();
    assert_free(ports.first);
}

#[test]
fn connections_never_use_up_the_descriptors_of_the_run() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let clients: Vec<TcpStream> = (0..600).map(|_| connect(ports.first)).collect();
    let mut asks = connect(ports.first);
    banner(&mut asks);
    let open = std::fs::read_dir(format!("/proc/{}/fd", holder.pid())).expect("it lives").count();
    assert!(open < 300, "{open} descriptors open");
    drop(clients);
    holder.tell("child");
    let child: i32 = holder.hear("child").parse().expect("a pid");
    holder.kill();
    kill(Pid::from_raw(child), Signal::SIGKILL).expect("the child lives on");
}

#[test]
fn waiters_stay_when_idle_clients_make_room() {
    let ports = Ports::take(1);
    let mut holder = Contender::holding(ports.first);
    let mut waiter = connect(ports.first);
    banner(&mut waiter);
    waiter.write_all(b"xtask-wait/1 {\"waited_us\":5,\"run\":\"r\"}\n").expect("written");
    until("the waiter to be counted", || banner(&mut connect(ports.first)).contains("\"waiting\":1"));
    let idle: Vec<TcpStream> = (0..600).map(|_| connect(ports.first)).collect();
    assert!(banner(&mut connect(ports.first)).contains("\"waiting\":1"));
    drop(idle);
    holder.kill();
    hung_up(&mut waiter);
}

#[test]
fn a_run_that_asks_twice_is_counted_once() {
    let ports = Ports::take(1);
    let _holder = Contender::holding(ports.first);
    let _one = [asks(ports.first, "r-1", 5), asks(ports.first, "r-1", 5)];
    // An hour would be longer than some machine is up.
    let _other = asks(ports.first, "r-2", 30_000_000);
    let mut said = serde_json::Value::Null;
    until("the last of them to be counted", || {
        let line = banner(&mut connect(ports.first));
        said = serde_json::from_str(line.strip_prefix("xtask-lock/1 ").expect("a holder")).expect("JSON");
        let now_ms = xtask::sys::clocks().wall_ms;
        said["waiting_since_ms"].as_u64().is_some_and(|since| now_ms - since >= 29_000)
    });
    let since = said["waiting_since_ms"].as_u64().expect("a moment");
    assert!(xtask::sys::clocks().wall_ms - since < 3_600_000, "{said}");
    assert_eq!(said["waiting"], 2, "{said}");
}

#[test]
fn the_longest_waiting_is_hung_up_on_first() {
    // On a machine that is busy enough all of them are hung up on before anybody looks: that round says nothing.
    until("a round in which the longest waiting alone is hung up on", || {
        let ports = Ports::take(1);
        let mut holder = Contender::holding(ports.first);
        let waits = |waited_us: u64| asks(ports.first, &format!("r-{waited_us}"), waited_us);
        let (young, old, younger) = (waits(1_000_000), waits(5_000_000), waits(1_000));
        let looks = connect(ports.first);
        until("all of them to be counted", || banner(&mut connect(ports.first)).contains("\"waiting\":3"));
        holder.tell("release");
        let ready = hung_up_on([&young, &younger, &looks, &old]);
        assert!(ready[3], "another one first: {ready:?}");
        ready == [false, false, false, true]
    });
}

#[test]
fn a_word_that_comes_in_the_last_moment_counts() {
    // Those that are accepted in the very turn in which the holder sees that it shall let go.
    for _ in 0..5 {
        let ports = Ports::take(1);
        let mut holder = Contender::holding(ports.first);
        holder.tell("mute");
        holder.hear("muted");
        let first = connect(ports.first);
        let mine = first.local_addr().expect("a port").port();
        until("the holder to be stuck with it", || sockets::accepted(ports.first, mine) == Accepted::Yes);
        // As many as it takes at once; then those that wait, the longest waiting last.
        let _idle: Vec<TcpStream> = (0..63).map(|_| connect(ports.first)).collect();
        let [young, younger, old] =
            [("r-1", 1_000), ("r-2", 1), ("r-3", 5_000)].map(|(run, us)| asks(ports.first, run, us));
        holder.tell("go");
        let ready = hung_up_on([&first, &young, &younger, &old]);
        assert!(ready[3], "another one first: {ready:?}");
    }
}
