//! The control queue: other threads send closures that the executor's thread runs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::server::net::poller::{Registry, Source};

/// A closure that runs on the executor's thread on behalf of another thread. `S` is what it works on: the shell, which has the
/// sending end itself.
pub(crate) type Closure<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The sending end of the control queue; any thread may use it.
pub(crate) struct Control<S> {
    closures: Sender<Closure<S>>,
    /// eventfd that wakes the executor.
    bell: Arc<OwnedFd>,
}

/// The receiving end, on the executor's thread.
pub(crate) struct Inbox<S> {
    closures: Receiver<Closure<S>>,
    bell: Arc<OwnedFd>,
}

/// Creates both ends of the queue.
pub(crate) fn queue<S>() -> io::Result<(Control<S>, Inbox<S>)> {
    let (sender, receiver) = channel();
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    Ok((Control { closures: sender, bell: Arc::clone(&bell) }, Inbox { closures: receiver, bell }))
}

impl<S> Clone for Control<S> {
    fn clone(&self) -> Self {
        Control { closures: self.closures.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<S> Control<S> {
    /// Sends a closure. Returns false if the executor has ended.
    pub(crate) fn send(&self, closure: Closure<S>) -> bool {
        let sent = self.closures.send(closure).is_ok();
        // If the counter is full, the executor has been woken already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        sent
    }
}

impl<S> Inbox<S> {
    /// Registers the wake-up descriptor with the poller.
    pub(crate) fn register(&self, registry: &Registry) -> io::Result<()> {
        registry.add(&self.bell, Source::Closures)
    }

    /// Resets the wake-up descriptor: the executor is about to take all closures sent until now, which may be in several rounds.
    pub(crate) fn drain(&self) {
        // An empty counter is fine, too.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Takes the next closure, if there is one.
    pub(crate) fn next(&self) -> Option<Closure<S>> {
        self.closures.try_recv().ok()
    }
}
