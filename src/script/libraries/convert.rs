//! Conversion of numbers to integers, as in a build of Redis for x86. A number out of the type's range becomes a fixed value
//! there, which scripts can see. In Rust it would become the nearest integer.

pub(super) use crate::script::conversion::to_reply::truncate as to_i64;

const BEYOND_I64: f64 = 9_223_372_036_854_775_808.0;

/// The number without its fraction. Numbers out of range and NaN become `i32::MIN`.
pub(super) fn to_i32(value: f64) -> i32 {
    if value > -2_147_483_649.0 && value < 2_147_483_648.0 { value as i32 } else { i32::MIN }
}

/// The number without its fraction; negative numbers in two's complement. Numbers above the range become 0. NaN and numbers below
/// the range of `i64` become 2⁶³.
pub(super) fn to_u64(value: f64) -> u64 {
    if value >= BEYOND_I64 { (to_i64(value - BEYOND_I64) as u64) ^ (1 << 63) } else { to_i64(value) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_become_a_fixed_value() {
        for (value, i64s, i32s, u64s) in [
            (0.0, 0, 0, 0),
            (-1.9, -1, -1, u64::MAX),
            (2_147_483_647.5, 2_147_483_647, i32::MAX, 2_147_483_647),
            (2_147_483_648.0, 2_147_483_648, i32::MIN, 2_147_483_648),
            (-2_147_483_648.5, -2_147_483_648, i32::MIN, (-2_147_483_648i64) as u64),
            (9_223_372_036_854_775_808.0, i64::MIN, i32::MIN, 1 << 63),
            (18_446_744_073_709_551_616.0, i64::MIN, i32::MIN, 0),
            (f64::INFINITY, i64::MIN, i32::MIN, 0),
            (f64::NEG_INFINITY, i64::MIN, i32::MIN, 1 << 63),
            (f64::NAN, i64::MIN, i32::MIN, 1 << 63),
        ] {
            assert_eq!((to_i64(value), to_i32(value), to_u64(value)), (i64s, i32s, u64s), "{value}");
        }
    }
}
