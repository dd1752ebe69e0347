//! What comes from behind the handshake of the nodes: frames that are well formed and make no sense.

use std::io::{Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

use openraft::entry::EntryPayload;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest};
use openraft::{Membership, Vote};
use portcullis::quorum::types::{Batch, ClusterTime, Entry, LogId, Peer, SnapshotMeta, Types};

use crate::common::random::Random;
use crate::nodes::{Cluster, full_size};

// What is known of the frames: `frame.rs` and `hello.rs` in `src/quorum/net`.
const HELLO: u8 = 1;
const PROOF: u8 = 2;
const WELCOME: u8 = 3;
const APPEND: u8 = 7;
const VOTE: u8 = 8;
const PRE_VOTE: u8 = 9;
const TRANSFER: u8 = 10;
const SNAPSHOT_BEGIN: u8 = 11;
const HAND_OVER: u8 = 16;
const KINDS: u64 = 17;
/// Bytes of magic and version, behind which the number of the node stands.
const BEFORE_NODE: usize = 10;

/// The node that the stranger says it is. It is not there.
const NODE: u64 = 3;

/// A connection of a stranger to a node without a secret.
struct Stranger(TcpStream);

impl Stranger {
    fn open(addr: &str, opening: &[u8]) -> Result<(Stranger, Vec<u8>)> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_nodelay(true)?;
        let mut stranger = Stranger(stream);
        stranger.send(HELLO, 0, opening)?;
        let (kind, answer) = stranger.next()?;
        assert_eq!(kind, HELLO, "{}", String::from_utf8_lossy(&answer));
        Ok((stranger, answer))
    }

    /// Begins a connection for one purpose: requests, or a snapshot.
    fn connect(addr: &str, snapshot: bool) -> Result<Stranger> {
        // Node, cluster, blank, votes, client, program, nonce, target, purpose, parent: nothing but the node.
        let nobody = [b"PTCLNODE\x01\x01\x03".as_slice(), &[0; 16 + 2 + 3 + 1 + 32 + 3]].concat();
        // What the other node says of itself has all that it expects of this one.
        let (_, mut opening) = Stranger::open(addr, &nobody)?;
        opening[BEFORE_NODE] = NODE as u8;
        let purpose = opening.len() - 2;
        opening[purpose] = u8::from(snapshot);
        let (mut stranger, _) = Stranger::open(addr, &opening)?;
        stranger.send(PROOF, 0, &[])?;
        let (kind, answer) = stranger.next()?;
        assert_eq!(kind, WELCOME, "{}", String::from_utf8_lossy(&answer));
        Ok(stranger)
    }

    fn send(&mut self, kind: u8, id: u64, body: &[u8]) -> Result<()> {
        let mut frame = ((9 + body.len()) as u32).to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend_from_slice(&id.to_le_bytes());
        frame.extend_from_slice(body);
        self.0.write_all(&frame)
    }

    fn next(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut head = [0; 13];
        self.0.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize - 9];
        self.0.read_exact(&mut body)?;
        Ok((head[4], body))
    }
}

/// Makes requests of which most make no sense.
struct Maker(Random);

impl Maker {
    /// A small number, one around a power of two, or any.
    fn number(&mut self) -> u64 {
        match self.0.below(4) {
            0 => self.0.below(8),
            1 => self.0.below(64),
            2 => (1u64 << self.0.below(64)).wrapping_add(self.0.below(3)).wrapping_sub(1),
            _ => self.0.next() | self.0.next(),
        }
    }

    fn node(&mut self) -> u64 {
        if self.0.one_in(4) { self.number() } else { NODE }
    }

    fn vote(&mut self) -> Vote<LeaderId<u64, u64>> {
        let (term, node) = (self.number(), self.node());
        if self.0.one_in(3) { Vote::new(term, node) } else { Vote::new_committed(term, node) }
    }

    fn id(&mut self) -> LogId {
        LogId::new(LeaderId { term: self.number(), node_id: self.node() }, self.number())
    }

    fn maybe_id(&mut self) -> Option<LogId> {
        if self.0.one_in(3) { None } else { Some(self.id()) }
    }

    fn members(&mut self) -> Membership<u64, Peer> {
        // As it may come: openraft's own constructor would refuse most of them.
        let sets: Vec<Vec<u64>> = (0..self.0.below(3)).map(|_| (0..self.0.below(4)).map(|_| self.node()).collect()).collect();
        let nodes: Vec<(u64, Peer)> =
            (0..self.0.below(4)).map(|_| (self.node(), Peer { addr: "127.0.0.1:1".to_owned() })).collect();
        postcard::from_bytes(&postcard::to_stdvec(&(sets, nodes)).unwrap()).unwrap_or_default()
    }

    fn entry(&mut self, follows: Option<LogId>) -> Entry {
        let log_id = match follows {
            Some(before) if !self.0.one_in(4) => LogId::new(before.leader_id, before.index.wrapping_add(1)),
            _ => self.id(),
        };
        let payload = match self.0.below(3) {
            0 => EntryPayload::Blank,
            1 => EntryPayload::Membership(self.members()),
            _ => EntryPayload::Normal(Batch {
                origin: self.number(),
                number: self.number(),
                time: ClusterTime { us: self.number(), wall_offset_ms: self.number() as i64 },
                bytes: Vec::new().into(),
            }),
        };
        Entry { log_id, payload }
    }

    fn append(&mut self) -> AppendEntriesRequest<Types> {
        let (vote, prev_log_id, leader_commit) = (self.vote(), self.maybe_id(), self.maybe_id());
        let (mut entries, mut before) = (Vec::new(), prev_log_id);
        for _ in 0..self.0.below(4) {
            entries.push(self.entry(before));
            before = entries.last().map(|entry: &Entry| entry.log_id);
        }
        AppendEntriesRequest { vote, prev_log_id, entries, leader_commit }
    }

    /// The kind and the body of a frame.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let (kind, mut body) = match self.0.below(6) {
            0 | 1 => (APPEND, postcard::to_stdvec(&self.append()).unwrap()),
            2 => (VOTE, postcard::to_stdvec(&VoteRequest::<Types>::new(self.vote(), self.maybe_id())).unwrap()),
            3 => (PRE_VOTE, postcard::to_stdvec(&VoteRequest::<Types>::new(self.vote(), self.maybe_id())).unwrap()),
            4 => {
                let request = TransferLeaderRequest::<Types>::new(self.vote(), self.node(), self.maybe_id());
                (TRANSFER, postcard::to_stdvec(&request).unwrap())
            }
            _ => (self.0.below(KINDS + 2) as u8, (0..self.0.below(60)).map(|_| self.0.next() as u8).collect()),
        };
        // Not by accident: whoever is behind the handshake may have the leadership handed over.
        let kind = if kind == HAND_OVER { 0 } else { kind };
        if self.0.one_in(8) && !body.is_empty() {
            let at = self.0.below(body.len() as u64) as usize;
            body[at] ^= 1 << self.0.below(8);
        }
        (kind, body)
    }

    fn snapshot(&mut self) -> Vec<u8> {
        let meta = SnapshotMeta { last_log_id: self.maybe_id(), ..SnapshotMeta::default() };
        postcard::to_stdvec(&(self.vote(), meta, self.number())).unwrap()
    }
}

#[test]
fn an_address_that_others_reach_needs_a_secret_or_tls() {
    let mut cluster = Cluster::prepare();
    let (port, dir) = (cluster.address(0).rsplit_once(':').unwrap().1.to_owned(), cluster.dir(0));
    for listened in [format!("0.0.0.0:{port}"), format!("[::]:{port}")] {
        let log = cluster.refused(0, &dir, &["--peer-listen", &listened]);
        assert!(log.contains(&format!("other machines can reach {listened}")), "{log}");
        assert!(log.contains("portcullis cluster secret") && log.contains("portcullis serve --cluster-secret"), "{log}");
    }
}

#[test]
fn frames_that_make_no_sense_end_no_process_and_no_election() {
    let count = if full_size() { 1_000_000 } else { 3_000 };
    let mut cluster = Cluster::start();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    (0..3).for_each(|node| cluster.until_votes(node));
    cluster.kill(2);
    assert_eq!(cluster.ask_leader(&["SET", "a", "2"]), "+OK");
    let mut maker = Maker(Random::new(7));
    let mut open: [Option<Stranger>; 2] = [None, None];
    for number in 0..count {
        let node = maker.0.below(2) as usize;
        let addr = cluster.address(node);
        if maker.0.one_in(50) {
            // It is refused, or ends with the connection.
            if let Ok(mut stranger) = Stranger::connect(&addr, true) {
                let _ = stranger.send(SNAPSHOT_BEGIN, 1, &maker.snapshot());
                let _ = stranger.next();
            }
            continue;
        }
        let stranger = open[node].get_or_insert_with(|| Stranger::connect(&addr, false).expect("a node that takes connections"));
        let (kind, body) = maker.frame();
        // An error is the end of the connection, which the next frame opens again. Some frames have no answer.
        let sent = stranger.send(kind, number, &body);
        let answered = sent
            .and_then(|()| if (APPEND..=TRANSFER).contains(&kind) { stranger.next().map(|(kind, _)| kind) } else { Ok(kind) });
        if answered.is_err() || answered.is_ok_and(|kind| kind == 4) || !(APPEND..=TRANSFER).contains(&kind) {
            open[node] = None;
        }
    }
    drop(open);
    // The processes run, and what they were told is there.
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "2");
    assert_eq!(cluster.ask_leader(&["SET", "a", "3"]), "+OK");
    cluster.start_node(2);
    cluster.until_follows(2);
    for node in 0..3 {
        let log = cluster.log(node);
        assert!(!log.contains("panicked"), "{log}");
    }
}
