//! A history, sorted by acquisition.
//!
//! A command whose reply was lost may have been carried out, or not, or may be carried out later: a history has a reading for
//! each possible answer. Each acquisition has two spans of time: in which it was held in every reading, and in which it was held
//! in some reading.
//!
//! ```text
//!             requested   granted by the server         released, crashed,   the reply to     the longest lease that
//!               │               │                       end of known lease   the release      lost renewals allow
//!   certain     ·               ├───────────────────────────────┤                │                    │
//!   possible    ├─ a reply lost ┼────────────────────────────────────────────────┤ ···· no reply ······┤
//! ```
//!
//! A check uses the span that favours the algorithm. What was acknowledged is the same in all readings.

use crate::recipes::ReleaseOutcome;
use crate::torture::history::{Event, EventKind, History, NO_CLIENT, Op, Outcome, Stamp, Trace};
use crate::torture::plan::UNSEEN_LEASES;

/// One acquisition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Acquisition {
    /// The number of the acquisition.
    pub op: Op,
    /// The number of the client.
    pub client: u32,
    /// The number of the lock.
    pub lock: u32,
    /// The requested lease.
    pub lease_us: u64,
    /// When the client requested the lock.
    pub requested_us: u64,
    /// When the client knew of the grant.
    pub granted_us: Option<u64>,
    /// The fencing token.
    pub token: Option<u64>,
    /// Until when the holder counted on the lock: from the grant, or from the last renewal.
    pub valid_until_us: Option<u64>,
    /// What servers did for the call of `acquire`.
    pub trace: Trace,
    /// When the request was refused.
    pub refused_us: Option<u64>,
    /// When the request failed with an unknown outcome.
    pub failed_us: Option<u64>,
    /// When the critical section began.
    pub entered_us: Option<u64>,
    /// When the critical section ended.
    pub exited_us: Option<u64>,
    /// Whether a watchdog renewed the lease.
    pub watched: bool,
    /// The earliest end of the lease: only acknowledged renewals count. `None` if the lease does not end.
    pub certain_end_us: Option<u64>,
    /// The latest end of the lease: renewals of unknown outcome count too. `None` if the lease does not end.
    pub possible_end_us: Option<u64>,
    /// When the renewal in progress began.
    pub renewing_us: Option<u64>,
    /// When the release began.
    pub release_us: Option<u64>,
    /// When the release ended.
    pub released_us: Option<u64>,
    /// The outcome of the release. `None` if it is unknown.
    pub outcome: Option<ReleaseOutcome>,
    /// Number of attempts to release.
    pub release_tries: u32,
    /// What servers did for the last attempt to release.
    pub release_trace: Trace,
    /// When the client crashed, if it did so before the end of the acquisition.
    pub crashed_us: Option<u64>,
    /// When a leader first saw the end of a connection of the client, of a lock that ends with its connection.
    pub hung_up_us: Option<u64>,
}

impl Acquisition {
    /// When it was granted: the server's time if known, otherwise when the client knew.
    pub fn start_us(&self) -> Option<u64> {
        self.granted_us.map(|known_us| self.trace.last.map_or(known_us, |last| last.at_us))
    }

    /// The position of the grant among all grants.
    pub fn order(&self) -> Option<Stamp> {
        let known_us = self.granted_us?;
        Some(self.trace.last.unwrap_or(Stamp { order: known_us, at_us: known_us }))
    }

    /// When a server granted the lock, as far as known. Requests that the client sent afterwards, such as a renewal, do not
    /// count.
    pub fn served(&self) -> Option<Stamp> {
        self.granted_us.and(self.trace.served.or(self.trace.last))
    }

    /// The span in which it was held in every reading.
    pub fn certain_span(&self) -> Option<(u64, u64)> {
        let start_us = self.start_us()?;
        let ends = [self.certain_end_us, self.release_us, self.crashed_us, self.hung_up_us];
        let mut end_us = ends.into_iter().flatten().fold(u64::MAX, u64::min);
        // A checked release that succeeded proves that the lock was held until then, perhaps by a renewal of unknown outcome. A
        // release that was sent twice proves nothing: a server that recognizes repeated requests repeats its first reply.
        if let (Some(ReleaseOutcome::Released), Some(first), false) =
            (self.outcome, self.release_trace.first, self.release_trace.resent)
        {
            end_us = end_us.max(first.at_us.min(self.latest_us()));
        }
        (start_us < end_us).then_some((start_us, end_us))
    }

    /// The span in which it was held in some reading.
    pub fn possible_span(&self) -> Option<(u64, u64)> {
        if self.granted_us.is_none() {
            let unsure = self.trace.lost_us.filter(|_| !self.trace.resent);
            // The server may have granted it without the client's knowledge, even after the client gave it up, and for a lease
            // from then on.
            return match (self.failed_us.or(self.crashed_us), self.refused_us, unsure) {
                // The client was told that it does not hold the lock.
                (_, Some(_), None) => None,
                (None, Some(ended_us), Some(_)) | (Some(ended_us), ..) => {
                    Some((self.requested_us, ended_us.saturating_add((u64::from(UNSEEN_LEASES) + 1) * self.lease_us)))
                }
                (None, None, _) => Some((self.requested_us, u64::MAX)),
            };
        }
        let start_us = match self.trace.lost_us {
            // An earlier command, whose reply was lost, may have been carried out before the acknowledged one.
            Some(_) => self.trace.first.map_or(self.requested_us, |first| first.at_us.min(self.requested_us)),
            None => self.served().map_or(self.requested_us, |served| served.at_us),
        };
        let ended_us = match (self.released_us, self.outcome) {
            (Some(at_us), Some(_)) => self.release_trace.last.map_or(at_us, |last| last.at_us),
            // It may not have been released and has no end, but the client does not count on it any more.
            (Some(at_us), None) if self.possible_end_us.is_none() => at_us,
            _ if self.possible_end_us.is_none() => self.crashed_us.unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        Some((start_us, self.latest_us().min(ended_us)))
    }

    /// The latest end of the lease, whether the lock was released or not. `u64::MAX` if the lease does not end.
    pub fn latest_us(&self) -> u64 {
        let Some(end_us) = self.possible_end_us else { return u64::MAX };
        if self.watched {
            // The watchdog renewed the lease until then, and its last renewal may have been in transit.
            let Some(last_us) = self.release_us.or(self.crashed_us) else { return u64::MAX };
            return self.prolonged_us(last_us.saturating_add(self.lease_us).max(end_us), last_us);
        }
        // A renewal was in progress when the client crashed, or at the end of the history.
        self.renewing_us.map_or(end_us, |began_us| self.prolonged_us(end_us, self.crashed_us.unwrap_or(began_us)))
    }

    /// The latest end of a lease that ends at `end_us` without a renewal whose client gave it up at `given_up_us`. That renewal
    /// may have arrived later, but not after the end of the lease.
    fn prolonged_us(&self, end_us: u64, given_up_us: u64) -> u64 {
        let arrived_us = given_up_us.saturating_add(u64::from(UNSEEN_LEASES) * self.lease_us).min(end_us);
        end_us.max(arrived_us.saturating_add(self.lease_us))
    }

    /// Records the start of a lease: at `began_us` at the latest, and not before its request. Its holder counts on it until
    /// `valid_until_us`, by a clock that runs `ppm` millionths fast.
    fn record_lease(&mut self, began_us: u64, valid_until_us: Option<u64>, ppm: i64) {
        let Some(until_us) = valid_until_us else {
            (self.certain_end_us, self.possible_end_us) = (None, None);
            return;
        };
        // A holder whose clock is slow counts on its lease for longer than the lease lasts. `until_us` less the lease by that
        // clock is the time of the request.
        let by_clock_us = u128::from(self.lease_us) * 1_000_000 / u128::from((1_000_000 + ppm).max(1) as u64);
        let requested_us = until_us.saturating_sub(by_clock_us as u64);
        let end_us = began_us.saturating_add(self.lease_us);
        self.certain_end_us = Some(until_us.min(requested_us.saturating_add(self.lease_us)).min(end_us));
        self.possible_end_us = Some(self.possible_end_us.map_or(end_us, |known_us| known_us.max(end_us)));
    }

    /// Records a renewal of unknown outcome, whose last command was given up at `given_up_us`.
    fn maybe_renewed(&mut self, given_up_us: u64) {
        self.possible_end_us = self.possible_end_us.map(|end_us| self.prolonged_us(end_us, given_up_us));
    }

    /// Records an event of this acquisition, whose client's clocks run `ppm` millionths fast.
    fn record(&mut self, at_us: u64, kind: &EventKind, ppm: i64) {
        match kind {
            EventKind::Granted { token, valid_until_us, watched, trace, .. } => {
                (self.granted_us, self.token, self.watched) = (Some(at_us), *token, *watched);
                (self.valid_until_us, self.trace) = (*valid_until_us, *trace);
                self.record_lease(trace.last.map_or(at_us, |last| last.at_us), *valid_until_us, ppm);
                if let Some(lost_us) = trace.lost_us {
                    self.maybe_renewed(lost_us);
                }
            }
            EventKind::NotGranted { trace, .. } => (self.refused_us, self.trace) = (Some(at_us), *trace),
            EventKind::Failed { maybe, trace, .. } => {
                // A request that certainly was not carried out counts as refused.
                let end = if *maybe { &mut self.failed_us } else { &mut self.refused_us };
                *end = Some(at_us);
                self.trace = *trace;
            }
            EventKind::Enter { .. } => self.entered_us = Some(at_us),
            EventKind::Exit { .. } => self.exited_us = Some(at_us),
            EventKind::Renew { .. } => self.renewing_us = Some(at_us),
            EventKind::Renewed { outcome, valid_until_us, trace, .. } => {
                self.renewing_us = None;
                if *outcome == Outcome::Yes {
                    self.valid_until_us = *valid_until_us;
                    self.record_lease(trace.last.map_or(at_us, |last| last.at_us), *valid_until_us, ppm);
                }
                let lost_us = trace.lost_us.or((*outcome == Outcome::Unknown).then_some(at_us));
                if let Some(lost_us) = lost_us {
                    self.maybe_renewed(lost_us);
                }
            }
            EventKind::Release { .. } => self.release_us = Some(at_us),
            EventKind::Released { outcome, tries, trace, .. } => {
                self.released_us = Some(at_us);
                (self.outcome, self.release_tries, self.release_trace) = (*outcome, *tries, *trace);
            }
            _ => {}
        }
    }

    /// When the client stopped waiting: granted, refused, failed or crashed. `u64::MAX` if it still waits.
    pub fn waited_until_us(&self) -> u64 {
        let served_us = self.served().map(|served| served.at_us).or(self.granted_us);
        let ends = [served_us, self.refused_us, self.failed_us, self.crashed_us];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

/// All acquisitions of a history, and its other facts.
#[derive(Clone, Debug, Default)]
pub struct Acquisitions {
    /// Sorted by number, which is the order in which they began.
    pub all: Vec<Acquisition>,
    /// The writes that the guarded resources accepted, by lock.
    pub stored: Vec<(u32, Vec<Op>)>,
    /// The pauses of clients: client, start and end.
    pub pauses: Vec<(u32, u64, u64)>,
    /// When a server was down: start and end. Of a replicated service: when no node led.
    pub down: Vec<(u64, u64)>,
    /// The acquisitions whose clients were left waiting at a server that did not lead: when that was noticed, and the server.
    pub left_waiting: Vec<(Op, u64, u32)>,
    /// Whether the service is replicated. Then the time of leases stands still while no node leads.
    pub replicated: bool,
    /// The end of the history.
    pub end_us: u64,
}

/// Sorts a history event by event.
#[derive(Default)]
struct Sorter {
    sorted: Acquisitions,
    /// The index of each client's current acquisition.
    current: Vec<Option<usize>>,
    /// Servers that are down, with their index in [`Acquisitions::down`].
    down: Vec<(u32, usize)>,
    /// Since when no node of a replicated service leads, if that is so.
    leaderless_us: Option<u64>,
    /// The times without a leader that have ended.
    leaderless: Vec<(u64, u64)>,
    /// By how many millionths each client's clocks run fast.
    drifts: Vec<i64>,
}

impl Sorter {
    fn record(&mut self, event: &Event) {
        let at_us = event.at_us;
        self.sorted.end_us = self.sorted.end_us.max(at_us);
        if event.client != NO_CLIENT && self.current.len() <= event.client as usize {
            self.current.resize(event.client as usize + 1, None);
            self.drifts.resize(event.client as usize + 1, 0);
        }
        match &event.kind {
            EventKind::Acquire { op, lock, lease_us, .. } => {
                self.current[event.client as usize] = Some(self.sorted.all.len());
                self.sorted.all.push(Acquisition {
                    op: *op,
                    client: event.client,
                    lock: *lock,
                    lease_us: *lease_us,
                    requested_us: at_us,
                    ..Acquisition::default()
                });
                return;
            }
            EventKind::Drift { ppm } => self.drifts[event.client as usize] = *ppm,
            EventKind::Pause { for_us } => self.sorted.pauses.push((event.client, at_us, at_us + for_us)),
            EventKind::Down { server, .. } | EventKind::PowerLoss { server, .. } => {
                self.down.push((*server, self.sorted.down.len()));
                self.sorted.down.push((at_us, u64::MAX));
            }
            EventKind::Up { server } => {
                if let Some(at) = self.down.iter().position(|(which, _)| which == server) {
                    self.sorted.down[self.down.remove(at).1].1 = at_us;
                }
            }
            // A replicated service is down while no node leads: nothing expires in that time. Its nodes' ends do not matter.
            EventKind::Leaderless => self.leaderless_us = Some(at_us),
            EventKind::Leads { .. } => {
                if let Some(since_us) = self.leaderless_us.take() {
                    self.leaderless.push((since_us, at_us));
                }
            }
            // Until there is a reply, nothing is known of the copy in transit: the server may not know that its client waits.
            EventKind::Resend { .. } => {
                if let Some(acquisition) = self.current[event.client as usize].and_then(|at| self.sorted.all.get_mut(at))
                    && acquisition.granted_us.is_none()
                {
                    acquisition.trace.lost_us = Some(at_us);
                }
            }
            EventKind::Stored { lock, ops } => self.sorted.stored.push((*lock, ops.clone())),
            EventKind::Hangup { .. } => {
                let current = self.current.get(event.client as usize).copied().flatten();
                if let Some(acquisition) = current.and_then(|at| self.sorted.all.get_mut(at)) {
                    acquisition.hung_up_us.get_or_insert(at_us);
                }
            }
            EventKind::LeftWaiting { server } => {
                let current = self.current.get(event.client as usize).copied().flatten();
                if let Some(acquisition) = current.and_then(|at| self.sorted.all.get(at)) {
                    self.sorted.left_waiting.push((acquisition.op, at_us, *server));
                }
            }
            EventKind::Crash { .. } => {
                let at = self.current[event.client as usize].take();
                if let Some(acquisition) = at.and_then(|at| self.sorted.all.get_mut(at))
                    && acquisition.released_us.is_none()
                {
                    acquisition.crashed_us = Some(at_us);
                }
            }
            _ => {}
        }
        let Some(op) = event.kind.op() else { return };
        let Ok(at) = self.sorted.all.binary_search_by_key(&op, |acquisition| acquisition.op) else { return };
        let acquisition = &mut self.sorted.all[at];
        let ppm = self.drifts.get(acquisition.client as usize).copied().unwrap_or(0);
        acquisition.record(at_us, &event.kind, ppm);
    }
}

impl Acquisitions {
    /// Sorts a history.
    pub fn of(history: &History) -> Acquisitions {
        let mut sorter = Sorter::default();
        history.events.iter().for_each(|event| sorter.record(event));
        sorter.leaderless.extend(sorter.leaderless_us.map(|since_us| (since_us, u64::MAX)));
        if !sorter.leaderless.is_empty() {
            sorter.sorted.down = sorter.leaderless;
            sorter.sorted.replicated = true;
        }
        sorter.sorted
    }

    /// The latest time at which the lock of an acquisition became free: as [`Acquisition::possible_span`] says, and if that is the end
    /// of its lease, later by the time in which no node led meanwhile.
    pub fn free_at_us(&self, acquisition: &Acquisition, end_us: u64) -> u64 {
        if !self.replicated || end_us != acquisition.latest_us() || end_us == u64::MAX {
            return end_us;
        }
        let began_us = end_us.saturating_sub(acquisition.lease_us);
        let meanwhile = self.down.iter().filter(|(_, to_us)| *to_us > began_us);
        meanwhile.fold(end_us, |end_us, (from_us, to_us)| match *from_us < end_us {
            true => end_us.saturating_add(to_us - from_us.max(&began_us)),
            false => end_us,
        })
    }

    /// The acquisitions of each lock, in the order of their requests.
    pub fn by_lock(&self) -> Vec<Vec<&Acquisition>> {
        let locks = self.all.iter().map(|acquisition| acquisition.lock as usize + 1).max().unwrap_or(0);
        let mut by_lock = vec![Vec::new(); locks];
        for acquisition in &self.all {
            by_lock[acquisition.lock as usize].push(acquisition);
        }
        by_lock
    }

    /// The acquisition of a number.
    pub fn get(&self, op: Op) -> Option<&Acquisition> {
        self.all.binary_search_by_key(&op, |acquisition| acquisition.op).ok().map(|at| &self.all[at])
    }
}
