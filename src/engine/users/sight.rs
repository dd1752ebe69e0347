//! Which keys a user may see: the one place that decides it for everything that shows keys nobody named.
//!
//! A request that names its keys is checked before it runs. A list (`LOCK.LIST`, `LOCK.GRAPH`, …), the text of an error, and an event
//! name keys of their own. They show those whose values the user may read, and say nothing of the others: by [`Sight`] for a request
//! (`Context::sight`), and by `Users::lets_see` for a message.
//!
//! As for all of a request, one selector must allow both the command and the key.

use crate::base::glob;

/// The keys that a request shows to its user.
#[derive(Clone, Debug)]
pub struct Sight {
    /// A key is seen if it matches one of these patterns; `None`: all keys are.
    patterns: Option<Vec<Box<[u8]>>>,
}

impl Sight {
    /// All keys.
    pub const ALL: Sight = Sight { patterns: None };

    /// The keys that match one of these patterns.
    pub fn of(patterns: Vec<Box<[u8]>>) -> Sight {
        Sight { patterns: Some(patterns) }
    }

    /// Whether all keys are seen.
    pub fn is_all(&self) -> bool {
        self.patterns.is_none()
    }

    /// Whether a key is seen.
    pub fn sees(&self, key: &[u8]) -> bool {
        let Some(patterns) = &self.patterns else { return true };
        patterns.iter().any(|pattern| glob::matches(pattern, key, false))
    }
}
