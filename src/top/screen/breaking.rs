//! Breaking a grant: the dialog, and the grants that were broken.

use std::time::Duration;

use crate::top::facts::{Event, Holder, Lock, main_holder};
use crate::top::input::Action;
use crate::top::names::Name;
use crate::top::screen::{Effect, Overlay, Screen, edit, moved};

/// Maximum number of broken grants that are remembered.
const BREAKS_MAX: usize = 50;
/// Maximum length of a reason, in bytes: what `LOCK.BREAK` takes.
const REASON_MAX: usize = 128;

/// The dialog that breaks a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialog {
    /// The lock.
    pub name: Name,
    /// Its number of waiters.
    pub waiting: u64,
    /// Its holders when the dialog was opened. The grant that is broken is one of these, whatever has happened since.
    pub holders: Vec<Holder>,
    /// Index of the one that is chosen.
    pub chosen: usize,
    /// When it was opened.
    pub opened: Duration,
    /// How far it is.
    pub phase: Phase,
}

/// How far a dialog is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The user chooses a holder.
    Choosing,
    /// The user types the reason.
    Reason(String),
    /// The server is asked.
    Sending(String),
    /// What came of it.
    Done(String),
}

/// A grant that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The lock.
    pub name: Name,
    /// How it ended.
    pub end: Event,
    /// When it was seen.
    at: Duration,
    /// Milliseconds between the break and that.
    before_ms: u64,
}

impl Broken {
    /// Milliseconds since it was broken.
    pub fn ago_ms(&self, now: Duration) -> u64 {
        now.saturating_sub(self.at).as_millis() as u64 + self.before_ms
    }
}

impl Screen {
    /// Takes what came of breaking a grant.
    pub fn take_outcome(&mut self, outcome: String) {
        match &mut self.overlay {
            Some(Overlay::Break(dialog)) if matches!(dialog.phase, Phase::Sending(_)) => dialog.phase = Phase::Done(outcome),
            _ => self.notice = Some(outcome),
        }
    }

    /// Takes note of a grant that was broken.
    pub(super) fn remember(&mut self, name: Name, end: Event) {
        if self.broken.iter().any(|known| known.name == name && known.end.token == end.token) {
            return;
        }
        let broken = Broken { name, at: self.now, before_ms: end.ago_ms, end };
        self.broken.push(broken);
        self.broken.sort_by_key(|broken| broken.ago_ms(self.now));
        self.broken.truncate(BREAKS_MAX);
    }

    /// Does what the user wants of the dialog.
    pub(super) fn asked(&mut self, mut dialog: Dialog, action: Action) -> Option<Effect> {
        let mut effect = None;
        match (&mut dialog.phase, action) {
            (Phase::Done(_), _) => return Some(Effect::Look),
            // What comes of it is shown in the last line.
            (Phase::Sending(_), _) | (_, Action::Close) => return None,
            (Phase::Choosing, Action::Accept) => dialog.phase = Phase::Reason(String::new()),
            (Phase::Choosing, action) => dialog.chosen = moved(dialog.chosen, action, dialog.holders.len(), 1),
            (Phase::Reason(reason), Action::Accept) => {
                let reason = reason.trim().to_owned();
                if let Some(holder) = dialog.holders.get(dialog.chosen).filter(|_| !reason.is_empty()) {
                    effect = Some(Effect::Break { name: dialog.name.clone(), token: holder.token, reason: reason.clone() });
                    dialog.phase = Phase::Sending(reason);
                }
            }
            (Phase::Reason(reason), action) => edit(reason, action, |text| text.len() + 4 <= REASON_MAX),
        }
        self.overlay = Some(Overlay::Break(dialog));
        effect
    }

    /// The lock that is shown or selected.
    fn lock_in_front(&self) -> Option<&Lock> {
        match &self.detail {
            Some(_) => self.facts.as_ref()?.detail.as_ref()?.lock.as_ref().ok()?.as_ref(),
            None => self.selected_lock(),
        }
    }

    /// Opens the dialog, or says why there is none.
    pub(super) fn ask_to_break(&mut self) {
        let refused = match (self.facts.as_ref().is_some_and(|facts| facts.can_break), self.lock_in_front()) {
            (_, None) => "There is no lock to break.".to_owned(),
            (false, _) => "This server does not have LOCK.BREAK.".to_owned(),
            (true, Some(lock)) if lock.holders.is_empty() => format!("{} has no holder: there is no grant to break.", lock.name),
            (true, Some(lock)) => {
                let chosen = main_holder(&lock.holders).map(|main| main.token);
                let chosen = lock.holders.iter().position(|holder| Some(holder.token) == chosen).unwrap_or(0);
                let phase = if lock.holders.len() > 1 { Phase::Choosing } else { Phase::Reason(String::new()) };
                self.overlay = Some(Overlay::Break(Dialog {
                    name: lock.name.clone(),
                    waiting: lock.waiting,
                    holders: lock.holders.clone(),
                    chosen,
                    opened: self.now,
                    phase,
                }));
                // What happens to the lock is what the user wants to see next.
                self.is_chosen = true;
                return;
            }
        };
        self.notice = Some(refused);
    }
}
