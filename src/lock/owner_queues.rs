//! The queues of the names that an owner holds: usually one or two, and up to very many.

use std::collections::BTreeSet;

use smallvec::SmallVec;

/// Maximum number that is searched linearly.
const FEW: usize = 32;

/// The queues of the names that an owner holds, by number.
#[derive(Clone, Debug)]
pub enum OwnerQueues {
    /// A few, in the order of insertion.
    Few(SmallVec<[u32; 2]>),
    /// More of them.
    Many(BTreeSet<u32>),
}

impl Default for OwnerQueues {
    fn default() -> Self {
        OwnerQueues::Few(SmallVec::new())
    }
}

impl OwnerQueues {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        match self {
            OwnerQueues::Few(few) => few.is_empty(),
            OwnerQueues::Many(many) => many.is_empty(),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let (few, many) = match self {
            OwnerQueues::Few(few) => (Some(few.iter()), None),
            OwnerQueues::Many(many) => (None, Some(many.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten()).copied()
    }

    /// The one at a position, which is 0 at first, and the next position. A walk over them can go on after a change.
    pub fn next(&self, position: u32) -> Option<(u32, u32)> {
        match self {
            OwnerQueues::Few(few) => few.get(position as usize).map(|&queue| (queue, position + 1)),
            OwnerQueues::Many(many) => many.range(position..).next().map(|&queue| (queue, queue.saturating_add(1))),
        }
    }

    /// Whether a queue is among them.
    pub fn contains(&self, queue: u32) -> bool {
        match self {
            OwnerQueues::Few(few) => few.contains(&queue),
            OwnerQueues::Many(many) => many.contains(&queue),
        }
    }

    /// Adds a queue that is not among them.
    pub fn insert(&mut self, queue: u32) {
        match self {
            OwnerQueues::Few(few) if few.len() < FEW => few.push(queue),
            OwnerQueues::Few(few) => *self = OwnerQueues::Many(few.drain(..).chain([queue]).collect()),
            OwnerQueues::Many(many) => {
                many.insert(queue);
            }
        }
    }

    /// Removes a queue.
    pub fn remove(&mut self, queue: u32) {
        match self {
            OwnerQueues::Few(few) => few.retain(|held| *held != queue),
            OwnerQueues::Many(many) => {
                many.remove(&queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_the_same_set() {
        let mut holds = OwnerQueues::default();
        for queue in 0..100 {
            assert!(!holds.contains(queue));
            holds.insert(queue);
            assert!(holds.contains(queue));
        }
        assert!(holds.iter().eq(0..100));
        let mut position = 0;
        assert!(
            std::iter::from_fn(|| {
                let (queue, next) = holds.next(position)?;
                position = next;
                Some(queue)
            })
            .eq(0..100)
        );
        (0..100).step_by(2).for_each(|queue| holds.remove(queue));
        assert!(holds.iter().eq((1..100).step_by(2)) && !holds.is_empty());
        (1..100).step_by(2).for_each(|queue| holds.remove(queue));
        assert!(holds.is_empty());
    }
}
