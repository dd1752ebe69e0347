//! How often an entry is used (LFU), in the 20 bits that otherwise hold its last use.
//!
//! ```text
//!   │ minutes (12) │ counter (8) │     the minute, modulo 4,096, at which the counter was last brought up to date
//! ```
//! The counter grows with the logarithm of the number of uses: the larger it is, the less likely a use makes it grow. It falls by
//! one for each `decay_minutes` without a use. Redis has 16 bits for the minute: here an idle time of more than 2.8 days wraps
//! around.

/// The counter of a new entry, so that it is not evicted first.
pub const INITIAL: u8 = 5;

const MINUTES: u32 = 1 << 12;

/// The rates at which counters grow and fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `lfu-log-factor`: the larger it is, the more uses a counter needs to grow.
    pub log_factor: u32,
    /// `lfu-decay-time`: minutes without a use after which a counter falls by one; 0: it never falls.
    pub decay_minutes: u32,
}

/// The 20 bits of an entry with this counter.
pub fn stamp(minute: u64, counter: u8) -> u32 {
    ((minute % u64::from(MINUTES)) as u32) << 8 | u32::from(counter)
}

/// The counter of an entry with these 20 bits, decayed to this minute.
pub fn counter(stamp: u32, minute: u64, rules: Rules) -> u8 {
    let elapsed = ((minute % u64::from(MINUTES)) as u32 + MINUTES - (stamp >> 8) % MINUTES) % MINUTES;
    let fallen = elapsed.checked_div(rules.decay_minutes).unwrap_or(0);
    (stamp as u8).saturating_sub(u8::try_from(fallen).unwrap_or(u8::MAX))
}

/// The 20 bits after one more use at this minute; `random` decides whether the counter grows.
pub fn used(old: u32, minute: u64, rules: Rules, random: u64) -> u32 {
    let counter = counter(old, minute, rules);
    let above = u64::from(counter.saturating_sub(INITIAL));
    // A probability of 1 in `above * log_factor + 1`.
    let grows = random.is_multiple_of(above * u64::from(rules.log_factor) + 1);
    stamp(minute, counter.saturating_add(u8::from(grows)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: Rules = Rules { log_factor: 10, decay_minutes: 1 };

    fn after(uses: u32, rules: Rules) -> u8 {
        let (mut bits, mut random) = (stamp(7, INITIAL), 1u64);
        for _ in 0..uses {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bits = used(bits, 7, rules, random >> 20);
        }
        counter(bits, 7, rules)
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn counters_grow_with_the_logarithm_of_uses() {
        // What `redis.conf` documents for these factors, within what chance makes of it.
        assert_eq!(after(1, RULES), 6);
        assert!((8..=13).contains(&after(100, RULES)), "{}", after(100, RULES));
        assert!((15..=23).contains(&after(1000, RULES)), "{}", after(1000, RULES));
        assert!((125..=160).contains(&after(100_000, RULES)), "{}", after(100_000, RULES));
        assert_eq!(after(300, Rules { log_factor: 0, ..RULES }), 255);
    }

    proptest! {
        #[test]
        fn a_counter_falls_by_one_each_period_and_never_rises_by_itself(
            minute in 0..1u64 << 40, value in any::<u8>(), idle in 0..4096u64, period in 0..100u32, random in any::<u64>(),
        ) {
            let rules = Rules { log_factor: 3, decay_minutes: period };
            let bits = stamp(minute, value);
            prop_assert!(bits < 1 << 20);
            let fallen = if period == 0 { 0 } else { idle / u64::from(period) };
            let expected = u64::from(value).saturating_sub(fallen) as u8;
            prop_assert_eq!(counter(bits, minute + idle, rules), expected);
            let now = used(bits, minute + idle, rules, random);
            let grown = counter(now, minute + idle, rules);
            prop_assert!(grown == expected || Some(grown) == expected.checked_add(1));
        }
    }
}
