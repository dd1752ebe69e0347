//! Who broke which lock, and why: the last breaks of all locks.

use std::collections::VecDeque;

/// Number of breaks that are remembered.
const BREAKS: usize = 1024;
/// Maximum number of bytes of a reason.
pub const REASON_MAX: usize = 256;

/// Who broke a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// The client's number.
    pub client: u64,
    /// Its user.
    pub user: Box<[u8]>,
    /// Its name (`CLIENT SETNAME`).
    pub name: Box<[u8]>,
    /// Its address.
    pub addr: Box<str>,
    /// The reason that it gave; empty for none.
    pub reason: Box<[u8]>,
}

/// The last breaks.
#[derive(Debug, Default)]
pub struct Breaks(VecDeque<(u64, Breaker)>);

impl Breaks {
    /// Remembers who broke the grant with a token.
    pub fn note(&mut self, token: u64, by: Breaker) {
        if self.0.len() >= BREAKS {
            self.0.pop_front();
        }
        self.0.push_back((token, by));
    }

    /// Who broke the grant with a token, as far as that is remembered. Looks at no more than 1,024 breaks.
    pub fn of(&self, token: u64) -> Option<&Breaker> {
        self.0.iter().rev().find(|(of, _)| *of == token).map(|(_, by)| by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_breaks_are_remembered() {
        let mut breaks = Breaks::default();
        for token in 0..BREAKS as u64 + 2 {
            breaks.note(token, Breaker { client: token + 5, ..Breaker::default() });
        }
        assert_eq!(breaks.of(1), None);
        assert_eq!(breaks.of(2).map(|by| by.client), Some(7));
        assert_eq!(breaks.0.len(), BREAKS);
    }
}
