//! The timer: wakes the engine for its next deadline and for nothing else.
//!
//! A timerfd, since the runtime's own timers return up to a millisecond late. It is armed anew only when the next deadline is
//! earlier than the one it is armed for, or after it fired: a server whose leases are all of one length hardly ever touches it.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;

use crate::server::shell::Shell;

/// The timerfd and what it is armed for.
pub struct Timer {
    fd: OwnedFd,
    /// The engine's millisecond for which it is armed.
    armed_ms: Option<u64>,
}

impl Timer {
    /// An unarmed timer.
    pub fn new() -> io::Result<Self> {
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Timer { fd, armed_ms: None })
    }

    /// Makes sure that it fires at `deadline_ms` at the latest; `raw_us` gives the clock reading that belongs to it.
    #[inline]
    pub fn arm(&mut self, deadline_ms: u64, raw_us: impl FnOnce(u64) -> i64) {
        if self.armed_ms.is_some_and(|armed| armed <= deadline_ms) {
            return;
        }
        // A time of 0 would disarm it; a time that has passed fires at once.
        let us = raw_us(deadline_ms).max(1);
        let value = Timespec { tv_sec: us / 1_000_000, tv_nsec: (us % 1_000_000) * 1000 };
        let every = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: every, it_value: value };
        match rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec) {
            Ok(_) => self.armed_ms = Some(deadline_ms),
            Err(error) => tracing::error!(%error, deadline_ms, "cannot arm the timer"),
        }
    }

    /// The engine's millisecond for which it is armed; `None` where it is not, or has fired.
    #[inline]
    pub fn armed_ms(&self) -> Option<u64> {
        self.armed_ms
    }

    /// Forgets what it is armed for, so that the next call of [`Timer::arm`] arms it anew.
    pub fn reset(&mut self) {
        self.armed_ms = None;
    }
}

/// Runs for as long as the server: lets time reach the engine whenever the timer fires.
pub async fn run(shell: Rc<RefCell<Shell>>) -> io::Result<()> {
    let fd = shell.borrow().timer.fd.try_clone()?;
    // SAFETY: an `OwnedFd` is open until it is dropped and always names the same descriptor; the `AsyncFd` owns it.
    let fd = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) }?;
    loop {
        let mut ready = fd.readable().await?;
        let mut count = [0; 8];
        // Whether it fired or was moved in between does not matter: the clock decides what is due.
        let _ = ready.try_io(|fd| rustix::io::read(fd.get_ref(), &mut count).map_err(io::Error::from));
        drop(ready);
        shell.borrow_mut().timer.reset();
        while shell.borrow_mut().tick() {
            // Much is due at once. A client that shares the processor gets it, which the kernel would else deny it for
            // milliseconds; then connections get their turn.
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    }
}
