//! Integers in their one canonical form: what is kept as a number instead of its text.

/// An integer in its one canonical form: no `+`, no space, no leading zero, no `-0`; `None` for anything else and outside of an i64.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude = 0u64;
    if let (4..=8, Some(first), Some(last)) = (digits.len(), digits.first_chunk(), digits.last_chunk()) {
        magnitude = parse_word(*first, *last, digits.len())?;
    } else {
        for &b in digits {
            if !b.is_ascii_digit() {
                return None;
            }
            // Nineteen digits stay below 10^19, which a u64 holds.
            magnitude = magnitude * 10 + u64::from(b - b'0');
        }
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// The number of 4 to 8 digits, all of them at once, of which the first and the last four are given: they meet or overlap.
#[inline]
fn parse_word(first: [u8; 4], last: [u8; 4], len: usize) -> Option<u64> {
    // The last digit in the lowest byte, and zeros before the first one.
    let unused = 8 * (8 - len as u32);
    let text = (u64::from(u32::from_be_bytes(first)) << (32 - unused)) | u64::from(u32::from_be_bytes(last));
    let digits = text ^ (0x3030_3030_3030_3030 >> unused);
    // A byte of more than 9 gets its highest bit set, or has it. Only one that has it carries into the next.
    if (digits | (digits + 0x7676_7676_7676_7676)) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    let pairs = (digits & 0x00ff_00ff_00ff_00ff) + 10 * (digits >> 8 & 0x00ff_00ff_00ff_00ff);
    let fours = (pairs & 0x0000_ffff_0000_ffff) + 100 * (pairs >> 16 & 0x0000_ffff_0000_ffff);
    Some((fours & 0xffff_ffff) + 10_000 * (fours >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for len in 1..=19 {
            for (at, b) in (0..len).flat_map(|at| (0..=255).map(move |b: u8| (at, b))) {
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
