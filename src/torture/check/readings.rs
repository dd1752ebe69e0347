//! Histories with lost replies. Each test has one that some reading makes right, and a similar one that no reading does.

use super::tests::{LEASE_US, S, Story};
use super::*;
use crate::recipes::ReleaseOutcome;
use crate::torture::history::{EventKind, NO_CLIENT, Outcome, Trace};

/// The first client holds the lock from the beginning, and the second waits for it.
fn held() -> Story {
    let mut story = Story::default();
    story.acquire(0.0, 0, 1).granted(0.1, 0, 1).acquire(0.2, 1, 2);
    story
}

impl Story {
    /// A renewal that was requested half a second before. If it succeeds, the lease counts from the request.
    fn renews(&mut self, at_s: f64, outcome: Outcome) -> &mut Self {
        self.at(at_s - 0.5, 0, EventKind::Renew { op: 1 });
        let trace = match outcome {
            Outcome::Unknown => Trace { lost_us: Some((at_s * S as f64) as u64), ..Trace::default() },
            _ => self.served(at_s),
        };
        let until_us = if outcome == Outcome::Yes { (at_s * S as f64) as u64 + LEASE_US - S / 2 } else { 10 * S };
        self.at(at_s, 0, EventKind::Renewed { op: 1, outcome, valid_until_us: Some(until_us), trace })
    }

    /// A release all of whose replies are lost.
    fn released_perhaps(&mut self, at_s: f64, client: u32, op: Op) -> &mut Self {
        self.at(at_s, client, EventKind::Release { op });
        let trace = Trace { lost_us: Some((at_s * S as f64) as u64 + S), ..Trace::default() };
        self.at(at_s + 1.0, client, EventKind::Released { op, outcome: None, tries: 3, trace })
    }

    fn crash(&mut self, at_s: f64) -> &mut Self {
        self.at(at_s, 0, EventKind::Crash { machine: false })
    }
}

#[test]
fn a_renewal_without_a_reply_may_not_have_been_made() {
    let story = |outcome| held().renews(5.0, outcome).granted(10.3, 1, 2).violated();
    assert_eq!(story(Outcome::Unknown), []);
    assert_eq!(story(Outcome::Yes), [Property::Exclusion]);
}

#[test]
fn a_renewal_without_a_reply_may_have_been_made() {
    let story = |outcome| held().renews(9.0, outcome).crash(9.5).granted(18.5, 1, 2).violated();
    assert_eq!(story(Outcome::Unknown), []);
    assert_eq!(story(Outcome::No), [Property::Late]);
}

#[test]
fn a_renewal_without_a_reply_cannot_have_been_made_after_the_end_of_the_lease() {
    let story = |granted_s| held().renews(9.0, Outcome::Unknown).crash(9.5).granted(granted_s, 1, 2).violated();
    assert_eq!(story(27.0), [], "the renewal may arrive just before the end; a lease and the grace period follow");
    assert_eq!(story(28.0), [Property::Late]);
}

#[test]
fn a_crash_may_come_after_a_renewal_was_sent() {
    let crashed = held().crash(9.0).granted(18.5, 1, 2).violated();
    assert_eq!(crashed, [Property::Late]);
    let renewing = held().at(8.9, 0, EventKind::Renew { op: 1 }).crash(9.0).granted(18.5, 1, 2).violated();
    assert_eq!(renewing, []);
}

#[test]
fn a_watchdog_may_have_renewed_until_its_client_crashed() {
    let story = |watched| {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1);
        let (trace, valid_until_us) = (story.answered(0.1, 1), Some(LEASE_US));
        story.at(0.1, 0, EventKind::Granted { op: 1, token: None, valid_until_us, watched, trace });
        story.acquire(0.2, 1, 2).crash(9.0).granted(24.0, 1, 2).violated()
    };
    assert_eq!(story(true), []);
    assert_eq!(story(false), [Property::Late]);
}

#[test]
fn leases_stand_still_while_no_node_leads() {
    let story = |leaderless: bool, granted_s| {
        let mut story = held();
        if leaderless {
            story.at(3.0, NO_CLIENT, EventKind::Leaderless).at(9.0, NO_CLIENT, EventKind::Leads { server: 1 });
        } else {
            story.at(3.0, NO_CLIENT, EventKind::Down { server: 0, lost: None }).at(9.0, NO_CLIENT, EventKind::Up { server: 0 });
        }
        story.crash(9.5).granted(granted_s, 1, 2).violated()
    };
    assert_eq!((story(true, 23.0), story(true, 25.0)), (vec![], vec![Property::Late]));
    assert_eq!(story(false, 23.0), [Property::Late], "those of one server do not");
}

#[test]
fn an_acquisition_without_a_reply_may_have_been_granted() {
    let story = |maybe| {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1).acquire(0.2, 1, 2);
        story.at(2.0, 0, EventKind::Failed { op: 1, maybe, trace: Trace::default() }).granted(12.0, 1, 2).violated()
    };
    assert_eq!(story(true), []);
    assert_eq!(story(false), [Property::WakeUp]);
}

#[test]
fn an_acquisition_without_a_reply_may_not_have_been_granted() {
    let mut failed = Story::default();
    failed.acquire(0.0, 0, 1).acquire(0.2, 1, 2);
    failed.at(2.0, 0, EventKind::Failed { op: 1, maybe: true, trace: Trace::default() }).granted(2.1, 1, 2);
    assert_eq!(failed.violated(), []);
    let mut granted = Story::default();
    granted.acquire(0.0, 0, 1).acquire(0.2, 1, 2).granted(2.0, 0, 1).granted(2.1, 1, 2);
    assert_eq!(granted.violated(), [Property::Exclusion]);
}

#[test]
fn a_refusal_after_a_lost_reply_may_leave_something_held() {
    let story = |lost_us| {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1).acquire(0.2, 1, 2);
        let trace = Trace { lost_us, ..story.answered(1.0, 1) };
        story.at(1.0, 0, EventKind::NotGranted { op: 1, trace }).granted(12.0, 1, 2).violated()
    };
    assert_eq!(story(Some(S / 2)), []);
    assert_eq!(story(None), [Property::WakeUp]);
}

#[test]
fn the_first_of_two_copies_may_have_been_granted() {
    let story = |resent| {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1).acquire(0.2, 1, 2).refused(9.0, 1, 2);
        let trace = Trace { resent, lost_us: resent.then_some(S), ..story.answered(9.5, 1) };
        let granted = EventKind::Granted { op: 1, token: None, valid_until_us: Some(19 * S), watched: false, trace };
        story.at(9.5, 0, granted).released(9.6, 0, 1, ReleaseOutcome::Released).violated()
    };
    assert_eq!(story(true), []);
    assert_eq!(story(false), [Property::WakeUp]);
}

#[test]
fn a_released_lock_is_free_even_if_its_request_was_sent_twice() {
    // The two copies may give two holds. But the client was told that it does not hold the lock any more.
    let mut story = Story::default();
    story.acquire(0.0, 0, 1);
    let trace = Trace { resent: true, lost_us: Some(S / 20), ..story.answered(0.1, 1) };
    story.at(0.1, 0, EventKind::Granted { op: 1, token: None, valid_until_us: Some(LEASE_US), watched: false, trace });
    story.acquire(0.2, 1, 2).released(1.0, 0, 1, ReleaseOutcome::Released).granted(10.0, 1, 2);
    assert_eq!(story.violated(), [Property::WakeUp]);
}

#[test]
fn a_release_without_a_reply_may_not_have_been_made() {
    let lost = held().released_perhaps(1.0, 0, 1).granted(10.1, 1, 2).violated();
    assert_eq!(lost, []);
    assert_eq!(held().released(1.0, 0, 1, ReleaseOutcome::Released).granted(10.1, 1, 2).violated(), [Property::WakeUp]);
}

#[test]
fn a_release_without_a_reply_may_have_been_made() {
    let mut lost = held();
    lost.at(1.0, 0, EventKind::Release { op: 1 }).granted(1.1, 1, 2).at(1.2, 0, EventKind::Crash { machine: false });
    assert_eq!(lost.violated(), []);
    assert_eq!(held().granted(1.1, 1, 2).at(1.2, 0, EventKind::Crash { machine: false }).violated(), [Property::Exclusion]);
}

#[test]
fn a_release_may_have_ended_a_lease_that_was_renewed_without_a_reply() {
    let story = |granted_s| {
        held().renews(5.0, Outcome::Unknown).released(12.0, 0, 1, ReleaseOutcome::Released).granted(granted_s, 1, 2).violated()
    };
    assert_eq!(story(12.1), []);
    // In one reading this releases the lock of another client. In the other reading two clients hold it at once.
    let mut other = held();
    other.renews(5.0, Outcome::Unknown).granted(10.3, 1, 2).released(12.0, 0, 1, ReleaseOutcome::Released);
    assert_eq!(other.violated(), [Property::Exclusion]);
    let mut known = held();
    known.renews(5.0, Outcome::No).granted(10.3, 1, 2).released(12.0, 0, 1, ReleaseOutcome::Released);
    assert_eq!(known.violated(), [Property::Release]);
}

#[test]
fn the_first_copy_of_a_release_that_was_sent_twice_may_have_ended_the_grant() {
    // The reply to the second copy repeats the first reply, and comes long after another client was granted the lock.
    let story = |release_s: f64, resent: bool| {
        let mut story = held();
        if release_s < 1.5 {
            story.at(release_s, 0, EventKind::Release { op: 1 }).granted(1.5, 1, 2);
        } else {
            story.granted(1.5, 1, 2).at(release_s, 0, EventKind::Release { op: 1 });
        }
        let trace = Trace { resent, lost_us: resent.then_some(2 * S), ..story.served(3.0) };
        story.at(3.0, 0, EventKind::Released { op: 1, outcome: Some(ReleaseOutcome::Released), tries: 1, trace }).violated()
    };
    assert_eq!(story(1.0, true), []);
    assert_eq!(story(1.0, false), [Property::Exclusion], "sent once, it was held until the server answered");
    assert_eq!(story(1.6, true), [Property::Exclusion], "no copy arrived before the client began to release it");
}

#[test]
fn the_first_copy_of_a_release_may_have_handed_the_lock_on_within_the_lease() {
    // The second copy arrives while another client holds the lock, and gets the first copy's reply.
    let story = |release_s: f64, resent: bool| {
        let mut story = held();
        if release_s < 10.05 {
            story.at(release_s, 0, EventKind::Release { op: 1 }).granted(10.05, 1, 2);
        } else {
            story.granted(10.15, 1, 2).at(release_s, 0, EventKind::Release { op: 1 });
        }
        let trace = Trace { resent, lost_us: resent.then_some(11 * S), ..story.served(12.0) };
        story.at(12.0, 0, EventKind::Released { op: 1, outcome: Some(ReleaseOutcome::Released), tries: 1, trace }).violated()
    };
    assert_eq!(story(10.0, true), []);
    assert_eq!(story(10.0, false), [Property::Exclusion, Property::Release], "sent once, it came when another held the lock");
    assert_eq!(story(10.5, true), [Property::Release], "both copies came when another held the lock");
}

#[test]
fn the_server_may_not_know_a_waiter_that_resent_its_request() {
    let story = |resent: bool| {
        let mut story = held();
        if resent {
            story.at(0.3, 1, EventKind::Resend { server: 0 });
        }
        story.at(0.5, 0, EventKind::Crash { machine: false }).stored(60.0, &[]).violated()
    };
    assert_eq!(story(true), []);
    assert_eq!(story(false), [Property::Stuck]);
}

#[test]
fn an_earlier_copy_of_a_release_may_have_succeeded() {
    let story = |lost_us| {
        let mut story = held();
        story.at(5.0, 0, EventKind::Release { op: 1 });
        let trace = Trace { lost_us, ..story.served(5.2) };
        story.at(5.2, 0, EventKind::Released { op: 1, outcome: Some(ReleaseOutcome::NotHeld), tries: 1, trace }).violated()
    };
    assert_eq!(story(Some(5 * S)), []);
    assert_eq!(story(None), [Property::Early]);
}

#[test]
fn a_renewal_without_a_reply_does_not_promise_a_lease() {
    let story = |outcome| held().renews(5.0, outcome).released(12.0, 0, 1, ReleaseOutcome::NotHeld).violated();
    assert_eq!(story(Outcome::Unknown), []);
    assert_eq!(story(Outcome::Yes), [Property::Early]);
}

#[test]
fn a_slow_clock_does_not_prolong_a_lease() {
    let story = |granted_s| {
        let mut story = Story::default();
        story.at(0.0, 0, EventKind::Drift { ppm: -5_000 }).acquire(0.0, 0, 1);
        // The reply was late: the lease began long before.
        let trace = story.answered(0.5, 1);
        let valid_until_us = Some(LEASE_US * 1_000 / 995);
        story.at(0.5, 0, EventKind::Granted { op: 1, token: None, valid_until_us, watched: false, trace });
        story.acquire(0.6, 1, 2).granted(granted_s, 1, 2).violated()
    };
    assert_eq!(story(10.03), [], "by its own clock it has 20 ms left");
    assert_eq!(story(9.99), [Property::Exclusion]);
}

#[test]
fn a_grant_counts_from_the_servers_time_even_if_its_client_learns_of_it_late() {
    let story = |known_by_server| {
        let mut story = Story::default();
        story.acquire(0.0, 0, 1).acquire(0.2, 1, 2);
        let served = story.served(1.0).last.filter(|_| known_by_server);
        // The reply at 9.2 is to a command that the client sent after it knew of the grant.
        let trace = Trace { served, ..story.answered(9.2, 1) };
        let granted = EventKind::Granted { op: 1, token: None, valid_until_us: Some(19 * S), watched: false, trace };
        story.at(9.2, 0, granted).released(9.3, 0, 1, ReleaseOutcome::Released).granted(9.4, 1, 2).violated()
    };
    assert_eq!(story(true), []);
    assert!(story(false).contains(&Property::WakeUp));
}

#[test]
fn a_waiter_whose_first_command_was_lost_has_no_place_in_the_queue() {
    let story = |lost_us| {
        let mut story = held();
        story.acquire(0.6, 2, 3).released(1.0, 0, 1, ReleaseOutcome::Released);
        story.granted(1.5, 2, 3).released(2.0, 2, 3, ReleaseOutcome::Released);
        let trace = Trace { lost_us, ..story.answered(2.5, 2) };
        let granted = EventKind::Granted { op: 2, token: None, valid_until_us: Some(12 * S), watched: false, trace };
        story.at(2.5, 1, granted).released(3.0, 1, 2, ReleaseOutcome::Released).violated()
    };
    assert_eq!(story(Some(S / 2)), []);
    assert_eq!(story(None), [Property::Fairness]);
}

#[test]
fn a_write_without_a_reply_is_not_accepted_after_those_of_the_next_holder() {
    let story = |stored: &[Op]| {
        let mut story = held();
        story.at(0.5, 0, EventKind::Write { op: 1 }).at(0.9, 0, EventKind::Written { op: 1, outcome: Outcome::Unknown });
        story.released(1.0, 0, 1, ReleaseOutcome::Released).granted(1.1, 1, 2).released(2.0, 1, 2, ReleaseOutcome::Released);
        story.at(3.0, NO_CLIENT, EventKind::Stored { lock: 0, ops: stored.to_vec() }).violated()
    };
    assert_eq!((story(&[2]), story(&[1, 2])), (vec![], vec![]));
    assert_eq!(story(&[2, 1]), [Property::Writes]);
}
