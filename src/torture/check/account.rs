//! A history by acquisitions: what became of each.
//!
//! A command whose reply was lost may have been carried out or not, and may be carried out later: a history has as many readings as there are
//! answers to that. Each acquisition has two spans, which are what its readings have in common and what they allow together:
//!
//! ```text
//!             asked    granted by the server            released, crashed,   the reply to     the longest lease that
//!               │               │                       end of known lease   the release      lost renewals allow
//!   certain     ·               ├───────────────────────────────┤                │                    │
//!   possible    ├── a reply lost ─┼───────────────────────────────────────────────┤ ···· no reply ······┤
//! ```
//!
//! Judges accuse by the one that is in the accused's favour. What was acknowledged is the same in all readings.

use crate::recipes::ReleaseOutcome;
use crate::torture::history::{History, NOBODY, Op, Outcome, Stamp, Trace, What};

/// For so many leases a server may go on to serve a client that is gone, and a command may be under way that its client has given up.
const UNSEEN_LEASES: u64 = 2;

/// One acquisition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Which.
    pub op: Op,
    /// Whose.
    pub client: u32,
    /// Of which lock.
    pub lock: u32,
    /// The lease asked for.
    pub lease_us: u64,
    /// When it was asked for.
    pub asked_us: u64,
    /// When the client knew that it was granted.
    pub granted_us: Option<u64>,
    /// The fencing token.
    pub token: Option<u64>,
    /// Until when the holder thought to have it: at first and after each renewal.
    pub valid_until_us: Option<u64>,
    /// What servers did to grant it, or not to.
    pub trace: Trace,
    /// When it was not granted.
    pub refused_us: Option<u64>,
    /// When to acquire it failed.
    pub failed_us: Option<u64>,
    /// When the work began, and ended.
    pub entered_us: Option<u64>,
    /// When the work ended.
    pub exited_us: Option<u64>,
    /// Whether a watchdog renewed it.
    pub watched: bool,
    /// When the lease that it had for certain was over at the earliest: renewals count that were acknowledged. `None` where it has no end.
    pub sure_until_us: Option<u64>,
    /// When its lease was over at the latest: renewals count that may have been made. `None` where it has no end.
    pub lease_end_us: Option<u64>,
    /// When the renewal began that goes on.
    pub renewing_us: Option<u64>,
    /// When the release began.
    pub release_us: Option<u64>,
    /// When it ended.
    pub released_us: Option<u64>,
    /// How.
    pub given: Option<ReleaseOutcome>,
    /// How often it was tried.
    pub release_tries: u32,
    /// What servers did for it.
    pub release_trace: Trace,
    /// When the client crashed in the middle of it.
    pub crashed_us: Option<u64>,
}

impl Account {
    /// When it was granted: by the server's time, or else when the client knew.
    pub fn start_us(&self) -> Option<u64> {
        self.granted_us.map(|known_us| self.trace.last.map_or(known_us, |last| last.at_us))
    }

    /// Where it stands among all grants.
    pub fn order(&self) -> Option<Stamp> {
        let known_us = self.granted_us?;
        Some(self.trace.last.unwrap_or(Stamp { order: known_us, at_us: known_us }))
    }

    /// When a server granted it, as far as that is known: what its client asked for afterwards, such as a renewal, came later.
    pub fn served(&self) -> Option<Stamp> {
        self.granted_us.and(self.trace.served.or(self.trace.last))
    }

    /// When it was held in every reading.
    pub fn certain(&self) -> Option<(u64, u64)> {
        let start_us = self.start_us()?;
        let ends = [self.sure_until_us, self.release_us, self.crashed_us];
        let mut end_us = ends.into_iter().flatten().fold(u64::MAX, u64::min);
        // By what a server said that looked, it was held until it was given back, if by a renewal of unknown outcome. A release that was
        // sent twice says nothing of that: a server that knows requests by name repeats its first reply.
        if let (Some(ReleaseOutcome::Released), Some(first), false) =
            (self.given, self.release_trace.first, self.release_trace.resent)
        {
            end_us = end_us.max(first.at_us.min(self.latest_us()));
        }
        (start_us < end_us).then_some((start_us, end_us))
    }

    /// When it was held in some reading.
    pub fn possible(&self) -> Option<(u64, u64)> {
        if self.granted_us.is_none() {
            let unsure = self.trace.lost_us.filter(|_| !self.trace.resent);
            // It may have been granted without its client's knowledge, also after it was given up; and for a lease from then on.
            return match (self.failed_us.or(self.crashed_us), self.refused_us, unsure) {
                // It was told that it does not hold it.
                (_, Some(_), None) => None,
                (None, Some(ended_us), Some(_)) | (Some(ended_us), ..) => {
                    Some((self.asked_us, ended_us.saturating_add((UNSEEN_LEASES + 1) * self.lease_us)))
                }
                (None, None, _) => Some((self.asked_us, u64::MAX)),
            };
        }
        let start_us = match self.trace.lost_us {
            // One of its commands had been carried out, perhaps, before the one that was acknowledged.
            Some(_) => self.trace.first.map_or(self.asked_us, |first| first.at_us.min(self.asked_us)),
            None => self.served().map_or(self.asked_us, |served| served.at_us),
        };
        let ended_us = match (self.released_us, self.given) {
            (Some(at_us), Some(_)) => self.release_trace.last.map_or(at_us, |last| last.at_us),
            // Perhaps it was not given back; but no client thinks that it has it, and it has no end.
            (Some(at_us), None) if self.lease_end_us.is_none() => at_us,
            _ if self.lease_end_us.is_none() => self.crashed_us.unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        Some((start_us, self.latest_us().min(ended_us)))
    }

    /// When its lease was over at the latest, whether it was released or not; the end of time where it has no end.
    pub fn latest_us(&self) -> u64 {
        let Some(end_us) = self.lease_end_us else { return u64::MAX };
        if self.watched {
            // The watchdog renewed it until then, and its last renewal may have been under way.
            let Some(last_us) = self.release_us.or(self.crashed_us) else { return u64::MAX };
            return self.prolonged_us(last_us.saturating_add(self.lease_us).max(end_us), last_us);
        }
        // A renewal was under way when its client crashed, or when the history ends.
        self.renewing_us.map_or(end_us, |began_us| self.prolonged_us(end_us, self.crashed_us.unwrap_or(began_us)))
    }

    /// When a lease that ends then ends at the latest, if a renewal was given up at a moment: it may have arrived later, but not after the end.
    fn prolonged_us(&self, end_us: u64, given_up_us: u64) -> u64 {
        let arrived_us = given_up_us.saturating_add(UNSEEN_LEASES * self.lease_us).min(end_us);
        end_us.max(arrived_us.saturating_add(self.lease_us))
    }

    /// A lease began: at `began_us` at the latest, and no sooner than it was asked for. Its holder counts on it until `valid_until_us` by a
    /// clock that runs `ppm` millionths fast.
    fn leased(&mut self, began_us: u64, valid_until_us: Option<u64>, ppm: i64) {
        let Some(until_us) = valid_until_us else {
            (self.sure_until_us, self.lease_end_us) = (None, None);
            return;
        };
        // A holder whose clock is slow takes its lease for longer than it is. What is left after that began when it was asked for.
        let by_clock_us = u128::from(self.lease_us) * 1_000_000 / u128::from((1_000_000 + ppm).max(1) as u64);
        let asked_us = until_us.saturating_sub(by_clock_us as u64);
        let end_us = began_us.saturating_add(self.lease_us);
        self.sure_until_us = Some(until_us.min(asked_us.saturating_add(self.lease_us)).min(end_us));
        self.lease_end_us = Some(self.lease_end_us.map_or(end_us, |known_us| known_us.max(end_us)));
    }

    /// A renewal may have been made, the last command of which was given up then.
    fn maybe_renewed(&mut self, given_up_us: u64) {
        self.lease_end_us = self.lease_end_us.map(|end_us| self.prolonged_us(end_us, given_up_us));
    }

    /// When it was over for the client: granted, refused, failed, crashed; the end of time where it waits still.
    pub fn waited_until_us(&self) -> u64 {
        let served_us = self.served().map(|served| served.at_us).or(self.granted_us);
        let ends = [served_us, self.refused_us, self.failed_us, self.crashed_us];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

/// All acquisitions, and what else is to be known.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// By their numbers, which are those of the first ones to begin.
    pub all: Vec<Account>,
    /// What the guarded resources have accepted, by lock.
    pub stored: Vec<(u32, Vec<Op>)>,
    /// When a client paused, and until when.
    pub pauses: Vec<(u32, u64, u64)>,
    /// When a server was away.
    pub away: Vec<(u64, u64)>,
    /// When it all ended.
    pub end_us: u64,
}

impl Accounts {
    /// Sorts a history.
    pub fn of(history: &History) -> Accounts {
        let mut accounts = Accounts::default();
        // What each client is at.
        let mut current: Vec<Option<usize>> = Vec::new();
        let mut down: Vec<(u32, usize)> = Vec::new();
        // By how many millionths each client's clocks run fast.
        let mut drifts: Vec<i64> = Vec::new();
        for event in &history.events {
            let at_us = event.at_us;
            accounts.end_us = accounts.end_us.max(at_us);
            if event.client != NOBODY && current.len() <= event.client as usize {
                current.resize(event.client as usize + 1, None);
                drifts.resize(event.client as usize + 1, 0);
            }
            match &event.what {
                What::Acquire { op, lock, lease_us, .. } => {
                    current[event.client as usize] = Some(accounts.all.len());
                    accounts.all.push(Account {
                        op: *op,
                        client: event.client,
                        lock: *lock,
                        lease_us: *lease_us,
                        asked_us: at_us,
                        ..Account::default()
                    });
                    continue;
                }
                What::Drift { ppm } => drifts[event.client as usize] = *ppm,
                What::Pause { for_us } => accounts.pauses.push((event.client, at_us, at_us + for_us)),
                What::Down { server, .. } => {
                    down.push((*server, accounts.away.len()));
                    accounts.away.push((at_us, u64::MAX));
                }
                What::Up { server } => {
                    if let Some(at) = down.iter().position(|(which, _)| which == server) {
                        accounts.away[down.remove(at).1].1 = at_us;
                    }
                }
                // Until there is a reply, nothing is known of the copy that is under way: the server may not know that its client waits.
                What::Resend { .. } => {
                    if let Some(account) = current[event.client as usize].and_then(|at| accounts.all.get_mut(at))
                        && account.granted_us.is_none()
                    {
                        account.trace.lost_us = Some(at_us);
                    }
                }
                What::Stored { lock, ops } => accounts.stored.push((*lock, ops.clone())),
                What::Crash { .. } => {
                    let at = current[event.client as usize].take();
                    if let Some(account) = at.and_then(|at| accounts.all.get_mut(at))
                        && account.released_us.is_none()
                    {
                        account.crashed_us = Some(at_us);
                    }
                }
                _ => {}
            }
            let Some(op) = event.what.op() else { continue };
            let Ok(at) = accounts.all.binary_search_by_key(&op, |account| account.op) else { continue };
            let account = &mut accounts.all[at];
            let ppm = drifts.get(account.client as usize).copied().unwrap_or(0);
            match &event.what {
                What::Granted { token, valid_until_us, watched, trace, .. } => {
                    (account.granted_us, account.token, account.watched) = (Some(at_us), *token, *watched);
                    (account.valid_until_us, account.trace) = (*valid_until_us, *trace);
                    account.leased(trace.last.map_or(at_us, |last| last.at_us), *valid_until_us, ppm);
                    if let Some(lost_us) = trace.lost_us {
                        account.maybe_renewed(lost_us);
                    }
                }
                What::NotGranted { trace, .. } => (account.refused_us, account.trace) = (Some(at_us), *trace),
                What::Failed { maybe, trace, .. } => {
                    // What was certainly not carried out is as good as refused.
                    let end = if *maybe { &mut account.failed_us } else { &mut account.refused_us };
                    *end = Some(at_us);
                    account.trace = *trace;
                }
                What::Enter { .. } => account.entered_us = Some(at_us),
                What::Exit { .. } => account.exited_us = Some(at_us),
                What::Renew { .. } => account.renewing_us = Some(at_us),
                What::Renewed { outcome, valid_until_us, trace, .. } => {
                    account.renewing_us = None;
                    if *outcome == Outcome::Yes {
                        account.valid_until_us = *valid_until_us;
                        account.leased(trace.last.map_or(at_us, |last| last.at_us), *valid_until_us, ppm);
                    }
                    let lost_us = trace.lost_us.or((*outcome == Outcome::Unknown).then_some(at_us));
                    if let Some(lost_us) = lost_us {
                        account.maybe_renewed(lost_us);
                    }
                }
                What::Release { .. } => account.release_us = Some(at_us),
                What::Released { given, tries, trace, .. } => {
                    account.released_us = Some(at_us);
                    (account.given, account.release_tries, account.release_trace) = (*given, *tries, *trace);
                }
                _ => {}
            }
        }
        accounts
    }

    /// Acquisitions by lock, each in the order in which they were asked for.
    pub fn by_lock(&self) -> Vec<Vec<&Account>> {
        let locks = self.all.iter().map(|account| account.lock as usize + 1).max().unwrap_or(0);
        let mut by_lock = vec![Vec::new(); locks];
        for account in &self.all {
            by_lock[account.lock as usize].push(account);
        }
        by_lock
    }

    /// An acquisition.
    pub fn get(&self, op: Op) -> Option<&Account> {
        self.all.binary_search_by_key(&op, |account| account.op).ok().map(|at| &self.all[at])
    }
}
