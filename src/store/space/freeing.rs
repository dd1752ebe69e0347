//! The deleted values that are still to be freed. A value of many elements, or a whole dictionary, is freed in steps, so that no
//! command has to wait for it.

use super::Space;
use super::counts::Counts;
use super::key_cache::NO_DICT;
use crate::lock::{Deletion, LOST_STEPS};
use crate::store::dict::Dict;
use crate::store::entry::Entry;
use crate::store::slots::Discarded;
use crate::store::values::value::Value;

/// Budget steps for freeing an element of a large value: it may be anywhere in memory, and takes two cache misses.
const ELEMENT_STEPS: u32 = 2;

/// A value that is no longer reachable and waits to be freed.
pub(super) enum Unfreed {
    /// A dictionary, and when and by whom it was flushed.
    Dict(Dict, Deletion),
    Value(Box<Value>),
    Slots(Discarded),
}

impl Space {
    /// Frees an entry that was taken out: at once if it is small, otherwise in pieces by [`Space::free_some`].
    #[inline(always)]
    pub fn free_later(&mut self, entry: Entry) {
        assert!(entry.read().timer() == 0, "a timer would outlive its entry, which it has the address of");
        if entry.read().is_boxed() {
            self.free_boxed_later(entry);
        }
    }

    #[inline(never)]
    fn free_boxed_later(&mut self, mut entry: Entry) {
        self.disarm_fields(&mut entry);
        if let Some(value) = entry.change().boxed()
            && value.weight() > 64
            && let Some(value) = entry.into_boxed()
        {
            self.unfreed_len += 1;
            self.unfreed.push(Unfreed::Value(value));
        }
    }

    /// Frees a value that was taken out of its entry.
    pub fn free_value_later(&mut self, value: Box<Value>) {
        assert!(!matches!(&*value, Value::Hash(hash) if hash.field_timer() != 0), "a timer would outlive its entry");
        if value.weight() > 64 {
            self.unfreed_len += 1;
            self.unfreed.push(Unfreed::Value(value));
        }
    }

    /// Empties a dictionary in one step; [`Space::free_some`] frees its entries in pieces. Returns the number of keys.
    pub fn clear(&mut self, dict: usize, deletion: Deletion) -> usize {
        self.searched_dict.set(NO_DICT);
        let old = std::mem::take(&mut self.dicts[dict]);
        self.counts[dict] = Counts::default();
        let len = old.len();
        if len > 0 {
            self.unfreed_len += len;
            self.unfreed.push(Unfreed::Dict(old, deletion));
            if dict == 0
                && let Some(index) = &mut self.slots
            {
                self.unfreed.push(Unfreed::Slots(index.clear()));
            }
        }
        len
    }

    /// Number of values and keys that wait to be freed.
    pub fn unfreed_len(&self) -> usize {
        self.unfreed_len
    }

    /// Resets the count of [`Space::freed`].
    pub fn reset_freed(&mut self) {
        self.freed = 0;
    }

    /// Number of values and keys that were freed in pieces.
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Whether anything waits to be freed.
    pub fn has_unfreed(&self) -> bool {
        !self.unfreed.is_empty()
    }

    /// Takes the locks that [`Space::free_some`] has found, with the flushes that deleted them.
    pub fn take_lost(&mut self) -> Vec<(Deletion, Entry)> {
        std::mem::take(&mut self.lost)
    }

    /// Frees up to `budget` entries of deleted values.
    pub fn free_some(&mut self, budget: &mut u32) {
        while *budget > 0 {
            let Some(top) = self.unfreed.last_mut() else { return };
            match top {
                Unfreed::Dict(dict, deletion) => {
                    let deletion = *deletion;
                    if let Some(entry) = dict.pop() { self.free_entry(entry, deletion, budget) } else { drop(self.unfreed.pop()) }
                }
                Unfreed::Value(value) => {
                    let share = budget.div_ceil(ELEMENT_STEPS);
                    let mut left = share;
                    let all = value.free_some(&mut left);
                    *budget = budget.saturating_sub((share - left) * ELEMENT_STEPS);
                    if !all {
                        return;
                    }
                    self.unfreed.pop();
                    self.unfreed_len -= 1;
                    self.freed += 1;
                }
                Unfreed::Slots(slots) => {
                    if !slots.free_some(budget) {
                        return;
                    }
                    self.unfreed.pop();
                }
            }
        }
    }

    /// Frees an entry of the flushed dictionary on top of the stack of unfreed values.
    fn free_entry(&mut self, mut entry: Entry, deletion: Deletion, budget: &mut u32) {
        *budget -= 1;
        self.unfreed_len -= 1;
        self.freed += 1;
        let timer = entry.read().timer();
        if timer != 0 {
            self.wheel.cancel(timer);
        }
        entry.change().set_timer(0);
        if entry.read().is_native() {
            // Its holders are still to be notified.
            *budget = budget.saturating_sub(LOST_STEPS - 1);
            self.lost.push((deletion, entry));
        } else {
            self.free_beneath(entry);
        }
    }

    /// Frees an entry of the dictionary on top of the stack. A large entry is put below the dictionary, which stays on top.
    fn free_beneath(&mut self, entry: Entry) {
        let top = self.unfreed.len() - 1;
        self.free_later(entry);
        if self.unfreed.len() > top + 1 {
            self.unfreed.swap(top, top + 1);
        }
    }
}
