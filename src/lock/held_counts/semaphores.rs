//! The names of the semaphores with permits out, so that nobody has to look for them among all keys.

use std::collections::BTreeSet;

/// Maximum number of names that are known in a database: a bound for memory, and for the time to forget them.
const NAMES_MAX: usize = 10_000;

/// Names of semaphores of a database.
#[derive(Clone, Debug, Default)]
pub struct Semaphores(BTreeSet<Box<[u8]>>);

impl Semaphores {
    /// Adds a semaphore whose first permits were granted, if there is room.
    #[cold]
    pub fn opened(&mut self, name: &[u8]) {
        if self.0.len() < NAMES_MAX {
            self.0.insert(name.into());
        }
    }

    /// Removes a semaphore whose last permits came back.
    #[cold]
    pub fn closed(&mut self, name: &[u8]) {
        self.0.remove(name);
    }

    /// Number of known names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The known names.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn so_many_are_known_and_no_more() {
        let mut semaphores = Semaphores::default();
        (0..NAMES_MAX + 5).for_each(|number| semaphores.opened(format!("{number}").as_bytes()));
        assert_eq!(semaphores.len(), NAMES_MAX);
        semaphores.closed(format!("{NAMES_MAX}").as_bytes());
        assert_eq!(semaphores.len(), NAMES_MAX, "it was not known");
        semaphores.closed(b"7");
        assert_eq!((semaphores.len(), semaphores.names().any(|name| name == b"7")), (NAMES_MAX - 1, false));
    }
}
