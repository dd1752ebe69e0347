//! Checks of a history. Each is a pure function in its own file, and reports only what the history proves.
//!
//! A check of exclusion counts a grant only while it was certainly held: from the server's grant, if known, until the holder
//! began to release it, crashed, or stopped counting on it. A check whether a lock was free counts a grant as long as it may have
//! been held.
//!
//! The outcome of an operation whose reply was lost is unknown, so a history has several readings ([`Acquisition`]). A violation
//! is wrong in all of them.

mod acquisition;
mod expiry;
mod fairness;
mod free;
pub mod linear;
mod overlap;
mod release;
mod stale;
mod tokens;

#[cfg(test)]
mod readings;
#[cfg(test)]
mod tests;

pub use acquisition::{Acquisition, Acquisitions};

use crate::torture::history::{Event, EventKind, History, Op};

named! {
    /// A property that must hold.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Property in ALL {
        /// By the servers' order, never more clients than permitted hold the lock.
        Exclusion = "exclusion": "overlapping grants, in the servers' order",
        /// Never more clients than permitted are in their critical sections, in true time.
        Sections = "sections": "overlapping critical sections",
        /// The guarded resource accepts no write of an earlier holder after a write of a later one.
        Writes = "writes": "stale writes accepted by the guarded resource",
        /// Fencing tokens increase.
        Tokens = "tokens": "fencing tokens that do not increase",
        /// A client does not release a lock that another client holds.
        Release = "release": "released by a client that did not hold it",
        /// A waiter is granted a released lock.
        WakeUp = "wake-up": "waited for a released lock",
        /// Grants are first come, first served.
        Fairness = "fairness": "served before a client that came earlier",
        /// A holder does not lose its lock before the lease ends.
        Early = "early": "lost before the lease was over",
        /// A waiter is granted a lock whose lease has ended.
        Late = "late": "waited for a lock whose lease was over",
        /// Never more permits of a semaphore are held than it has.
        Permits = "permits": "more permits held than there are",
        /// A lock that no client holds can be acquired.
        Stuck = "stuck": "stuck: no client holds it, and none can acquire it",
    }
}

/// A violation of a property.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The property.
    pub property: Property,
    /// True time of the violation, in microseconds.
    pub at_us: u64,
    /// The acquisitions involved.
    pub ops: Vec<Op>,
    /// What happened, in words.
    pub message: String,
}

/// The result of the check of one property.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// Number of grants, releases, waits or writes that were checked.
    pub checked: u64,
    /// The violations found.
    pub violations: Vec<Violation>,
}

/// The rules by which a history is judged.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Maximum number of concurrent holders. `None` if unknown.
    pub holders: Option<u32>,
    /// Maximum time that a lock may be free while a client waits for it.
    pub grace_us: u64,
}

impl Rules {
    /// The rules for leases of this length. Delayed or resent messages take less than the grace period.
    pub fn new(holders: Option<u32>, lease_us: u64) -> Rules {
        Rules { holders, grace_us: lease_us / 4 * 3 }
    }
}

/// The leaders that lead though their disks do not answer. While they do, and another node is cut off, no other node can be elected.
fn hung_leaders(history: &History) -> Vec<Violation> {
    let of = |event: &Event| match event.kind {
        EventKind::HungLeader { .. } => {
            let message = event.kind.to_string();
            Some(Violation { property: Property::Stuck, at_us: event.at_us, ops: Vec::new(), message })
        }
        _ => None,
    };
    history.events.iter().filter_map(of).collect()
}

/// Checks all properties of a history. The findings are in the order of [`Property::ALL`].
pub fn judge(history: &History, rules: &Rules) -> Vec<(Property, Finding)> {
    let acquisitions = Acquisitions::of(history);
    let one = rules.holders == Some(1);
    let free = free::check(&acquisitions, rules);
    let hung = hung_leaders(history);
    let find = |property: Property| match property {
        Property::Exclusion if one => overlap::grants(&acquisitions, property, 1),
        Property::Permits if !one => {
            rules.holders.map_or_else(Finding::default, |most| overlap::grants(&acquisitions, property, most))
        }
        Property::Exclusion | Property::Permits => Finding::default(),
        Property::Sections => rules.holders.map_or_else(Finding::default, |most| overlap::sections(&acquisitions, most)),
        Property::Writes if one => stale::check(&acquisitions),
        Property::Tokens => tokens::check(&acquisitions),
        Property::Release if one => release::check(&acquisitions),
        Property::Fairness if one => fairness::check(&acquisitions),
        Property::Writes | Property::Release | Property::Fairness => Finding::default(),
        Property::Early => expiry::early(&acquisitions),
        Property::WakeUp | Property::Late | Property::Stuck => Finding {
            checked: free.checked,
            violations: free.violations.iter().chain(&hung).filter(|violation| violation.property == property).cloned().collect(),
        },
    };
    Property::ALL.into_iter().map(|property| (property, find(property))).collect()
}
