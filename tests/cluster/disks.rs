//! Disks that hang, by a library that holds up the calls of a node, and disks that are full from the start.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::nodes::{Cluster, ask, role};

const LEASE_MS: &str = "600000";

/// Nodes whose disks can be made to hang.
struct Hanging {
    cluster: Cluster,
}

impl Hanging {
    /// Starts three nodes. `None`, and it says so, if there is no compiler for the library that holds up their calls.
    fn start() -> Option<Hanging> {
        let mut cluster = Cluster::prepare();
        let library = cluster.dir(0).with_file_name("hang.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/hang.c");
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output();
        if !compiled.as_ref().is_ok_and(|output| output.status.success()) || !cfg!(target_env = "gnu") {
            eprintln!("SKIPPED: no library can be made that lets a disk hang: {compiled:?}");
            return None;
        }
        for node in 0..3 {
            cluster.environment[node] = vec![("LD_PRELOAD", library.clone()), ("HANG_FILE", Self::file(&cluster, node))];
            cluster.start_node(node);
        }
        cluster.leader();
        (0..3).for_each(|node| cluster.until_votes(node));
        Some(Hanging { cluster })
    }

    fn file(cluster: &Cluster, node: usize) -> PathBuf {
        cluster.dir(node).with_file_name(format!("hang-{}", node + 1))
    }

    /// Lets the disk of a node hang from now on, or go on.
    fn hang(&self, node: usize, hangs: bool) {
        let file = Self::file(&self.cluster, node);
        if hangs { std::fs::write(file, "").unwrap() } else { std::fs::remove_file(file).unwrap() }
    }
}

/// Asks every other node whether it leads, and the leader to write meanwhile, until another node leads. Returns it and how long that took.
#[track_caller]
fn next_leader(cluster: &mut Cluster, old: usize) -> (usize, Duration) {
    let began = Instant::now();
    let new = cluster.wait("another leader", |cluster| {
        // Without writes nobody can know that a disk hangs.
        let _ = ask(cluster.clients[old], &["SET", "a", "0"]);
        (0..3).filter(|node| *node != old).find(|node| role(cluster.clients[*node]).is_ok_and(|role| role == "master"))
    });
    (new, began.elapsed())
}

#[test]
fn a_leader_whose_disk_hangs_hands_over() {
    let Some(mut hanging) = Hanging::start() else { return };
    let token = hanging.cluster.ask_leader(&["LOCK.ACQUIRE", "held", "me", LEASE_MS]);
    let old = hanging.cluster.leader();
    hanging.hang(old, true);
    let (new, took) = next_leader(&mut hanging.cluster, old);
    eprintln!("another node led after {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let cluster = &mut hanging.cluster;
    assert_eq!(ask(cluster.clients[new], &["SET", "a", "2"]).unwrap(), "+OK");
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    let log = cluster.log(old);
    assert!(log.contains("the disk does not answer"), "{log}");
    for _ in 0..20 {
        // It may close the connection, refuse, or already know better; it must not answer from its own state.
        if let Ok(reply) = ask(cluster.clients[old], &["GET", "a"]) {
            assert!(reply.starts_with('-'), "{reply}");
        }
    }
    hanging.hang(old, false);
    let cluster = &mut hanging.cluster;
    cluster.until_follows(old);
    // It has all of it, and a vote.
    let third = 3 - old - new;
    cluster.kill(third);
    assert_eq!(cluster.ask_leader(&["SET", "a", "3"]), "+OK");
    cluster.kill(new);
    cluster.start_node(third);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "3");
}

/// A field of `NODE STATUS`.
fn status(cluster: &Cluster, node: usize, field: &str) -> Option<String> {
    let mut stream = TcpStream::connect(cluster.clients[node]).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(b"NODE STATUS\r\nPING\r\n").ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| line != "+PONG");
    lines.find(|line| line == field)?;
    lines.next().and_then(|line| if line.starts_with(':') { Some(line) } else { lines.next() })
}

#[test]
fn without_another_node_a_leader_whose_disk_hangs_steps_down_and_says_so() {
    let Some(mut hanging) = Hanging::start() else { return };
    let cluster = &mut hanging.cluster;
    let token = cluster.ask_leader(&["LOCK.ACQUIRE", "held", "me", LEASE_MS]);
    let leader = cluster.leader();
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    cluster.kill(others[0]);
    // With the disk of a follower no other node can be elected, and nothing can be stored on two disks.
    let mut waits = TcpStream::connect(cluster.clients[leader]).unwrap();
    waits.write_all(b"BLPOP nothing 0\r\n").unwrap();
    waits.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    assert_eq!(status(cluster, leader, "disk").as_deref(), Some("answers"));
    hanging.hang(leader, true);
    let cluster = &mut hanging.cluster;
    let began = Instant::now();
    cluster.wait("the refusal", |cluster| {
        let reply = ask(cluster.clients[leader], &["SET", "a", "2"]).ok()?;
        reply.starts_with("-READONLY Link with MASTER is down").then_some(())
    });
    eprintln!("stepped down after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let mut rest = Vec::new();
    // It is told that its wait has ended, or its connection is closed.
    let ended = waits.read_to_end(&mut rest);
    let closed = ended.as_ref().map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true);
    assert!(closed, "it waits on: {ended:?}, {}", rest.escape_ascii());
    assert_eq!(status(cluster, leader, "role").as_deref(), Some("no-quorum"));
    assert_eq!(status(cluster, leader, "disk").as_deref(), Some("hangs"));
    assert!(cluster.log(leader).contains("the disk does not answer"), "{}", cluster.log(leader));
    hanging.hang(leader, false);
    let cluster = &mut hanging.cluster;
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    assert!(cluster.ask_leader(&["SET", "a", "3"]) == "+OK");
    cluster.start_node(others[0]);
    cluster.until_follows(others[0]);
}

#[test]
fn a_follower_whose_disk_hangs_is_not_handed_over_to_and_not_elected() {
    let Some(mut hanging) = Hanging::start() else { return };
    let leader = hanging.cluster.leader();
    let (hung, other) = ((leader + 1) % 3, (leader + 2) % 3);
    hanging.hang(hung, true);
    let cluster = &mut hanging.cluster;
    for _ in 0..20 {
        assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    }
    cluster.kill(leader);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        // The third may not be elected either: it needs the vote of the node whose disk hangs.
        assert!(role(cluster.clients[hung]).is_ok_and(|role| role == "slave"), "{}", cluster.log(hung));
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.start_node(leader);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
    let leads = cluster.leader();
    assert!(leads == leader || leads == other, "{leads}");
    cluster.ask_leader(&["NODE", "HANDOVER"]);
    assert_eq!(cluster.ask_leader(&["SET", "a", "2"]), "+OK");
    assert_ne!(cluster.leader(), hung);
    hanging.hang(hung, false);
    hanging.cluster.until_follows(hung);
}

/// A file system of a few megabytes for a node alone.
struct Small {
    path: PathBuf,
}

impl Small {
    /// Mounts it. `None`, and it says so, if the sandbox does not allow that.
    fn mount(path: PathBuf) -> Option<Small> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "portcullis-test"]).arg(&path).output();
        if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: no small file system can be mounted: {mounted:?}");
            return None;
        }
        Some(Small { path })
    }

    /// Fills it, or makes space again.
    fn fill(&self, full: bool) {
        let file = self.path.join("filler");
        if !full {
            return std::fs::remove_file(file).unwrap();
        }
        let mut file = std::fs::File::create(file).unwrap();
        while file.write_all(&[b'x'; 4096]).is_ok() {}
        while file.write_all(b"x").is_ok() {}
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

#[test]
fn a_node_starts_on_a_full_disk_and_takes_part_when_there_is_space() {
    let mut cluster = Cluster::prepare();
    let Some(small) = Small::mount(cluster.dir(0)) else { return };
    (0..3).for_each(|node| cluster.start_node(node));
    cluster.leader();
    (0..3).for_each(|node| cluster.until_votes(node));
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    // What it has must be in its log when it ends, which is copied by the next start.
    cluster.wait("the log", |cluster| (status(cluster, 0, "applied") == status(cluster, 1, "applied")).then_some(()));
    small.fill(true);
    cluster.kill(0);
    cluster.start_node(0);
    assert!(ask(cluster.clients[0], &["INFO"]).is_ok());
    assert!(ask(cluster.clients[0], &["CLUSTER", "INFO"]).is_ok());
    assert_eq!(role(cluster.clients[0]).unwrap(), "slave");
    assert_eq!(status(&cluster, 0, "role").as_deref(), Some("follower"));
    cluster.wait("the disk", |cluster| (status(cluster, 0, "disk").as_deref() == Some("refuses")).then_some(()));
    assert!(cluster.log(0).contains("the log cannot be made ready"), "{}", cluster.log(0));
    assert_eq!(cluster.ask_leader(&["SET", "a", "2"]), "+OK", "two of three are a majority");
    small.fill(false);
    cluster.until_votes(0);
    cluster.until_follows(0);
    let leader = cluster.leader();
    cluster.kill(if leader == 0 { 1 } else { leader });
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "2");
    // The folder can be removed when it is no file system any more.
    drop(small);
    drop(cluster);
}
