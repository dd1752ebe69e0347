//! What `FUNCTION DUMP` gives and `FUNCTION RESTORE` takes, in Redis's own format:
//!
//! ```text
//!   { 245 · string: a library's source } …   version, 2 bytes   CRC-64 of all before, 8 bytes   (both little-endian)
//! ```
//!
//! A string may be plain, an integer, or compressed by LZF; we write plain ones and read all.

use std::borrow::Cow;

/// Stands before each library.
const LIBRARY: u8 = 245;
/// Stood there in the release candidates of Redis 7.0, before a form that nobody reads any more.
const LIBRARY_BEFORE_RELEASE: u8 = 246;

/// The version that is written: the first with functions in it, so that every server which has them reads it.
const VERSION: u16 = 10;
/// The newest version that is read.
const VERSION_MAX: u16 = 12;

/// Bytes of version and checksum.
const FOOTER: usize = 10;

/// The most bytes that one compressed byte can stand for: three of them copy 264.
const EXPANSION_MAX: usize = 88;

/// The payload of libraries' sources.
pub(super) fn write<'a>(sources: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources {
        out.push(LIBRARY);
        match source.len() {
            len @ 0..0x40 => out.push(len as u8),
            len @ 0x40..0x4000 => out.extend_from_slice(&(0x4000 | len as u16).to_be_bytes()),
            len => match u32::try_from(len) {
                Ok(len) => {
                    out.push(0x80);
                    out.extend_from_slice(&len.to_be_bytes());
                }
                Err(_) => {
                    out.push(0x81);
                    out.extend_from_slice(&(len as u64).to_be_bytes());
                }
            },
        }
        out.extend_from_slice(source);
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    let crc = crc64(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// The sources in a payload, one after the other; or why there are none.
pub(super) struct Sources<'a> {
    rest: &'a [u8],
}

impl<'a> Sources<'a> {
    /// Checks version and checksum.
    pub(super) fn new(payload: &'a [u8]) -> Result<Self, &'static str> {
        const WRONG: &str = "ERR DUMP payload version or checksum are wrong";
        let (sources, footer) = payload.split_last_chunk::<FOOTER>().ok_or(WRONG)?;
        let (version, crc) = footer.split_at(2);
        let version = u16::from_le_bytes([version[0], version[1]]);
        if version > VERSION_MAX || crc64(&payload[..payload.len() - 8]).to_le_bytes() != *crc {
            return Err(WRONG);
        }
        Ok(Sources { rest: sources })
    }
}

impl<'a> Iterator for Sources<'a> {
    type Item = Result<Cow<'a, [u8]>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match kind {
            LIBRARY => string(&mut self.rest).ok_or("ERR Failed loading library payload"),
            LIBRARY_BEFORE_RELEASE => Err("ERR Pre-GA function format not supported"),
            _ => Err("ERR given type is not a function"),
        })
    }
}

/// A length, or how a string is encoded.
enum Length {
    Plain(usize),
    Encoded(u8),
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

fn chunk<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    take(rest, N)?.try_into().ok()
}

fn length(rest: &mut &[u8]) -> Option<Length> {
    let [first] = chunk(rest)?;
    Some(match (first >> 6, first) {
        (0, _) => Length::Plain(first.into()),
        (1, _) => {
            let [second] = chunk(rest)?;
            Length::Plain(usize::from(first & 0x3f) << 8 | usize::from(second))
        }
        (2, 0x80) => Length::Plain(u32::from_be_bytes(chunk(rest)?).try_into().ok()?),
        (2, 0x81) => Length::Plain(u64::from_be_bytes(chunk(rest)?).try_into().ok()?),
        (3, _) => Length::Encoded(first & 0x3f),
        _ => return None,
    })
}

fn plain_length(rest: &mut &[u8]) -> Option<usize> {
    match length(rest)? {
        Length::Plain(len) => Some(len),
        Length::Encoded(_) => None,
    }
}

fn string<'a>(rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let number = match length(rest)? {
        Length::Plain(len) => return take(rest, len).map(Cow::Borrowed),
        Length::Encoded(0) => i8::from_le_bytes(chunk(rest)?).into(),
        Length::Encoded(1) => i16::from_le_bytes(chunk(rest)?).into(),
        Length::Encoded(2) => i32::from_le_bytes(chunk(rest)?),
        Length::Encoded(3) => {
            let compressed_len = plain_length(rest)?;
            let len = plain_length(rest)?;
            return expand(take(rest, compressed_len)?, len).map(Cow::Owned);
        }
        Length::Encoded(_) => return None,
    };
    Some(Cow::Owned(number.to_string().into_bytes()))
}

/// Undoes LZF. A control byte below 32 says how many literal bytes follow, less one; any other copies what was written before: three
/// bits of length (7: another byte is added), thirteen of distance.
fn expand(compressed: &[u8], len: usize) -> Option<Vec<u8>> {
    if len > compressed.len().saturating_mul(EXPANSION_MAX) {
        return None;
    }
    let mut out = Vec::with_capacity(len);
    let mut rest = compressed;
    while !rest.is_empty() {
        let [control] = chunk(&mut rest)?;
        if control < 32 {
            out.extend_from_slice(take(&mut rest, usize::from(control) + 1)?);
        } else {
            let mut count = usize::from(control >> 5) + 2;
            if control >> 5 == 7 {
                let [more] = chunk(&mut rest)?;
                count += usize::from(more);
            }
            let [low] = chunk(&mut rest)?;
            let distance = (usize::from(control & 31) << 8 | usize::from(low)) + 1;
            let start = out.len().checked_sub(distance)?;
            // What is copied may be longer than the distance, and then repeats itself.
            for at in start..start + count {
                out.push(out[at]);
            }
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

/// CRC-64 by Jones, bits reflected, from zero.
fn crc64(bytes: &[u8]) -> u64 {
    const TABLE: [u64; 256] = {
        const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u64;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(payload: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
        Sources::new(payload)?.map(|source| source.map(Cow::into_owned)).collect()
    }

    fn sealed(body: &[u8], version: u16) -> Vec<u8> {
        let mut payload = [body, &version.to_le_bytes()].concat();
        payload.extend_from_slice(&crc64(&payload).to_le_bytes());
        payload
    }

    #[test]
    fn the_checksum_is_the_one_redis_uses() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn sources_of_any_length_come_back() {
        let sources: Vec<Vec<u8>> = [0, 1, 63, 64, 16_383, 16_384, 100_000].map(|len| vec![b'x'; len]).into();
        let payload = write(sources.iter().map(Vec::as_slice));
        assert_eq!(read(&payload).unwrap(), sources);
        for at in (0..payload.len()).step_by(997) {
            let mut broken = payload.clone();
            broken[at] ^= 1;
            assert!(read(&broken).is_err());
        }
        assert!(read(&payload[1..]).is_err());
        assert!(read(b"").is_err());
    }

    #[test]
    fn what_is_not_a_library_is_refused() {
        assert_eq!(read(&sealed(b"", 13)), Err("ERR DUMP payload version or checksum are wrong"));
        assert_eq!(read(&sealed(b"", 12)), Ok(Vec::new()));
        assert_eq!(read(&sealed(b"\0", 10)), Err("ERR given type is not a function"));
        assert_eq!(read(&sealed(b"\xf6", 10)), Err("ERR Pre-GA function format not supported"));
        for body in [&b"\xf5"[..], b"\xf5\x05abc", b"\xf5\xc4a", b"\xf5\x82", b"\xf5\x81\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(read(&sealed(body, 10)), Err("ERR Failed loading library payload"), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn encoded_strings_are_read() {
        assert_eq!(
            read(&sealed(b"\xf5\xc0\xff\xf5\xc1\x00\x01\xf5\xc2\x00\x00\x01\x00", 10)).unwrap(),
            [b"-1".to_vec(), b"256".to_vec(), b"65536".to_vec()]
        );
        // Literal "ab", then four bytes from two back.
        assert_eq!(read(&sealed(b"\xf5\xc3\x05\x06\x01ab\x40\x01", 10)).unwrap(), [b"ababab".to_vec()]);
        for body in [
            &b"\xf5\xc3\x05\x07\x01ab\x40\x01"[..],
            b"\xf5\xc3\x05\x05\x01ab\x40\x01",
            b"\xf5\xc3\x05\x06\x01ab\x40\x02",
            b"\xf5\xc3\x04\x06\x01ab\x40",
            b"\xf5\xc3\x05\x80\xff\xff\xff\xff\x01ab\x40\x01",
        ] {
            assert_eq!(read(&sealed(body, 10)), Err("ERR Failed loading library payload"), "{}", body.escape_ascii());
        }
    }
}
