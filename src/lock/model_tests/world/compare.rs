//! Whether the locks hold, remember and say what the reference does.

use proptest::prelude::*;

use super::World;
use crate::base::ids::Key;
use crate::lock::grant::{Bound, Mode};
use crate::lock::holders::Lock;
use crate::lock::locks::Outcome;
use crate::lock::model_tests::NAMES;
use crate::lock::model_tests::reference::{Answered, NEVER, Name, Said, Tie, Told};
use crate::lock::requests;

impl World {
    /// Who was told what since the last time.
    pub(super) fn compare_told(&mut self) -> Result<(), TestCaseError> {
        let mut told = Vec::new();
        for outcome in std::mem::take(&mut self.locks.outcomes) {
            match outcome {
                Outcome::Granted { client, tokens, .. } => told.push(Told::Granted(client.id, tokens.len())),
                Outcome::TimedOut { client, .. } => told.push(Told::TimedOut(client.id)),
                Outcome::Refused { client, .. } => told.push(Told::Refused(client.id)),
                Outcome::Lost { .. } | Outcome::Ended { .. } => {}
            }
        }
        for told in &told {
            let (Told::Granted(client, _) | Told::TimedOut(client) | Told::Refused(client)) = told;
            prop_assert!(self.waiters.remove(client).is_some(), "a connection is told that does not wait");
        }
        let mut expected = std::mem::take(&mut self.reference.told);
        told.sort();
        expected.sort();
        prop_assert_eq!(told, expected, "who was told what");
        Ok(())
    }

    /// What is remembered of requests, and the sessions.
    pub(super) fn compare_records(&mut self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.locks.requests.len(), self.reference.answers.len(), "requests that are remembered");
        for (&(name, owner), answers) in &mut self.reference.answers {
            let got = self.locks.requests.of(0, name.as_bytes(), owner.as_bytes());
            let Some(got) = got else { return Err(TestCaseError::fail(format!("nothing is remembered of {owner} for {name}"))) };
            prop_assert_eq!(got.forget_ms, answers.forget.unwrap_or(0), "{} for {}", owner, name);
            prop_assert_eq!(got.answers.len(), answers.said.len());
            for (at, answered) in got.answers.iter().enumerate() {
                let step = answers.said[at].step;
                let is_it = |said: &Answered| match (answered.answer, said.said) {
                    _ if said.id.as_bytes() != &*answered.id || said.step != step => false,
                    (requests::Answer::Released(left), Said::Released(of)) => left == of,
                    (requests::Answer::Granted(token), Said::Granted(grant)) => {
                        self.reference.tokens.get(&grant).is_none_or(|&known| known == token)
                    }
                    _ => false,
                };
                // Waits of one owner that are granted in the same step are answered in no order that a client can tell. From here
                // on the order is what it is: the oldest are forgotten first.
                let found = answers.said[at..].iter().position(is_it);
                let Some(found) = found else {
                    let failure = format!("{owner} for {name}: {:?} is not answer {at} of {:?}", got.answers, answers.said);
                    return Err(TestCaseError::fail(failure));
                };
                answers.said[at..=at + found].rotate_right(1);
            }
        }
        self.reference.step += 1;
        prop_assert_eq!(self.locks.sessions.count(), self.reference.sessions.len(), "sessions: {:?}", self.reference.sessions);
        for (number, session) in &self.reference.sessions {
            let got = self.actual_session(*number).and_then(|number| self.locks.sessions.get(number));
            let got = got.map(|got| (got.grace_ms, got.client.map(|client| client.id), got.end_ms, got.grants));
            let end = if session.client.is_some() || session.end == NEVER { 0 } else { session.end };
            let grants = self.reference.grants_of(Tie::Session(*number)) as u64;
            prop_assert_eq!(got, Some((session.grace, session.client, end, grants)), "{}", session.id);
        }
        Ok(())
    }

    pub(super) fn compare(&mut self) -> Result<(), TestCaseError> {
        self.compare_told()?;
        self.note_tokens();
        self.compare_records()?;
        prop_assert!(self.map.taken.is_empty(), "all that was taken was put back");
        self.locks.check_invariants();
        let mut held = crate::lock::held_counts::Held::default();
        for lock in self.map.held.values().flatten().filter(|lock| !lock.holders.is_empty()) {
            held.locks += u64::from(lock.limit == 0);
            held.semaphores += u64::from(lock.limit > 0);
            held.grants += lock.holders.len() as u64;
            held.permits += if lock.limit > 0 { lock.holders.permits() } else { 0 };
        }
        assert_eq!(self.locks.held.total(), held, "what is held is counted");
        let is_semaphore = |lock: &Lock| lock.limit > 0 && !lock.holders.is_empty();
        let semaphores = self.map.held.iter().filter(|(_, lock)| lock.as_ref().is_some_and(is_semaphore));
        let mut semaphores: Vec<&[u8]> = semaphores.map(|(name, _)| name.as_ref()).collect();
        semaphores.sort_unstable();
        let known: Option<Vec<&[u8]>> = self.locks.held.semaphores(0).map(Iterator::collect);
        assert_eq!(known, Some(semaphores), "semaphores are known by name");
        assert_eq!(self.locks.held.aged(), held.grants, "the age of every grant is known");
        let grants = || self.map.held.values().flatten().flat_map(|lock| lock.holders.iter());
        let renewed = grants().filter(|grant| grant.renewed > 0).count() as u64;
        assert_eq!(self.locks.held.renewed_grants(), renewed, "renewed grants are counted");
        let (known, oldest) = (self.locks.held.oldest_ms(), grants().map(|grant| grant.granted_ms).min());
        assert_eq!(known.is_some(), oldest.is_some(), "the oldest grant is known");
        assert!(known.zip(oldest).is_none_or(|(known, oldest)| known <= oldest && oldest - known < 1024));
        let (none, free) = (Name::default(), Lock::default());
        for name in NAMES {
            if let (Some(of), Some(Some(lock))) = (self.reference.names.get_mut(name), self.map.held.get(name)) {
                // Of several connections in which one owner waited for it at a time, any may be the one that it is bound to: where
                // leases of several names end at once, it is a matter of which is seen to first.
                for held in of.holders.iter_mut().filter(|held| held.holds > 1 && matches!(held.tie, Tie::Client(_))) {
                    let bound = lock.holders.get(held.owner.as_bytes()).filter(|grant| grant.bound == Bound::Connection);
                    held.tie = bound.map_or(held.tie, |grant| Tie::Client(grant.client.id));
                }
            }
            let of = self.reference.names.get(name).unwrap_or(&none);
            let lock = self.map.held.get(name);
            prop_assert_eq!(lock.is_some_and(Option::is_none), of.plain);
            let lock = lock.and_then(Option::as_ref).unwrap_or(&free);
            // Where no connection waits, the end of it is not looked at.
            let held_back = if lock.held_back_ms > self.map.now_ms { lock.held_back_ms } else { 0 };
            prop_assert_eq!(held_back, of.held_back, "held back: {}", name);
            prop_assert_eq!(lock.holders.len(), of.holders.len(), "holders of {}", name);
            for held in &of.holders {
                let got = lock.holders.get(held.owner.as_bytes());
                let tie = match held.tie {
                    Tie::None => None,
                    Tie::Client(client) => Some(client),
                    Tie::Session(number) => self.actual_session(number).map(Bound::session_key),
                };
                let token = self.reference.tokens.get(&held.grant).copied().unwrap_or(0);
                let got = got.map(|g| (g.holds, g.mode, g.permits, g.end_ms, g.bound.key(g.client), g.token));
                let wanted = (held.holds, held.mode, held.permits, held.end, tie, token);
                prop_assert_eq!(got, Some(wanted), "{} as a holder of {}", held.owner, name);
            }
            // One alone, or several who share, or as many permits as there are.
            let alone = lock.holders.iter().any(|grant| grant.mode == Mode::Exclusive);
            prop_assert!(lock.limit > 0 || !alone || lock.holders.len() == 1);
            prop_assert!(lock.limit == 0 || lock.holders.permits() <= u64::from(lock.limit));
            let queue = self.locks.queues.find(Key { db: 0, name: name.as_bytes() });
            let links = queue.into_iter().flat_map(|queue| self.locks.queues.links_of(queue));
            let got = links.filter_map(|link| self.locks.queues.waiter(link.waiter)).map(|waiter| waiter.client.id);
            let queued = self.reference.queue(name);
            prop_assert!(got.eq(queued.iter().map(|waiting| waiting.client)), "the queue of {}: {:?}", name, queued);
            if let Some(queue) = queue.and_then(|queue| self.locks.queues.get(queue)).filter(|_| lock.limit <= 1) {
                let mut known =
                    queue.holders.iter().filter_map(|&(owner, mode)| Some((&self.locks.queues.owner(owner)?.name, mode)));
                prop_assert!(known.all(|(owner, mode)| lock.holders.get(owner).is_some_and(|grant| grant.mode == mode)));
                prop_assert_eq!(queue.holders.len(), lock.holders.len(), "a queue knows the holders of its name");
            }
        }
        let token = self.locks.next_token();
        prop_assert!(token >= self.last_token, "tokens grow");
        self.last_token = token;
        Ok(())
    }
}
