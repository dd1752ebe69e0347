//! File descriptors: as many as the configured number of clients needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors beside those of clients: listeners, the executor's own, the log.
const RESERVED: u64 = 32;

/// Raises the limit on open files so that `maxclients` clients fit; gives how many fit in the end.
pub fn raise(maxclients: u32) -> u32 {
    let wanted = u64::from(maxclients) + RESERVED;
    let limit = getrlimit(Resource::Nofile);
    let (current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    if current >= wanted {
        return maxclients;
    }
    // A privileged process may go beyond the hard limit; any other gets as far as that.
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

/// Has the system make room for the descriptors of so many clients now. To be called before there is another thread: from then on, each
/// time that its table of a process's descriptors has to grow, accepting a connection takes 10 ms and more.
pub fn make_room(maxclients: u32) {
    let fit = u64::from(raise(maxclients)) + RESERVED;
    // The table stays as large as the highest descriptor there ever was. Where it cannot be had, it grows later.
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
