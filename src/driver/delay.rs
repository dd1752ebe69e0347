//! Notices under `appendfsync everysec` that the disk is busy: a sync that runs for seconds while changes wait to be written.

/// From this many milliseconds on, the operator is told. As in Redis.
const DELAYED_MS: u64 = 2000;

/// Looks at the running sync whenever changes are handed over.
#[derive(Debug, Default)]
pub struct Delay {
    /// The number of the sync that was seen, and since when, in monotonic milliseconds.
    seen: Option<(u64, u64)>,
}

impl Delay {
    /// Takes note of changes that are handed over while the sync with this number runs, or `None`. Returns whether the sync has
    /// held up changes for two seconds since this was first called during it, or since it last returned true.
    pub fn note(&mut self, sync: Option<u64>, now_ms: u64) -> bool {
        let since_ms = match (self.seen, sync) {
            (Some((seen, since_ms)), Some(number)) if seen == number => since_ms,
            _ => now_ms,
        };
        let is_long = sync.is_some() && now_ms.saturating_sub(since_ms) >= DELAYED_MS;
        self.seen = sync.map(|number| (number, if is_long { now_ms } else { since_ms }));
        is_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_long_sync_holds_up_changes() {
        let mut delay = Delay::default();
        let mut at = |sync, now_ms| delay.note(sync, now_ms);
        // Short ones.
        assert!(!at(Some(1), 0) && !at(Some(1), 1999) && !at(None, 2000));
        assert!(!at(Some(2), 2500) && !at(Some(3), 4600), "they are two");
        // A long one.
        assert!(!at(Some(3), 6599) && at(Some(3), 6600) && !at(Some(3), 6601), "once in two seconds");
        assert!(at(Some(3), 8600) && !at(Some(4), 8700) && !at(None, 12_000) && !at(Some(5), 12_000));
    }
}
