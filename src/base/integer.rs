//! Integers in their canonical form: such values are stored as a number instead of their text.

/// Parses an integer in canonical form: no `+`, no space, no leading zero, no `-0`; `None` for anything else and outside of an
/// i64.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    if let Some(word) = last_word(text)
        && let Some(number) = parse_word(word, text.len())
    {
        return Some(number as i64);
    }
    let (negative, digits) = if let [b'-', rest @ ..] = text { (true, rest) } else { (false, text) };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude = 0u64;
    for &b in digits {
        if !b.is_ascii_digit() {
            return None;
        }
        // Nineteen digits stay below 10^19, which a u64 holds.
        magnitude = magnitude * 10 + u64::from(b - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// A text of 1 to 8 bytes at the end of a word. The word's bytes before it are arbitrary.
#[inline]
fn last_word(text: &[u8]) -> Option<[u8; 8]> {
    let (len, unused) = (text.len(), 64u32.wrapping_sub(8 * text.len() as u32));
    let word = match len {
        // The first and the last four bytes meet or overlap.
        4..=8 => {
            let (first, last) = (text.first_chunk()?, text.last_chunk()?);
            (u64::from(u32::from_le_bytes(*first)) << unused) | (u64::from(u32::from_le_bytes(*last)) << 32)
        }
        // Likewise the first byte, the middle one and the last.
        1..=3 => {
            let at = |index: usize| u64::from(text[index]) << (unused + 8 * index as u32);
            at(0) | at(len / 2) | at(len - 1)
        }
        _ => return None,
    };
    Some(word.to_le_bytes())
}

/// Parses the last `len` bytes of a word, 1 to 8, as a number in canonical form, all of them at once; `None` if they are not a
/// number, or if it is negative.
#[inline]
pub(crate) fn parse_word(word: [u8; 8], len: usize) -> Option<u64> {
    // The first digit is in the lowest byte, with zeros before it.
    let unused = 64 - 8 * len as u32;
    let digits = (u64::from_le_bytes(word) ^ 0x3030_3030_3030_3030) & (u64::MAX << unused);
    // A byte of more than 9 gets its highest bit set, or has it set already. Only the latter carries into the next byte.
    let wrong = (digits | digits.wrapping_add(0x7676_7676_7676_7676)) & 0x8080_8080_8080_8080;
    if wrong != 0 || ((digits >> unused) & 0xff == 0 && len > 1) {
        return None;
    }
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scaled;

    #[test]
    fn integers_have_one_form() {
        let good = [
            ("0", 0),
            ("-1", -1),
            ("10", 10),
            ("-999", -999),
            ("1000", 1000),
            ("60000", 60_000),
            ("-987654", -987_654),
            ("3600000", 3_600_000),
            ("12345678", 12_345_678),
            ("99999999", 99_999_999),
            ("123456789", 123_456_789),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("-9223372036854775807", i64::MIN + 1),
        ];
        for (text, value) in good {
            assert_eq!(parse_i64(text.as_bytes()), Some(value), "{text}");
        }
        let bad = [
            "",
            "-",
            "+1",
            "-0",
            "01",
            "00",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "0x1",
            "--1",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "18446744073709551616",
            "1\0",
        ];
        for text in bad {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        for len in (1..=19).step_by(scaled(1, 6)) {
            for (at, b) in (0..len).flat_map(|at| (0..=255).step_by(scaled(1, 15)).map(move |b: u8| (at, b))) {
                let mut text = vec![b'1'; len];
                text[at] = b;
                let plain = str::from_utf8(&text)
                    .ok()
                    .filter(|t| t.bytes().all(|b| b.is_ascii_digit()) && !t.starts_with('0') || *t == "0");
                let negative = at == 0 && b == b'-' && len > 1;
                let expected = if negative { str::from_utf8(&text).ok() } else { plain };
                assert_eq!(parse_i64(&text), expected.and_then(|t| t.parse().ok()), "{text:?}");
            }
        }
    }
}
