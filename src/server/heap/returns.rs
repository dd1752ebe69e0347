//! Decides when free memory of the C library returns to the system.
//!
//! glibc returns memory by itself only from the end of its heap. A single small block there retains everything before it: a
//! client that watched a million keys left 130 MiB behind, of which a few hundred kilobytes were in use. So glibc is told to
//! search its heap whenever a megabyte was freed. A single search at the end would pause all clients for 15 ms.

/// Memory is returned after this many bytes were freed: that takes a tenth of a millisecond.
const STEP: i64 = 1 << 20;
/// Freed blocks are consolidated after this many bytes: returning memory has to walk all blocks that are not.
const ORDER: i64 = 128 << 10;
/// Memory that is allocated again within this many milliseconds should not have been returned.
const SOON_MS: u64 = 10_000;
/// First and maximum back-off after memory was returned too early, in milliseconds.
const WAIT_MS: (u64, u64) = (100, 10_000);
/// Maximum estimated pause for clients that send requests, in nanoseconds. Without requests, a pause may be longer.
const PATIENCE_NS: u64 = 16_000_000;
/// Nanoseconds that it takes to return 1 KiB.
const NS_PER_KIB: u64 = 100;
/// Milliseconds without a request after which the server counts as idle.
const IDLE_MS: u64 = 1000;

/// Memory use of the process at one instant.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Monotonic milliseconds.
    pub now_ms: u64,
    /// Bytes in use.
    pub in_use: i64,
    /// Resident bytes.
    pub private: i64,
}

/// Decides when the allocator returns memory.
#[derive(Debug, Default)]
pub struct Returns {
    /// Maximum of the bytes in use since the last return.
    most: i64,
    /// Maximum since the last consolidation.
    most_in_order: i64,
    /// Maximum of the bytes in use before the last return.
    most_before: Option<i64>,
    /// Bytes in use at the last return.
    least: i64,
    /// Time of the last return, in monotonic milliseconds.
    last_ms: u64,
    /// Earliest time of the next return, in monotonic milliseconds.
    not_before_ms: u64,
    /// Back-off after the last decision.
    wait_ms: u64,
    /// Estimated time to search the heap, from the last return.
    looking_ns: u64,
    /// Time of the last request, in monotonic milliseconds.
    asked_ms: u64,
}

impl Returns {
    /// Records a request.
    #[inline]
    pub fn note_request(&mut self, now_ms: u64) {
        self.asked_ms = now_ms;
    }

    /// Records the bytes in use. Returns whether [`Returns::allowed`] must be asked.
    #[inline]
    pub fn note(&mut self, now_ms: u64, in_use: i64) -> bool {
        self.most = self.most.max(in_use);
        self.most - in_use > STEP && now_ms >= self.not_before_ms
    }

    /// Records the bytes in use. Returns whether [`crate::server::heap::allocator::consolidate`] must be called now.
    #[inline]
    pub fn must_consolidate(&mut self, in_use: i64) -> bool {
        self.most_in_order = self.most_in_order.max(in_use);
        let due = self.most_in_order - in_use > ORDER;
        if due {
            self.most_in_order = in_use;
        }
        due
    }

    /// When to check even if nothing happens, in monotonic milliseconds.
    #[inline]
    pub fn next_ms(&self, in_use: i64) -> Option<u64> {
        (self.most - in_use > STEP).then_some(self.not_before_ms)
    }

    /// Whether memory is returned now.
    pub fn allowed(&mut self, now: Use) -> bool {
        let freed = self.most - now.in_use;
        let unused = now.private - now.in_use;
        if unused < STEP {
            // The freed blocks were large, and the system already has them back.
            self.most = now.in_use + unused.max(0);
            return false;
        }
        // If keys end in random order, whole pages become free only at the very end, many of them per key.
        let returned = if now.in_use < now.private / 8 { unused } else { unused.min(freed) };
        let returning_ns = (returned as u64 >> 10) * NS_PER_KIB;
        // There are no more free blocks than blocks in use between them.
        let share = (now.in_use.max(0) as f64 / self.least.max(1) as f64).min(1.0);
        let looking_ns = (self.looking_ns as f64 * share) as u64 >> ((now.now_ms - self.last_ms) / SOON_MS).min(63);
        let idle = now.now_ms - self.asked_ms >= IDLE_MS;
        if !idle && (looking_ns > returning_ns || looking_ns + returning_ns > PATIENCE_NS) {
            self.wait(now.now_ms, true);
            return false;
        }
        true
    }

    /// Records a return: how long it took, and the resident bytes before it.
    pub fn done(&mut self, now: Use, private_before: i64, took_ns: u64) {
        let returned = (private_before - now.private).max(0);
        self.looking_ns = took_ns.saturating_sub((returned as u64 >> 10) * NS_PER_KIB);
        let taken_again = self.most_before.is_some_and(|before| self.most >= before);
        self.wait(now.now_ms, taken_again && now.now_ms - self.last_ms < SOON_MS);
        (self.most_before, self.most, self.last_ms, self.least) = (Some(self.most), now.in_use, now.now_ms, now.in_use);
    }

    fn wait(&mut self, now_ms: u64, longer: bool) {
        self.wait_ms = if longer { (self.wait_ms * 2).clamp(WAIT_MS.0, WAIT_MS.1) } else { 0 };
        self.not_before_ms = now_ms + self.wait_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    /// A process that takes 1 ms to return 10 MiB, and `looking_ns` more to search for them.
    #[derive(Default)]
    struct Process {
        returns: Returns,
        now_ms: u64,
        private: i64,
        looking_ns: u64,
        pauses_ns: Vec<u64>,
    }

    impl Process {
        /// Makes a request after which `in_use` bytes are in use.
        fn uses(&mut self, in_use: i64) {
            self.returns.note_request(self.now_ms);
            self.turns(in_use);
        }

        fn turns(&mut self, in_use: i64) {
            self.private = self.private.max(in_use);
            let mut now = Use { now_ms: self.now_ms, in_use, private: self.private };
            if self.returns.note(self.now_ms, in_use) && self.returns.allowed(now) {
                let took_ns = ((self.private - in_use) as u64 >> 10) * NS_PER_KIB + self.looking_ns;
                now.private = in_use;
                self.returns.done(now, self.private, took_ns);
                self.private = in_use;
                self.pauses_ns.push(took_ns);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn what_is_freed_bit_by_bit_goes_back_bit_by_bit() {
        let mut process = Process::default();
        process.uses(200 * MIB);
        for left in (0..200 * 16).rev() {
            process.uses(left * MIB / 16);
        }
        assert!(process.private <= STEP, "{} is left", process.private);
        assert!((185..=200).contains(&process.pauses_ns.len()), "{:?}", process.pauses_ns);
        assert!(process.pauses_ns.iter().all(|&ns| ns < 1_000_000), "{:?}", process.pauses_ns);
        assert_eq!(process.returns.next_ms(0), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn what_is_taken_again_and_again_is_kept() {
        let mut process = Process::default();
        for _ in 0..10_000 {
            process.uses(20 * MIB);
            process.uses(10 * MIB);
            process.now_ms += 1;
        }
        assert!((2..=8).contains(&process.pauses_ns.len()), "{}", process.pauses_ns.len());
        // Until they are no longer allocated again.
        let wake_ms = process.returns.next_ms(10 * MIB).unwrap();
        assert!(wake_ms <= process.now_ms + WAIT_MS.1);
        process.now_ms = wake_ms;
        process.uses(10 * MIB);
        assert_eq!(process.private, 10 * MIB);
    }

    #[test]
    fn large_blocks_that_are_with_the_system_already_are_not_looked_for() {
        let mut process = Process::default();
        process.uses(1000 * MIB);
        process.private = MIB;
        process.uses(MIB / 2);
        assert!(process.pauses_ns.is_empty() && process.returns.next_ms(MIB / 2).is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn a_heap_that_takes_long_to_look_through_is_left_alone_until_nobody_asks() {
        let mut process = Process::default();
        process.uses(1000 * MIB);
        for left in (1600..1000 * 16).rev() {
            process.uses(left * MIB / 16);
            // The number of free blocks between those in use keeps growing.
            process.looking_ns += 10_000;
            process.now_ms += 1;
        }
        assert!(process.pauses_ns.iter().all(|&ns| ns < 2 * PATIENCE_NS), "{:?}", process.pauses_ns);
        assert!(process.pauses_ns.len() < 60 && process.private > 200 * MIB, "{} {}", process.pauses_ns.len(), process.private);
        while let Some(at) = process.returns.next_ms(100 * MIB) {
            assert!(at > process.now_ms && at < process.now_ms + 20_000);
            process.now_ms = at;
            process.turns(100 * MIB);
        }
        assert_eq!(process.private, 100 * MIB);
    }
}
