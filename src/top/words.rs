//! Short times for tables. The words of sentences are the server's: see `base::words`.

use crate::base::words::{DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, SECONDS_EXACT_MS};
pub use crate::base::words::{counted, long};

/// A duration of milliseconds, in at most six characters up to 999 days: `250ms`, `3.2s`, `45s`, `3m05s`, `2h05m`, `3d04h`.
pub fn short(ms: u64) -> String {
    match ms {
        0..SECOND_MS => format!("{ms}ms"),
        SECOND_MS..SECONDS_EXACT_MS => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        SECONDS_EXACT_MS..MINUTE_MS => format!("{}s", ms / SECOND_MS),
        MINUTE_MS..HOUR_MS => format!("{}m{:02}s", ms / MINUTE_MS, ms % MINUTE_MS / SECOND_MS),
        HOUR_MS..DAY_MS => format!("{}h{:02}m", ms / HOUR_MS, ms % HOUR_MS / MINUTE_MS),
        _ => format!("{}d{:02}h", ms / DAY_MS, ms % DAY_MS / HOUR_MS),
    }
}

/// A duration of microseconds, as [`short`].
pub fn short_us(us: u64) -> String {
    if us < 1000 { format!("{us}us") } else { short(us / 1000) }
}

/// The time of day of a unix time in milliseconds, in UTC.
pub fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds % 3600 / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_unit_that_fits() {
        for (ms, brief, words) in [
            (0, "0ms", "0 ms"),
            (999, "999ms", "999 ms"),
            (3_299, "3.2s", "3.2 s"),
            (59_999, "59s", "59 s"),
            (185_000, "3m05s", "3 min"),
            (7_200_000, "2h00m", "2 h"),
            (7_500_000, "2h05m", "2 h 5 min"),
            (DAY_MS * 3 + HOUR_MS * 4, "3d04h", "3 d 4 h"),
        ] {
            assert_eq!((short(ms).as_str(), long(ms).as_str()), (brief, words), "{ms}");
        }
        assert_eq!((short_us(900), short_us(1_200_000)), ("900us".to_owned(), "1.2s".to_owned()));
        assert_eq!(time_of_day(1_700_000_000_000), "22:13:20 UTC");
        assert_eq!((counted(1, "client"), counted(0, "client")), ("1 client".to_owned(), "0 clients".to_owned()));
    }
}
