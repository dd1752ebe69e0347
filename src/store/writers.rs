//! Who wrote keys that may be locks of Redis clients: the number of the client, by the address of the entry.
//!
//! A slot is overwritten by the next entry that falls on it, so that a lock costs no memory of its own. Locks that come and go use
//! the same few addresses again, so the note of one that is stuck stays. An entry is marked when its writer is noted: a
//! note that an earlier entry left behind at an address is never taken for one of the entry that is there now.

const SLOT_BITS: u32 = 17;
const SLOTS: usize = 1 << SLOT_BITS;
/// Entries are at multiples of this.
const ALIGN_BITS: u32 = 3;

/// Notes of writers. Takes 1 MiB, of which the system gives what is used.
#[derive(Debug, Default)]
pub struct Writers {
    /// A note has the part of the address that the slot's place does not tell, and the last 32 bits of the client's number. There
    /// are no slots before the first note.
    slots: Option<Box<[u64; SLOTS]>>,
}

/// The slot of an address, and the part of the address that this does not tell.
#[inline]
fn place(address: u64) -> (usize, u64) {
    let number = address >> ALIGN_BITS;
    let rest = number >> SLOT_BITS;
    // Entries of one size are at equal distances, which would use few of the slots.
    ((number ^ rest) as usize & (SLOTS - 1), rest)
}

impl Writers {
    /// Notes the last 32 bits of the number of the client that wrote the entry at an address below 2^48.
    #[inline]
    pub fn note(&mut self, address: u64, writer: u32) {
        let (slot, rest) = place(address);
        match &mut self.slots {
            Some(slots) => slots[slot] = (rest << 32) | u64::from(writer),
            None => self.begin(address, writer),
        }
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self, address: u64, writer: u32) {
        self.slots = vec![0; SLOTS].try_into().ok();
        self.note(address, writer);
    }

    /// The last note about this address; `None` if there is none, or another one has taken its slot.
    pub fn of(&self, address: u64) -> Option<u32> {
        let (slot, rest) = place(address);
        let note = self.slots.as_ref()?[slot];
        (note >> 32 == rest && note != 0).then_some(note as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn notes_are_found_by_their_address_alone() {
        let mut writers = Writers::default();
        assert_eq!(writers.of(0x7f00_0000_1000), None);
        // Entries of 80 bytes, each beside the next.
        let address = |n: u64| 0x7f12_3456_7000 + n * 80;
        (0..20_000).for_each(|n| writers.note(address(n), n as u32 + 1));
        let found = (0..20_000).filter(|&n| writers.of(address(n)) == Some(n as u32 + 1)).count();
        assert!(found > 18_000, "{found}");
        assert!((0..20_000).all(|n| writers.of(address(n)).is_none_or(|writer| writer == n as u32 + 1)), "a wrong one");
        assert!((20_000..60_000).all(|n| writers.of(address(n)).is_none()), "nobody has noted these");
        // The next note about an address counts, also one of another entry there.
        writers.note(address(7), 99);
        assert_eq!(writers.of(address(7)), Some(99));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn a_note_outlives_the_locks_that_come_and_go() {
        let mut writers = Writers::default();
        let stuck = 0x7f12_3456_7000;
        writers.note(stuck, 1);
        // A thousand places that are used again and again.
        for turn in 0..200_000u64 {
            writers.note(stuck + 80 + turn % 1000 * 80, 2);
        }
        assert_eq!(writers.of(stuck), Some(1));
    }
}
