//! Judges of a history. Each is a pure function in a file of its own, and says nothing that the history does not prove.
//!
//! A grant is counted from when a server gave it, where that is known, until the holder began to give it back, crashed, or could not think any
//! more that it had it: within that time it was held for certain. Whether a lock was free is asked of the opposite: nobody can have held it.
//!
//! The outcome of an operation whose reply was lost is unknown: it may have happened, and a history has several readings ([`Account`]). A
//! violation is what is wrong in all of them.

mod account;
mod expiry;
mod fairness;
mod free;
mod overlap;
mod release;
mod stale;
mod tokens;

#[cfg(test)]
mod readings;
#[cfg(test)]
mod tests;

pub use account::{Account, Accounts};

use std::fmt;

use crate::torture::history::{History, Op};

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// By the order of the servers no more hold a lock than may.
    Exclusion,
    /// No more are at work at once, in truth, than may.
    Sections,
    /// What a lock guards accepts no write of an earlier holder after that of a later one.
    Writes,
    /// Fencing tokens grow.
    Tokens,
    /// Nobody ends what another holds.
    Release,
    /// Who waits for what was released gets it.
    WakeUp,
    /// Who came first is served first.
    Fairness,
    /// What is held is not lost before its lease is over.
    Early,
    /// A lease that is over lets others in.
    Late,
    /// No more hold a semaphore's permits than there are.
    Permits,
    /// A lock that nobody holds can be had.
    Stuck,
}

impl Property {
    /// All of them.
    pub const ALL: [Property; 11] = [
        Property::Exclusion,
        Property::Sections,
        Property::Writes,
        Property::Tokens,
        Property::Release,
        Property::WakeUp,
        Property::Fairness,
        Property::Early,
        Property::Late,
        Property::Permits,
        Property::Stuck,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Property::Exclusion => "exclusion",
            Property::Sections => "sections",
            Property::Writes => "writes",
            Property::Tokens => "tokens",
            Property::Release => "release",
            Property::WakeUp => "wake-up",
            Property::Fairness => "fairness",
            Property::Early => "early",
            Property::Late => "late",
            Property::Permits => "permits",
            Property::Stuck => "stuck",
        }
    }

    /// What it means that it is violated.
    pub fn violated(self) -> &'static str {
        match self {
            Property::Exclusion => "overlapping grants, in the servers' order",
            Property::Sections => "overlapping critical sections",
            Property::Writes => "stale writes accepted by the guarded resource",
            Property::Tokens => "fencing tokens that do not grow",
            Property::Release => "released by somebody who did not hold it",
            Property::WakeUp => "waited for what had been released",
            Property::Fairness => "served before somebody who came earlier",
            Property::Early => "lost before the lease was over",
            Property::Late => "not to be had although the lease was over",
            Property::Permits => "more permits out than there are",
            Property::Stuck => "stuck: nobody holds it, and nobody can have it",
        }
    }

    /// The property of that name.
    pub fn named(name: &str) -> Option<Property> {
        Property::ALL.into_iter().find(|property| property.name() == name)
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One time at which something did not hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// What.
    pub property: Property,
    /// When that was so.
    pub at_us: u64,
    /// Which acquisitions are concerned.
    pub ops: Vec<Op>,
    /// In words.
    pub says: String,
}

/// What is found of one property.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// Grants, releases, waits or writes that it was asked of.
    pub checked: u64,
    /// When it did not hold.
    pub violations: Vec<Violation>,
}

/// What a history is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How many may hold at once; `None` where that is not known.
    pub holders: Option<u32>,
    /// For so long a lock may be free while somebody waits for it, beyond what a lease has to do with it.
    pub patience_us: u64,
}

impl Rules {
    /// For leases of this length. Messages that are late or sent again are no reason to wait as long as this.
    pub fn new(holders: Option<u32>, lease_us: u64) -> Rules {
        Rules { holders, patience_us: lease_us / 4 * 3 }
    }
}

/// The findings on a history, in the order of [`Property::ALL`].
pub fn judge(history: &History, rules: &Rules) -> Vec<(Property, Finding)> {
    let accounts = Accounts::of(history);
    let one = rules.holders == Some(1);
    let free = free::check(&accounts, rules);
    let find = |property: Property| match property {
        Property::Exclusion if one => overlap::grants(&accounts, property, 1),
        Property::Permits if !one => {
            rules.holders.map_or_else(Finding::default, |most| overlap::grants(&accounts, property, most))
        }
        Property::Exclusion | Property::Permits => Finding::default(),
        Property::Sections => rules.holders.map_or_else(Finding::default, |most| overlap::sections(&accounts, most)),
        Property::Writes if one => stale::check(&accounts),
        Property::Tokens => tokens::check(&accounts),
        Property::Release if one => release::check(&accounts),
        Property::Fairness if one => fairness::check(&accounts),
        Property::Writes | Property::Release | Property::Fairness => Finding::default(),
        Property::Early => expiry::early(&accounts),
        Property::WakeUp | Property::Late | Property::Stuck => Finding {
            checked: free.checked,
            violations: free.violations.iter().filter(|violation| violation.property == property).cloned().collect(),
        },
    };
    Property::ALL.into_iter().map(|property| (property, find(property))).collect()
}
