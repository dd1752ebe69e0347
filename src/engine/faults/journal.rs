//! The engine's use of the journal: when it is kept, and where its units end. See [`crate::keyspace::journal`].

use crate::engine::Engine;
use crate::keyspace::journal::{Journal, Libraries, WRITES_MAX};

impl Engine {
    /// Sources of the function libraries.
    pub fn library_sources(&self) -> Libraries {
        self.scripting.interpreters.libraries()
    }

    /// Sizes the journal to the largest number of writes that a rule of faults or a test may lose.
    pub(crate) fn update_journal(&mut self) {
        let limit = self.testing.faults.loses().max(self.testing.faults.journal).min(WRITES_MAX) as usize;
        self.settle_journal();
        match &mut self.keyspace.changes.journal {
            _ if limit == 0 => self.keyspace.changes.journal = None,
            Some(journal) => {
                journal.limit = limit;
                journal.trim();
            }
            None => {
                let records = self.keyspace.lock_records();
                let journal = Journal::new(limit, self.keyspace.images(None), records, self.library_sources());
                self.keyspace.changes.journal = Some(Box::new(journal));
            }
        }
        self.keyspace.changes.update_observed();
    }

    /// Number of last writes that are kept.
    pub fn journal_limit(&self) -> usize {
        self.keyspace.changes.journal.as_ref().map_or(0, |journal| journal.limit)
    }

    /// Ends a unit of the journal, if one is kept.
    #[inline]
    pub(crate) fn settle_journal(&mut self) {
        if self.keyspace.changes.journal.is_some() {
            self.settle_kept_journal();
        }
    }

    #[cold]
    fn settle_kept_journal(&mut self) {
        let Some(mut journal) = self.keyspace.changes.journal.take() else { return };
        let libraries = std::mem::take(&mut journal.libraries_touched).then(|| self.library_sources());
        journal.settle(&self.keyspace, libraries);
        self.keyspace.changes.journal = Some(journal);
    }

    /// Tells the journal whether the following changes are caused by the passing of time.
    pub(crate) fn mark_journal(&mut self, by_time: bool) {
        if let Some(journal) = &mut self.keyspace.changes.journal {
            journal.by_time = by_time;
        }
    }

    /// Resumes a journal with its earlier content. Differences since then count as changes by the passing of time.
    pub(crate) fn resume_journal(&mut self, mut journal: Box<Journal>) {
        journal.touched = journal.now.keys().cloned().chain(self.keyspace.images(None).into_keys()).collect();
        let records = self.keyspace.lock_records();
        journal.requests_touched = journal.records.requests.keys().cloned().chain(records.requests.into_keys()).collect();
        journal.sessions_touched = journal.records.sessions.keys().copied().chain(records.sessions.into_keys()).collect();
        journal.libraries_touched = true;
        journal.written = false;
        self.keyspace.changes.journal = Some(journal);
        self.settle_journal();
        self.keyspace.changes.update_observed();
    }
}
