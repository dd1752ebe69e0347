//! Records: what a segment consists of, behind its header.
//!
//! ```text
//!   0  u64  checksum (XXH3) of everything behind it        24 u32  bytes of the segment that were durable when this was written
//!   8  u32  check of bytes 12 to 32                         28 u8   kind
//!  12  u32  length of the payload, and two bits that are set 29 u16  0
//!  16  u56  index of the entry, or of the last one          31 u8   mark: 0xa5
//!  23  u8   mark: 0xa5                                      32 payload, end mark 0x5a, zeros to the next multiple of 8
//! ```
//!
//! All numbers are little-endian. The checksum is seeded with the segment and the offset, so that a record is valid only where it was
//! written.
//!
//! Whether a write was torn can be seen: where it is missing there are zeros, because space is laid out beforehand and new space of a
//! file reads as zeros. Of each sector a torn write has a beginning, or nothing. So the last byte of a record is never a zero, and
//! neither are, as far as the format goes, the bytes at which a sector may end.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length of a record without its payload and what follows.
pub const HEAD: usize = 32;
/// Largest payload in bytes. It leaves room in the 32 bits of an offset.
pub const PAYLOAD_MAX: usize = (1 << 30) - 1;
/// Bits that are set beside the length.
const LEN_BITS: u32 = 0xc000_0000;
/// Bytes that a disk writes as a unit.
const SECTOR: usize = 512;
/// Last byte of the head of a record.
const MARK: u8 = 0xa5;
/// The byte behind the payload.
const END: u8 = 0x5a;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The payload is an entry.
    Entry = 1,
    /// The payload is the node's vote.
    Vote = 2,
    /// The payload is the last entry that is known to be committed.
    Committed = 3,
    /// The payload is the entry behind which all entries are removed, if any entry is left.
    Truncate = 4,
    /// The payload is the last entry that is not needed any more.
    Purge = 5,
    /// Another segment follows. There is no payload.
    Seal = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Entry, Kind::Vote, Kind::Committed, Kind::Truncate, Kind::Purge, Kind::Seal]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it says.
    pub kind: Kind,
    /// Index of its entry, or of the last entry before it.
    pub index: u64,
    /// Bytes of its segment that were durable when it was written.
    pub durable: u32,
    /// What it has to say.
    pub payload: &'a [u8],
    /// Its length in bytes, with everything.
    pub len: usize,
}

/// Where a record is: the number of its segment, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Number of the segment.
    pub segment: u64,
    /// Offset in bytes.
    pub offset: u64,
}

impl At {
    fn seed(self) -> u64 {
        self.segment.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.offset
    }
}

fn total(payload: usize) -> usize {
    (HEAD + payload + 1).next_multiple_of(8)
}

/// Appends a record that is to be written at this place.
///
/// # Errors
/// In words, if the payload cannot be encoded or is too large. Then `into` is as before.
pub fn encode<T: serde::Serialize>(
    into: &mut Vec<u8>,
    at: At,
    kind: Kind,
    index: u64,
    durable: u32,
    payload: &T,
) -> Result<(), String> {
    let start = into.len();
    into.resize(start + HEAD, 0);
    let encoded = postcard::to_io(payload, &mut *into).map(drop).map_err(|error| error.to_string());
    let len = into.len() - start - HEAD;
    let encoded = encoded.and_then(|()| match len {
        0..=PAYLOAD_MAX => Ok(()),
        _ => Err(format!("{len} bytes are too many for an entry")),
    });
    if let Err(error) = encoded {
        into.truncate(start);
        return Err(error);
    }
    into.push(END);
    into.resize(start + total(len), 0);
    let record = &mut into[start..];
    record[12..16].copy_from_slice(&(len as u32 | LEN_BITS).to_le_bytes());
    record[16..24].copy_from_slice(&index.to_le_bytes());
    record[23] = MARK;
    record[24..28].copy_from_slice(&durable.to_le_bytes());
    record[28] = kind as u8;
    record[31] = MARK;
    let check = xxh3_64_with_seed(&record[12..HEAD], at.seed()) as u32;
    record[8..12].copy_from_slice(&check.to_le_bytes());
    let checksum = xxh3_64_with_seed(&record[8..], at.seed());
    record[..8].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn payload_len(head: &[u8]) -> usize {
    (u32_at(head, 12) & !LEN_BITS) as usize
}

/// The length of the record that begins here, if its head is undamaged.
fn len_by_head(bytes: &[u8], at: At) -> Option<usize> {
    let head = bytes.get(..HEAD).filter(|head| head[31] == MARK)?;
    let valid = u32_at(head, 8) == xxh3_64_with_seed(&head[12..], at.seed()) as u32;
    valid.then(|| total(payload_len(head)))
}

/// The record that begins here; `None` if there is none, or if it is damaged. `checked` is false only in a test that must fail.
pub fn decode(bytes: &[u8], at: At, checked: bool) -> Option<Record<'_>> {
    let len = match checked {
        true => len_by_head(bytes, at)?,
        false => total(payload_len(bytes.get(..HEAD).filter(|head| head[31] == MARK)?)),
    };
    let record = bytes.get(..len)?;
    if checked && u64_at(record, 0) != xxh3_64_with_seed(&record[8..], at.seed()) {
        return None;
    }
    let payload = &record[HEAD..HEAD + payload_len(record)];
    Some(Record {
        kind: Kind::of(record[28])?,
        index: u64_at(record, 16) & (u64::MAX >> 8),
        durable: u32_at(record, 24),
        payload,
        len,
    })
}

/// Whether what begins here and is no valid record can be one whose write was torn, or the zeros behind the last record: its last
/// byte is zero, or the last one before the end of a sector is. A flipped bit in a whole record does neither.
///
/// A flipped bit is taken for a torn write if the payload has a zero at the end of a sector.
pub fn may_be_torn(bytes: &[u8], at: At) -> bool {
    let span = len_by_head(bytes, at).unwrap_or(HEAD);
    let Some(record) = bytes.get(..span) else { return true };
    let end = if span > HEAD { HEAD + payload_len(record) } else { HEAD - 1 };
    let to_sector_end = SECTOR - 1 - at.offset as usize % SECTOR;
    record[end] == 0 || (to_sector_end..end).step_by(SECTOR).any(|last| record[last] == 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const AT: At = At { segment: 3, offset: 1000 };

    fn record(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, AT, Kind::Entry, 7, 512, &payload).unwrap();
        bytes
    }

    #[test]
    fn a_record_is_valid_only_where_it_was_written() {
        let bytes = record(b"some effects");
        let read = decode(&bytes, AT, true).unwrap();
        assert_eq!((read.kind, read.index, read.durable, read.len), (Kind::Entry, 7, 512, bytes.len()));
        assert_eq!(&read.payload[1..], b"some effects");
        assert_eq!(bytes.len() % 8, 0);
        assert_eq!(decode(&bytes, At { offset: 1008, ..AT }, true), None);
        assert_eq!(decode(&bytes, At { segment: 4, ..AT }, true), None);
    }

    #[test]
    fn a_flipped_bit_is_told_from_a_torn_write() {
        let whole = record(&[b'x'; 1500]);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(decode(&flipped, AT, true), None, "bit {bit} of byte {at}");
                assert!(!may_be_torn(&flipped, AT), "bit {bit} of byte {at}");
            }
        }
        let end = whole.iter().rposition(|byte| *byte == END).unwrap();
        for kept in 0..=end {
            let mut torn = whole.clone();
            torn[kept..].fill(0);
            assert!(decode(&torn, AT, true).is_none() && may_be_torn(&torn, AT), "{kept} bytes");
            assert!(may_be_torn(&torn[..kept], AT), "{kept} bytes, and the end of the file");
        }
        // At offset 1024 a sector begins, and at 1536, and at 2048. Of each there may be a beginning only.
        for (from, to) in [(0, 24), (24, 536), (536, 1048), (1048, end + 1)] {
            for from in from..to {
                let mut torn = whole.clone();
                torn[from..to].fill(0);
                assert!(decode(&torn, AT, true).is_none() && may_be_torn(&torn, AT), "bytes {from} to {to} are lost");
            }
        }
    }
}
