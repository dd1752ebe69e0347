//! Failed logins by address: each makes the next login from the same address wait a little longer.
//!
//! ```text
//!   AUTH, HELLO, HTTP ─▶ due: at once, or when ─▶ the password is looked at ─▶ wrong: failed ─▶ the address waits longer
//! ```
//!
//! A login waits before its password is looked at, so nobody learns by the wait whether it is right. Logins that come together get
//! their turns one after the other, but none waits longer than `login-delay-max`: with the right password one gets in, however many
//! others guess from the same address. Clients of this machine are not slowed.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

/// Number of failures that have no consequence: people mistype.
const FREE: u32 = 3;
/// The wait after the first failure beyond these, in milliseconds. Each further one doubles it.
const FIRST_WAIT_MS: u64 = 100;
/// Milliseconds after its last failure at which an address is forgotten.
const FORGOTTEN_MS: u64 = 60_000;
/// Maximum number of addresses. Beyond it, the one whose last failure is the longest ago is forgotten.
const SOURCES_MAX: usize = 4096;

/// Where logins come from: an address of IPv4, or a network of IPv6, in which one machine may choose its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An address.
    V4(u32),
    /// The first 64 bits of an address.
    V6(u64),
}

impl Source {
    /// The source of an address; `None` for one of this machine.
    pub fn of(address: IpAddr) -> Option<Source> {
        match address.to_canonical() {
            address if address.is_loopback() => None,
            IpAddr::V4(address) => Some(Source::V4(address.to_bits())),
            IpAddr::V6(address) => Some(Source::V6((address.to_bits() >> 64) as u64)),
        }
    }

    /// The source of a client with this address and port; `None` if that is none, as over a Unix socket.
    pub fn of_client(addr: &str) -> Option<Source> {
        addr.parse::<SocketAddr>().ok().and_then(|addr| Source::of(addr.ip()))
    }
}

#[derive(Clone, Copy, Debug)]
struct Slowed {
    failures: u32,
    /// Monotonic milliseconds of the last failure.
    last_ms: u64,
    /// Monotonic milliseconds at which the next login may be tried.
    next_ms: u64,
}

impl Slowed {
    fn wait_ms(&self, max_ms: u64) -> u64 {
        if let Some(doublings) = self.failures.checked_sub(FREE) { (FIRST_WAIT_MS << doublings.min(20)).min(max_ms) } else { 0 }
    }
}

/// The addresses from which logins have failed lately.
#[derive(Clone, Debug, Default)]
pub struct Guesses {
    sources: BTreeMap<Source, Slowed>,
    /// They by their last failures.
    by_last: BTreeSet<(u64, Source)>,
    /// The login that is executed now has waited.
    pub(in crate::engine) has_waited: bool,
}

impl Guesses {
    /// The monotonic millisecond at which a login that comes now may be tried; `None`: at once. It is at most `max_ms` from now. The next
    /// login of the same source comes after this one.
    pub fn due(&mut self, now_ms: u64, source: Source, max_ms: u64) -> Option<u64> {
        self.forget(now_ms);
        let slowed = self.sources.get_mut(&source)?;
        let wait_ms = slowed.wait_ms(max_ms);
        if wait_ms == 0 {
            return None;
        }
        let due = slowed.next_ms.clamp(now_ms, now_ms.saturating_add(max_ms));
        slowed.next_ms = due.saturating_add(wait_ms);
        (due > now_ms).then_some(due)
    }

    /// Records a failure. Returns the milliseconds for which the next login waits.
    pub fn failed(&mut self, now_ms: u64, source: Source, max_ms: u64) -> u64 {
        self.forget(now_ms);
        let slowed = self.sources.entry(source).or_insert(Slowed { failures: 0, last_ms: 0, next_ms: 0 });
        self.by_last.remove(&(slowed.last_ms, source));
        slowed.failures = slowed.failures.saturating_add(1);
        slowed.last_ms = now_ms;
        let wait_ms = slowed.wait_ms(max_ms);
        slowed.next_ms = slowed.next_ms.max(now_ms.saturating_add(wait_ms));
        self.by_last.insert((now_ms, source));
        if self.sources.len() > SOURCES_MAX
            && let Some((_, oldest)) = self.by_last.pop_first()
        {
            self.sources.remove(&oldest);
        }
        wait_ms
    }

    /// Moves the times when the clock was set, by milliseconds.
    pub(in crate::engine) fn move_marks(&mut self, by_ms: i64) {
        for slowed in self.sources.values_mut() {
            slowed.last_ms = slowed.last_ms.saturating_add_signed(by_ms);
            slowed.next_ms = slowed.next_ms.saturating_add_signed(by_ms);
        }
        self.by_last = self.sources.iter().map(|(source, slowed)| (slowed.last_ms, *source)).collect();
    }

    fn forget(&mut self, now_ms: u64) {
        while let Some(&(last_ms, source)) = self.by_last.first()
            && last_ms.saturating_add(FORGOTTEN_MS) <= now_ms
        {
            self.by_last.pop_first();
            self.sources.remove(&source);
        }
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        assert!(self.sources.len() <= SOURCES_MAX, "their number is bounded");
        assert_eq!(self.sources.len(), self.by_last.len(), "each is there once by its last failure");
        for (last_ms, source) in &self.by_last {
            assert_eq!(self.sources.get(source).map(|slowed| slowed.last_ms), Some(*last_ms), "of {source:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_MS: u64 = 1000;

    fn of(addr: &str) -> Option<Source> {
        Source::of_client(addr)
    }

    /// A guesser that sends the next password as soon as it has the answer. Returns how many were looked at.
    fn guess_for(guesses: &mut Guesses, from: Source, ms: u64) -> u32 {
        let (mut now, mut looked_at) = (5000, 0);
        while now < 5000 + ms {
            now = guesses.due(now, from, MAX_MS).unwrap_or(now);
            looked_at += 1;
            guesses.failed(now, from, MAX_MS);
            guesses.check_invariants();
        }
        looked_at
    }

    #[test]
    fn addresses_of_one_machine_are_one_source() {
        assert_eq!(of("192.0.2.1:5"), Some(Source::V4(0xc000_0201)));
        assert_eq!(of("[::ffff:192.0.2.1]:5"), of("192.0.2.1:6"));
        assert_eq!(of("[2001:db8:1:2::3]:5"), of("[2001:db8:1:2:ffff::4]:6"));
        assert_ne!(of("[2001:db8:1:2::3]:5"), of("[2001:db8:1:3::3]:5"));
        assert!(of("[fe80::1%2]:5").is_some());
        for addr in ["127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "[::ffff:127.0.0.1]:5", "/run/socket:0", "http:0", ""] {
            assert_eq!(of(addr), None, "{addr}");
        }
    }

    #[test]
    fn the_first_failures_are_free_and_then_waits_double_up_to_the_greatest() {
        let (mut guesses, from) = (Guesses::default(), Source::V4(1));
        let waits: Vec<u64> = (0..10).map(|_| guesses.failed(0, from, MAX_MS)).collect();
        assert_eq!(waits, [0, 0, 100, 200, 400, 800, 1000, 1000, 1000, 1000]);
        assert_eq!(guesses.due(0, Source::V4(2), MAX_MS), None, "another address does not wait");
        let mut guesses = Guesses::default();
        assert_eq!(guess_for(&mut guesses, from, 60_000), 66, "one a second, and those at the beginning");
    }

    #[test]
    fn a_login_waits_no_longer_than_the_greatest_wait_however_many_others_do() {
        let (mut guesses, from) = (Guesses::default(), Source::V4(1));
        for _ in 0..3 {
            guesses.failed(0, from, MAX_MS);
        }
        let dues: Vec<_> = (0..20).filter_map(|_| guesses.due(0, from, MAX_MS)).collect();
        assert_eq!(dues[..5], [100, 200, 300, 400, 500], "one after the other");
        assert_eq!(dues[9..], [1000; 11]);
        // A login that comes when nobody has tried for a while does not wait.
        assert_eq!(guesses.due(5000, from, MAX_MS), None);
        assert_eq!(guesses.due(5000, from, 0), None, "it is switched off");
    }

    #[test]
    fn an_address_is_forgotten_after_a_minute_and_there_are_not_too_many() {
        let mut guesses = Guesses::default();
        for _ in 0..5 {
            guesses.failed(1000, Source::V4(1), MAX_MS);
        }
        assert!(guesses.due(1000, Source::V4(1), MAX_MS).is_some());
        assert_eq!(guesses.due(61_000, Source::V4(1), MAX_MS), None);
        assert!(guesses.sources.is_empty());
        for number in 0..3 * SOURCES_MAX as u64 {
            guesses.failed(100_000 + number, Source::V6(number), MAX_MS);
        }
        guesses.check_invariants();
        assert_eq!(guesses.sources.len(), SOURCES_MAX);
        assert!(guesses.sources.contains_key(&Source::V6(3 * SOURCES_MAX as u64 - 1)), "the latest are kept");
        guesses.forget(u64::MAX);
        assert!(guesses.sources.is_empty() && guesses.by_last.is_empty());
    }
}
