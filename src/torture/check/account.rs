//! A history by acquisitions: what became of each.

use crate::recipes::Given;
use crate::torture::history::{History, NOBODY, Op, Outcome, Stamp, Trace, What};

/// For so many leases a server may go on to serve somebody who is not there any more.
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
    /// When the last renewal was made, or may have been.
    pub renewed_us: Option<u64>,
    /// When the release began.
    pub release_us: Option<u64>,
    /// When it ended.
    pub released_us: Option<u64>,
    /// How.
    pub given: Option<Given>,
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

    /// When it had certainly been granted and had certainly not ended yet.
    pub fn certain(&self) -> Option<(u64, u64)> {
        let start_us = self.start_us()?;
        let mut end_us = u64::MAX;
        if let Some(until_us) = self.valid_until_us {
            // What a holder thinks whose clock is slow is not what the server thinks.
            let by_server = self.renewed_us.unwrap_or(start_us).max(start_us).saturating_add(self.lease_us);
            end_us = until_us.min(by_server);
        }
        let ends = [self.release_us, self.crashed_us];
        let end_us = ends.into_iter().flatten().fold(end_us, u64::min);
        (start_us < end_us).then_some((start_us, end_us))
    }

    /// When it may have been held, at most.
    pub fn possible(&self) -> Option<(u64, u64)> {
        if self.granted_us.is_none() {
            // It may have been granted and nobody knows, also after it was given up; and a lease from then on.
            let ended_us = self.failed_us.or(self.crashed_us);
            return match (ended_us, self.refused_us) {
                (_, Some(_)) => None,
                (Some(ended_us), _) => Some((self.asked_us, ended_us.saturating_add((UNSEEN_LEASES + 1) * self.lease_us))),
                (None, None) => Some((self.asked_us, u64::MAX)),
            };
        }
        let start_us = self.trace.last.map_or(self.asked_us, |last| last.at_us);
        let last_us = self.renewed_us.unwrap_or(start_us).max(start_us);
        let by_lease = self.valid_until_us.map_or(u64::MAX, |_| last_us.saturating_add(self.lease_us));
        let ended_us = match (self.released_us, self.given) {
            (Some(at_us), Some(_)) => self.release_trace.last.map_or(at_us, |last| last.at_us),
            // Nobody knows whether it was given back; nobody lives who thinks to have it, if it has no end.
            (Some(at_us), None) if self.valid_until_us.is_none() => at_us,
            _ if self.valid_until_us.is_none() => self.crashed_us.unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        Some((start_us, by_lease.min(ended_us)))
    }

    /// When it was over for the client: granted, refused, failed, crashed; the end of time where it waits still.
    pub fn waited_until_us(&self) -> u64 {
        let ends = [self.start_us(), self.refused_us, self.failed_us, self.crashed_us];
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
        for event in &history.events {
            let at_us = event.at_us;
            accounts.end_us = accounts.end_us.max(at_us);
            if event.client != NOBODY && current.len() <= event.client as usize {
                current.resize(event.client as usize + 1, None);
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
            match &event.what {
                What::Granted { token, valid_until_us, trace, .. } => {
                    account.granted_us = Some(at_us);
                    (account.token, account.valid_until_us, account.trace) = (*token, *valid_until_us, *trace);
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
                What::Renewed { outcome, valid_until_us, trace, .. } if *outcome != Outcome::No => {
                    account.renewed_us = Some(trace.last.map_or(at_us, |last| last.at_us));
                    account.valid_until_us = *valid_until_us;
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
