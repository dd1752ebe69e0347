//! Frames: the units that nodes send to each other.
//!
//! ```text
//!   length: u32 of what follows │ kind: u8 │ id: u64 │ body
//! ```
//!
//! Integers are little-endian. The id joins an answer to its request. The bodies of messages are in the format of postcard.

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::quorum::store::record::PAYLOAD_MAX;

/// Maximum length of a frame's kind, id and body, in bytes: that of the longest entry of a log, and room for what is around it. A longer one
/// is refused before memory is taken for it. What could not be sent to another node would cost the leader its majority.
pub const FRAME_MAX: usize = PAYLOAD_MAX + (1 << 20);

/// The same for frames before the other node has proven who it is.
pub const GREETING_MAX: usize = 4 << 10;

/// Bytes of the kind and the id.
pub(super) const HEAD: usize = 9;

/// Bytes of the length.
pub(super) const LENGTH: usize = 4;

/// Maximum number of bytes that a decoder reserves at once, so that memory grows with what arrives and not with what is announced.
const RESERVE_MAX: usize = 256 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// First frame in each direction: who the sender is.
    Hello = 1,
    /// Proof of the secret by the node that connected.
    Proof = 2,
    /// Proof of the secret by the node that was connected to. Requests may follow.
    Welcome = 3,
    /// Why the connection ends, as text.
    Refused = 4,
    /// Asks whether the other node is there, and says what the sender is now.
    Ping = 5,
    /// Answer to a ping.
    Pong = 6,
    /// `AppendEntriesRequest`.
    Append = 7,
    /// `VoteRequest`.
    Vote = 8,
    /// `VoteRequest` of a pre-vote.
    PreVote = 9,
    /// `TransferLeaderRequest`.
    TransferLeader = 10,
    /// Begins a snapshot.
    SnapshotBegin = 11,
    /// A part of a snapshot, as it is in the file.
    SnapshotChunk = 12,
    /// Ends a snapshot: the checksum of its bytes.
    SnapshotEnd = 13,
    /// Answer to a request.
    Answer = 14,
    /// A request had no answer; the reason as text.
    Failed = 15,
    /// Asks the leader to hand the leadership over: to a node, or to the one that has most of the log.
    HandOver = 16,
    /// What the users of the nodes tell each other. It has no answer.
    Message = 17,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        const KINDS: [Kind; 17] = [
            Kind::Hello,
            Kind::Proof,
            Kind::Welcome,
            Kind::Refused,
            Kind::Ping,
            Kind::Pong,
            Kind::Append,
            Kind::Vote,
            Kind::PreVote,
            Kind::TransferLeader,
            Kind::SnapshotBegin,
            Kind::SnapshotChunk,
            Kind::SnapshotEnd,
            Kind::Answer,
            Kind::Failed,
            Kind::HandOver,
            Kind::Message,
        ];
        KINDS.get(usize::from(byte).checked_sub(1)?).copied()
    }
}

/// A frame that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Joins an answer to its request.
    pub id: u64,
    /// The message.
    pub body: Bytes,
}

/// Why bytes are not a frame, or a body is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The length is below that of an empty frame, or above the maximum.
    Length(usize),
    /// There is no such kind.
    Kind(u8),
    /// The body is not a message of its kind.
    Body,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // What a client of TLS sends first: a handshake of version 3.x.
            Malformed::Length(length) if length & 0xffff == 0x0316 => {
                f.write_str("the beginning of TLS, which this node does not use among nodes (tls-cluster)")
            }
            Malformed::Length(length) => write!(f, "a frame of {length} bytes"),
            Malformed::Kind(kind) => write!(f, "a frame of unknown kind {kind}"),
            Malformed::Body => f.write_str("a message that cannot be read"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Finds frames in received bytes.
#[derive(Debug)]
pub struct Decoder {
    received: BytesMut,
    max: usize,
}

impl Decoder {
    /// A decoder that refuses frames whose kind, id and body are longer than `max` bytes.
    pub fn new(max: usize) -> Decoder {
        Decoder { received: BytesMut::new(), max }
    }

    /// Changes the maximum length.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Where received bytes are appended. It has free room for at least a few KiB of them, and for never more than a bounded part of
    /// a frame that has been announced.
    pub fn room(&mut self) -> &mut BytesMut {
        let missing = self.announced().map_or(0, |length| (LENGTH + length).saturating_sub(self.received.len()));
        self.received.reserve(missing.clamp(8 << 10, RESERVE_MAX));
        &mut self.received
    }

    /// The length in the next frame's head.
    fn announced(&self) -> Option<usize> {
        let head = self.received.first_chunk::<LENGTH>()?;
        Some((u32::from_le_bytes(*head) as usize).min(self.max))
    }

    /// Takes the next whole frame.
    ///
    /// # Errors
    /// What has been received is not a frame. The connection is of no use any more.
    pub fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some(head) = self.received.first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        fail_if!(!(HEAD..=self.max).contains(&length), Malformed::Length(length));
        if self.received.len() < LENGTH + length {
            return Ok(None);
        }
        let mut frame = self.received.split_to(LENGTH + length).freeze();
        frame.advance(LENGTH);
        let byte = frame.get_u8();
        let kind = Kind::from_byte(byte).ok_or(Malformed::Kind(byte))?;
        let id = frame.get_u64_le();
        Ok(Some(Frame { kind, id, body: frame }))
    }
}

/// A frame with this body.
pub fn encode(kind: Kind, id: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = head(kind, id, body.len());
    frame.extend_from_slice(body);
    finish(frame)
}

/// A frame with this message, or nothing if it would be longer than [`FRAME_MAX`].
pub fn encode_message<T: Serialize>(kind: Kind, id: u64, message: &T, expected: usize) -> Option<Vec<u8>> {
    encode_within(FRAME_MAX, kind, id, message, expected)
}

fn encode_within<T: Serialize>(max: usize, kind: Kind, id: u64, message: &T, expected: usize) -> Option<Vec<u8>> {
    let frame = postcard::serialize_with_flavor(message, Whole(head(kind, id, expected))).ok()?;
    (frame.len() - LENGTH <= max).then(|| finish(frame))
}

/// Writes the id into a frame that was encoded before its id was known.
pub fn set_id(frame: &mut [u8], id: u64) {
    if let Some(place) = frame.get_mut(LENGTH + 1..LENGTH + HEAD) {
        place.copy_from_slice(&id.to_le_bytes());
    }
}

/// Reads a message.
///
/// # Errors
/// The body is not such a message, or has bytes after it.
pub fn decode_message<T: DeserializeOwned>(body: &[u8]) -> Result<T, Malformed> {
    if let Ok((message, [])) = postcard::take_from_bytes(body) { Ok(message) } else { Err(Malformed::Body) }
}

/// Reads a message to which a newer version may have appended something.
///
/// # Errors
/// The body does not begin with such a message.
pub fn decode_beginning<T: DeserializeOwned>(body: &[u8]) -> Result<T, Malformed> {
    postcard::take_from_bytes(body).map(|(message, _)| message).map_err(|_| Malformed::Body)
}

fn head(kind: Kind, id: u64, expected: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(LENGTH + HEAD + expected);
    frame.extend_from_slice(&[0; LENGTH]);
    frame.push(kind as u8);
    frame.extend_from_slice(&id.to_le_bytes());
    frame
}

fn finish(mut frame: Vec<u8>) -> Vec<u8> {
    let length = (frame.len() - LENGTH) as u32;
    frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
    frame
}

/// Appends what postcard writes. Unlike postcard's own, it copies a batch as a whole and not byte by byte.
struct Whole(Vec<u8>);

impl postcard::ser_flavors::Flavor for Whole {
    type Output = Vec<u8>;

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::types::{Batch, ClusterTime};
    use proptest::prelude::*;

    fn frames(bytes: &[u8], pieces: usize) -> Result<Vec<Frame>, Malformed> {
        let mut decoder = Decoder::new(FRAME_MAX);
        let mut found = Vec::new();
        for piece in bytes.chunks(pieces) {
            decoder.room().extend_from_slice(piece);
            while let Some(frame) = decoder.next()? {
                found.push(frame);
            }
        }
        Ok(found)
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut bytes = encode(Kind::Ping, 7, b"abc");
        bytes.extend(encode(Kind::Answer, u64::MAX, b""));
        let mut late = encode(Kind::Vote, 0, &[1; 300]);
        set_id(&mut late, 9);
        bytes.extend(late);
        let expected = [(Kind::Ping, 7, 3), (Kind::Answer, u64::MAX, 0), (Kind::Vote, 9, 300)];
        for pieces in [1, 2, 5, 16, 1000] {
            let found: Vec<_> = frames(&bytes, pieces).unwrap().iter().map(|f| (f.kind, f.id, f.body.len())).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_head_alone_and_takes_no_memory() {
        let mut decoder = Decoder::new(FRAME_MAX);
        decoder.room().extend_from_slice(&(FRAME_MAX as u32 + 1).to_le_bytes());
        assert_eq!(decoder.next(), Err(Malformed::Length(FRAME_MAX + 1)));
        assert!(decoder.room().capacity() <= 2 * RESERVE_MAX);
        let mut decoder = Decoder::new(FRAME_MAX);
        decoder.room().extend_from_slice(&(FRAME_MAX as u32).to_le_bytes());
        assert_eq!(decoder.next(), Ok(None));
        assert!(decoder.room().capacity() <= 2 * RESERVE_MAX, "memory grows with what arrives");
        assert_eq!(frames(b"\xff\xff\xff\xff", 100), Err(Malformed::Length(u32::MAX as usize)));
        assert_eq!(frames(&[8, 0, 0, 0], 100), Err(Malformed::Length(8)));
        assert_eq!(
            frames(&encode(Kind::Ping, 0, b"").iter().map(|&b| if b == 5 { 99 } else { b }).collect::<Vec<_>>(), 100),
            Err(Malformed::Kind(99))
        );
    }

    #[test]
    fn messages_keep_their_bytes() {
        let batch = Batch { origin: 1, number: 2, time: ClusterTime::default(), bytes: Bytes::from(vec![7; 100_000]) };
        let frame = encode_message(Kind::Append, 3, &batch, 0).unwrap();
        let frame = frames(&frame, 4096).unwrap().remove(0);
        assert_eq!(decode_message::<Batch>(&frame.body).as_ref(), Ok(&batch));
        assert_eq!(decode_message::<Batch>(&frame.body[..frame.body.len() - 1]), Err(Malformed::Body));
        let mut more = frame.body.to_vec();
        more.push(0);
        assert_eq!(decode_message::<Batch>(&more), Err(Malformed::Body), "nothing may follow a message");
        let length = frame.body.len() + HEAD;
        assert!(encode_within(length, Kind::Append, 3, &batch, 0).is_some());
        assert_eq!(encode_within(length - 1, Kind::Append, 3, &batch, 0), None);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic_and_in_bounded_memory(bytes in proptest::collection::vec(any::<u8>(), 0..600), pieces in 1usize..64) {
            let _ = frames(&bytes, pieces);
            let mut decoder = Decoder::new(FRAME_MAX);
            decoder.room().extend_from_slice(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
            prop_assert!(decoder.room().capacity() <= bytes.len() + 2 * RESERVE_MAX);
        }

        #[test]
        fn bodies_of_garbage_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            use crate::quorum::types::Types;
            let _ = decode_message::<openraft::raft::AppendEntriesRequest<Types>>(&bytes);
            let _ = decode_message::<openraft::raft::VoteRequest<Types>>(&bytes);
            let _ = decode_message::<openraft::raft::AppendEntriesResponse<Types>>(&bytes);
            let _ = decode_message::<crate::quorum::types::SnapshotMeta>(&bytes);
        }
    }
}
