//! How many keys of each sort a dictionary has, kept as they come and go.

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
    /// Those of them with a deadline.
    pub volatile_natives: usize,
}

impl Counts {
    /// An entry has come, with a deadline or without.
    #[inline(always)]
    pub fn come(&mut self, entry: EntryRef<'_>, has_deadline: bool) {
        self.volatile += usize::from(has_deadline);
        if !entry.is_plain_bytes() {
            self.native_comes(entry, has_deadline);
        }
    }

    /// Out of line, as most that come are plain.
    #[inline(never)]
    fn native_comes(&mut self, entry: EntryRef<'_>, has_deadline: bool) {
        if entry.is_native() {
            self.natives += 1;
            self.volatile_natives += usize::from(has_deadline);
        }
    }

    /// An entry has gone, its deadline with it.
    #[inline(always)]
    pub fn gone(&mut self, entry: EntryRef<'_>) {
        if entry.deadline().is_some() {
            self.volatile -= 1;
        }
        if entry.is_native() {
            self.natives -= 1;
            self.volatile_natives -= usize::from(entry.deadline().is_some());
        }
    }

    /// An entry had a deadline, or not, and now it is the other way.
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

    /// An entry that had a deadline, or not, has come in the place of one of another sort.
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
