//! When what is free goes back to the system.
//!
//! The allocator gives back by itself what lies at the end of its heap. A single small block that lives there keeps all before it:
//! a client that watched a million keys left 130 MiB behind, of which a few hundred kilobytes were in use. So the allocator is told
//! to look through its heap whenever a few megabytes were freed. To do it once, at the end, would be a pause of 15 ms for everybody.

/// Told when so many bytes were freed: to give them back takes a tenth of a millisecond.
const STEP: i64 = 1 << 20;
/// When so many bytes were freed, they are put in order: the allocator goes through what is not yet whenever it gives memory back.
const ORDER: i64 = 128 << 10;
/// What was given back should have been kept where it is taken again within so many milliseconds.
const SOON_MS: u64 = 10_000;
/// How long nothing is given back when it should have been kept: at first, and at most, in milliseconds.
const WAIT_MS: (u64, u64) = (100, 10_000);
/// Nanoseconds that those who make requests may have to wait, as far as can be told. While nobody makes any it may take longer.
const PATIENCE_NS: u64 = 16_000_000;
/// Nanoseconds that it takes to give 1 KiB back.
const NS_PER_KIB: u64 = 100;
/// Nobody makes requests where there was none for so many milliseconds.
const IDLE_MS: u64 = 1000;

/// What a process takes up at one time.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Monotonic milliseconds.
    pub now_ms: u64,
    /// Bytes in use.
    pub in_use: i64,
    /// Bytes in the computer's memory.
    pub private: i64,
}

/// Decides when the allocator is to give memory back.
#[derive(Debug, Default)]
pub struct Returns {
    /// The most bytes in use since the last time.
    most: i64,
    /// The most since it was last put in order.
    most_in_order: i64,
    /// The most bytes in use before the last time.
    most_before: Option<i64>,
    /// Bytes in use at the last time.
    least: i64,
    /// When it was last done, in monotonic milliseconds.
    last_ms: u64,
    /// Not again before this.
    not_before_ms: u64,
    /// How long it was waited for after the last time.
    wait_ms: u64,
    /// What it takes to look through the heap, going by the last time.
    looking_ns: u64,
    /// When the last request was made, in monotonic milliseconds.
    asked_ms: u64,
}

impl Returns {
    /// Notes that a request was made.
    #[inline]
    pub fn note_request(&mut self, now_ms: u64) {
        self.asked_ms = now_ms;
    }

    /// Notes how much is in use, in bytes; gives whether [`Returns::allowed`] is to be asked.
    #[inline]
    pub fn note(&mut self, now_ms: u64, in_use: i64) -> bool {
        self.most = self.most.max(in_use);
        self.most - in_use > STEP && now_ms >= self.not_before_ms
    }

    /// Notes how much is in use; gives whether [`crate::server::heap::allocator::put_in_order`] is to be called now.
    #[inline]
    pub fn note_order(&mut self, in_use: i64) -> bool {
        self.most_in_order = self.most_in_order.max(in_use);
        let due = self.most_in_order - in_use > ORDER;
        if due {
            self.most_in_order = in_use;
        }
        due
    }

    /// When to look even if nothing happens, in monotonic milliseconds.
    #[inline]
    pub fn next_ms(&self, in_use: i64) -> Option<u64> {
        (self.most - in_use > STEP).then_some(self.not_before_ms)
    }

    /// Whether memory is to be given back now.
    pub fn allowed(&mut self, now: Use) -> bool {
        let freed = self.most - now.in_use;
        let unused = now.private - now.in_use;
        if unused < STEP {
            // Large blocks were freed, which the system has already.
            self.most = now.in_use + unused.max(0);
            return false;
        }
        // Where keys go in no order, whole pages become free at the very end, many of them for each key.
        let returned = if now.in_use < now.private / 8 { unused } else { unused.min(freed) };
        let returning_ns = (returned as u64 >> 10) * NS_PER_KIB;
        // There are no more free blocks than there are blocks in use between them.
        let share = (now.in_use.max(0) as f64 / self.least.max(1) as f64).min(1.0);
        let looking_ns = (self.looking_ns as f64 * share) as u64 >> ((now.now_ms - self.last_ms) / SOON_MS).min(63);
        let idle = now.now_ms - self.asked_ms >= IDLE_MS;
        if !idle && (looking_ns > returning_ns || looking_ns + returning_ns > PATIENCE_NS) {
            self.wait(now.now_ms, true);
            return false;
        }
        true
    }

    /// Notes that it was done and took so long, and what was in the computer's memory before.
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

    /// A process that takes 1 ms to give 10 MiB back, and so long more to look for them.
    #[derive(Default)]
    struct Process {
        returns: Returns,
        now_ms: u64,
        private: i64,
        looking_ns: u64,
        pauses_ns: Vec<u64>,
    }

    impl Process {
        /// Makes a request after which so much is in use.
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
    fn what_is_taken_again_and_again_is_kept() {
        let mut process = Process::default();
        for _ in 0..10_000 {
            process.uses(20 * MIB);
            process.uses(10 * MIB);
            process.now_ms += 1;
        }
        assert!((2..=8).contains(&process.pauses_ns.len()), "{}", process.pauses_ns.len());
        // Until it is not taken any more.
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
    fn a_heap_that_takes_long_to_look_through_is_left_alone_until_nobody_asks() {
        let mut process = Process::default();
        process.uses(1000 * MIB);
        for left in (1600..1000 * 16).rev() {
            process.uses(left * MIB / 16);
            // There are ever more free blocks between those in use.
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
