//! Numbers to integers, as the compilers and processors do it under which Redis runs: what an integer type cannot hold becomes a
//! fixed value there, which scripts get to see, and not the nearest one as in Rust.

const BEYOND_I64: f64 = 9_223_372_036_854_775_808.0;

/// Without the fraction; the least one for what no `i64` holds.
pub(super) fn to_i64(value: f64) -> i64 {
    if (-BEYOND_I64..BEYOND_I64).contains(&value) { value as i64 } else { i64::MIN }
}

/// Without the fraction; the least one for what no `i32` holds.
pub(super) fn to_i32(value: f64) -> i32 {
    if value > -2_147_483_649.0 && value < 2_147_483_648.0 { value as i32 } else { i32::MIN }
}

/// Without the fraction, negative ones in two's complement; above all of them 0, and 2⁶³ for what is no number or below all.
pub(super) fn to_u64(value: f64) -> u64 {
    if value >= BEYOND_I64 { (to_i64(value - BEYOND_I64) as u64) ^ (1 << 63) } else { to_i64(value) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_becomes_one_fixed_value() {
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
