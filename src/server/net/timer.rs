//! The timer: wakes the engine for its next deadline and for nothing else.
//!
//! It is a timerfd. The timeout of `epoll_wait` counts whole milliseconds, and `epoll_pwait2`, which counts nanoseconds, needs
//! Linux 5.11. It is armed again only when the next deadline is earlier than the one it is armed for, or after it has fired: a
//! server whose leases all have one length hardly ever touches it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::server::net::poller::{Registry, Source};

/// The timerfd. What it is armed for, the driver knows.
pub struct Timer {
    fd: OwnedFd,
}

impl Timer {
    /// An unarmed timer.
    pub fn new() -> io::Result<Self> {
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Timer { fd })
    }

    /// Registers the timerfd with the poller.
    pub(crate) fn register(&self, registry: &Registry) -> io::Result<()> {
        registry.add(&self.fd, Source::Timer)
    }

    /// Has it fire at this clock reading. Returns false if that fails.
    pub fn set(&mut self, raw_us: i64) -> bool {
        // A time of 0 would disarm it; a time that has passed fires at once.
        let us = raw_us.max(1);
        let value = Timespec { tv_sec: us / 1_000_000, tv_nsec: (us % 1_000_000) * 1000 };
        let every = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: every, it_value: value };
        match rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec) {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(%error, raw_us, "cannot arm the timer");
                false
            }
        }
    }

    /// Notes that it has fired. An event from before a new arming does no harm: the clock decides what is due.
    pub(crate) fn fired(&mut self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}
