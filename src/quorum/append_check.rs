//! What a leader says of its log, held against itself and against the log of this node.
//!
//! Under one vote a leader has one log, in which entries are in order, and which it only extends. openraft trusts it in that: it commits
//! what it has once accepted under a vote, also after a contradiction has had it removed.
//!
//! | append | what it is checked against |
//! | --- | --- |
//! | a heartbeat behind what is known to be here | what the leader has said. It waits for nobody |
//! | a heartbeat behind nothing | the log of this node, too. It waits for nobody |
//! | behind the one before it on its connection | what the leader has said. Any number are under way |
//! | any other, and a snapshot | the log of this node, too, while no other is under way |
//!
//! A heartbeat removes nothing, and is answered while a snapshot is being installed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::Either;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::quorum::net::handler::Handler;
use crate::quorum::sane::{Checked, Nonsense, expect};
use crate::quorum::types::{LeaderId, LogId, Types, Vote};

/// What a node has of its log.
pub struct Here<'a, F> {
    /// Its vote.
    pub vote: &'a Vote,
    /// Its last entry that it knows to be committed.
    pub committed: Option<&'a LogId>,
    /// Its last entry that the leader with this vote is known to have, too.
    pub matched: Option<LogId>,
    /// Its entry at an index, if it still has that.
    pub at: F,
}

/// What an append says of a leader's log.
pub struct Said {
    /// The entry before its entries, and these.
    pub ids: Vec<LogId>,
    /// The last one that is committed.
    pub commit: Option<LogId>,
}

/// Expects that an append of a leader contradicts nothing that is committed here, and nothing that it has had us keep under this vote.
/// One with an older vote is for openraft to refuse.
/// Returns what openraft may be told to be committed: an entry that is here, or comes with the append. It keeps what it was told when the
/// next leader comes, and compares terms first: an entry of an older term behind the end of the log it would commit then. A leader says
/// again what is committed.
pub fn fits(said: &Said, vote: &Vote, here: &Here<'_, impl Fn(u64) -> Option<LogId>>) -> Result<Option<LogId>, Nonsense> {
    if vote < here.vote {
        return Ok(said.commit);
    }
    if let Some(committed) = here.committed {
        for id in said.ids.iter().chain(&said.commit).filter(|id| id.index <= committed.index) {
            let own = if id.index == committed.index { Some(*committed) } else { (here.at)(id.index) };
            if let Some(own) = own.filter(|own| own != id) {
                return Err(Nonsense(format!("entry {id} in the place of {own}, which is committed")));
            }
            // What is here no longer is at most as late as what is committed.
            expect(id <= committed, || format!("entry {id} in front of {committed}, which is committed"))?;
        }
    }
    // openraft goes on to commit what it has accepted under a vote, also after a contradiction has had it removed.
    if let Some(matched) = here.matched {
        for id in said.ids.iter().filter(|id| id.index <= matched.index) {
            if let Some(own) = (here.at)(id.index).filter(|own| own != id) {
                return Err(Nonsense(format!("entry {id} in the place of {own}, which the leader has had")));
            }
        }
    }
    let agrees = |commit: &LogId| match (here.at)(commit.index) {
        Some(own) => own == *commit,
        None => here.committed.is_some_and(|committed| commit.index <= committed.index) || said.ids.contains(commit),
    };
    Ok(said.commit.filter(agrees))
}

/// Maximum number of leaders whose entries are remembered of another node's log.
const LEADERS_MAX: usize = 1_000;

/// What a leader has said of its log under its vote. That does not change then, so that all entries are in one order.
#[derive(Clone, Debug, Default)]
pub struct LeadersLog {
    vote: Option<Vote>,
    /// The last entry up to which it is the log of this node, as far as that is known.
    matched: Option<LogId>,
    /// The index from which the entries up to that one are of one leader.
    matched_from: u64,
    /// Whose entries it has, from which index, and up to which one, in order.
    spans: Vec<(LeaderId, u64, u64)>,
}

impl LeadersLog {
    /// Notes entries that the leader has. What comes with an older vote is for openraft to refuse.
    ///
    /// # Errors
    /// They contradict what it has said before.
    pub fn note(&mut self, vote: &Vote, ids: impl IntoIterator<Item = LogId>) -> Checked {
        if self.vote.as_ref().is_some_and(|known| vote < known) {
            return Ok(());
        }
        if self.vote.as_ref() != Some(vote) {
            *self = LeadersLog { vote: Some(*vote), ..LeadersLog::default() };
        }
        ids.into_iter().try_for_each(|id| self.note_one(&id))
    }

    /// Notes that this node has entries of the leader, which follow each other.
    pub fn note_match(&mut self, vote: &Vote, ids: &[LogId]) {
        let Some(last) = ids.last().filter(|last| self.vote.as_ref() == Some(vote) && self.matched.as_ref() < Some(last)) else {
            return;
        };
        let from = ids.iter().find(|id| id.leader_id == last.leader_id).map_or(last.index, |id| id.index);
        let goes_on = self.matched.is_some_and(|matched| matched.leader_id == last.leader_id && matched.index + 1 >= from);
        self.matched_from = if goes_on { self.matched_from.min(from) } else { from };
        self.matched = Some(*last);
    }

    /// The last entry up to which the log of the leader with this vote is that of this node, as far as that is known.
    pub fn matched(&self, vote: &Vote) -> Option<LogId> {
        self.matched.filter(|_| self.vote.as_ref() == Some(vote))
    }

    /// Whether this node is known to have an entry of the leader with this vote.
    pub fn has(&self, vote: &Vote, id: &LogId) -> bool {
        let matched = self.matched(vote);
        matched.is_some_and(|last| last.leader_id == id.leader_id && (self.matched_from..=last.index).contains(&id.index))
    }

    fn note_one(&mut self, id: &LogId) -> Checked {
        let found = self.spans.binary_search_by_key(&id.leader_id, |span| span.0);
        let at = found.unwrap_or_else(|at| {
            self.spans.insert(at, (id.leader_id, id.index, id.index));
            at
        });
        let (_, from, to) = &mut self.spans[at];
        (*from, *to) = (id.index.min(*from), id.index.max(*to));
        let (from, to) = (*from, *to);
        let before = at.checked_sub(1).map(|before| self.spans[before].2);
        let behind = self.spans.get(at + 1).map(|span| span.1);
        if before.is_some_and(|before| before >= from) || behind.is_some_and(|behind| behind <= to) {
            return Err(Nonsense(format!("entry {id}, which contradicts what the leader said before")));
        }
        if self.spans.len() > LEADERS_MAX {
            self.spans.remove(0);
        }
        Ok(())
    }
}

/// The last leader, over all its connections.
#[derive(Debug, Default)]
pub struct LeaderCheck {
    log: Mutex<LeadersLog>,
    turns: RwLock<()>,
}

/// The turn of an append. What must fit to the log of this node has it alone.
pub type Turn<'a> = Either<RwLockReadGuard<'a, ()>, RwLockWriteGuard<'a, ()>>;

impl LeaderCheck {
    fn log(&self) -> MutexGuard<'_, LeadersLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes entries that the leader has.
    ///
    /// # Errors
    /// They contradict what it has said before.
    pub fn note(&self, vote: &Vote, ids: impl IntoIterator<Item = LogId>) -> Checked {
        self.log().note(vote, ids)
    }

    /// Notes that this node has entries of the leader, which follow each other.
    pub fn note_match(&self, vote: &Vote, ids: &[LogId]) {
        self.log().note_match(vote, ids);
    }

    /// Waits for the turn of an append, of the entries `ids`, and checks it. `is_consecutive` says that it comes behind the one
    /// before it. Leaves in it what may be taken to be committed. A heartbeat needs no turn, and gets `None`.
    ///
    /// # Errors
    /// Why the connection must end: it does not fit to the log of this node.
    pub async fn admit(
        &self,
        append: &mut AppendEntriesRequest<Types>,
        ids: &[LogId],
        is_consecutive: bool,
        handler: &impl Handler,
    ) -> Result<Option<Turn<'_>>, String> {
        let (vote, prev) = (append.vote, append.prev_log_id);
        // What comes is in the leader's log. So it is committed if something later is.
        let last = ids.last().copied();
        let commit = append.leader_commit.map(|commit| last.filter(|last| last.index < commit.index).unwrap_or(commit));
        append.leader_commit = commit;
        let is_known = |id: LogId| self.log().has(&vote, &id);
        let is_heartbeat = append.entries.is_empty() && prev.is_none_or(is_known);
        if is_heartbeat && prev.is_some() && commit.is_none_or(is_known) {
            return Ok(None);
        }
        let said = || Said { ids: ids.to_vec(), commit };
        if is_heartbeat {
            append.leader_commit = self.fits(vote, said(), handler).await?;
            return Ok(None);
        }
        if is_consecutive {
            let turn = self.turns.read().await;
            if self.log().matched(&vote) <= prev {
                return Ok(Some(Either::Left(turn)));
            }
        }
        let (turn, commit) = self.admit_alone(vote, said(), handler).await?;
        append.leader_commit = commit;
        Ok(Some(turn))
    }

    /// Waits for the turn of what must fit to the log of this node. Returns what may be taken to be committed, too.
    ///
    /// # Errors
    /// Why the connection must end: it does not fit.
    pub async fn admit_alone(&self, vote: Vote, said: Said, handler: &impl Handler) -> Result<(Turn<'_>, Option<LogId>), String> {
        let turn = self.turns.write().await;
        let commit = self.fits(vote, said, handler).await?;
        Ok((Either::Right(turn), commit))
    }

    async fn fits(&self, vote: Vote, said: Said, handler: &impl Handler) -> Result<Option<LogId>, String> {
        let matched = self.log().matched(&vote);
        handler.fits(vote, said, matched).await?.map_err(|nonsense| nonsense.to_string())
    }
}
