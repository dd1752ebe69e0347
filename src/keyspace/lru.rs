//! Last use, or frequency of use, of keys: each entry has 20 bits for one of them.
//!
//! They hold the second of the last use, or, under an LFU policy, a counter; see [`crate::store::frequency`]. A command that
//! looks a key up and then stores it uses it once.

use crate::keyspace::databases::Db;
use crate::store::dict::Place;
use crate::store::entry::{ACCESS_PERIOD, EntryRef};
use crate::store::frequency::{self, Rules};

/// How uses are recorded.
#[derive(Clone, Debug)]
pub struct AccessClock {
    /// Whether uses are counted; if not, the second of the last use is recorded.
    pub counted: bool,
    /// How counters grow and fall.
    pub rules: Rules,
    /// The key whose use the running command has counted last.
    last: Option<(usize, Place)>,
    random: u64,
}

impl AccessClock {
    /// Records the seconds of uses. The random sequence follows from the seed.
    pub(crate) fn new(seed: u64) -> Self {
        AccessClock { counted: false, rules: Rules { log_factor: 10, decay_minutes: 1 }, last: None, random: seed }
    }

    /// Must be called before each command, which counts its own uses.
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
    /// Counts as a use of the key there, unless the session's lookups do not (`CLIENT NO-TOUCH`).
    #[inline]
    pub(crate) fn touch(&mut self, place: Place) {
        if self.touch {
            self.note_use(place);
        }
    }

    /// Records that the key there is stored: this is a use even in sessions whose lookups are none, except that counters do not
    /// grow for them.
    #[inline(always)]
    pub(crate) fn note_use(&mut self, place: Place) {
        if self.keyspace.lru.counted {
            return self.count_use(place);
        }
        let second = self.now.second();
        self.keyspace.space.get_mut(self.dict, place).touch(second);
    }

    #[cold]
    fn count_use(&mut self, place: Place) {
        if !self.touch || self.keyspace.lru.last == Some((self.dict, place)) {
            return;
        }
        self.keyspace.lru.last = Some((self.dict, place));
        let random = self.keyspace.lru.random();
        let mut entry = self.keyspace.space.get_mut(self.dict, place);
        let stamp = frequency::used(entry.read().access(), self.now.minute(), self.keyspace.lru.rules, random);
        entry.touch(u64::from(stamp));
    }

    /// Records that a new key is used now, in every session.
    #[inline(always)]
    pub(crate) fn first_use(&mut self, place: Place) {
        let stamp = self.first_stamp();
        self.keyspace.space.get_mut(self.dict, place).touch(stamp);
        self.note_first_use(place);
    }

    /// The stamp of a new key: see [`Db::note_first_use`].
    #[inline]
    pub(crate) fn first_stamp(&self) -> u64 {
        if self.keyspace.lru.counted {
            u64::from(frequency::stamp(self.now.minute(), frequency::INITIAL))
        } else {
            self.now.second()
        }
    }

    /// Records that a new key, which is stamped already, is used now.
    #[inline]
    pub(crate) fn note_first_use(&mut self, place: Place) {
        if self.keyspace.lru.counted {
            self.keyspace.lru.last = Some((self.dict, place));
        }
    }

    /// The counter of a key's uses, decayed to the present.
    pub(crate) fn frequency(&mut self, key: &[u8]) -> Option<u8> {
        let (minute, rules) = (self.now.minute(), self.keyspace.lru.rules);
        self.peek(key).map(|entry| frequency::counter(entry.access(), minute, rules))
    }

    /// Sets the counter of a key's uses; does nothing unless uses are counted.
    pub(crate) fn set_frequency(&mut self, key: &[u8], counter: u8) {
        if self.keyspace.lru.counted
            && let Some(place) = self.locate(key).1
        {
            let stamp = frequency::stamp(self.now.minute(), counter);
            self.keyspace.space.get_mut(self.dict, place).touch(u64::from(stamp));
        }
    }

    /// Sets the idle time of a key in seconds; does nothing if uses are counted.
    pub(crate) fn set_idle(&mut self, key: &[u8], seconds: u64) {
        if !self.keyspace.lru.counted
            && let Some(place) = self.locate(key).1
        {
            let second = self.now.second().wrapping_sub(seconds.min(u64::from(ACCESS_PERIOD) - 1));
            self.keyspace.space.get_mut(self.dict, place).touch(second);
        }
    }
}
