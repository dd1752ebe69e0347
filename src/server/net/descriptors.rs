//! File descriptors: raises the limit to the configured number of clients.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors besides those of clients: listeners, the executor's own, the log.
const RESERVED: u64 = 32;

/// Raises the limit on open files so that `maxclients` clients fit. Returns how many fit.
pub fn raise(maxclients: u32) -> u32 {
    let wanted = u64::from(maxclients) + RESERVED;
    let limit = getrlimit(Resource::Nofile);
    let (current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    if current >= wanted {
        return maxclients;
    }
    // A privileged process may exceed the hard limit; any other reaches it at most.
    let beyond = Rlimit { current: Some(wanted), maximum: Some(maximum.max(wanted)) };
    if setrlimit(Resource::Nofile, beyond).is_ok() {
        return maxclients;
    }
    let reachable = wanted.min(maximum);
    let reached = match setrlimit(Resource::Nofile, Rlimit { current: Some(reachable), maximum: limit.maximum }) {
        Ok(()) => reachable,
        Err(_) => current,
    };
    let fit = u32::try_from(reached.saturating_sub(RESERVED)).unwrap_or(u32::MAX).clamp(1, maxclients);
    if fit < maxclients {
        tracing::warn!(maxclients, fit, "the limit on open files allows fewer clients; raise it with ulimit -n");
    }
    fit
}

/// Has the kernel allocate the descriptor table for that many clients now. Must be called while the process has one thread:
/// later, each growth of the table delays an accepted connection by 10 ms and more.
pub fn make_room(maxclients: u32) {
    let fit = u64::from(raise(maxclients)) + RESERVED;
    // The table stays as large as the highest descriptor ever open. If this fails, the table grows later.
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), i32::try_from(fit).unwrap_or(i32::MAX) - 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_and_nothing_stays_open() {
        make_room(3000);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(limit >= 3032 || getrlimit(Resource::Nofile).maximum.is_some_and(|most| limit == most));
        assert!(!std::path::Path::new("/proc/self/fd/3031").exists());
    }
}
