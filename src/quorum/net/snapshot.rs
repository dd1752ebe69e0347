//! Snapshots: sent in chunks on a connection of their own, so that they hold up nothing else.
//!
//! ```text
//!   sender: SnapshotBegin ─▶ Answer ─▶ SnapshotChunk … SnapshotChunk, SnapshotEnd ─▶ installed ─▶ Answer
//! ```

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::raft::SnapshotResponse;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::quorum::append_check::{LeaderCheck, Said};
use crate::quorum::net::dial::Platform;
use crate::quorum::net::frame::{Frame, Kind, decode_message, encode, encode_message};
use crate::quorum::net::handler::{Handler, Snapshot};
use crate::quorum::net::hello::reason;
use crate::quorum::net::wire::Wire;
use crate::quorum::runtime::{blocking, timeout};
use crate::quorum::sane;
use crate::quorum::types::{NodeId, SnapshotFile, SnapshotMeta, Types, Vote};

/// Length of a chunk in bytes.
const CHUNK: usize = 256 << 10;

/// Time within which the next frame of a snapshot must come, or the other node must take the next chunk.
const STEP_TIME: Duration = Duration::from_secs(30);

/// Time within which a snapshot that has arrived must be installed.
const INSTALL_TIME: Duration = Duration::from_secs(300);

/// Takes the snapshots that arrive.
pub trait SnapshotSink: Send + Sync + 'static {
    /// Writes one snapshot.
    type Writer: SnapshotWriter;

    /// Begins a snapshot of `len` bytes.
    ///
    /// # Errors
    /// The sender is told of the error and tries again later.
    fn begin(&self, meta: &SnapshotMeta, len: u64) -> impl Future<Output = io::Result<Self::Writer>> + Send;
}

/// Writes one snapshot. If it is dropped unfinished, it removes what it has written.
pub trait SnapshotWriter: Send + 'static {
    /// Writes the next bytes.
    ///
    /// # Errors
    /// The snapshot is given up.
    fn write(&mut self, chunk: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// All has been written and its checksum was right: makes a durable file of it.
    ///
    /// # Errors
    /// The snapshot is given up.
    fn finish(self) -> impl Future<Output = io::Result<SnapshotFile>> + Send;
}

#[derive(Serialize, Deserialize)]
struct Begin {
    vote: Vote,
    meta: SnapshotMeta,
    len: u64,
}

#[derive(Serialize, Deserialize)]
struct End {
    checksum: u64,
}

/// Why a snapshot was not sent.
pub enum Unsent {
    /// The connection failed, or the file could not be read. The same may work at once.
    Io(io::Error),
    /// The other node did not take it.
    Refused(String),
}

impl From<io::Error> for Unsent {
    fn from(error: io::Error) -> Unsent {
        Unsent::Io(error)
    }
}

/// Sends a snapshot on a connection that has just begun, and returns when it is installed.
///
/// # Errors
/// See [`Unsent`].
pub async fn send(
    wire: &mut Wire,
    platform: &Arc<dyn Platform>,
    vote: Vote,
    snapshot: Snapshot,
) -> Result<SnapshotResponse<Types>, Unsent> {
    let (SnapshotFile { path, len }, platform) = (snapshot.snapshot, Arc::clone(platform));
    let file = blocking(move || platform.open_snapshot(&path)).await??;
    let begin = Begin { vote, meta: snapshot.meta, len };
    let begin =
        encode_message(Kind::SnapshotBegin, 1, &begin, 0).ok_or_else(|| io::Error::other("the membership is too long"))?;
    wire.push(begin);
    answer(within(STEP_TIME, wire.next()).await?)?;
    let mut checksum = Xxh3::new();
    let (mut file, mut chunk) = read_chunk(file, len).await?;
    let mut rest = len;
    while !chunk.is_empty() {
        rest -= chunk.len() as u64;
        checksum.update(&chunk);
        wire.push(encode(Kind::SnapshotChunk, 1, &chunk));
        let (read, sent) = tokio::join!(read_chunk(file, rest), within(STEP_TIME, wire.send()));
        // Before the end the other node has something to say only if it gives up.
        if let Some(frame) = sent? {
            answer(frame)?;
        }
        (file, chunk) = read?;
    }
    let end = encode_message(Kind::SnapshotEnd, 1, &End { checksum: checksum.digest() }, 16);
    wire.push(end.unwrap_or_default());
    let body = answer(within(INSTALL_TIME, wire.next()).await?)?;
    Ok(decode_message(&body).map_err(io::Error::other)?)
}

/// Reads the next chunk of a file of which `rest` bytes are left.
async fn read_chunk(mut file: Box<dyn Read + Send>, rest: u64) -> io::Result<(Box<dyn Read + Send>, Vec<u8>)> {
    let read = move || {
        let mut chunk = vec![0; rest.min(CHUNK as u64) as usize];
        file.read_exact(&mut chunk)?;
        Ok((file, chunk))
    };
    blocking(read).await?
}

fn answer(frame: Frame) -> Result<Bytes, Unsent> {
    match frame.kind {
        Kind::Answer => Ok(frame.body),
        Kind::Failed | Kind::Refused => Err(Unsent::Refused(reason(&frame))),
        kind => Err(io::Error::new(io::ErrorKind::InvalidData, format!("an unexpected frame, {kind:?}")).into()),
    }
}

async fn within<T>(time: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(time, step).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Receives a snapshot, installs it, and tells the sender what came of it.
///
/// # Errors
/// What came of it, if it is not installed.
pub async fn receive(
    wire: &mut Wire,
    sender: NodeId,
    leader: &LeaderCheck,
    handler: &impl Handler,
    sink: &impl SnapshotSink,
) -> io::Result<()> {
    let received = receive_whole(wire, sender, leader, handler, sink).await;
    let frame = match &received {
        Ok(response) => encode_message(Kind::Answer, 1, response, 64).unwrap_or_default(),
        Err(error) => encode(Kind::Failed, 1, error.to_string().as_bytes()),
    };
    wire.push(frame);
    within(STEP_TIME, wire.flush()).await?;
    received.map(drop)
}

async fn receive_whole(
    wire: &mut Wire,
    sender: NodeId,
    leader: &LeaderCheck,
    handler: &impl Handler,
    sink: &impl SnapshotSink,
) -> io::Result<SnapshotResponse<Types>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let first = within(STEP_TIME, wire.next()).await?;
    fail_if!(first.kind != Kind::SnapshotBegin, invalid("a snapshot was expected"));
    let Begin { vote, meta, len } = decode_message(&first.body).map_err(io::Error::other)?;
    sane::snapshot(&vote, &meta, sender).map_err(io::Error::other)?;
    leader.note(&vote, meta.last_log_id).map_err(io::Error::other)?;
    let mut writer = sink.begin(&meta, len).await?;
    wire.push(encode(Kind::Answer, 1, &[]));
    let (mut checksum, mut rest) = (Xxh3::new(), len);
    let end: End = loop {
        let frame = within(STEP_TIME, wire.next()).await?;
        match frame.kind {
            Kind::SnapshotChunk => {
                rest =
                    rest.checked_sub(frame.body.len() as u64).ok_or_else(|| invalid("the snapshot is longer than announced"))?;
                checksum.update(&frame.body);
                writer.write(frame.body).await?;
            }
            Kind::SnapshotEnd => break decode_message(&frame.body).map_err(io::Error::other)?,
            _ => return Err(invalid("a chunk was expected")),
        }
    };
    fail_if!(rest != 0 || end.checksum != checksum.digest(), invalid("the snapshot did not arrive whole"));
    let snapshot = Snapshot { meta: meta.clone(), snapshot: writer.finish().await? };
    let said = Said { ids: meta.last_log_id.into_iter().collect(), commit: None };
    let (_turn, _) = leader.admit_alone(vote, said, handler).await.map_err(io::Error::other)?;
    let response = handler.install_snapshot(vote, snapshot).await.map_err(io::Error::other)?;
    leader.note_match(&vote, meta.last_log_id.as_slice());
    Ok(response)
}
