//! Records which names are looked up or added, for tests of key positions. Outside of tests, it is empty and does nothing.

/// The names since [`Names::watch`].
#[derive(Default)]
pub(crate) struct Names {
    #[cfg(test)]
    seen: std::cell::RefCell<Option<std::collections::BTreeSet<Box<[u8]>>>>,
}

impl Names {
    /// Records a name.
    #[inline(always)]
    pub(super) fn note(&self, name: &[u8]) {
        #[cfg(test)]
        if let Some(seen) = &mut *self.seen.borrow_mut() {
            seen.insert(name.into());
        }
        let _ = name;
    }

    /// Begins to record.
    #[cfg(test)]
    pub(crate) fn watch(&self) {
        *self.seen.borrow_mut() = Some(Default::default());
    }

    /// Ends that. Returns the names.
    #[cfg(test)]
    pub(crate) fn take(&self) -> std::collections::BTreeSet<Box<[u8]>> {
        self.seen.borrow_mut().take().unwrap_or_default()
    }
}
