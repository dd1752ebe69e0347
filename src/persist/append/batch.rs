//! Batches: what is written to the file at once, and read as a whole or not at all.
//!
//! ```text
//!   #PC\r\n                       begins a batch
//!   *3\r\n$3\r\nSET\r\n …         one or more units
//!   #PC:<bytes>:<crc64>\r\n       ends it: the length of all before, from its first line on, in decimal; its CRC-64, 16 hex digits
//! ```
//!
//! The first line tells our batches from requests that a redis-server appended: it continues the last file that it finds, without
//! annotations.

use crate::keyspace::rdb::parts::crc64;

/// The line that begins a batch.
pub const START: &[u8] = b"#PC\r\n";

/// The beginning of the line that ends a batch.
pub const END: &[u8] = b"#PC:";

/// Hexadecimal digits of a checksum.
const DIGITS: usize = 16;

/// What the last line of a batch says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Number of bytes before the line.
    pub bytes: u64,
    /// Their CRC-64.
    pub crc: u64,
}

impl Seal {
    /// The seal of a batch without its last line.
    pub fn of(batch: &[u8]) -> Seal {
        Seal { bytes: batch.len() as u64, crc: crc64(batch) }
    }

    /// Reads the line that ends a batch, without its line end. Only the form that [`seal`] writes is accepted.
    pub fn parse(line: &[u8]) -> Option<Seal> {
        let (bytes, crc) = line.strip_prefix(END)?.split_last_chunk::<DIGITS>()?;
        let bytes = std::str::from_utf8(bytes.strip_suffix(b":")?).ok()?;
        let lower = |digit: &u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit);
        let plain = bytes.bytes().all(|digit| digit.is_ascii_digit()) && !(bytes.starts_with('0') && bytes.len() > 1);
        if !plain || !crc.iter().all(lower) {
            return None;
        }
        let crc = u64::from_str_radix(std::str::from_utf8(crc).ok()?, 16).ok()?;
        Some(Seal { bytes: bytes.parse().ok()?, crc })
    }
}

/// Ends a batch, which begins with [`START`].
pub fn seal(batch: &mut Vec<u8>) {
    let Seal { bytes, crc } = Seal::of(batch);
    batch.extend_from_slice(format!("#PC:{bytes}:{crc:016x}\r\n").as_bytes());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_what_is_before_it() {
        let mut batch = b"123456789".to_vec();
        seal(&mut batch);
        assert_eq!(batch, b"123456789#PC:9:e9c6d914c4b8d9ca\r\n");
        assert_eq!(Seal::parse(b"#PC:9:e9c6d914c4b8d9ca"), Some(Seal { bytes: 9, crc: 0xe9c6_d914_c4b8_d9ca }));
    }

    #[test]
    fn any_other_form_is_refused() {
        for line in [
            "#PC",
            "#PC:",
            "#PC:9:",
            "#PC::e9c6d914c4b8d9ca",
            "#PC:09:e9c6d914c4b8d9ca",
            "#PC:+9:e9c6d914c4b8d9ca",
            "#PC:9:E9c6d914c4b8d9ca",
            "#PC:9:+9c6d914c4b8d9ca",
            "#PC:9:e9c6d914c4b8d9ca ",
            "#PC:99999999999999999999:e9c6d914c4b8d9ca",
            "#PD:9:e9c6d914c4b8d9ca",
        ] {
            assert_eq!(Seal::parse(line.as_bytes()), None, "{line}");
        }
    }
}
