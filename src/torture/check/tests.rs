//! Tests each check on histories written by hand: a good one, and the slightest violations.

use super::*;
use crate::recipes::ReleaseOutcome;
use crate::torture::history::{EventKind, NO_CLIENT, Outcome, Stamp, Trace};

pub(super) const S: u64 = 1_000_000;
pub(super) const LEASE_US: u64 = 10 * S;

/// Builds a history. Times are in seconds.
#[derive(Default)]
pub(super) struct Story {
    history: History,
    order: u64,
    ended_us: u64,
    /// When the first command of each acquisition arrived.
    arrived: Vec<(Op, Stamp)>,
}

impl Story {
    pub(super) fn at(&mut self, at_s: f64, client: u32, kind: EventKind) -> &mut Self {
        let at_us = (at_s * S as f64) as u64;
        assert!(at_us >= self.ended_us, "events are in order");
        self.ended_us = at_us;
        self.history.push(at_us, client, kind);
        self
    }

    /// The trace of an acquisition whose last reply was sent a millisecond before.
    pub(super) fn answered(&mut self, at_s: f64, op: Op) -> Trace {
        let arrived = self.arrived.iter().find(|(other, _)| *other == op).map(|(_, stamp)| *stamp);
        Trace { first: arrived, ..self.served(at_s) }
    }

    /// The trace of a command that was answered a millisecond before.
    pub(super) fn served(&mut self, at_s: f64) -> Trace {
        self.order += 1;
        let stamp = Stamp { order: self.order, at_us: (at_s * S as f64) as u64 - 1_000 };
        Trace { first: Some(stamp), last: Some(stamp), ..Trace::default() }
    }

    pub(super) fn acquire(&mut self, at_s: f64, client: u32, op: Op) -> &mut Self {
        self.order += 1;
        self.arrived.push((op, Stamp { order: self.order, at_us: (at_s * S as f64) as u64 + 1_000 }));
        self.at(at_s, client, EventKind::Acquire { op, lock: 0, lease_us: LEASE_US, wait_us: 30 * S, job: 0 })
    }

    pub(super) fn granted(&mut self, at_s: f64, client: u32, op: Op) -> &mut Self {
        self.fenced(at_s, client, op, None)
    }

    pub(super) fn fenced(&mut self, at_s: f64, client: u32, op: Op, token: Option<u64>) -> &mut Self {
        let trace = self.answered(at_s, op);
        let valid_until_us = Some((at_s * S as f64) as u64 + LEASE_US - 2_000);
        self.at(at_s, client, EventKind::Granted { op, token, valid_until_us, watched: false, trace })
    }

    /// A grant whose lease does not end.
    pub(super) fn granted_for_ever(&mut self, at_s: f64, client: u32, op: Op) -> &mut Self {
        let trace = self.answered(at_s, op);
        self.at(at_s, client, EventKind::Granted { op, token: None, valid_until_us: None, watched: false, trace })
    }

    pub(super) fn refused(&mut self, at_s: f64, client: u32, op: Op) -> &mut Self {
        let trace = self.answered(at_s, op);
        self.at(at_s, client, EventKind::NotGranted { op, trace })
    }

    pub(super) fn works(&mut self, at_s: f64, until_s: f64, client: u32, op: Op) -> &mut Self {
        self.at(at_s, client, EventKind::Enter { op });
        self.at(until_s, client, EventKind::Exit { op })
    }

    pub(super) fn released(&mut self, at_s: f64, client: u32, op: Op, outcome: ReleaseOutcome) -> &mut Self {
        self.at(at_s, client, EventKind::Release { op });
        let trace = self.served(at_s + 0.002);
        self.at(at_s + 0.002, client, EventKind::Released { op, outcome: Some(outcome), tries: 1, trace })
    }

    pub(super) fn stored(&mut self, at_s: f64, ops: &[Op]) -> &mut Self {
        self.at(at_s, NO_CLIENT, EventKind::Stored { lock: 0, ops: ops.to_vec() })
    }

    /// The violated properties, for a lock with one holder.
    pub(super) fn violated(&self) -> Vec<Property> {
        self.violated_of(1)
    }

    fn violated_of(&self, holders: u32) -> Vec<Property> {
        let findings = judge(&self.history, &Rules::new(Some(holders), LEASE_US));
        for (_, finding) in &findings {
            assert!(finding.violations.iter().all(|violation| !violation.ops.is_empty() && !violation.message.is_empty()));
            assert!(finding.checked > 0 || finding.violations.is_empty(), "a violation is the result of a check");
        }
        findings.into_iter().filter(|(_, finding)| !finding.violations.is_empty()).map(|(property, _)| property).collect()
    }
}

/// Two clients hold a lock one after the other, and nothing goes wrong.
fn good() -> Story {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).fenced(0.1, 0, 1, Some(7)).acquire(0.2, 1, 2).works(0.3, 1.0, 0, 1);
    story.released(1.1, 0, 1, ReleaseOutcome::Released).fenced(1.2, 1, 2, Some(8)).works(1.3, 2.0, 1, 2).released(
        2.1,
        1,
        2,
        ReleaseOutcome::Released,
    );
    story.stored(3.0, &[1, 1, 2]);
    story
}

#[test]
fn a_good_history_is_good() {
    let story = good();
    assert_eq!(story.violated(), []);
    let checked = |property: Property| judge(&story.history, &Rules::new(Some(1), LEASE_US))[property as usize].1.checked;
    assert_eq!((checked(Property::Exclusion), checked(Property::Writes), checked(Property::Tokens)), (2, 3, 2));
    assert_eq!((checked(Property::Permits), checked(Property::Stuck)), (0, 2));
}

#[test]
fn overlapping_grants_are_found() {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2).granted(0.3, 1, 2);
    story.released(1.0, 0, 1, ReleaseOutcome::Released).released(1.1, 1, 2, ReleaseOutcome::Released);
    assert_eq!(story.violated(), [Property::Exclusion]);
    assert_eq!(story.violated_of(2), [], "two permits");
}

#[test]
fn a_grant_ends_with_its_lease() {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2).granted(10.2, 1, 2);
    story.released(11.0, 1, 2, ReleaseOutcome::Released).released(12.0, 0, 1, ReleaseOutcome::NotHeld);
    assert_eq!(story.violated(), []);
}

#[test]
fn overlapping_critical_sections_are_found_though_grants_do_not_overlap() {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).at(0.2, 0, EventKind::Enter { op: 1 }).at(
        0.3,
        0,
        EventKind::Pause { for_us: 15 * S },
    );
    story.acquire(0.4, 1, 2).granted(10.2, 1, 2).works(10.3, 11.0, 1, 2).released(11.1, 1, 2, ReleaseOutcome::Released);
    story.at(15.3, 0, EventKind::Exit { op: 1 }).released(15.4, 0, 1, ReleaseOutcome::NotHeld);
    assert_eq!(story.violated(), [Property::Sections]);
}

#[test]
fn permits_are_counted() {
    let mut story = Story::default();
    for op in 1..=3 {
        let at_s = f64::from(op);
        story.acquire(at_s, op, op).granted(at_s + 0.1, op, op);
    }
    assert_eq!(story.violated_of(3), []);
    assert_eq!(story.violated_of(2), [Property::Permits]);
}

#[test]
fn stale_writes_are_found() {
    let mut story = good();
    story.stored(4.0, &[1, 2, 1]);
    assert_eq!(story.violated(), [Property::Writes]);
}

#[test]
fn tokens_that_do_not_grow_are_found() {
    for token in [6, 7] {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1).fenced(0.1, 0, 1, Some(7)).released(1.0, 0, 1, ReleaseOutcome::Released);
        story.acquire(2.0, 1, 2).fenced(2.1, 1, 2, Some(token)).released(3.0, 1, 2, ReleaseOutcome::Released);
        assert_eq!(story.violated(), [Property::Tokens]);
    }
}

#[test]
fn a_release_of_a_lock_that_another_client_holds_is_found() {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2).granted(10.2, 1, 2).released(
        11.0,
        0,
        1,
        ReleaseOutcome::Unchecked,
    );
    assert_eq!(story.violated(), [Property::Release]);
    let mut checked = Story::default();
    checked.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2).granted(10.2, 1, 2).released(
        11.0,
        0,
        1,
        ReleaseOutcome::NotHeld,
    );
    assert_eq!(checked.violated(), []);
    let mut free = Story::default();
    free.acquire(0.0, 0, 1).granted(0.1, 0, 1).released(11.0, 0, 1, ReleaseOutcome::Unchecked);
    assert_eq!(free.violated(), [], "no client held it");
}

#[test]
fn a_waiter_that_a_release_does_not_wake_is_found() {
    let story = |granted_s: f64| {
        let mut story = Story::default();
        story
            .acquire(0.0, 0, 1)
            .granted(0.1, 0, 1)
            .acquire(0.2, 1, 2)
            .released(1.0, 0, 1, ReleaseOutcome::Released)
            .granted(granted_s, 1, 2);
        story
    };
    assert_eq!(story(3.0).violated(), []);
    assert_eq!(story(9.5).violated(), [Property::WakeUp]);
}

#[test]
fn a_lock_is_not_released_by_a_pause_of_its_waiter() {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2).at(0.5, 0, EventKind::Crash { machine: false });
    story.at(12.0, 1, EventKind::Pause { for_us: 2 * S }).granted(29.0, 1, 2);
    assert_eq!(story.violated(), [Property::Late]);
}

#[test]
fn a_waiter_that_pauses_or_has_no_server_need_not_be_woken() {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2).released(1.0, 0, 1, ReleaseOutcome::Released);
    story.at(2.0, 1, EventKind::Pause { for_us: 8 * S }).granted(10.1, 1, 2);
    assert_eq!(story.violated(), []);
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2).released(1.0, 0, 1, ReleaseOutcome::Released);
    story
        .at(2.0, NO_CLIENT, EventKind::Down { server: 0, lost: Some(0) })
        .at(9.0, NO_CLIENT, EventKind::Up { server: 0 })
        .granted(10.1, 1, 2);
    assert_eq!(story.violated(), []);
}

#[test]
fn a_lease_that_ends_late_is_found() {
    let story = |granted_s: f64| {
        let mut story = Story::default();
        story
            .acquire(0.0, 0, 1)
            .granted(0.1, 0, 1)
            .at(0.2, 0, EventKind::Crash { machine: false })
            .acquire(0.3, 1, 2)
            .granted(granted_s, 1, 2);
        story
    };
    assert_eq!(story(11.0).violated(), []);
    assert_eq!(story(19.0).violated(), [Property::Late]);
}

#[test]
fn a_stuck_lock_is_found() {
    let mut story = Story::default();
    story
        .acquire(0.0, 0, 1)
        .granted_for_ever(0.1, 0, 1)
        .at(0.2, 0, EventKind::Crash { machine: false })
        .acquire(0.3, 1, 2)
        .refused(30.3, 1, 2);
    assert_eq!(story.violated(), [Property::Stuck]);
    let mut held = Story::default();
    held.acquire(0.0, 0, 1).granted_for_ever(0.1, 0, 1).acquire(0.3, 1, 2).refused(30.3, 1, 2);
    assert_eq!(held.violated(), [], "it is held all the time");
}

#[test]
fn a_lock_lost_before_the_end_of_its_lease_is_found() {
    let story = |released_s: f64, tries: u32| {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1).granted(0.1, 0, 1).at(released_s, 0, EventKind::Release { op: 1 });
        let trace = story.served(released_s + 0.1);
        story.at(released_s + 0.1, 0, EventKind::Released { op: 1, outcome: Some(ReleaseOutcome::NotHeld), tries, trace });
        story
    };
    assert_eq!(story(5.0, 1).violated(), [Property::Early]);
    assert_eq!(story(5.0, 2).violated(), [], "the first attempt may have released it");
    assert_eq!(story(10.5, 1).violated(), []);
}

#[test]
fn a_renewal_prolongs_a_grant() {
    let story = |outcome: Outcome| {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2);
        let trace = story.served(5.0);
        let until_s = if outcome == Outcome::Yes { 15 } else { 10 };
        story.at(5.0, 0, EventKind::Renewed { op: 1, outcome, valid_until_us: Some(until_s * S), trace });
        story.granted(12.0, 1, 2).released(13.0, 0, 1, ReleaseOutcome::NotHeld);
        story
    };
    assert_eq!(story(Outcome::Yes).violated(), [Property::Exclusion, Property::Early]);
    assert_eq!(story(Outcome::No).violated(), []);
}

#[test]
fn overtaking_is_found() {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1);
    story.acquire(0.5, 1, 2).acquire(0.6, 2, 3).released(1.0, 0, 1, ReleaseOutcome::Released);
    story.granted(1.5, 2, 3).released(2.0, 2, 3, ReleaseOutcome::Released).granted(2.5, 1, 2).released(
        3.0,
        1,
        2,
        ReleaseOutcome::Released,
    );
    assert_eq!(story.violated(), [Property::Fairness]);
}
