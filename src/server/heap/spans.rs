//! Returns empty spans of the executor's heap to the system: a tenth of a second after their last use, a few at a time.

use crate::server::heap::blocks;

/// Number of empty spans kept: half a mebibyte.
pub const KEPT: usize = 8;
/// Interval between checks while there are more, in milliseconds. Spans not used in between are not likely to be used soon.
const EVERY_MS: u64 = 100;
/// Number of spans returned in one turn: the system takes some 60 µs for them.
const AT_ONCE: usize = 16;

/// Decides when empty spans are returned.
#[derive(Debug, Default)]
pub struct Spans {
    /// When they are checked next, in monotonic milliseconds.
    due_ms: Option<u64>,
    /// Number of spans still to be returned.
    going: usize,
}

impl Spans {
    /// Schedules a check: there are more empty spans than are kept.
    #[inline]
    pub fn expect(&mut self, now_ms: u64) {
        if self.due_ms.is_none() {
            self.look_later(now_ms);
        }
    }

    #[cold]
    fn look_later(&mut self, now_ms: u64) {
        blocks::account(true);
        self.due_ms = Some(now_ms + EVERY_MS);
    }

    /// When [`Spans::give_back`] must be called, in monotonic milliseconds.
    #[inline]
    pub fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// Returns some spans if it is time to. Returns whether to call this again soon.
    pub fn give_back(&mut self, now_ms: u64) -> bool {
        if self.due_ms.is_none_or(|at| now_ms < at) {
            return false;
        }
        if self.going == 0 {
            // Only spans that were empty all the time are returned. Cached blocks may keep other spans from being empty.
            let (_, unwanted) = blocks::account(false);
            blocks::tidy();
            self.going = unwanted.saturating_sub(KEPT);
        }
        let given = blocks::return_spans(self.going.min(AT_ONCE));
        self.going = if given == 0 { 0 } else { self.going - given };
        if self.going == 0 {
            self.due_ms = None;
            if blocks::empties() > KEPT {
                self.look_later(now_ms);
            }
        }
        self.going > 0
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::Layout;

    use super::*;

    #[test]
    fn what_nobody_wants_goes_back_a_few_spans_a_turn() {
        let _alone = blocks::alone();
        let run = || {
            let _owner = blocks::Owner::new().unwrap();
            blocks::tidy();
            while blocks::return_spans(100) > 0 {}
            let before = blocks::account(true).0;
            let layout = Layout::from_size_align(1024, 8).unwrap();
            let take = || -> Vec<*mut u8> { (0..64 * 100).map(|_| blocks::take(layout)).collect() };
            let free = |blocks: Vec<*mut u8>| {
                // SAFETY: taken above, and not used afterwards.
                blocks.into_iter().for_each(|block| unsafe { blocks::give_back(block, layout) });
                blocks::tidy();
            };
            let mut spans = Spans::default();
            free(take());
            assert!(blocks::empties() >= 100);
            spans.expect(1000);
            assert_eq!(spans.due_ms(), Some(1100));
            assert!(!spans.give_back(1099));
            // Used once more meanwhile: they stay.
            free(take());
            assert!(!spans.give_back(1100));
            assert_eq!(blocks::account(false).0 - before, 100);
            let due_ms = spans.due_ms().unwrap();
            let mut turns = 1;
            while spans.give_back(due_ms) {
                turns += 1;
            }
            assert_eq!((turns, blocks::account(false).0 - before), ((100usize - KEPT).div_ceil(AT_ONCE), KEPT));
            assert_eq!(spans.due_ms(), None, "what is kept is not looked at");
        };
        std::thread::spawn(run).join().unwrap();
    }
}
