//! The hierarchical timer wheel: deadlines in milliseconds, filed in O(1), with every step of work bounded.
//!
//! ```text
//!   level 0   4,096 slots of 1 ms        what is due within 4 s: fired from here, in order
//!   level 1     128 slots of 2,048 ms    4.4 min
//!   level 2     128 slots of 131 s       4.7 h          … each level 64 times as wide, up to level 9: all of u64
//! ```
//! Windows roll: a timer goes to the lowest level that reaches its deadline from where the wheel stands. A slot's timers are
//! moved down *ahead* of the slot's start (2 s for level 1, 33 s above), a few hundred per millisecond, so a slot with a million
//! of them neither stalls the server nor is late.
//!
//! The wheel does not store deadlines. It asks for them by token when a slot's time has come, and files a timer again if its
//! deadline has moved to a later time: until then a renewal costs nothing.
//!
//! Leases of contended locks do not end by the wheel but by the ordered set beside it, `Locks::deadlines`: the section "Two
//! mechanisms end leases" in [`crate::lock`] says why, and shows both.
//!
//! Order: timers that became due between two polls fire in the order of their deadlines. If more is due than the budget allows
//! and time goes on meanwhile, newly due timers fire first, so that a mass expiry does not delay all others.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::Cell;
use std::fmt;

use crate::base::prefetch::prefetch;

/// Identifies a timer until it fires or is cancelled; below 2^28, never 0.
pub type TimerId = u32;

/// All timer numbers are below this.
pub const TIMER_LIMIT: u32 = 1 << 28;

/// Level 0: 64 words of 64 slots, so that a word of words finds the next slot.
const NEAR_SLOTS: usize = 4096;
const NEAR_BITS: u32 = 12;
const LEVELS: usize = 9;
const FAR_SLOTS: usize = 128;
const RATIO_BITS: u32 = 6;
/// Slots of all levels; the first nodes are their list heads.
const SLOTS: usize = NEAR_SLOTS + LEVELS * FAR_SLOTS;

/// Milliseconds before a slot's start at which its timers may move down; at most the slot's width.
const LEAD_MS: u64 = 1 << 15;
/// Maximum number of timers that move ahead of time in one millisecond, while there is no hurry.
const AHEAD_PER_MS: u32 = 512;
/// With this much time left, the whole budget is spent on moving.
const HURRY_MS: u64 = 512;
/// With this much time left, moving precedes firing timers that are late already, and `next_wake` asks for an immediate poll.
const URGENT_MS: u64 = 64;

/// Later deadlines are treated as this one, so that every time has a next one.
const LAST_MS: u64 = u64::MAX - 1;
const UNKNOWN: u64 = u64::MAX;

const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;
/// Bytes of a timer.
pub const TIMER_BYTES: usize = size_of::<Node>();

/// A timer, or the head of a slot's list.
///
/// Links are stored as the difference from the node's own number. So memory that is all zero, as it comes from the system,
/// consists of empty lists and free nodes, and is not touched before it is used: a server starts with 84 KiB of list heads.
#[derive(Clone, Copy)]
struct Node {
    token: u64,
    next: u32,
    prev: u32,
}

impl Node {
    #[inline]
    fn next(&self, this: u32) -> u32 {
        self.next ^ this
    }

    #[inline]
    fn prev(&self, this: u32) -> u32 {
        self.prev ^ this
    }

    /// Whether a node, which is no list head, is on no list.
    #[inline]
    fn is_free(&self) -> bool {
        self.prev == 0
    }
}

/// What a turn of the wheel leads to.
enum Turn {
    /// The slot of level 0 with this millisecond is due.
    Due(u64),
    /// The wheel made progress; another turn is necessary.
    Again,
    /// No timer is due.
    Done,
}

/// Nodes by number, in chunks that never move: growth costs the same at any size.
struct Nodes {
    chunks: Vec<Box<[Node; CHUNK]>>,
    /// Number of nodes that were ever in use, including list heads.
    used: u32,
    /// The first free one of those, linked by `next`; 0 if there is none.
    free: u32,
}

impl Nodes {
    #[inline]
    fn at(&self, node: u32) -> &Node {
        &self.chunks[(node >> CHUNK_BITS) as usize][node as usize & (CHUNK - 1)]
    }

    #[inline]
    fn at_mut(&mut self, node: u32) -> &mut Node {
        &mut self.chunks[(node >> CHUNK_BITS) as usize][node as usize & (CHUNK - 1)]
    }

    /// A node that is on no list, or `None` if all numbers are in use.
    #[inline]
    fn take(&mut self) -> Option<u32> {
        if self.free != 0 {
            let node = self.free;
            self.free = self.at(node).next(node);
            // It may have been freed long ago: this loads it until it is needed.
            prefetch(std::ptr::from_ref(self.at(self.free)).cast());
            return Some(node);
        }
        if self.used == TIMER_LIMIT {
            return None;
        }
        let node = self.used;
        if (node >> CHUNK_BITS) as usize == self.chunks.len() {
            self.add_chunk();
        }
        self.used += 1;
        Some(node)
    }

    #[cold]
    fn add_chunk(&mut self) {
        const LAYOUT: Layout = Layout::new::<[Node; CHUNK]>();
        // SAFETY: the layout is not empty; all zero is a valid node; and the block is allocated as a box's would be.
        self.chunks.push(unsafe {
            let chunk = alloc_zeroed(LAYOUT);
            if chunk.is_null() {
                handle_alloc_error(LAYOUT);
            }
            Box::from_raw(chunk.cast())
        });
    }

    #[inline]
    fn give_back(&mut self, node: u32) {
        *self.at_mut(node) = Node { token: 0, next: self.free ^ node, prev: 0 };
        self.free = node;
    }
}

/// The timer wheel.
pub struct Wheel {
    nodes: Nodes,
    len: usize,
    /// The position of the wheel: no timer lies in a slot that starts earlier. At most `seen`.
    at: u64,
    /// The latest time of a poll.
    seen: u64,
    /// Timers that became due at `seen`, and not before, lie from this time on.
    fresh: u64,
    /// A lower bound of the start of the first slot above level 0 that holds a timer.
    horizon: u64,
    /// How many more timers may move ahead of time at `seen`.
    ahead: u32,
    /// Occupied slots of level 0, and the non-zero words of these bits.
    near: [u64; NEAR_SLOTS / 64],
    near_words: u64,
    /// Occupied slots of each level from 1 on, and the levels that have any.
    far: [u128; LEVELS],
    far_levels: u16,
    /// The result of [`Wheel::next_wake`], valid until a slot is filled or emptied or the wheel is polled; or [`UNKNOWN`].
    wake_ms: Cell<u64>,
}

/// The first level that may reach a distance, by the index of the distance's highest bit: from that of [`NEAR_SLOTS`] on.
const LEVEL_OF_BITS: [u8; 64] = {
    let mut levels = [0; 64];
    let mut bit = NEAR_BITS;
    while bit < 64 {
        levels[bit as usize] = (bit + 1 - NEAR_BITS).div_ceil(RATIO_BITS) as u8;
        bit += 1;
    }
    levels
};

/// Binary logarithm of a slot's width in milliseconds, for a level from 1 on.
#[inline]
fn width_bits(level: usize) -> u32 {
    NEAR_BITS - 1 + RATIO_BITS * (level as u32 - 1)
}

/// How many milliseconds before a slot's start its timers may move down.
#[inline]
fn lead_ms(level: usize) -> u64 {
    LEAD_MS.min(1 << width_bits(level))
}

impl Wheel {
    /// Creates a wheel that stands at `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        let mut nodes = Nodes { chunks: Vec::new(), used: SLOTS as u32, free: 0 };
        while nodes.chunks.len() * CHUNK < SLOTS {
            nodes.add_chunk();
        }
        Wheel {
            nodes,
            len: 0,
            at: now_ms.min(LAST_MS),
            seen: now_ms.min(LAST_MS),
            fresh: now_ms.min(LAST_MS),
            horizon: u64::MAX,
            ahead: AHEAD_PER_MS,
            near: [0; NEAR_SLOTS / 64],
            near_words: 0,
            far: [0; LEVELS],
            far_levels: 0,
            wake_ms: Cell::new(UNKNOWN),
        }
    }

    /// Number of timers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated. Nodes are reused, but never freed.
    #[cfg(any(test, feature = "internals"))]
    pub fn allocated(&self) -> usize {
        self.nodes.chunks.len() * CHUNK * size_of::<Node>() + size_of::<Self>()
    }

    /// Adds a timer with `token`. A deadline in the past fires on the next poll.
    ///
    /// Returns 0 if all timer numbers (more than 268 million) are in use; nothing was added then.
    pub fn insert(&mut self, deadline_ms: u64, token: u64) -> TimerId {
        let Some(node) = self.nodes.take() else { return 0 };
        self.len += 1;
        self.file(node, deadline_ms, token);
        node
    }

    /// Removes a timer.
    pub fn cancel(&mut self, timer: TimerId) {
        assert!(timer as usize >= SLOTS && !self.nodes.at(timer).is_free(), "timer {timer} is not set");
        self.unlink(timer);
        self.nodes.give_back(timer);
        self.len -= 1;
    }

    /// Changes the token of a timer.
    #[inline]
    pub fn set_token(&mut self, timer: TimerId, token: u64) {
        assert!(!self.nodes.at(timer).is_free(), "timer {timer} is not set");
        self.nodes.at_mut(timer).token = token;
    }

    /// The token of a timer.
    #[inline]
    pub fn token(&self, timer: TimerId) -> u64 {
        assert!(!self.nodes.at(timer).is_free(), "timer {timer} is not set");
        self.nodes.at(timer).token
    }

    /// The first result of `wanted` for a timer, among at most `steps` nodes from the `from`-th on, wrapping around. With a
    /// random `from` this is a random timer, nearly as fair as possible. `None` if there is no result.
    pub fn sample<T>(&self, from: u64, steps: u32, mut wanted: impl FnMut(u64) -> Option<T>) -> Option<T> {
        let count = self.nodes.used - SLOTS as u32;
        let first = (from.checked_rem(u64::from(count))?) as u32;
        (0..steps.min(count)).find_map(|step| {
            let node = self.nodes.at(SLOTS as u32 + (first + step) % count);
            if node.is_free() { None } else { wanted(node.token) }
        })
    }

    /// The time of the next [`Wheel::poll`]: no timer is due before. A time in the past means at once.
    #[inline]
    pub fn next_wake(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        if self.wake_ms.get() == UNKNOWN {
            self.wake_ms.set(self.find_wake());
        }
        Some(self.wake_ms.get())
    }

    fn find_wake(&self) -> u64 {
        let mut wake = self.next_near(self.at).unwrap_or(u64::MAX);
        let mut levels = self.far_levels;
        while levels != 0 {
            let level = levels.trailing_zeros() as usize + 1;
            levels &= levels - 1;
            let start = self.first_start(level);
            let ready = start.saturating_sub(lead_ms(level));
            wake = wake.min(if ready > self.at {
                ready
            } else if start.saturating_sub(self.seen) <= URGENT_MS {
                self.seen
            } else {
                self.seen + 1
            });
        }
        wake
    }

    /// Removes and returns the next timer that is due at `now_ms`; `None` if there is none, or if the budget is used up (then
    /// [`Wheel::next_wake`] says so). Each timer that fires or moves takes one from the budget.
    ///
    /// `deadline_of` returns a token's deadline in milliseconds: that of its insertion, or a later one.
    #[inline(always)]
    pub fn poll(&mut self, now_ms: u64, budget: &mut u32, mut deadline_of: impl FnMut(u64) -> u64) -> Option<u64> {
        self.wake_ms.set(UNKNOWN);
        if now_ms.min(LAST_MS) > self.seen {
            self.fresh = self.seen + 1;
            self.seen = now_ms.min(LAST_MS);
            self.ahead = AHEAD_PER_MS;
        }
        while *budget > 0 {
            let due = match self.fresh_due() {
                Some(ms) => ms,
                None => match self.turn(budget, &mut deadline_of) {
                    Turn::Due(ms) => ms,
                    Turn::Again => continue,
                    Turn::Done => return None,
                },
            };
            *budget -= 1;
            let slot = due as u32 & (NEAR_SLOTS as u32 - 1);
            let node = self.nodes.at(slot).next(slot);
            let token = self.nodes.at(node).token;
            let deadline = deadline_of(token).min(LAST_MS);
            self.unlink(node);
            if deadline > due {
                self.file(node, deadline, token);
                continue;
            }
            self.nodes.give_back(node);
            self.len -= 1;
            return Some(token);
        }
        None
    }

    /// Turns the wheel towards `seen`, up to the next due slot of level 0 or the next block that is to be moved down.
    #[inline]
    fn turn(&mut self, budget: &mut u32, deadline_of: &mut impl FnMut(u64) -> u64) -> Turn {
        if self.horizon <= self.seen.saturating_add(URGENT_MS) {
            let horizon = self.horizon;
            if let Some((level, start)) = self.next_to_move()
                && start <= self.seen.saturating_add(URGENT_MS)
            {
                self.move_down(level, start, budget, deadline_of);
                return Turn::Again;
            }
            if self.horizon != horizon {
                return Turn::Again;
            }
        }
        let near = self.next_near(self.at).unwrap_or(u64::MAX);
        if near <= self.seen && near < self.horizon {
            return Turn::Due(near);
        }
        let at = self.seen.min(near).min(self.horizon);
        debug_assert!(at >= self.at, "the wheel turns back from {} to {at}", self.at);
        self.at = at;
        if self.horizon <= self.seen {
            return Turn::Again;
        }
        self.move_ahead(budget, deadline_of);
        Turn::Done
    }

    /// The first millisecond with timers that became due at `seen` and not before, unless an earlier one waits above level 0.
    #[inline]
    fn fresh_due(&self) -> Option<u64> {
        let from = self.fresh.max(self.at);
        if from - self.at >= NEAR_SLOTS as u64 {
            return None;
        }
        let ms = self.next_near(from)?;
        (ms >= from && ms <= self.seen && ms < self.horizon).then_some(ms)
    }

    /// The first millisecond from `from` on that holds timers, wrapping around to those before it.
    #[inline]
    fn next_near(&self, from: u64) -> Option<u64> {
        let slot = from as usize & (NEAR_SLOTS - 1);
        let word = slot / 64;
        let here = self.near[word] & (!0 << (slot % 64));
        let found = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else {
            let later = self.near_words & !(!0 >> (63 - word));
            let words = if later != 0 { later } else { self.near_words };
            if words == 0 {
                return None;
            }
            let word = words.trailing_zeros() as usize;
            word * 64 + self.near[word].trailing_zeros() as usize
        };
        Some(self.at + ((found as u64).wrapping_sub(self.at) & (NEAR_SLOTS as u64 - 1)))
    }

    /// The start of the first occupied slot of a level, which must have one.
    #[inline]
    fn first_start(&self, level: usize) -> u64 {
        let bits = width_bits(level);
        let current = self.at >> bits;
        let turned = self.far[level - 1].rotate_right(current as u32 & (FAR_SLOTS as u32 - 1));
        (current + u64::from(turned.trailing_zeros())) << bits
    }

    /// Level and start of the slot to move down first, among those that may move. Updates `horizon`.
    fn next_to_move(&mut self) -> Option<(usize, u64)> {
        let mut first = None;
        let mut horizon = u64::MAX;
        let mut levels = self.far_levels;
        while levels != 0 {
            let level = levels.trailing_zeros() as usize + 1;
            levels &= levels - 1;
            let start = self.first_start(level);
            horizon = horizon.min(start);
            if start.saturating_sub(lead_ms(level)) <= self.at && first.is_none_or(|(_, s)| start < s) {
                first = Some((level, start));
            }
        }
        self.horizon = horizon;
        first
    }

    /// Moves timers down that have time left, at most a certain number in each millisecond.
    fn move_ahead(&mut self, budget: &mut u32, deadline_of: &mut impl FnMut(u64) -> u64) {
        while *budget > 0
            && let Some((level, start)) = self.next_to_move()
        {
            if start - self.seen <= HURRY_MS {
                self.move_down(level, start, budget, deadline_of);
                continue;
            }
            let mut share = self.ahead.min(*budget);
            if share == 0 {
                return;
            }
            let before = share;
            self.move_down(level, start, &mut share, deadline_of);
            self.ahead -= before - share;
            *budget -= before - share;
        }
    }

    /// Files the timers of a slot again, each on a lower level or, if its deadline moved, further away.
    fn move_down(&mut self, level: usize, start: u64, budget: &mut u32, deadline_of: &mut impl FnMut(u64) -> u64) {
        let index = (start >> width_bits(level)) as usize & (FAR_SLOTS - 1);
        let head = (NEAR_SLOTS + (level - 1) * FAR_SLOTS + index) as u32;
        while *budget > 0 {
            let node = self.nodes.at(head).next(head);
            if node == head {
                return;
            }
            *budget -= 1;
            let token = self.nodes.at(node).token;
            let deadline = deadline_of(token);
            self.unlink(node);
            self.file(node, deadline, token);
        }
    }

    /// Appends a node that is on no list to the list of its deadline's slot.
    #[inline(always)]
    fn file(&mut self, node: u32, deadline: u64, token: u64) {
        let deadline = deadline.max(self.at).min(LAST_MS);
        let head = self.slot_of(deadline);
        let last = std::mem::replace(&mut self.nodes.at_mut(head).prev, node ^ head) ^ head;
        self.nodes.at_mut(last).next = node ^ last;
        *self.nodes.at_mut(node) = Node { token, next: head ^ node, prev: last ^ node };
        if last == head {
            self.mark(head as usize, deadline);
        }
    }

    /// The slot of a deadline, which must not be before the wheel's position.
    #[inline]
    fn slot_of(&self, deadline: u64) -> u32 {
        let distance = deadline - self.at;
        if distance < NEAR_SLOTS as u64 {
            return deadline as u32 & (NEAR_SLOTS as u32 - 1);
        }
        // A level reaches 127 slots beyond the one the wheel stands in: 2^(width + 7) ms, less the elapsed part of that slot.
        let mut level = usize::from(LEVEL_OF_BITS[63 - distance.leading_zeros() as usize]);
        if (deadline >> width_bits(level)) - (self.at >> width_bits(level)) >= FAR_SLOTS as u64 {
            level += 1;
        }
        let index = (deadline >> width_bits(level)) as usize & (FAR_SLOTS - 1);
        (NEAR_SLOTS + (level - 1) * FAR_SLOTS + index) as u32
    }

    /// Marks the slot of a deadline as occupied by its first timer.
    #[inline]
    fn mark(&mut self, slot: usize, deadline: u64) {
        self.wake_ms.set(UNKNOWN);
        if slot < NEAR_SLOTS {
            self.near[slot / 64] |= 1 << (slot % 64);
            self.near_words |= 1 << (slot / 64);
        } else {
            let (level, index) = ((slot - NEAR_SLOTS) / FAR_SLOTS, (slot - NEAR_SLOTS) % FAR_SLOTS);
            self.far[level] |= 1 << index;
            self.far_levels |= 1 << level;
            let bits = width_bits(level + 1);
            self.horizon = self.horizon.min(deadline >> bits << bits);
        }
    }

    #[inline(always)]
    fn unlink(&mut self, node: u32) {
        let here = self.nodes.at(node);
        debug_assert!(node as usize >= SLOTS && !here.is_free(), "timer {node} is not set");
        let (next, prev) = (here.next(node), here.prev(node));
        self.nodes.at_mut(prev).next = next ^ prev;
        self.nodes.at_mut(next).prev = prev ^ next;
        if next == prev {
            // Only a list head can stand on both sides: the slot is empty.
            self.vacate(next as usize);
        }
    }

    #[inline(never)]
    fn vacate(&mut self, slot: usize) {
        self.wake_ms.set(UNKNOWN);
        if slot < NEAR_SLOTS {
            self.near[slot / 64] &= !(1 << (slot % 64));
            if self.near[slot / 64] == 0 {
                self.near_words &= !(1 << (slot / 64));
            }
        } else {
            let (level, index) = ((slot - NEAR_SLOTS) / FAR_SLOTS, (slot - NEAR_SLOTS) % FAR_SLOTS);
            self.far[level] &= !(1 << index);
            if self.far[level] == 0 {
                self.far_levels &= !(1 << level);
            }
        }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        let known = self.wake_ms.get();
        assert!(self.len == 0 || known == UNKNOWN || known == self.find_wake(), "woken at {known}, not at {}", self.find_wake());
        assert!(self.at <= self.seen && self.fresh <= self.seen, "at {} fresh {} seen {}", self.at, self.fresh, self.seen);
        let mut count = 0;
        for slot in 0..SLOTS {
            let head = slot as u32;
            let taken = if slot < NEAR_SLOTS {
                self.near[slot / 64] >> (slot % 64) & 1 == 1
            } else {
                self.far[(slot - NEAR_SLOTS) / FAR_SLOTS] >> ((slot - NEAR_SLOTS) % FAR_SLOTS) & 1 == 1
            };
            let links = self.nodes.at(head);
            if !taken {
                // Most slots are empty, and fuzzing checks this often.
                assert!(links.next(head) == head && links.prev(head) == head, "slot {slot} is taken and has no mark");
                continue;
            }
            let (mut previous, mut node) = (head, links.next(head));
            assert!(node != head, "slot {slot} is empty and has a mark");
            while node != head {
                assert!(node as usize >= SLOTS, "slot {slot} runs into slot {node}");
                assert_eq!(self.nodes.at(node).prev(node), previous, "links of timer {node}");
                count += 1;
                (previous, node) = (node, self.nodes.at(node).next(node));
            }
            assert_eq!(links.prev(head), previous, "the last of slot {slot}");
        }
        assert_eq!(count, self.len, "len");
        for (word, bits) in self.near.iter().enumerate() {
            assert_eq!(self.near_words >> word & 1 == 1, *bits != 0, "the mark of word {word}");
        }
        for level in 1..=LEVELS {
            assert_eq!(self.far_levels >> (level - 1) & 1 == 1, self.far[level - 1] != 0, "the mark of level {level}");
            if self.far[level - 1] != 0 {
                let start = self.first_start(level);
                assert!(start >= self.at && start >= self.horizon, "level {level}: {start} {} {}", self.at, self.horizon);
            }
        }
        let (mut free, mut node) = (0, self.nodes.free);
        while node != 0 {
            assert!(self.nodes.at(node).is_free(), "free timer {node} is on a list");
            free += 1;
            node = self.nodes.at(node).next(node);
        }
        assert_eq!(SLOTS + count + free, self.nodes.used as usize, "timers set and free");
    }
}

impl fmt::Debug for Wheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel").field("at", &self.at).field("len", &self.len).field("next_wake", &self.next_wake()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
