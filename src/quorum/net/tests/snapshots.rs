use std::future::pending;

use openraft::errors::{ReplicationClosed, StreamingError};
use openraft::network::RaftNetworkV2;

use super::*;
use crate::quorum::append_check::LeaderCheck;

/// A snapshot file of several MiB. It is removed with the guard.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("portcullis-net-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        File(path)
    }

    fn snapshot(&self, len: u64) -> Snapshot {
        let nodes = BTreeMap::from([(1, Peer { addr: "a:1".to_owned() })]);
        let members = openraft::Membership::new(vec![[1].into()], nodes).unwrap();
        let last_membership = crate::quorum::types::Membership::new(Some(log_id(0)), members);
        let meta = SnapshotMeta { last_log_id: Some(log_id(9)), last_membership };
        Snapshot { meta, snapshot: SnapshotFile { path: self.0.clone(), len } }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn vote() -> Vote<openraft::alias::LeaderIdOf<Types>> {
    Vote::new_committed(1, 1)
}

#[tokio::test]
async fn a_snapshot_holds_up_no_heartbeat() {
    let memory = Memory { chunks: Arc::new(Semaphore::new(3)), ..Memory::default() };
    let two = TestNode::with(2, Setup { memory: memory.clone(), ..Setup::default() }).await;
    let one = TestNode::start(1).await;
    let expected = bytes((8 << 20) + 12_345);
    let file = File::new("whole", &expected);
    let mut client = one.client(2, two.addr).await;
    let sending = client.full_snapshot(vote(), file.snapshot(expected.len() as u64), pending(), option());
    let beating = async {
        let mut client = one.client(2, two.addr).await;
        // The receiver's disk stands still in the middle of the snapshot.
        while memory.chunks.available_permits() > 0 {
            assert!(client.append_entries(heartbeat(), option()).await.unwrap().is_success());
        }
        for _ in 0..100 {
            assert!(client.append_entries(heartbeat(), option()).await.unwrap().is_success());
        }
        assert_eq!(memory.written.lock().unwrap()[0].1, None);
        memory.chunks.add_permits(1_000);
    };
    let (sent, ()) = soon(async { tokio::join!(sending, beating) }).await;
    assert_eq!(sent.unwrap(), SnapshotResponse::new(vote()));
    assert!(memory.written.lock().unwrap()[..] == [(expected, Some(true))]);
    assert_eq!(two.answers.installed.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_snapshot_that_is_cancelled_or_cut_short_is_not_installed() {
    let memory = Memory { chunks: Arc::new(Semaphore::new(2)), ..Memory::default() };
    let two = TestNode::with(2, Setup { memory: memory.clone(), ..Setup::default() }).await;
    let one = TestNode::start(1).await;
    // More than the sockets' buffers take.
    let content = vec![7; 32 << 20];
    let file = File::new("partial", &content);
    let mut client = one.client(2, two.addr).await;

    let cancel = {
        let chunks = memory.chunks.clone();
        async move {
            while chunks.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            ReplicationClosed::new("test")
        }
    };
    let sent = soon(client.full_snapshot(vote(), file.snapshot(content.len() as u64), cancel, option())).await;
    assert!(matches!(sent, Err(StreamingError::Closed(_))));
    memory.chunks.add_permits(1_000);
    soon(async {
        while memory.written.lock().unwrap()[0].1.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(memory.written.lock().unwrap()[0].1, Some(false), "the writer was dropped unfinished");

    // The file is shorter than its description says.
    let sent = soon(client.full_snapshot(vote(), file.snapshot(content.len() as u64 + 1), pending(), option())).await;
    assert!(matches!(sent, Err(StreamingError::Network(_))), "{sent:?}");
    assert!(two.answers.installed.lock().unwrap().is_empty());

    // A file that is gone, and an empty one.
    let gone = File(PathBuf::from("/nonexistent/snapshot"));
    assert!(matches!(
        soon(client.full_snapshot(vote(), gone.snapshot(1), pending(), option())).await,
        Err(StreamingError::Network(_))
    ));
    assert!(soon(client.full_snapshot(vote(), file.snapshot(0), pending(), option())).await.is_ok());
    assert_eq!(two.answers.installed.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn connections_for_requests_take_no_place_of_snapshots_whose_number_is_bounded() {
    let memory = Memory { chunks: Arc::new(Semaphore::new(0)), ..Memory::default() };
    let two = TestNode::with(2, Setup { memory: memory.clone(), ..Setup::default() }).await;
    let senders = [TestNode::start(3).await, TestNode::start(4).await, TestNode::start(5).await];
    let file = File::new("places", b"abc");
    let mut clients = Vec::new();
    for sender in &senders {
        clients.push(sender.client(2, two.addr).await);
        known(sender.directory(), 2, |info| info.connected).await;
    }
    let mut sending = clients.into_iter().zip(3..).map(|(mut client, sender)| {
        let (snapshot, vote) = (file.snapshot(3), Vote::new_committed(1, sender));
        tokio::spawn(async move { client.full_snapshot(vote, snapshot, pending(), option()).await })
    });
    let (first, second) = (sending.next().unwrap(), sending.next().unwrap());
    soon(async {
        while memory.written.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let third = soon(sending.next().unwrap()).await.unwrap();
    assert!(
        matches!(&third, Err(StreamingError::Unreachable(error)) if error.to_string().contains("too many snapshots")),
        "{third:?}"
    );
    memory.chunks.add_permits(2);
    assert!(soon(first).await.unwrap().is_ok() && soon(second).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_changed_byte_is_found() {
    use crate::quorum::net::frame::{Kind, encode, encode_message};
    use crate::quorum::net::snapshot::receive;
    use crate::quorum::net::wire::Wire;

    let (near, far) = tokio::io::duplex(1 << 20);
    let (mut near, mut far) = (Wire::new(Box::new(near)), Wire::new(Box::new(far)));
    let meta = File::new("changed", b"").snapshot(0).meta;
    near.push(encode_message(Kind::SnapshotBegin, 1, &(vote(), meta, 3u64), 0).unwrap());
    near.push(encode(Kind::SnapshotChunk, 1, b"abd"));
    let checksum = xxhash_rust::xxh3::xxh3_64(b"abc");
    near.push(encode_message(Kind::SnapshotEnd, 1, &checksum, 0).unwrap());
    near.flush().await.unwrap();
    let (answers, memory) = (Arc::new(Answers::default()), Memory::default());
    let received = soon(receive(&mut far, 1, &LeaderCheck::default(), &answers, &memory)).await;
    assert_eq!(received.unwrap_err().to_string(), "the snapshot did not arrive whole");
    assert_eq!(memory.written.lock().unwrap()[..], [(b"abd".to_vec(), Some(false))]);
    assert_eq!(near.next().await.unwrap().kind, Kind::Answer);
    assert_eq!(near.next().await.unwrap().kind, Kind::Failed);
}
