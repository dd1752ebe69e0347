//! The lines of ours in an append-only file: its first line, the header of a batch, and the last line after a clean stop.
//!
//! ```text
//!   #PCF:1:<salt>:<check>\r\n                     format and salt of the file
//!   #PCB:<bytes>:<synced>:<crc>:<check>\r\n       begins a batch; <bytes> bytes follow, whole units whose CRC-64 is <crc>
//!   *3\r\n$3\r\nSET\r\n …
//!   #PCC:<check>\r\n                              after a clean stop: all before is durable
//! ```
//!
//! All numbers have 16 hexadecimal digits, so that each line has a fixed length. `<synced>` is the number of bytes of the file that
//! were durable when the batch was written: a crash loses none of them.
//!
//! A check is a CRC-64 over the salt and the line before the check; in the last line, over the salt, the line's tag and its offset in
//! the file. A client that does not know the salt cannot store a right line in a value. The first line's check has no salt: it finds
//! a damaged salt, without which the whole file would look like one torn batch.
//!
//! To Redis, all these lines are annotations.

use crate::keyspace::rdb::parts::{crc64, crc64_of_more};

/// The beginning of all lines of ours.
pub const TAG: &[u8] = b"#PC";

/// The beginning of the first line.
pub const FILE_TAG: &[u8] = b"#PCF:";

/// The beginning of the header of a batch.
pub const BATCH_TAG: &[u8] = b"#PCB:";

/// The beginning of the last line after a clean stop.
pub const CLOSE_TAG: &[u8] = b"#PCC:";

/// Bytes of the first line.
pub const FIRST_LINE: usize = 42;

/// Bytes of the header of a batch.
pub const HEADER: usize = 74;

/// Bytes of the last line after a clean stop.
pub const LAST_LINE: usize = 23;

/// The beginning of the first line in the only format there is.
const FORMAT_1: &[u8] = b"#PCF:1:";

/// Digits of a number.
const DIGITS: usize = 16;

/// Where a header has colons.
const COLONS: [usize; 3] = [21, 38, 55];

/// What is wrong with a first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstLineError {
    /// It is of another format, probably of a later version.
    Newer,
    /// It is malformed, or its check is wrong.
    Damaged,
}

fn put_hex(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(format!("{number:016x}").as_bytes());
}

/// Reads digits. Callers compare the line that follows from the numbers with the one that they read, which refuses other forms.
fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits.get(..DIGITS)?).ok()?, 16).ok()
}

fn salted(salt: u64, bytes: &[u8]) -> u64 {
    crc64_of_more(crc64(&salt.to_le_bytes()), bytes)
}

/// The first line of a file with this salt.
pub fn first_line(salt: u64) -> Vec<u8> {
    let mut line = Vec::with_capacity(FIRST_LINE);
    line.extend_from_slice(FORMAT_1);
    put_hex(&mut line, salt);
    line.push(b':');
    let check = crc64(&line);
    put_hex(&mut line, check);
    line.extend_from_slice(b"\r\n");
    line
}

/// The salt in a first line of [`FIRST_LINE`] bytes, which begins with [`FILE_TAG`].
///
/// # Errors
/// The line is of another format, or damaged.
pub fn salt_of(line: &[u8]) -> Result<u64, FirstLineError> {
    if let Some(digits) = line.strip_prefix(FORMAT_1) {
        let salt = hex(digits).ok_or(FirstLineError::Damaged)?;
        return if first_line(salt) == line { Ok(salt) } else { Err(FirstLineError::Damaged) };
    }
    let number = line.get(FILE_TAG.len()..).unwrap_or_default();
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // A damaged digit cannot be told from a later format.
    if digits > 0 && number.get(digits) == Some(&b':') { Err(FirstLineError::Newer) } else { Err(FirstLineError::Damaged) }
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the body, which follows.
    pub bytes: u64,
    /// Bytes of the file that were durable when the batch was written.
    pub synced: u64,
    /// CRC-64 of the body.
    pub crc: u64,
}

impl Header {
    /// The line, which has [`HEADER`] bytes.
    pub fn line(&self, salt: u64) -> Vec<u8> {
        let mut line = Vec::with_capacity(HEADER);
        line.extend_from_slice(BATCH_TAG);
        for number in [self.bytes, self.synced, self.crc] {
            put_hex(&mut line, number);
            line.push(b':');
        }
        let check = salted(salt, &line);
        put_hex(&mut line, check);
        line.extend_from_slice(b"\r\n");
        line
    }

    /// Reads the header at the beginning of some bytes; `None` if there is none whose check is right.
    pub fn parse(salt: u64, bytes: &[u8]) -> Option<Header> {
        let line = bytes.get(..HEADER)?;
        let number = |at: usize| hex(&line[at..]);
        let header = Header { bytes: number(BATCH_TAG.len())?, synced: number(COLONS[0] + 1)?, crc: number(COLONS[1] + 1)? };
        (header.line(salt) == line).then_some(header)
    }
}

/// A batch with this body: header and body.
#[allow(dead_code, reason = "tests use it")]
pub fn batch(salt: u64, synced: u64, body: &[u8]) -> Vec<u8> {
    let mut batch = vec![0; HEADER];
    batch.extend_from_slice(body);
    seal(&mut batch, salt, synced);
    batch
}

/// Writes the header of a batch, for which its first [`HEADER`] bytes are left.
pub fn seal(batch: &mut [u8], salt: u64, synced: u64) {
    let (line, body) = batch.split_at_mut(HEADER);
    let header = Header { bytes: body.len() as u64, synced, crc: crc64(body) };
    line.copy_from_slice(&header.line(salt));
}

/// The last line after a clean stop, at this offset in the file. It has [`LAST_LINE`] bytes.
pub fn last_line(salt: u64, offset: u64) -> Vec<u8> {
    let mut line = CLOSE_TAG.to_vec();
    put_hex(&mut line, salted(salt, &[CLOSE_TAG, &offset.to_le_bytes()].concat()));
    line.extend_from_slice(b"\r\n");
    line
}

/// Number of bytes at the beginning of some that may be a part of a header or of a last line, cut behind them; 0 where it is not cut.
pub(super) fn len_of_cut(bytes: &[u8]) -> usize {
    let like = |tag: &[u8], len: usize, colons: &[usize]| {
        let fits = |(at, byte): &(usize, &u8)| match *at {
            at if at < tag.len() => **byte == tag[at],
            at if colons.contains(&at) => **byte == b':',
            at if at == len - 2 => **byte == b'\r',
            at if at == len - 1 => **byte == b'\n',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        };
        let count = bytes.iter().take(len).enumerate().take_while(fits).count();
        if count < len { count } else { 0 }
    };
    like(BATCH_TAG, HEADER, &COLONS).max(like(CLOSE_TAG, LAST_LINE, &[]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let line = first_line(0xfeed);
        assert_eq!(line.escape_ascii().to_string(), "#PCF:1:000000000000feed:a5c9ee1aa564922c\\r\\n");
        assert_eq!((line.len(), salt_of(&line)), (FIRST_LINE, Ok(0xfeed)));
        let header = Header { bytes: 9, synced: 42, crc: 0xe9c6_d914_c4b8_d9ca };
        let whole = batch(7, 42, b"123456789");
        assert_eq!(Header::parse(7, &whole), Some(header));
        assert_eq!((header.line(7).len(), &whole[HEADER..]), (HEADER, &b"123456789"[..]));
        assert_eq!(Header::parse(8, &whole), None);
        assert_eq!(last_line(7, 42).len(), LAST_LINE);
        assert_ne!(last_line(7, 42), last_line(7, 43));
        assert_ne!(last_line(7, 42), last_line(8, 42));
    }

    #[test]
    fn every_other_byte_is_found() {
        let (first, header) = (first_line(99), Header { bytes: 1 << 40, synced: u64::MAX, crc: 5 }.line(99));
        for flip in 1..=255u8 {
            for at in FILE_TAG.len()..FIRST_LINE {
                let mut line = first.clone();
                line[at] ^= flip;
                assert!(salt_of(&line).is_err(), "{}", line.escape_ascii());
            }
            for at in 0..HEADER {
                let mut line = header.clone();
                line[at] ^= flip;
                assert_eq!(Header::parse(99, &line), None, "{}", line.escape_ascii());
            }
        }
        assert_eq!(salt_of(b"#PCF:2:000000000000feed:0123456789abcdef\r\n"), Err(FirstLineError::Newer));
        assert_eq!(salt_of(b"#PCF:x:000000000000feed:0123456789abcdef\r\n"), Err(FirstLineError::Damaged));
    }

    #[test]
    fn beginnings_of_lines_are_known() {
        let header = Header { bytes: 1, synced: 2, crc: 3 }.line(4);
        let last = last_line(4, 5);
        for line in [&header, &last] {
            for cut in 0..line.len() {
                assert_eq!(len_of_cut(&line[..cut]), cut);
                assert_eq!(len_of_cut(&[&line[..cut], b"*2\r\n"].concat()), cut);
            }
            // A whole line has the first bytes of the other one, too.
            assert!(len_of_cut(line) < 4);
        }
        assert_eq!(len_of_cut(b"#TS:12"), 1);
    }
}
