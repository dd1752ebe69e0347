//! The hierarchical timer wheel. (signature only, for now)

/// Names a timer until it fires or is cancelled; below 2^28, never 0.
pub type TimerId = u32;

/// Timers on a line of milliseconds.
#[derive(Debug, Default)]
pub struct Wheel {}

impl Wheel {
    /// A wheel standing at `now_ms`.
    pub fn new(_now_ms: u64) -> Self {
        Wheel {}
    }
    /// Number of timers.
    pub fn len(&self) -> usize {
        0
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        true
    }
    /// Adds a timer that carries `token`.
    pub fn insert(&mut self, _deadline_ms: u64, _token: u64) -> TimerId {
        1
    }
    /// Removes a timer.
    pub fn cancel(&mut self, _timer: TimerId) {}
    /// Gives a timer another token.
    pub fn set_token(&mut self, _timer: TimerId, _token: u64) {}
    /// When to call [`Wheel::poll`] next: no timer is due before.
    pub fn next_wake(&self) -> Option<u64> {
        None
    }
    /// The next timer that is due at `now_ms`, taken off the wheel.
    pub fn poll(&mut self, _now_ms: u64, _budget: &mut u32, _deadline_of: impl FnMut(u64) -> u64) -> Option<u64> {
        None
    }
}
