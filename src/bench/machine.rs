//! The machine that a bench runs on.

/// The processor, the number of cores and the kernel, in one line.
pub fn describe() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, model)| model.trim()));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The distribution's suffix of the kernel version is left out.
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    format!("{}, {cores} {}, Linux {kernel}", model.unwrap_or("unknown processor"), if cores == 1 { "core" } else { "cores" })
}

/// Raises the limit of open files of this process and its future children to `files`, or to the hard limit if that is lower.
pub fn raise_file_limit(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files.min(limit.maximum.unwrap_or(files))), ..limit });
    }
}
