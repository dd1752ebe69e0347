//! What the user sees, and what changes it: looks at the server, and the user's actions.

mod breaking;
mod sort;

use std::time::Duration;

pub use breaking::{Broken, Dialog, Phase};
pub use sort::Sort;

use crate::top::ask::Question;
use crate::top::facts::{Facts, Lock, Replies, main_holder};
use crate::top::headline::headline;
use crate::top::input::{Action, Focus};
use crate::top::names::{Name, unescaped};
use crate::top::rows::{self, Leases};

/// Maximum length of a filter, in characters.
const FILTER_MAX: usize = 200;
/// What is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// A pattern of names.
    Names,
    /// An owner, or a part of what is known of a client.
    Who,
}

/// What is in front of the table or the detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// The keys.
    Help,
    /// A line of text.
    Entry(Field, String),
    /// A grant to break.
    Break(Dialog),
}

/// What an action needs from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The end.
    Quit,
    /// A look at once.
    Look,
    /// A grant to break.
    Break {
        /// The lock.
        name: Name,
        /// The grant's token.
        token: u64,
        /// The reason.
        reason: String,
    },
}

/// The time without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// When the server answered for the last time.
    pub since: Duration,
    /// The same in unix milliseconds.
    pub since_unix_ms: u64,
    /// Why.
    pub reason: String,
}

/// The whole state. Times are since the program began.
#[derive(Debug, Default)]
pub struct Screen {
    /// The present.
    pub now: Duration,
    /// The last look.
    pub facts: Option<Facts>,
    /// The locks of the table, in its order.
    pub locks: Vec<Lock>,
    /// Index of the selected lock.
    pub selected: usize,
    /// Whether the user selected it. Until then it is the one that the headline names, or the first.
    pub is_chosen: bool,
    /// What the table is sorted by.
    pub sort: Sort,
    /// The pattern of names, as it was typed.
    pub names: String,
    /// The owner or a part of what is known of a client, as it was typed.
    pub who: String,
    /// Whether locks without waiters are shown.
    pub all: bool,
    /// The lock that is shown in detail.
    pub detail: Option<Name>,
    /// First line of the detail that is shown.
    pub top: usize,
    /// What is in front.
    pub overlay: Option<Overlay>,
    /// Whether no looks are made.
    pub paused: bool,
    /// Since when the server does not answer.
    pub lost: Option<Lost>,
    /// A sentence for the last line.
    pub notice: Option<String>,
    /// Whole leases.
    pub leases: Leases,
    /// Grants that were broken, the last first.
    pub broken: Vec<Broken>,
    /// Grants a second between the last two looks.
    pub grants_per_s: Option<f64>,
    /// When the server answered for the last time.
    pub answered: Duration,
    /// Number of grants at the last look, and when that was.
    pub grants: Option<(Duration, u64)>,
    /// Number of lines that a page of the table or the detail has.
    pub page: usize,
}

impl Screen {
    /// What to ask the server.
    pub fn question(&self) -> Question {
        Question {
            matching: (!self.names.is_empty()).then(|| pattern(&self.names)),
            who: self.wanted(),
            whole: false,
            all: self.all,
            longest_waits: self.sort == Sort::OldestWait,
            detail: self.detail.clone(),
        }
    }

    fn wanted(&self) -> Option<Name> {
        (!self.who.is_empty()).then(|| Name(unescaped(&self.who)))
    }

    /// Whether the table shows only some locks.
    pub fn is_filtered(&self) -> bool {
        !self.names.is_empty() || !self.who.is_empty()
    }

    /// Takes the replies of a look.
    pub fn take(&mut self, replies: &Replies) {
        let facts = Facts::of(replies);
        self.lost = None;
        self.answered = self.now;
        let before = self.chosen_name();
        self.locks = if let Some(who) = self.wanted() { facts.locks_of(&who) } else { facts.locks.clone().unwrap_or_default() };
        self.leases.see(&self.locks);
        let described = facts.detail.as_ref().and_then(|detail| Some((&detail.name, detail.events.as_ref().ok()?)));
        let events = described.into_iter().flat_map(|(name, events)| events.iter().map(|event| (name.clone(), event.clone())));
        let broken: Vec<_> = facts.broken.iter().cloned().chain(events.filter(|(_, end)| end.is_break())).collect();
        broken.into_iter().for_each(|(name, end)| self.remember(name, end));
        if let Some(grants) = facts.stat("grants") {
            let then = self.grants.replace((self.now, grants));
            let rate = |(at, count): (Duration, u64)| {
                let elapsed = self.now.saturating_sub(at).as_secs_f64();
                (elapsed > 0.0 && grants >= count).then(|| (grants - count) as f64 / elapsed)
            };
            self.grants_per_s = then.and_then(rate);
        }
        self.facts = Some(facts);
        self.order(before.as_ref());
    }

    /// Takes note that the server does not answer. `unix_ms` is the present in unix milliseconds.
    pub fn lose(&mut self, reason: String, unix_ms: u64) {
        let passed_ms = self.now.saturating_sub(self.answered).as_millis() as u64;
        self.lost = Some(Lost { since: self.answered, since_unix_ms: unix_ms.saturating_sub(passed_ms), reason });
        self.grants = None;
    }

    /// Sorts, and selects the lock of this name again.
    fn order(&mut self, selected: Option<&Name>) {
        self.sort.sort(&mut self.locks);
        if !self.is_chosen {
            // What the headline names is what `b` is about.
            let root = self.facts.as_ref().and_then(|facts| headline(facts).lock);
            self.selected = self.locks.iter().position(|lock| root.as_ref() == Some(&lock.name)).unwrap_or(0);
            return;
        }
        let found = selected.and_then(|name| self.locks.iter().position(|lock| lock.name == *name));
        self.selected = found.unwrap_or(self.selected).min(self.locks.len().saturating_sub(1));
    }

    /// The name of the lock that the user selected.
    fn chosen_name(&self) -> Option<Name> {
        self.selected_lock().filter(|_| self.is_chosen).map(|lock| lock.name.clone())
    }

    /// The selected lock.
    pub fn selected_lock(&self) -> Option<&Lock> {
        self.locks.get(self.selected)
    }

    /// The lines of the detail; `None` if no lock is shown in detail.
    pub fn detail_lines(&self) -> Option<Vec<String>> {
        let wanted = self.detail.as_ref()?;
        let detail = self.facts.as_ref().and_then(|facts| facts.detail.as_ref()).filter(|detail| detail.name == *wanted);
        Some(match detail {
            None => vec!["…".to_owned()],
            Some(detail) => match &detail.lock {
                Ok(Some(lock)) => rows::detail(lock, &detail.events),
                Ok(None) => {
                    let free = Lock {
                        name: wanted.clone(),
                        kind: "free: no owner holds it, and nobody waits for it".into(),
                        ..Lock::default()
                    };
                    rows::detail(&free, &detail.events)
                }
                Err(absence) => vec![rows::absent("LOCK.INFO", absence)],
            },
        })
    }

    /// What is in front.
    pub fn focus(&self) -> Focus {
        match &self.overlay {
            Some(Overlay::Help) => Focus::Notice,
            Some(Overlay::Entry(..)) => Focus::Typing,
            Some(Overlay::Break(dialog)) => match dialog.phase {
                Phase::Choosing => Focus::Choosing,
                Phase::Reason(_) => Focus::Typing,
                Phase::Sending(_) | Phase::Done(_) => Focus::Notice,
            },
            None if self.detail.is_some() => Focus::Detail,
            None => Focus::Table,
        }
    }

    /// Does what the user wants.
    pub fn act(&mut self, action: Action) -> Option<Effect> {
        self.notice = None;
        if action == Action::Quit {
            return Some(Effect::Quit);
        }
        match self.overlay.take() {
            Some(Overlay::Help) => None,
            Some(Overlay::Entry(field, text)) => self.entered(field, text, action),
            Some(Overlay::Break(dialog)) => self.asked(dialog, action),
            None => self.looked_at(action),
        }
    }

    fn entered(&mut self, field: Field, mut text: String, action: Action) -> Option<Effect> {
        match action {
            Action::Close => return None,
            Action::Accept => {
                match field {
                    Field::Names => self.names = text,
                    Field::Who => self.who = text,
                }
                (self.selected, self.is_chosen) = (0, false);
                return Some(Effect::Look);
            }
            action => edit(&mut text, action, |text| text.chars().count() < FILTER_MAX),
        }
        self.overlay = Some(Overlay::Entry(field, text));
        None
    }

    fn looked_at(&mut self, action: Action) -> Option<Effect> {
        match action {
            Action::Help => self.overlay = Some(Overlay::Help),
            Action::Break => self.ask_to_break(),
            Action::Pause => {
                self.paused = !self.paused;
                return (!self.paused).then_some(Effect::Look);
            }
            action if self.detail.is_some() => {
                if action == Action::Close {
                    self.detail = None;
                } else {
                    let lines = self.detail_lines().map_or(0, |lines| lines.len());
                    self.top = moved(self.top, action, (lines + 1).saturating_sub(self.page.max(1)).max(1), self.page);
                }
            }
            Action::Open => {
                self.is_chosen = true;
                self.detail = self.chosen_name();
                self.top = 0;
                return self.detail.is_some().then_some(Effect::Look);
            }
            Action::Close => {
                if self.is_filtered() {
                    (self.names, self.who) = Default::default();
                    (self.selected, self.is_chosen) = (0, false);
                    return Some(Effect::Look);
                }
            }
            Action::Sort => {
                let selected = self.chosen_name();
                self.sort = self.sort.next();
                self.order(selected.as_ref());
                return Some(Effect::Look);
            }
            Action::All => {
                self.all = !self.all;
                return Some(Effect::Look);
            }
            Action::FilterNames => self.overlay = Some(Overlay::Entry(Field::Names, self.names.clone())),
            Action::FilterOwner => {
                let holder = self.selected_lock().and_then(|lock| main_holder(&lock.holders));
                let who =
                    if self.who.is_empty() { holder.map(|holder| holder.owner.to_string()) } else { Some(self.who.clone()) };
                self.overlay = Some(Overlay::Entry(Field::Who, who.unwrap_or_default()));
            }
            action => {
                self.selected = moved(self.selected, action, self.locks.len(), self.page);
                self.is_chosen = true;
            }
        }
        None
    }
}

/// The pattern for a filter. Without any of `*?[` it matches all names that contain the text.
fn pattern(typed: &str) -> Vec<u8> {
    let typed = if typed.contains(['*', '?', '[']) { typed.to_owned() } else { format!("*{typed}*") };
    unescaped(&typed)
}

fn edit(text: &mut String, action: Action, has_room: impl Fn(&str) -> bool) {
    match action {
        Action::Type(c) if !c.is_control() && has_room(text) => text.push(c),
        Action::Erase => drop(text.pop()),
        Action::EraseAll => text.clear(),
        _ => {}
    }
}

/// Where a movement among `count` lines leads.
fn moved(at: usize, action: Action, count: usize, page: usize) -> usize {
    let by = |lines: isize| at.saturating_add_signed(lines);
    let to = match action {
        Action::Move(lines) => by(lines),
        Action::Page(pages) => by(pages * page.max(1) as isize),
        Action::First => 0,
        Action::Last => count,
        _ => at,
    };
    to.min(count.saturating_sub(1))
}
