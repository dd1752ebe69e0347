//! Doubles as text, digit for digit as Redis 7.2 and later writes them.
//!
//! Redis finds the digits with Grisu2 (Florian Loitsch, "Printing Floating-Point Numbers Quickly and Accurately with Integers",
//! 2010): 64-bit arithmetic that always gives digits which read back as the same double, and in all but about one case in a
//! thousand the fewest. Because of that one case a shortest-digits algorithm will not do here: clients compare replies as text.

/// No double is written longer than this, in bytes.
pub const DOUBLE_MAX: usize = 32;

/// Grisu2 gives no more digits than this.
const DIGITS_MAX: usize = 18;
/// Integers up to this magnitude, 2^62, are written with all their digits.
const PLAIN_INTEGER_MAX: f64 = 4_611_686_018_427_387_904.0;

/// The form in which Redis 7.2 and later writes a double: integers plainly up to 2^62, otherwise digits that read back the same,
/// with an exponent (`1e+20`, `1.5e-7`) where the number is long without one; `inf`, `-inf`, `nan` and `-0`.
pub fn format_double(value: f64, buf: &mut [u8; DOUBLE_MAX]) -> &[u8] {
    let mut text = Text { buf, len: 0 };
    if value.is_nan() {
        text.push(b"nan");
        return text.finish();
    }
    if value.abs() <= PLAIN_INTEGER_MAX && value != 0.0 && value as i64 as f64 == value {
        text.push(itoa::Buffer::new().format(value as i64).as_bytes());
        return text.finish();
    }
    if value.is_sign_negative() {
        text.push(b"-");
    }
    if value == 0.0 {
        text.push(b"0");
    } else if value.is_infinite() {
        text.push(b"inf");
    } else {
        let mut digits = [0; DIGITS_MAX];
        let (count, exponent) = grisu2(value.abs(), &mut digits);
        text.number(&digits[..count], exponent);
    }
    text.finish()
}

/// The other form in which Redis writes a double here and there: 17 significant digits without zeros at the end, as C's `%.17g`.
pub fn format_seventeen(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan"
        } else if value < 0.0 {
            "-inf"
        } else {
            "inf"
        }
        .to_owned();
    }
    let scientific = format!("{value:.16e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    if (-4..17).contains(&exponent) {
        // Seventeen digits in all, those in front of the point among them.
        trimmed(&format!("{value:.*}", (16 - exponent) as usize))
    } else {
        format!("{}e{}{:02}", trimmed(mantissa), if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
    }
}

/// Text at the beginning of a buffer that is large enough for every double.
struct Text<'a> {
    buf: &'a mut [u8; DOUBLE_MAX],
    len: usize,
}

impl<'a> Text<'a> {
    fn push(&mut self, bytes: &[u8]) {
        self.buf[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn zeros(&mut self, count: usize) {
        self.buf[self.len..self.len + count].fill(b'0');
        self.len += count;
    }

    fn finish(self) -> &'a [u8] {
        &self.buf[..self.len]
    }

    /// Writes `digits` × 10^`exponent`.
    fn number(&mut self, digits: &[u8], exponent: i32) {
        let count = digits.len() as i32;
        // Position of the decimal point: after this many digits or, if negative, after a zero and this many zeros more.
        let point = count + exponent;
        let scientific = point - 1;
        if exponent >= 0 && scientific < count + 7 {
            self.push(digits);
            self.zeros(exponent as usize);
        } else if exponent < 0 && (exponent > -7 || scientific.abs() < 4) {
            if point > 0 {
                self.push(&digits[..point as usize]);
                self.push(b".");
                self.push(&digits[point as usize..]);
            } else {
                self.push(b"0.");
                self.zeros(-point as usize);
                self.push(digits);
            }
        } else {
            self.push(&digits[..1]);
            if count > 1 {
                self.push(b".");
                self.push(&digits[1..]);
            }
            self.push(if scientific < 0 { b"e-" } else { b"e+" });
            self.push(itoa::Buffer::new().format(scientific.unsigned_abs()).as_bytes());
        }
    }
}

/// `fraction` × 2^`exponent`.
#[derive(Clone, Copy)]
struct Float {
    fraction: u64,
    exponent: i32,
}

impl Float {
    /// The same number with the highest bit of its fraction set.
    fn normalized(self) -> Self {
        let shift = self.fraction.leading_zeros();
        Float { fraction: self.fraction << shift, exponent: self.exponent - shift as i32 }
    }

    /// The product, rounded to 64 bits.
    fn times(self, other: Self) -> Self {
        let product = self.fraction as u128 * other.fraction as u128 + (1 << 63);
        Float { fraction: (product >> 64) as u64, exponent: self.exponent + other.exponent + 64 }
    }
}

/// The digits of a finite double above 0, their number, and the power of ten of the last one.
fn grisu2(value: f64, digits: &mut [u8; DIGITS_MAX]) -> (usize, i32) {
    const HIDDEN: u64 = 1 << 52;
    let bits = value.to_bits();
    let float = match (bits >> 52, bits & (HIDDEN - 1)) {
        (0, fraction) => Float { fraction, exponent: -1074 },
        (exponent, fraction) => Float { fraction: fraction | HIDDEN, exponent: exponent as i32 - 1075 },
    };
    // Half-way to the neighbours on both sides; below a power of two the neighbour is nearer.
    let upper = Float { fraction: float.fraction * 2 + 1, exponent: float.exponent - 1 }.normalized();
    let closer = if float.fraction == HIDDEN { 2 } else { 1 };
    let lower = Float { fraction: (float.fraction << closer) - 1, exponent: float.exponent - closer };
    let lower = Float { fraction: lower.fraction << (lower.exponent - upper.exponent), exponent: upper.exponent };

    let (power, ten_exponent) = power_of_ten_for(upper.exponent);
    let middle = float.normalized().times(power);
    let mut upper = upper.times(power);
    let mut lower = lower.times(power);
    // Each product may be off by one: stay inside.
    upper.fraction -= 1;
    lower.fraction += 1;
    let (count, shift) = generate(middle, upper, lower, digits);
    (count, shift - ten_exponent)
}

/// The shortest digits between `lower` and `upper`, moved towards `middle`: their number, and the power of ten of the last one.
fn generate(middle: Float, upper: Float, lower: Float, digits: &mut [u8; DIGITS_MAX]) -> (usize, i32) {
    let mut distance = upper.fraction - middle.fraction;
    let mut width = upper.fraction - lower.fraction;
    // The exponent is in -60..=-32: an integer part of 32 bits at most, and room to multiply the rest by ten.
    let point = -upper.exponent as u32;
    let mask = (1u64 << point) - 1;
    let mut integer = upper.fraction >> point;
    let mut rest = upper.fraction & mask;
    let mut count = 0;

    let mut unit = 1_000_000_000u64;
    for place in (0..10).rev() {
        let digit = integer / unit;
        integer %= unit;
        if digit != 0 || count != 0 {
            digits[count] = b'0' + digit as u8;
            count += 1;
        }
        let left = (integer << point) + rest;
        if left <= width {
            round(&mut digits[..count], width, left, unit << point, distance);
            return (count, place);
        }
        unit /= 10;
    }
    let mut place = 0;
    loop {
        rest *= 10;
        width = width.wrapping_mul(10);
        distance = distance.wrapping_mul(10);
        place -= 1;
        let digit = rest >> point;
        rest &= mask;
        if digit != 0 || count != 0 {
            digits[count] = b'0' + digit as u8;
            count += 1;
        }
        if rest < width {
            round(&mut digits[..count], width, rest, 1 << point, distance);
            return (count, place);
        }
    }
}

/// Lowers the last digit while that brings the number nearer to the target. `left` and `distance` are the distances of the number and
/// of the target from the upper bound.
fn round(digits: &mut [u8], width: u64, mut left: u64, unit: u64, distance: u64) {
    let Some(last) = digits.last_mut() else { return };
    while left < distance && width - left >= unit && (left + unit < distance || distance - left > left + unit - distance) {
        *last -= 1;
        left += unit;
    }
}

/// A power of ten and its exponent. Its product with a normalized number of this binary exponent has an exponent slightly above -60.
fn power_of_ten_for(exponent: i32) -> (Float, i32) {
    // log10(2) in 32 fractional bits; the product is rounded up.
    let least = ((-61 - exponent) as i64 * 1_292_913_986 + u32::MAX as i64) >> 32;
    let index = (least as i32 - POWER_FIRST + POWER_STEP - 1) / POWER_STEP;
    let ten_exponent = POWER_FIRST + index * POWER_STEP;
    // log2(10) in 19 fractional bits, exact over the table.
    let exponent = ((ten_exponent * 1_741_647) >> 19) - 63;
    (Float { fraction: POWERS[index as usize], exponent }, ten_exponent)
}

/// The power of ten of the table's first row.
const POWER_FIRST: i32 = -348;
/// How many powers of ten lie between two rows.
const POWER_STEP: i32 = 8;

/// The 64 highest bits, rounded, of 10^-348, 10^-340, … 10^340.
#[rustfmt::skip]
const POWERS: [u64; 87] = [
    0xfa8fd5a0081c0288, 0xbaaee17fa23ebf76, 0x8b16fb203055ac76, 0xcf42894a5dce35ea, 0x9a6bb0aa55653b2d,
    0xe61acf033d1a45df, 0xab70fe17c79ac6ca, 0xff77b1fcbebcdc4f, 0xbe5691ef416bd60c, 0x8dd01fad907ffc3c,
    0xd3515c2831559a83, 0x9d71ac8fada6c9b5, 0xea9c227723ee8bcb, 0xaecc49914078536d, 0x823c12795db6ce57,
    0xc21094364dfb5637, 0x9096ea6f3848984f, 0xd77485cb25823ac7, 0xa086cfcd97bf97f4, 0xef340a98172aace5,
    0xb23867fb2a35b28e, 0x84c8d4dfd2c63f3b, 0xc5dd44271ad3cdba, 0x936b9fcebb25c996, 0xdbac6c247d62a584,
    0xa3ab66580d5fdaf6, 0xf3e2f893dec3f126, 0xb5b5ada8aaff80b8, 0x87625f056c7c4a8b, 0xc9bcff6034c13053,
    0x964e858c91ba2655, 0xdff9772470297ebd, 0xa6dfbd9fb8e5b88f, 0xf8a95fcf88747d94, 0xb94470938fa89bcf,
    0x8a08f0f8bf0f156b, 0xcdb02555653131b6, 0x993fe2c6d07b7fac, 0xe45c10c42a2b3b06, 0xaa242499697392d3,
    0xfd87b5f28300ca0e, 0xbce5086492111aeb, 0x8cbccc096f5088cc, 0xd1b71758e219652c, 0x9c40000000000000,
    0xe8d4a51000000000, 0xad78ebc5ac620000, 0x813f3978f8940984, 0xc097ce7bc90715b3, 0x8f7e32ce7bea5c70,
    0xd5d238a4abe98068, 0x9f4f2726179a2245, 0xed63a231d4c4fb27, 0xb0de65388cc8ada8, 0x83c7088e1aab65db,
    0xc45d1df942711d9a, 0x924d692ca61be758, 0xda01ee641a708dea, 0xa26da3999aef774a, 0xf209787bb47d6b85,
    0xb454e4a179dd1877, 0x865b86925b9bc5c2, 0xc83553c5c8965d3d, 0x952ab45cfa97a0b3, 0xde469fbd99a05fe3,
    0xa59bc234db398c25, 0xf6c69a72a3989f5c, 0xb7dcbf5354e9bece, 0x88fcf317f22241e2, 0xcc20ce9bd35c78a5,
    0x98165af37b2153df, 0xe2a0b5dc971f303a, 0xa8d9d1535ce3b396, 0xfb9b7cd9a4a7443c, 0xbb764c4ca7a44410,
    0x8bab8eefb6409c1a, 0xd01fef10a657842c, 0x9b10a4e5e9913129, 0xe7109bfba19c0c9d, 0xac2820d9623bf429,
    0x80444b5e7aa7cf85, 0xbf21e44003acdd2d, 0x8e679c2f5e44ff8f, 0xd433179d9c8cb841, 0x9e19db92b4e31ba9,
    0xeb96bf6ebadf77d9, 0xaf87023b9bf0ee6b,
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::scaled;
    use proptest::prelude::*;

    #[test]
    fn seventeen_digits_as_c_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (0.1, "0.10000000000000001"),
            (1e20, "1e+20"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (-2.5, "-2.5"),
            (f64::NEG_INFINITY, "-inf"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
        ] {
            assert_eq!(format_seventeen(value), text);
        }
    }

    /// Values, and what a redis-server replied.
    #[rustfmt::skip]
    #[allow(clippy::approx_constant, clippy::excessive_precision)]
    const CASES: &[(f64, &str)] = &[
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (-1.0, "-1"),
        (3.0, "3"),
        (10.0, "10"),
        (0.5, "0.5"),
        (-0.5, "-0.5"),
        (0.1, "0.1"),
        (0.3, "0.3"),
        (3.14, "3.14"),
        (1.5, "1.5"),
        (100.0, "100"),
        (1000000000000000.0, "1000000000000000"),
        (1e+16, "10000000000000000"),
        (1e+17, "100000000000000000"),
        (1.2345678901234568e+17, "123456789012345680"),
        (1e+18, "1000000000000000000"),
        (4.611686018427388e+18, "4611686018427387904"),
        (-4.611686018427388e+18, "-4611686018427387904"),
        (4.611686018427389e+18, "4611686018427389000"),
        (9.223372036854776e+18, "9223372036854776000"),
        (1e+19, "1e+19"),
        (1e+20, "1e+20"),
        (1e+21, "1e+21"),
        (1.5e+20, "1.5e+20"),
        (1.2345e+22, "1.2345e+22"),
        (1.2345678901234567e+19, "12345678901234567000"),
        (1e+100, "1e+100"),
        (0.1, "0.1"),
        (0.001, "0.001"),
        (0.0001, "0.0001"),
        (1e-05, "0.00001"),
        (1e-06, "0.000001"),
        (1e-07, "1e-7"),
        (1.5e-07, "1.5e-7"),
        (1.25e-10, "1.25e-10"),
        (1.2345e-05, "1.2345e-5"),
        (1.2345e-06, "1.2345e-6"),
        (1.2345e-07, "1.2345e-7"),
        (1e-100, "1e-100"),
        (123.456, "123.456"),
        (1234567.875, "1234567.875"),
        (1e+300, "1e+300"),
        (-1e+300, "-1e+300"),
        (1.7976931348623157e+308, "1.7976931348623157e+308"),
        (2.2250738585072014e-308, "2.2250738585072014e-308"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (0.1234567890123456, "0.1234567890123456"),
        (-0.00012345678901234567, "-1.2345678901234567e-4"),
        (1e+22, "1e+22"),
        (1.8014398509481984e+16, "18014398509481984"),
        (3.3333333333333335, "3.3333333333333335"),
        (2500000000.0, "2500000000"),
        (9.999999999999998e+19, "99999999999999980000"),
        (9.5367431640625e-07, "9.5367431640625e-7"),
        (-1.5e-09, "-1.5e-9"),
        (-1e+20, "-1e+20"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
        // Where Grisu2 does not find the shortest digits.
        (-94542.1803, "-9.454218030000001e+4"),
        (-2325.9021209, "-2325.9021209000002"),
        (-36800.50192249264, "-3.6800501922492636e+4"),
        (6.05e-28, "6.0500000000000004e-28"),
        (-3.0800000000000002e+28, "-3.0800000000000003e+28"),
        (-8.193123005021606e+201, "-8.193123005021607e+201"),
    ];

    fn text(value: f64) -> String {
        String::from_utf8(format_double(value, &mut [0; DOUBLE_MAX]).to_vec()).unwrap()
    }

    #[test]
    fn doubles_are_written_as_redis_writes_them() {
        for &(value, expected) in CASES {
            assert_eq!(text(value), expected, "{value:e}");
        }
    }
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn every_binary_exponent_has_its_power_of_ten() {
        for exponent in -1137..=960 {
            let (power, _) = power_of_ten_for(exponent);
            assert!(power.fraction >> 63 == 1);
            assert!((-60..=-32).contains(&(exponent + power.exponent + 64)), "{exponent}");
        }
    }

    #[test]
    fn rows_of_the_table_that_fit_64_bits_are_exact() {
        for ten_exponent in [4u32, 12] {
            let index = (ten_exponent as i32 - POWER_FIRST) / POWER_STEP;
            let exact = 10u64.pow(ten_exponent);
            assert_eq!(POWERS[index as usize], exact << exact.leading_zeros());
        }
        // Each row is the one before it times 10^8, but for rounding.
        let factor = Float { fraction: 100_000_000, exponent: 0 }.normalized();
        for pair in POWERS.windows(2) {
            let product = Float { fraction: pair[0], exponent: 0 }.times(factor).normalized().fraction;
            assert!(product.abs_diff(pair[1]) <= 2, "{:x} {:x}", product, pair[1]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(scaled(20_000, 20)))]
        #[test]
        fn what_is_written_reads_back_the_same(bits: u64) {
            let value = f64::from_bits(bits);
            let text = text(value);
            prop_assert!(text.len() <= 25);
            let back: f64 = text.parse().unwrap();
            prop_assert!(back == value || (back.is_nan() && value.is_nan()), "{} for {:e}", text, value);
        }
    }
}
