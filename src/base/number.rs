//! Numbers as clients write them and as Redis writes them back: 64-bit integers, doubles, and the 80-bit long doubles in which
//! `INCRBYFLOAT` and `HINCRBYFLOAT` compute.

use rustc_apfloat::ieee::{Double, X87DoubleExtended};
use rustc_apfloat::{Float, FloatConvert, Round, StatusAnd};

pub use crate::base::integer::parse_i64;

/// Long doubles in text must have fewer bytes than this; longer ones are refused without parsing.
const LONG_DOUBLE_TEXT_MAX: usize = 5 * 1024;
/// Digits after the point in the text of a long double.
const FRACTION_DIGITS: usize = 17;

/// Parses a double in decimal, with or without a sign, a point, an exponent, or `inf` and `infinity` in any case. `None` for
/// `nan`, spaces, hexadecimal, and values that are too large or too small for a double.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let unsigned = unsigned(text);
    let named = unsigned.first().is_some_and(u8::is_ascii_alphabetic);
    if value.is_nan() || (value.is_infinite() && !named) || (value == 0.0 && !is_zero(unsigned, false)) {
        return None;
    }
    Some(value)
}

/// Parses a score as `ZADD` and similar commands do: as [`parse_f64`], or hexadecimal (`0x1.8p3`).
pub fn parse_score(text: &[u8]) -> Option<f64> {
    if !is_hex(text) {
        parse_f64(text)
    } else {
        parse_hex(text).filter(|(value, lost)| value.is_finite() && !lost).map(|(value, _)| value)
    }
}

/// Parses a bound of a range of scores, as C's `strtod` reads the text up to its first NUL: leading blanks are allowed, an empty
/// text is 0, and a value that is too large or too small for a double is infinite or 0.
pub fn parse_score_bound(text: &[u8]) -> Option<f64> {
    let text = text.split(|&b| b == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let blanks = text.iter().take_while(|b| b.is_ascii_whitespace() || **b == 0x0b).count();
    let text = &text[blanks..];
    if is_hex(text) {
        return parse_hex(text).map(|(value, _)| value);
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|value: &f64| !value.is_nan())
}

fn is_hex(text: &[u8]) -> bool {
    unsigned(text).len() > 2 && unsigned(text)[..2].eq_ignore_ascii_case(b"0x")
}

/// Parses a hexadecimal double. Also returns whether it was rounded to 0 though its digits are not all zero.
fn parse_hex(text: &[u8]) -> Option<(f64, bool)> {
    let digits = &unsigned(text)[2..];
    let plain = format!("0x{}", plain_float(digits, true)?);
    let value = f64::from_bits(Double::from_str_r(&plain, Round::NearestTiesToEven).ok()?.value.to_bits() as u64);
    let lost = value == 0.0 && !is_zero(digits, true);
    Some((if text.first() == Some(&b'-') { -value } else { value }, lost))
}

/// The text without its sign.
fn unsigned(text: &[u8]) -> &[u8] {
    if let [b'+' | b'-', rest @ ..] = text { rest } else { text }
}

/// Whether only zeros stand before the exponent.
fn is_zero(unsigned: &[u8], hex: bool) -> bool {
    let exponent = if hex { [b'p', b'P'] } else { [b'e', b'E'] };
    unsigned.iter().take_while(|b| !exponent.contains(b)).all(|&b| b == b'0' || b == b'.')
}

/// An x87 extended double: 64 bits of precision, as C's `long double` on x86.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongDouble(X87DoubleExtended);

impl LongDouble {
    /// Zero.
    pub const ZERO: LongDouble = LongDouble(X87DoubleExtended::ZERO);

    /// Parses the whole text as `strtold` does: decimal or hexadecimal (`0x1.8p3`), or `inf`. `None` for `nan`, for spaces, and
    /// for values that are too large or too small.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() >= LONG_DOUBLE_TEXT_MAX {
            return None;
        }
        let negative = text.first() == Some(&b'-');
        let unsigned = unsigned(text);
        if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") {
            return Some(LongDouble(signed(X87DoubleExtended::INFINITY, negative)));
        }
        let hex = unsigned.len() > 2 && unsigned[..2].eq_ignore_ascii_case(b"0x");
        let plain = plain_float(if hex { &unsigned[2..] } else { unsigned }, hex)?;
        let plain = if hex { format!("0x{plain}") } else { plain };
        let StatusAnd { value, .. } = X87DoubleExtended::from_str_r(&plain, Round::NearestTiesToEven).ok()?;
        if !value.is_finite() || (value.is_zero() && !is_zero(&unsigned[if hex { 2 } else { 0 }..], hex)) {
            return None;
        }
        Some(LongDouble(signed(value, negative)))
    }

    /// The sum, rounded to nearest, ties to even. Infinite on overflow; not a number for infinities of both signs.
    #[must_use]
    pub fn sum(self, other: LongDouble) -> LongDouble {
        LongDouble(self.0.add_r(other.0, Round::NearestTiesToEven).value)
    }

    /// The nearest double: infinite if it is too large for one, 0 if it is too small.
    pub fn to_f64(self) -> f64 {
        let nearest: Double = self.0.convert(&mut false).value;
        f64::from_bits(nearest.to_bits() as u64)
    }

    /// Whether it is greater than 0.
    pub fn is_positive(self) -> bool {
        self.0 > X87DoubleExtended::ZERO
    }

    /// Whether it is neither infinite nor NaN.
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// The decimal form with up to 17 digits after the point, without trailing zeros and never `-0`, as Redis replies and stores
    /// it. The value must be finite.
    pub fn to_fixed(self) -> String {
        let bits = self.0.to_bits();
        let (head, significand) = ((bits >> 64) as u32, bits as u64);
        // value = significand · 2^exponent
        let exponent = (head & 0x7fff).max(1) as i32 - 16_383 - 63;
        let mut text = String::new();
        if head & 0x8000 != 0 {
            text.push('-');
        }
        if exponent >= 0 {
            push_shifted(&mut text, significand, exponent as u32);
        } else {
            push_fraction(&mut text, significand, exponent.unsigned_abs());
        }
        if text == "-0" { String::from("0") } else { text }
    }
}

fn signed(value: X87DoubleExtended, negative: bool) -> X87DoubleExtended {
    if negative { -value } else { value }
}

/// An unsigned float in a form that every parser accepts: `digits.digits` and always an exponent. `None` for anything that is not
/// a float as a whole.
fn plain_float(unsigned: &[u8], hex: bool) -> Option<String> {
    let is_digit = |b: &u8| if hex { b.is_ascii_hexdigit() } else { b.is_ascii_digit() };
    let whole = unsigned.iter().take_while(|b| is_digit(b)).count();
    let mut at = whole;
    if unsigned.get(at) == Some(&b'.') {
        at += 1 + unsigned[at + 1..].iter().take_while(|b| is_digit(b)).count();
    }
    if at == 0 || &unsigned[..at] == b"." {
        return None;
    }
    let mantissa = std::str::from_utf8(&unsigned[..at]).ok()?;
    let letter = if hex { 'p' } else { 'e' };
    let mut exponent = 0i32;
    if let Some(mark) = unsigned.get(at) {
        if !mark.eq_ignore_ascii_case(&(letter as u8)) {
            return None;
        }
        let signed = &unsigned[at + 1..];
        let (negative, digits) = match signed {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, signed),
        };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        // Beyond a million, no mantissa of the permitted length makes a difference.
        exponent = digits.iter().fold(0, |e, &b| (e * 10 + i32::from(b - b'0')).min(1_000_000));
        if negative {
            exponent = -exponent;
        }
    }
    Some(format!("{mantissa}{letter}{exponent}"))
}

/// Appends `significand · 2^shift`, an integer.
fn push_shifted(text: &mut String, significand: u64, shift: u32) {
    /// The largest power of ten in a u64.
    const CHUNK: u64 = 10_000_000_000_000_000_000;
    let mut limbs = vec![0u64; shift as usize / 64 + 2];
    let wide = u128::from(significand) << (shift % 64);
    limbs[shift as usize / 64] = wide as u64;
    limbs[shift as usize / 64 + 1] = (wide >> 64) as u64;
    let mut chunks = Vec::new();
    while let Some(&top) = limbs.last() {
        if top == 0 {
            limbs.pop();
            continue;
        }
        let mut rest = 0;
        for limb in limbs.iter_mut().rev() {
            let part = (u128::from(rest) << 64) | u128::from(*limb);
            *limb = (part / u128::from(CHUNK)) as u64;
            rest = (part % u128::from(CHUNK)) as u64;
        }
        chunks.push(rest);
    }
    text.push_str(&chunks.pop().unwrap_or(0).to_string());
    for chunk in chunks.iter().rev() {
        text.push_str(&format!("{chunk:019}"));
    }
}

/// Appends `significand / 2^shift`, rounded to 17 digits after the point, ties to even.
fn push_fraction(text: &mut String, significand: u64, shift: u32) {
    const SCALE: u128 = 10u128.pow(FRACTION_DIGITS as u32);
    // Below 2^64 · 10^17 < 2^121.
    let scaled = u128::from(significand) * SCALE;
    let units = if shift > 122 {
        0
    } else {
        let (units, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1u128 << (shift - 1));
        units + u128::from(rest > half || (rest == half && units & 1 == 1))
    };
    text.push_str(&(units / SCALE).to_string());
    let fraction = format!("{:017}", units % SCALE);
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn scores_and_their_bounds_are_read_as_strtod_does() {
        for (text, score, bound) in [
            ("1.5", Some(1.5), Some(1.5)),
            ("0x10", Some(16.0), Some(16.0)),
            ("-0x1.8p3", Some(-12.0), Some(-12.0)),
            ("-inf", Some(f64::NEG_INFINITY), Some(f64::NEG_INFINITY)),
            ("", None, Some(0.0)),
            (" 1", None, Some(1.0)),
            ("1 ", None, None),
            (" ", None, None),
            ("1e400", None, Some(f64::INFINITY)),
            ("1e-400", None, Some(0.0)),
            ("0x1p2000", None, Some(f64::INFINITY)),
            ("0x1p-2000", None, Some(0.0)),
            ("1\0x", None, Some(1.0)),
            ("nan", None, None),
            ("0x", None, None),
            ("x", None, None),
        ] {
            assert_eq!(parse_score(text.as_bytes()), score, "{text:?}");
            assert_eq!(parse_score_bound(text.as_bytes()), bound, "{text:?}");
        }
    }

    #[test]
    fn doubles_are_read_whole() {
        let good =
            [("1", 1.0), ("+1", 1.0), ("1.", 1.0), (".5", 0.5), ("1e5", 1e5), ("1E+5", 1e5), ("-0", -0.0), ("1e-310", 1e-310)];
        for (text, value) in good {
            assert_eq!(parse_f64(text.as_bytes()).map(f64::to_bits), Some(f64::to_bits(value)), "{text}");
        }
        assert_eq!(parse_f64(b"-InFinity"), Some(f64::NEG_INFINITY));
        assert_eq!(parse_f64(b"inf"), Some(f64::INFINITY));
        for text in ["", " 1", "1 ", "nan", "-nan", "1e", "0x10", "1e400", "-1e400", "1e-400", ".", "1\0", "e5", "1_0"] {
            assert_eq!(parse_f64(text.as_bytes()), None, "{text:?}");
        }
    }

    fn fixed(text: &str) -> Option<String> {
        LongDouble::parse(text.as_bytes()).filter(|v| v.is_finite()).map(LongDouble::to_fixed)
    }

    #[test]
    fn long_doubles_are_read_as_strtold_reads_them() {
        for text in [
            "",
            "-",
            "+",
            ".",
            "e5",
            "1e",
            "1e+",
            "1 ",
            " 1",
            "nan",
            "-nan",
            "nan(1)",
            "0x",
            "0x.",
            "0xp1",
            "0x1p",
            "1p3",
            "--1",
            "+-1",
            "1e5000",
            "-1e5000",
            "1e-5000",
            "0x1p20000",
            "0x1p-20000",
            "1e99999999999999999999",
            "1\0",
            "infi",
            "1,5",
            "0x1e+5",
            "1_0",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        for (text, out) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0e0", "0"),
            ("0e99999999999999999999", "0"),
            ("+5", "5"),
            ("5.", "5"),
            (".5", "0.5"),
            ("0005", "5"),
            ("5.0e3", "5000"),
            ("0x10", "16"),
            ("0X1.8P3", "12"),
            ("0x.8", "0.5"),
            ("-0xA", "-10"),
            ("0x1p-4", "0.0625"),
            ("0x0p-99999999999", "0"),
        ] {
            assert_eq!(fixed(text).as_deref(), Some(out), "{text:?}");
        }
        for text in ["inf", "-inf", "+INF", "Infinity", "-iNfInItY"] {
            assert!(LongDouble::parse(text.as_bytes()).is_some_and(|v| !v.is_finite()), "{text:?}");
        }
        assert!(LongDouble::parse(&[b'1'; LONG_DOUBLE_TEXT_MAX]).is_none());
        assert!(LongDouble::parse(&[b'0'; LONG_DOUBLE_TEXT_MAX - 1]).is_some());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn sums_have_the_precision_of_an_x87() {
        for (a, b, out) in [
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("3", "1.000000000000000005", "4.00000000000000001"),
            ("1", "-1", "0"),
            ("-1e-18", "0", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("5e-18", "0", "0"),
            ("5.1e-18", "0", "0.00000000000000001"),
            ("9223372036854775807", "1", "9223372036854775808"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("36893488147419103232", "1", "36893488147419103232"),
            ("1e20", "0.5", "100000000000000000000"),
            ("1e22", "1", "10000000000000000000000"),
            ("123456789.123456789", "1e-9", "123456789.12345678999554366"),
        ] {
            let sum = LongDouble::parse(a.as_bytes()).unwrap().sum(LongDouble::parse(b.as_bytes()).unwrap());
            assert_eq!(sum.to_fixed(), out, "{a} + {b}");
        }
        let huge = LongDouble::parse(b"1.1e4932").unwrap();
        assert!(huge.is_finite() && !huge.sum(huge).is_finite());
        assert_eq!(huge.to_fixed().len(), 4933);
        let infinite = LongDouble::parse(b"inf").unwrap();
        assert!(!infinite.sum(LongDouble::parse(b"-inf").unwrap()).is_finite());
    }
}
