//! Who has the append-only file written, and locks its folder: the writer that changes go to, and the next one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::driver::file::Beginning;
use crate::persist::append::log_writer::Order;

/// Who has a file written.
pub trait Writer {
    /// Keeps the folder of the file locked.
    type Lock;

    /// Keeps the folder locked, too, for who else works in it; `None` before the writer has begun.
    fn lock(&self) -> Option<Self::Lock>;

    /// Takes an order for the writer of the file, which it has now or gets later.
    fn order(&mut self, order: Order);

    /// Waits until the writer has ended. It has been told to, or has failed.
    fn join(&mut self);
}

/// A locked folder: locked until this is dropped. The fields are dropped in this order. `G` keeps the lock.
pub struct FolderLock<G, F: Fn()> {
    _guard: G,
    /// Exists for as long as the folder is locked.
    _held: Arc<()>,
    _freed: Freed<F>,
}

/// Calls the function when it is dropped.
struct Freed<F: Fn()>(F);

impl<F: Fn()> Drop for Freed<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What a copy is made into.
pub enum Target<F> {
    /// The snapshot of this number.
    Snapshot(u64),
    /// The first base of a file in this folder, which begins with this.
    File(F, Beginning),
}

/// Who has files written: the one that changes go to, and the one that is being switched on, until its copy is whole. `F` is a folder
/// that was opened.
pub struct Writers<W, F> {
    current: Option<W>,
    next: Option<W>,
    /// The file that is being switched on, until its copy begins.
    pub(super) coming: Option<(F, Beginning)>,
    /// Exists for as long as a thread of this server keeps the folder of a file locked.
    held: Weak<()>,
    /// Whether a file is switched on when that thread has ended.
    awaits_folder: bool,
    /// Set when the base in progress is given up: its thread leaves the folder as it is.
    base_abandoned: Arc<AtomicBool>,
}

impl<W, F> Default for Writers<W, F> {
    fn default() -> Writers<W, F> {
        Writers {
            current: None,
            next: None,
            coming: None,
            held: Weak::new(),
            awaits_folder: false,
            base_abandoned: Arc::default(),
        }
    }
}

impl<W: Writer, F> Writers<W, F> {
    /// The one of the file that changes go to.
    pub fn current(&self) -> Option<&W> {
        self.current.as_ref()
    }

    /// As [`Writers::current`].
    pub fn current_mut(&mut self) -> Option<&mut W> {
        self.current.as_mut()
    }

    /// Takes it, when its file is closed.
    pub fn take(&mut self) -> Option<W> {
        self.current.take()
    }

    /// It goes on.
    pub(super) fn put_back(&mut self, current: W) {
        self.current = Some(current);
    }

    /// Orders something of it, if there is one.
    pub fn order(&mut self, order: Order) {
        if matches!(order, Order::Close) {
            self.base_abandoned.store(true, Ordering::Relaxed);
        }
        if let Some(current) = &mut self.current {
            current.order(order);
        }
    }

    /// A file is being switched on, whose copy begins.
    pub fn begin(&mut self, next: W) {
        self.next = Some(next);
    }

    /// The copy is whole: changes go to that file from now on.
    pub fn install(&mut self) {
        if let Some(next) = self.next.take() {
            self.current = Some(next);
            self.base_abandoned = Arc::default();
        }
    }

    /// The copy was given up, or is not begun.
    pub fn forget_next(&mut self) {
        (self.next, self.coming) = (None, None);
    }

    /// Whether the base that is begun now was given up.
    pub fn base_abandoned(&self) -> impl Fn() -> bool + Send + 'static {
        let abandoned = Arc::clone(&self.base_abandoned);
        move || abandoned.load(Ordering::Relaxed)
    }

    /// The folder of a file is locked. `freed` is called when it is not any more, on the thread that was the last to need it:
    /// [`folder_freed`](crate::driver::round::storing::Storing::folder_freed) belongs behind that.
    pub fn folder_locked<G, C: Fn()>(&mut self, guard: G, freed: C) -> FolderLock<G, C> {
        let held = Arc::default();
        self.held = Arc::downgrade(&held);
        FolderLock { _guard: guard, _held: held, _freed: Freed(freed) }
    }

    /// Whether a file is switched on when a thread of the last one has ended, which still needs the folder.
    pub fn await_folder(&mut self) -> bool {
        self.awaits_folder = self.held.strong_count() > 0;
        self.awaits_folder
    }

    /// What the last call of [`Writers::await_folder`] returned.
    pub fn awaits_folder(&self) -> bool {
        self.awaits_folder
    }

    /// Takes what a copy for the file that was opened is made into.
    ///
    /// # Errors
    /// In words: there is none.
    pub fn take_coming(&mut self) -> Result<Target<F>, String> {
        let (folder, beginning) = self.coming.take().ok_or("it was switched off")?;
        Ok(Target::File(folder, beginning))
    }
}
