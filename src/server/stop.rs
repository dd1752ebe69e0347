//! How the server ends: because it was asked to, or because something in it panicked.
//!
//! After a panic in the middle of a command the engine may be in a state that no command could have left it in. A lock server that
//! goes on from there may give one lock to two clients, so it ends instead, and says so.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// Told when the server is to end.
#[derive(Default)]
pub struct Stop {
    notify: Notify,
    panicked: Cell<bool>,
}

impl Stop {
    /// Ends the server.
    pub fn now(&self) {
        self.notify.notify_one();
    }

    /// Waits until it is to end; gives whether it ends as it should.
    pub async fn wait(&self) -> bool {
        self.notify.notified().await;
        !self.panicked.get()
    }

    /// A guard that ends the server where it is dropped by a panic.
    #[inline]
    pub fn on_panic(self: &Rc<Self>) -> OnPanic {
        OnPanic(Rc::clone(self))
    }
}

/// See [`Stop::on_panic`].
pub struct OnPanic(Rc<Stop>);

impl Drop for OnPanic {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked.set(true);
            self.0.now();
        }
    }
}
