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
    for &b in digits {
        if !b.is_ascii_digit() {
            return None;
        }
        // Nineteen digits stay below 10^19, which a u64 holds.
        magnitude = magnitude * 10 + u64::from(b - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
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
    }
}
