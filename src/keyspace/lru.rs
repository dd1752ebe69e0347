//! When, or how often, keys are used: each entry has 20 bits for the one or the other.
//!
//! They are the second of the last use, or, under a policy that evicts what is used least often, a counter; see
//! [`crate::store::frequency`]. A command that looks a key up and then stores it uses it once.

use crate::keyspace::databases::Db;
use crate::store::dict::Place;
use crate::store::entry::{ACCESS_PERIOD, EntryRef};
use crate::store::frequency::{self, Rules};

/// How uses are noted.
#[derive(Clone, Debug)]
pub struct Uses {
    /// Whether they are counted; if not, the last one's second is kept.
    pub counted: bool,
    /// How counters grow and fall.
    pub rules: Rules,
    /// What the running command has last counted a use of.
    last: Option<(usize, Place)>,
    random: u64,
}

impl Uses {
    /// Notes the seconds of uses. All chance follows from the seed.
    pub(crate) fn new(seed: u64) -> Self {
        Uses { counted: false, rules: Rules { log_factor: 10, decay_minutes: 1 }, last: None, random: seed }
    }

    /// To be called before each command: it counts its uses anew.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.last = None;
    }

    /// The next number of a sequence (splitmix64).
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Seconds since the last use, at a second of the monotonic clock.
pub(crate) fn idle_seconds(entry: EntryRef<'_>, second: u64) -> u32 {
    ((second % u64::from(ACCESS_PERIOD)) as u32 + ACCESS_PERIOD - entry.access()) % ACCESS_PERIOD
}

impl Db<'_> {
    /// Counts as a use of the key there, unless the session's lookups do not.
    #[inline]
    pub(crate) fn touch(&mut self, place: Place) {
        if self.touch {
            self.note_use(place);
        }
    }

    /// Notes that the key there is stored: a use even of sessions whose lookups are none, except that nothing is counted for them.
    #[inline(always)]
    pub(crate) fn note_use(&mut self, place: Place) {
        if self.keyspace.uses.counted {
            return self.count_use(place);
        }
        let second = self.now.second();
        self.keyspace.space.get_mut(self.dict, place).touch(second);
    }

    #[cold]
    fn count_use(&mut self, place: Place) {
        if !self.touch || self.keyspace.uses.last == Some((self.dict, place)) {
            return;
        }
        self.keyspace.uses.last = Some((self.dict, place));
        let random = self.keyspace.uses.random();
        let mut entry = self.keyspace.space.get_mut(self.dict, place);
        let stamp = frequency::used(entry.read().access(), self.now.minute(), self.keyspace.uses.rules, random);
        entry.touch(u64::from(stamp));
    }

    /// A new key counts as used now, whoever makes it.
    #[inline(always)]
    pub(crate) fn first_use(&mut self, place: Place) {
        let stamp = self.first_stamp();
        self.keyspace.space.get_mut(self.dict, place).touch(stamp);
        self.note_first_use(place);
    }

    /// What a new key is stamped with: see [`Db::note_first_use`].
    #[inline]
    pub(crate) fn first_stamp(&self) -> u64 {
        if self.keyspace.uses.counted {
            u64::from(frequency::stamp(self.now.minute(), frequency::INITIAL))
        } else {
            self.now.second()
        }
    }

    /// A new key, which is stamped already, counts as used now.
    #[inline]
    pub(crate) fn note_first_use(&mut self, place: Place) {
        if self.keyspace.uses.counted {
            self.keyspace.uses.last = Some((self.dict, place));
        }
    }

    /// How often a key was used, as its counter says now.
    pub(crate) fn frequency(&mut self, key: &[u8]) -> Option<u8> {
        let (minute, rules) = (self.now.minute(), self.keyspace.uses.rules);
        self.peek(key).map(|entry| frequency::counter(entry.access(), minute, rules))
    }

    /// Has a key count as used so often; nothing where uses are not counted.
    pub(crate) fn set_frequency(&mut self, key: &[u8], counter: u8) {
        if self.keyspace.uses.counted
            && let Some(place) = self.locate(key).1
        {
            let stamp = frequency::stamp(self.now.minute(), counter);
            self.keyspace.space.get_mut(self.dict, place).touch(u64::from(stamp));
        }
    }

    /// Has a key count as not used for so many seconds; nothing where uses are counted.
    pub(crate) fn set_idle(&mut self, key: &[u8], seconds: u64) {
        if !self.keyspace.uses.counted
            && let Some(place) = self.locate(key).1
        {
            let second = self.now.second().wrapping_sub(seconds.min(u64::from(ACCESS_PERIOD) - 1));
            self.keyspace.space.get_mut(self.dict, place).touch(second);
        }
    }
}
