//! The timer: wakes the engine for its next deadline and for nothing else.
//!
//! It is a timerfd. The timeout of `epoll_wait` counts whole milliseconds, and `epoll_pwait2`, which counts nanoseconds, needs
//! Linux 5.11. It is armed again only when the next deadline is earlier than the one it is armed for, or after it has fired: a
//! server whose leases all have one length hardly ever touches it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::server::net::poller::{Registry, Source};

/// The timerfd and its armed deadline.
pub struct Timer {
    fd: OwnedFd,
    /// The engine's millisecond that it is armed for.
    armed_ms: Option<u64>,
}

impl Timer {
    /// An unarmed timer.
    pub fn new() -> io::Result<Self> {
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Timer { fd, armed_ms: None })
    }

    /// Registers the timerfd with the poller.
    pub(crate) fn register(&self, registry: &Registry) -> io::Result<()> {
        registry.add(&self.fd, Source::Timer)
    }

    /// Makes sure that it fires at `deadline_ms` at the latest; `raw_us` converts that to a clock reading.
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

    /// The engine's millisecond that it is armed for; `None` if it is not armed or has fired.
    #[inline]
    pub fn armed_ms(&self) -> Option<u64> {
        self.armed_ms
    }

    /// Notes that it has fired.
    pub(crate) fn fired(&mut self) {
        // An event from before a new arming does no harm: the clock decides what is due.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.reset();
    }

    /// Forgets the armed deadline, so that the next call of [`Timer::arm`] arms it again.
    pub fn reset(&mut self) {
        self.armed_ms = None;
    }
}
