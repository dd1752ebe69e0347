//! Limits how often the same trouble is logged.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::quorum::runtime::Instant;

/// Interval in which a text is logged once.
const INTERVAL: Duration = Duration::from_secs(10);

/// Minimum interval between two texts.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Maximum number of texts that are remembered.
const TEXTS_MAX: usize = 100;

/// Decides whether a line is logged.
#[derive(Default)]
pub struct Quiet {
    last: Mutex<Option<(String, Instant)>>,
    /// Texts that are logged once.
    texts: Mutex<BTreeSet<String>>,
}

impl Quiet {
    /// Whether to log the text now: a new text once a second, the same text each ten seconds.
    pub fn allows(&self, text: &str) -> bool {
        self.allows_at(text, Instant::now())
    }

    fn allows_at(&self, text: &str, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((logged, at)) = &*last {
            let interval = if logged == text { INTERVAL } else { INTERVAL_MIN };
            if now - *at < interval {
                return false;
            }
        }
        *last = Some((text.to_owned(), now));
        true
    }

    /// Whether to log the text now, which is logged once until [`Quiet::reset`]. If there are too many texts, it is not logged.
    pub fn is_new(&self, text: &str) -> bool {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.len() < TEXTS_MAX && texts.insert(text.to_owned())
    }

    /// Allows the next text at once.
    pub fn reset(&self) {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_logged_each_ten_seconds_and_another_one_after_a_second() {
        let (quiet, now) = (Quiet::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        assert!(quiet.allows_at("a", at(0)));
        assert!(!quiet.allows_at("a", at(9_999)));
        assert!(!quiet.allows_at("b", at(999)));
        assert!(quiet.allows_at("b", at(1_000)));
        assert!(!quiet.allows_at("b", at(10_999)));
        assert!(quiet.allows_at("b", at(11_000)));
        quiet.reset();
        assert!(quiet.allows_at("b", at(11_001)));
    }
}
