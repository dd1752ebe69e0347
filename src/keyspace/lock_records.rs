//! State of native locks besides the locks themselves (remembered requests and named sessions), and the reports of its changes.

use std::collections::BTreeMap;

use crate::base::time::Now;
use crate::keyspace::change::{Change, Changes, Effect, Event};
use crate::keyspace::databases::Keyspace;
use crate::keyspace::images::later;
use crate::lock::requests::{Remembered, Whose};
use crate::lock::sessions::Session;
use crate::lock::{Client, Locks, requests, sessions};

/// Copies of remembered requests and named sessions, to be restored later.
#[derive(Clone, Debug, Default)]
pub(crate) struct LockRecords {
    /// By database (its index, rather than its home), name and owner.
    pub requests: BTreeMap<Whose, Remembered>,
    /// By number.
    pub sessions: BTreeMap<u64, Session>,
}

/// Why named sessions are restored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Coming {
    /// The server was restarted: each session keeps at least this many milliseconds for its client to come back.
    Restarted(u64),
    /// The server leads after another one: nobody knows which connections to that one live. See [`Session::is_unseen`].
    TakenOver,
    /// The server was restored to a snapshot.
    Restored,
    /// They are those of another server, which runs. Its clients are not here, but their sessions keep them: a session without
    /// grants would end without a client, and may get grants there.
    Copied,
}

impl Keyspace {
    /// The remembered requests of an owner. `whose` has the index of the database instead of its home.
    pub(crate) fn remembered(&self, whose: &Whose) -> Option<&Remembered> {
        let locks = self.changes.locks.as_ref()?;
        locks.requests.of(locks.home(whose.home), &whose.name, &whose.owner)
    }

    /// A named session.
    pub(crate) fn lock_session(&self, number: u64) -> Option<&Session> {
        self.changes.locks.as_ref()?.sessions.get(number)
    }

    /// All remembered requests and all named sessions.
    pub(crate) fn lock_records(&self) -> LockRecords {
        let Some(locks) = &self.changes.locks else { return LockRecords::default() };
        let of_db = |whose: &Whose| Whose { home: locks.db_at_home(whose.home), ..whose.clone() };
        let requests = locks.requests.iter().map(|(whose, remembered)| (of_db(whose), remembered.clone()));
        let sessions = locks.sessions.iter().map(|(number, session)| (number, session.clone()));
        LockRecords { requests: requests.collect(), sessions: sessions.collect() }
    }

    /// Restores sessions and requests, with all times `later_ms` milliseconds later. The locks must be restored afterwards, and
    /// then [`Locks::finish_adopting`] called.
    pub(crate) fn put_lock_records(
        &mut self,
        now: Now,
        records: LockRecords,
        later_ms: i64,
        coming: Coming,
        connected: impl Fn(Client) -> bool,
    ) {
        let mut requests: Vec<(Whose, Remembered)> = records.requests.into_iter().collect();
        requests.sort_by_key(|(_, remembered)| remembered.forget_ms);
        self.with_locks(now, |locks, _| {
            for (number, mut session) in records.sessions {
                session.end_ms = later(session.end_ms, later_ms);
                let client = match coming {
                    Coming::Copied if session.end_ms == 0 => Some(Client { id: number, slot: u32::MAX, ..Client::default() }),
                    _ => session.client.filter(|&client| connected(client)),
                };
                let fresh_ms = |min_ms: u64| now.deadline_in(session.grace_ms.max(min_ms)).max(1);
                let end_ms = match coming {
                    _ if client.is_some() => 0,
                    Coming::Restarted(min_ms) => fresh_ms(min_ms).max(session.end_ms),
                    // The end that the former leader saw stands.
                    Coming::TakenOver => session.end_ms,
                    Coming::Restored | Coming::Copied if session.end_ms != 0 => session.end_ms,
                    Coming::Restored | Coming::Copied => fresh_ms(0),
                };
                locks.adopt_session(number, Session { client, end_ms, ..session });
            }
            for (mut whose, mut remembered) in requests {
                whose.home = locks.home(whose.home);
                remembered.forget_ms = later(remembered.forget_ms, later_ms);
                locks.adopt_requests(&whose, remembered);
            }
        });
    }
}

impl Changes {
    /// Reports that all of these records were removed.
    pub(crate) fn tell_lock_records_lost(&mut self, now: Now, records: &LockRecords) {
        let event = Event::SILENT;
        for whose in records.requests.keys() {
            let effect = Effect::ForgetRequests { owner: &whose.owner };
            self.report(Change { now, db: whose.home, key: &whose.name, event, effect });
        }
        for (&number, session) in &records.sessions {
            self.report(Change { now, db: 0, key: &session.id, event, effect: Effect::EndSession { number } });
        }
    }
}

impl Changes {
    /// Reports the changes of requests and sessions since the last call.
    #[cold]
    pub(crate) fn tell_lock_news(&mut self, now: Now) {
        let Some(mut locks) = self.locks.take() else { return };
        let mut requests = std::mem::take(&mut locks.requests.news);
        let mut sessions = std::mem::take(&mut locks.sessions.news);
        if self.is_recorded() {
            for news in &requests {
                self.tell_request(now, &locks, news);
            }
            for news in &sessions {
                self.tell_session(now, &locks, news);
            }
        }
        requests.clear();
        sessions.clear();
        (locks.requests.news, locks.sessions.news) = (requests, sessions);
        self.locks = Some(locks);
    }

    fn tell_request(&mut self, now: Now, locks: &Locks, news: &requests::News) {
        let (whose, effect) = match news {
            requests::News::Changed(number) => {
                // A later removal is reported separately.
                let Some((whose, remembered)) = locks.requests.get(*number) else { return };
                (whose, Effect::SetRequests { owner: &whose.owner, remembered })
            }
            requests::News::Forgotten(whose) => (whose, Effect::ForgetRequests { owner: &whose.owner }),
        };
        let db = locks.db_at_home(whose.home);
        self.report(Change { now, db, key: &whose.name, event: Event::SILENT, effect });
    }

    fn tell_session(&mut self, now: Now, locks: &Locks, news: &sessions::News) {
        let (id, effect) = match news {
            sessions::News::Changed(number) => {
                let Some(session) = locks.sessions.get(*number) else { return };
                (&session.id, Effect::SetSession { number: *number, session })
            }
            sessions::News::Ended(number, id) => (id, Effect::EndSession { number: *number }),
        };
        self.report(Change { now, db: 0, key: id, event: Event::SILENT, effect });
    }
}
