//! Building blocks of every payload: lengths, strings, and the footer of version and checksum.

use std::borrow::Cow;

/// The version that every server since Redis 7.0 reads.
pub const VERSION: u16 = 10;
/// The version with the time of a consumer's last delivery, from Redis 7.2.
pub const VERSION_WITH_DELIVERIES: u16 = 11;
/// The version with deadlines of hash fields, from Redis 7.4.
pub const VERSION_WITH_FIELD_DEADLINES: u16 = 12;
/// The newest version that is read.
pub const VERSION_MAX: u16 = VERSION_WITH_FIELD_DEADLINES;

/// Bytes of version and checksum.
const FOOTER: usize = 10;

/// Maximum number of bytes that one compressed byte can stand for: three of them copy 264.
const EXPANSION_MAX: usize = 88;

/// Writes a length.
pub fn put_length(out: &mut Vec<u8>, len: usize) {
    match len {
        0..0x40 => out.push(len as u8),
        0x40..0x4000 => out.extend_from_slice(&(0x4000 | len as u16).to_be_bytes()),
        _ => match u32::try_from(len) {
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
}

/// Writes a string without encoding.
pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Ends a payload: the version, 2 bytes, and the CRC-64 of all before, 8 bytes, both little-endian.
pub fn seal(out: &mut Vec<u8>, version: u16) {
    out.extend_from_slice(&version.to_le_bytes());
    let crc = crc64(out);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// The body of a payload, without the footer; `None` if its version or its checksum is wrong.
pub fn open(payload: &[u8]) -> Option<&[u8]> {
    let (body, footer) = payload.split_last_chunk::<FOOTER>()?;
    let (version, crc) = footer.split_at(2);
    let version = u16::from_le_bytes([version[0], version[1]]);
    let whole = version <= VERSION_MAX && crc64(&payload[..payload.len() - 8]).to_le_bytes() == *crc;
    whole.then_some(body)
}

/// A length, or the encoding of a string.
pub enum Length {
    /// This length.
    Plain(usize),
    /// A string in this encoding.
    Encoded(u8),
}

/// Takes the next `len` bytes.
pub fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

/// Takes the next N bytes.
pub fn chunk<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    take(rest, N)?.try_into().ok()
}

/// Reads the next length.
pub fn length(rest: &mut &[u8]) -> Option<Length> {
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

/// Reads the next length, which must be a number.
pub fn plain_length(rest: &mut &[u8]) -> Option<usize> {
    match length(rest)? {
        Length::Plain(len) => Some(len),
        Length::Encoded(_) => None,
    }
}

/// Reads the next string: plain, an integer, or compressed.
pub fn string<'a>(rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
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

/// Decompresses LZF. A control byte below 32 is the number of literal bytes that follow, less one; any other copies earlier
/// output: three bits of length (7: another byte is added), thirteen bits of distance.
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
            // The copy may be longer than the distance, and then repeats itself.
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

/// CRC-64 of Jones, reflected bits, initial value 0.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc64_of_more(0, bytes)
}

/// The CRC-64 of bytes with the CRC `crc` followed by more bytes. Eight bytes at a time: table `n` has the CRC of a byte that is
/// followed by `n` zeros.
pub fn crc64_of_more(mut crc: u64, bytes: &[u8]) -> u64 {
    static TABLES: [[u64; 256]; 8] = {
        const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();
        let mut tables = [[0; 256]; 8];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u64;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
                bit += 1;
            }
            tables[0][byte] = crc;
            byte += 1;
        }
        let mut zeros = 1;
        while zeros < 8 {
            let mut byte = 0;
            while byte < 256 {
                let before = tables[zeros - 1][byte];
                tables[zeros][byte] = tables[0][before as u8 as usize] ^ before >> 8;
                byte += 1;
            }
            zeros += 1;
        }
        tables
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mixed = (crc ^ u64::from_le_bytes(*word)).to_le_bytes();
        crc = 0;
        for (zeros, &byte) in mixed.iter().rev().enumerate() {
            crc ^= TABLES[zeros][usize::from(byte)];
        }
    }
    rest.iter().fold(crc, |crc, &byte| TABLES[0][usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scaled;

    fn crc64_by_bits(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |crc, &byte| {
            (0..8).fold(crc ^ u64::from(byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xad93_d235_94c9_35a9_u64.reverse_bits()))
        })
    }

    #[test]
    fn checksums_are_those_of_redis_in_one_piece_or_in_many() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        let bytes: Vec<u8> = (0..scaled(200u8, 30)).collect();
        for cut in 0..bytes.len() {
            assert_eq!(crc64_of_more(crc64(&bytes[..cut]), &bytes[cut..]), crc64(&bytes));
            assert_eq!(crc64(&bytes[..cut]), crc64_by_bits(&bytes[..cut]));
        }
    }
}
