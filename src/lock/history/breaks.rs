//! Who broke which lock, and why: the last breaks of all locks.

use crate::base::kept::{Dated, Kept, block};

/// Number of breaks that are remembered.
const BREAKS: usize = 1024;

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

/// The break of a grant.
#[derive(Debug)]
pub struct Break {
    at_ms: u64,
    /// The token of the grant.
    token: u64,
    by: Breaker,
}

impl Dated for Break {
    fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn heap_bytes(&self) -> usize {
        let Breaker { user, name, addr, reason, .. } = &self.by;
        [user.len(), name.len(), addr.len(), reason.len()].into_iter().map(block).sum()
    }
}

/// The last breaks.
#[derive(Debug, Default)]
pub struct Breaks(pub Kept<Break>);

impl Breaks {
    /// Remembers who broke the grant with a token.
    pub fn note(&mut self, at_ms: u64, token: u64, by: Breaker) {
        self.0.push(Break { at_ms, token, by }, BREAKS);
    }

    /// Who broke the grant with a token, as far as that is remembered. Looks at no more than 1,024 breaks.
    pub fn of(&self, token: u64) -> Option<&Breaker> {
        self.0.latest().find(|broken| broken.token == token).map(|broken| &broken.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_breaks_are_remembered() {
        let mut breaks = Breaks::default();
        for token in 0..BREAKS as u64 + 2 {
            breaks.note(0, token, Breaker { client: token + 5, ..Breaker::default() });
        }
        assert_eq!(breaks.of(1), None);
        assert_eq!(breaks.of(2).map(|by| by.client), Some(7));
        assert_eq!(breaks.0.len(), BREAKS);
    }
}
