//! CPU time and memory of servers that a bench started, from the system; and how to kill those servers without dropping them.

use std::fs::File;
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;

use crate::bench::servers::process::{Process, cpu_ns, folder_prefix, scheduled};

impl Process {
    /// Nanoseconds of CPU time that the threads have used.
    ///
    /// # Errors
    /// The process has ended.
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu_ns(self.pid()).ok_or_else(ended)
    }

    /// Nanoseconds that the threads were ready to run and waited for a processor, because other processes had it.
    ///
    /// # Errors
    /// The process has ended.
    pub fn waited_ns(&self) -> Result<u64> {
        waited_ns(self.pid()).ok_or_else(ended)
    }

    /// Resident memory.
    ///
    /// # Errors
    /// The process has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.pid()).ok_or_else(ended)
    }
}

/// Kills all child processes and removes their folders, before an exit that does not drop them.
pub fn kill_children() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    for pid in children.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let folders = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for folder in folders.filter(|folder| folder.file_name().to_string_lossy().starts_with(&folder_prefix())) {
        let _ = std::fs::remove_dir_all(folder.path());
    }
}

fn ended() -> Error {
    Error::other("the server has ended")
}

/// The CPU time of the present threads of a process. Their files stay open, so that it can be read often.
#[derive(Debug)]
pub struct CpuMeter(Vec<File>);

impl CpuMeter {
    /// A meter of a process.
    ///
    /// # Errors
    /// Those of opening the files.
    pub fn new(process: &Process) -> Result<CpuMeter> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid()))?;
        tasks.map(|task| File::open(task?.path().join("schedstat"))).collect::<Result<_>>().map(CpuMeter)
    }

    /// Nanoseconds of CPU time of those threads that have not ended since.
    pub fn cpu_ns(&self) -> u64 {
        let used = |file: &File| {
            let mut text = [0; 64];
            let count = file.read_at(&mut text, 0).ok()?;
            let first = text[..count].iter().take_while(|byte| byte.is_ascii_digit());
            Some(first.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
        };
        self.0.iter().filter_map(used).sum()
    }
}

/// Nanoseconds that the threads of a process were ready to run and waited for a processor.
pub fn waited_ns(pid: u32) -> Option<u64> {
    scheduled(pid, 1)
}

/// Resident memory of a process.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
}

/// Nanoseconds of CPU time that a process has used, with that of its threads that have ended, in steps of 10 ms or so.
pub fn whole_cpu_ns(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program is in parentheses and may contain blanks.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
}
