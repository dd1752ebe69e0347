//! How much may wait to be stored: one bound for the file and for the quorum.
//!
//! The bound is in bytes of changes: those that were handed over and are not settled, those that gather for the next batch, and
//! on a leader those that its own disk has not written, though the other nodes have. Beyond it, commands that write are refused
//! until half of it is left. A request is refused because of those before it, and not because of its own size.

/// What the driver keeps no more of, in bytes. A test sets less, to show what follows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What waits to be stored.
    pub waiting: u64,
    /// What is on the way to the receiver of a copy: beyond it no more keys are copied, until half of it is left.
    pub backlog: u64,
    /// Changes on the way to that receiver: beyond it the copy is given up, because they come faster than they can be copied.
    pub changes: u64,
    /// Items that are copied at a time.
    pub copied: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        // So many items take some tens of microseconds.
        Limits { waiting: 256 << 20, backlog: 8 << 20, changes: 256 << 20, copied: 8 << 10 }
    }
}

/// Whether too much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    over: bool,
}

impl Bound {
    /// Takes note of how many bytes wait, of this greatest number. Returns whether writes are to be refused from now on, or not any
    /// more.
    #[inline]
    pub fn look(&mut self, waiting: u64, most: u64) -> bool {
        let over = waiting > if self.over { most / 2 } else { most };
        std::mem::replace(&mut self.over, over) != over
    }

    /// Whether too much waits.
    pub fn is_over(self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_refused_above_the_bound_until_half_of_it_is_left() {
        let mut bound = Bound::default();
        let mut look = |waiting| (bound.look(waiting, 100), bound.is_over());
        let seen = [100, 101, 200, 51, 50, 100].map(&mut look);
        assert_eq!(seen, [(false, false), (true, true), (false, true), (false, true), (true, false), (false, false)]);
    }
}
