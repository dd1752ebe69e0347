//! Numbers of keys of each kind in a dictionary, updated as keys are added and removed.

use crate::store::entry::EntryRef;

/// Counts of the keys in a dictionary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Keys with a deadline.
    pub volatile: usize,
    /// Hashes with a field that has a deadline.
    pub hashes: usize,
    /// Locks, semaphores, latches and guards.
    pub natives: usize,
    /// Natives with a deadline.
    pub volatile_natives: usize,
}

impl Counts {
    /// Counts a new entry, with or without a deadline.
    #[inline(always)]
    pub fn add(&mut self, entry: EntryRef<'_>, has_deadline: bool) {
        self.volatile += usize::from(has_deadline);
        if !entry.is_plain_bytes() {
            self.add_native(entry, has_deadline);
        }
    }

    /// Out of line, because most new entries are plain.
    #[inline(never)]
    fn add_native(&mut self, entry: EntryRef<'_>, has_deadline: bool) {
        if entry.is_native() {
            self.natives += 1;
            self.volatile_natives += usize::from(has_deadline);
        }
    }

    /// Counts the removal of an entry and its deadline.
    #[inline(always)]
    pub fn remove(&mut self, entry: EntryRef<'_>) {
        if entry.deadline().is_some() {
            self.volatile -= 1;
        }
        if entry.is_native() {
            self.natives -= 1;
            self.volatile_natives -= usize::from(entry.deadline().is_some());
        }
    }

    /// Counts that an entry got a deadline or lost it.
    #[inline(always)]
    pub fn deadline_changed(&mut self, entry: EntryRef<'_>, (had, has): (bool, bool)) {
        let of_native = entry.is_native();
        match (had, has) {
            (false, true) => {
                self.volatile += 1;
                self.volatile_natives += usize::from(of_native);
            }
            (true, false) => {
                self.volatile -= 1;
                self.volatile_natives -= usize::from(of_native);
            }
            _ => {}
        }
    }

    /// Counts the replacement of an entry, which did or did not have a deadline, by one of another kind.
    #[inline]
    pub fn replaced(&mut self, old: EntryRef<'_>, new: EntryRef<'_>, had: bool) {
        match (old.is_native(), new.is_native()) {
            (false, true) => {
                self.natives += 1;
                self.volatile_natives += usize::from(had);
            }
            (true, false) => {
                self.natives -= 1;
                self.volatile_natives -= usize::from(had);
            }
            _ => {}
        }
    }
}
