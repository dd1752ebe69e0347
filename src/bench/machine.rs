//! The machine that a tool runs on.

use std::fmt;

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The model of the processor.
    pub cpu: String,
    /// Number of cores that this process may use. 0 if unknown.
    pub cores: usize,
    /// The version of the Linux kernel, without the distribution's suffix.
    pub kernel: String,
}

impl Machine {
    /// The machine that this process runs on.
    pub fn here() -> Machine {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            cpu: model.map_or("unknown processor", |(_, model)| model.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: kernel.trim().split('-').next().unwrap_or_default().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        write!(f, "{}, {} {cores}, Linux {}", self.cpu, self.cores, self.kernel)
    }
}

/// The machine in one line: the processor, the number of cores and the kernel.
#[cfg(any(test, feature = "internals"))]
pub fn describe() -> String {
    Machine::here().to_string()
}

/// Raises the limit of open files of this process and its future children to `files`, or to the hard limit if that is lower.
#[cfg(any(test, feature = "internals"))]
pub fn raise_file_limit(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files.min(limit.maximum.unwrap_or(files))), ..limit });
    }
}
