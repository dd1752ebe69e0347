//! The payload of `FUNCTION DUMP` and `FUNCTION RESTORE`, in Redis's own format: `{ 245 · string: a library's source } …` and the
//! footer of [`crate::keyspace::rdb::parts`]. Plain strings are written; all encodings of strings are read.

use std::borrow::Cow;

use crate::keyspace::rdb::parts::{VERSION, open, put_string, seal, string};

/// The byte before each library.
const LIBRARY: u8 = 245;
/// The byte before each library in release candidates of Redis 7.0, whose format is no longer supported.
const LIBRARY_BEFORE_RELEASE: u8 = 246;

/// Writes the payload for these sources.
pub(super) fn write<'a>(sources: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources {
        out.push(LIBRARY);
        put_string(&mut out, source);
    }
    seal(&mut out, VERSION);
    out
}

/// Iterates over the sources in a payload. An item is an error if the payload is invalid.
pub(super) struct Sources<'a> {
    rest: &'a [u8],
}

impl<'a> Sources<'a> {
    /// Checks version and checksum.
    pub(super) fn new(payload: &'a [u8]) -> Result<Self, &'static str> {
        let rest = open(payload).ok_or("ERR DUMP payload version or checksum are wrong")?;
        Ok(Sources { rest })
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::keyspace::rdb::parts::crc64;

    fn read(payload: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
        Sources::new(payload)?.map(|source| source.map(Cow::into_owned)).collect()
    }

    fn sealed(body: &[u8], version: u16) -> Vec<u8> {
        let mut payload = [body, &version.to_le_bytes()].concat();
        payload.extend_from_slice(&crc64(&payload).to_le_bytes());
        payload
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
    fn other_contents_are_refused() {
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
        // The literal "ab", then four bytes copied from two bytes back.
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
