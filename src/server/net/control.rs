//! How other threads have something done by the executor's.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::server::net::poller::{Registry, Source};
use crate::server::shell::Shell;

/// What is run on the executor's thread on behalf of another.
pub(crate) type Order = Box<dyn FnOnce(&mut Shell) + Send>;

/// Takes orders, on any thread.
#[derive(Clone)]
pub(crate) struct Control {
    orders: Sender<Order>,
    /// Wakes the executor.
    bell: Arc<OwnedFd>,
}

/// Where they come out, on the executor's.
pub(crate) struct Inbox {
    orders: Receiver<Order>,
    bell: Arc<OwnedFd>,
}

/// Both ends.
pub(crate) fn orders() -> io::Result<(Control, Inbox)> {
    let (sender, receiver) = channel();
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    Ok((Control { orders: sender, bell: Arc::clone(&bell) }, Inbox { orders: receiver, bell }))
}

impl Control {
    /// Has an order carried out; false where the executor has ended.
    pub(crate) fn send(&self, order: Order) -> bool {
        let sent = self.orders.send(order).is_ok();
        // Where the counter is full, the executor is woken already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        sent
    }
}

impl Inbox {
    /// Has the executor woken when there is an order.
    pub(crate) fn register(&self, registry: &Registry) -> io::Result<()> {
        registry.add(&self.bell, Source::Orders)
    }

    /// Notes that the executor knows of all that was ordered until now.
    pub(crate) fn hush(&self) {
        // Nothing to read is as good.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// The next order, where there is one.
    pub(crate) fn next(&self) -> Option<Order> {
        self.orders.try_recv().ok()
    }
}
