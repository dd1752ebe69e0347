//! Deferred freeing of large buffers. Returning a gigabyte to the system takes a third of a second, so it is done in pieces.

/// Number of bytes freed in one step.
const STEP: usize = 1 << 20;
/// Cost of one step in a turn's budget: freeing its pages takes about as long as freeing this many keys.
const STEP_COST: u32 = 256;

/// A buffer that can be shrunk from its end.
trait Shrink {
    /// Frees some bytes. Returns false if none are left.
    fn shrink(&mut self) -> bool;
}

impl<T: Copy> Shrink for Vec<T> {
    fn shrink(&mut self) -> bool {
        let left = self.capacity().saturating_sub((STEP / size_of::<T>().max(1)).max(1));
        self.truncate(left);
        self.shrink_to(left);
        left > 0
    }
}

/// Buffers that wait to be freed.
#[derive(Default)]
pub struct Discards {
    waiting: Vec<Box<dyn Shrink>>,
}

impl Discards {
    /// Drops a buffer. A large one is freed in steps.
    pub fn add<T: Copy + 'static>(&mut self, buffer: Vec<T>) {
        if buffer.capacity() * size_of::<T>() > STEP / 4 {
            self.waiting.push(Box::new(buffer));
        }
    }

    /// Whether no buffer waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Frees some memory.
    pub fn free_some(&mut self, budget: &mut u32) {
        while *budget > 0
            && let Some(buffer) = self.waiting.last_mut()
        {
            *budget = budget.saturating_sub(STEP_COST);
            if !buffer.shrink() {
                self.waiting.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_goes_in_pieces() {
        let mut discards = Discards::default();
        discards.add(vec![1u8; 1000]);
        assert!(discards.is_empty(), "a small one goes at once");
        discards.add(vec![1u64; 5 * STEP / 8]);
        discards.add(vec![1u8; 3 * STEP]);
        let mut turns = 0;
        while !discards.is_empty() {
            discards.free_some(&mut { STEP_COST });
            turns += 1;
        }
        assert_eq!(turns, 8);
    }
}
