//! Numbers as `printf` of C writes them with `%.*g`, and as `strtod` reads them.

use std::fmt::Write;

/// The text of a number. It has room for all digits, a sign, a point, four zeros and an exponent.
#[derive(Default)]
pub(super) struct NumberText {
    bytes: [u8; 32],
    len: usize,
}

impl NumberText {
    /// A finite number in up to `precision` significant digits, without trailing zeros. `precision` is from 1 to 14.
    pub(super) fn new(number: f64, precision: usize) -> Self {
        let mut scientific = NumberText::default();
        // Cannot fail: there is room for 14 digits and an exponent.
        let _ = write!(scientific, "{number:.*e}", precision.saturating_sub(1));
        let text = scientific.as_bytes();
        let mark = memchr::memchr(b'e', text).unwrap_or(text.len());
        let exponent: i32 =
            text.get(mark + 1..).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or_default();
        let mut digits = [0; 16];
        let mut count = 0;
        for digit in text[..mark].iter().filter(|byte| byte.is_ascii_digit()).take(digits.len()) {
            digits[count] = *digit;
            count += 1;
        }
        let last = digits[..count].iter().rposition(|digit| *digit != b'0').unwrap_or(0);
        let digits = &digits[..=last];

        let mut out = NumberText::default();
        if number.is_sign_negative() {
            out.put(b"-");
        }
        if exponent < -4 || exponent >= precision as i32 {
            out.with_point(digits, 1);
            let _ = write!(out, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs());
        } else if exponent < 0 {
            out.put(b"0.");
            out.put(&b"000"[..(-exponent - 1) as usize]);
            out.put(digits);
        } else {
            out.with_point(digits, exponent as usize + 1);
        }
        out
    }

    /// Writes digits with `whole` of them before the point. Missing ones are zeros.
    fn with_point(&mut self, digits: &[u8], whole: usize) {
        let (before, after) = digits.split_at(whole.min(digits.len()));
        self.put(before);
        self.put(&b"00000000000000"[..whole - before.len()]);
        if !after.is_empty() {
            self.put(b".");
            self.put(after);
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// The text.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for NumberText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

/// The number at the beginning of a text, and its length in bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Number {
    /// A number.
    Value(f64, usize),
    /// A hexadecimal number, whose value the caller has to find.
    Hexadecimal(usize),
    /// There is no number.
    None,
}

/// Finds the longest number at the beginning of a text.
pub(super) fn read(text: &[u8]) -> Number {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let value = |value: f64, len: usize| Number::Value(if text[0] == b'-' { -value } else { value }, len);
    let rest = &text[sign..];
    let is = |word: &[u8]| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if is(b"infinity") {
        return value(f64::INFINITY, sign + 8);
    }
    if is(b"inf") {
        return value(f64::INFINITY, sign + 3);
    }
    if is(b"nan") {
        // A suffix in parentheses is part of it.
        let inner = rest[3..].strip_prefix(b"(").map(|inner| count(inner, |byte| byte.is_ascii_alphanumeric() || *byte == b'_'));
        let len = inner.filter(|inner| rest.get(4 + inner) == Some(&b')')).map_or(3, |inner| inner + 5);
        return value(f64::NAN, sign + len);
    }
    if is(b"0x")
        && let Some(len) = extent(&rest[2..], b'p', u8::is_ascii_hexdigit)
    {
        return Number::Hexadecimal(sign + 2 + len);
    }
    let Some(len) = extent(rest, b'e', u8::is_ascii_digit) else { return Number::None };
    match std::str::from_utf8(&rest[..len]).ok().and_then(|digits| digits.parse().ok()) {
        Some(number) => value(number, sign + len),
        None => Number::None,
    }
}

/// Number of bytes at the beginning of a text that satisfy a condition.
fn count(text: &[u8], is: impl Fn(&u8) -> bool) -> usize {
    text.iter().take_while(|byte| is(byte)).count()
}

/// The length of digits with an optional point and an optional exponent. `None` if there are no digits.
fn extent(text: &[u8], exponent: u8, is_digit: impl Fn(&u8) -> bool) -> Option<usize> {
    let whole = count(text, &is_digit);
    let mut len = whole;
    if text.get(len) == Some(&b'.') {
        let fraction = count(&text[len + 1..], &is_digit);
        if whole + fraction > 0 {
            len += 1 + fraction;
        }
    }
    if len == 0 {
        return None;
    }
    if text.get(len).is_some_and(|byte| byte.eq_ignore_ascii_case(&exponent)) {
        let sign = usize::from(matches!(text.get(len + 1), Some(b'+' | b'-')));
        let digits = count(&text[len + 1 + sign..], u8::is_ascii_digit);
        if digits > 0 {
            len += 1 + sign + digits;
        }
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_in_c() {
        for (number, precision, text) in [
            (0.0, 14, "0"),
            (-0.0, 14, "-0"),
            (0.1, 14, "0.1"),
            (1.0 / 3.0, 14, "0.33333333333333"),
            (1e14, 14, "1e+14"),
            (12345678901234.5, 14, "12345678901234"),
            (1e-5, 14, "1e-05"),
            (0.0001234, 14, "0.0001234"),
            (-1.5e300, 14, "-1.5e+300"),
            (5e-324, 14, "4.9406564584125e-324"),
            (120.0, 14, "120"),
            (99.95, 3, "100"),
            (9.5, 1, "1e+01"),
            (2.5, 1, "2"),
            (-1.7976931348623157e308, 14, "-1.7976931348623e+308"),
        ] {
            assert_eq!(String::from_utf8_lossy(NumberText::new(number, precision).as_bytes()), text);
        }
    }

    #[test]
    fn numbers_end_where_they_do_in_c() {
        use Number::{Hexadecimal, None, Value};
        for (text, number) in [
            ("1", Value(1.0, 1)),
            ("+1.5e3x", Value(1500.0, 6)),
            ("1.e", Value(1.0, 2)),
            (".5", Value(0.5, 2)),
            (".", None),
            ("-", None),
            ("", None),
            ("1e+", Value(1.0, 1)),
            ("0x", Value(0.0, 1)),
            ("0x.", Value(0.0, 1)),
            ("-0x1.8p-1]", Hexadecimal(9)),
            ("0x1p", Hexadecimal(3)),
            ("-INFINITYx", Value(f64::NEG_INFINITY, 9)),
            ("infinit", Value(f64::INFINITY, 3)),
            ("1e999", Value(f64::INFINITY, 5)),
        ] {
            assert_eq!(read(text.as_bytes()), number, "{text}");
        }
        assert!(matches!(read(b"nan(a_1)"), Value(_, 8)));
        assert!(matches!(read(b"nan(a-1)"), Value(_, 3)));
    }
}
