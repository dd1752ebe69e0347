//! Facts about the process for `INFO`, `MEMORY` and `ROLE`. Nothing in it changes the effects of commands on data.

/// The process and the machine, as the engine's driver describes them.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Process id; 0 if there is none.
    pub process_id: u32,
    /// Operating system, release and machine: `Linux 6.1.0 x86_64`.
    pub os: String,
    /// TCP port of the server; 0 without one.
    pub tcp_port: u16,
    /// Further listeners, as `INFO` lists them: `name=tcp,bind=127.0.0.1,port=6379`.
    pub listeners: Vec<String>,
    /// Path of the program.
    pub executable: String,
    /// Path of the configuration file; empty without one.
    pub config_file: String,
    /// The mechanism for waiting on sockets: `epoll`, `kqueue`, …
    pub multiplexing: &'static str,
    /// The memory allocator's name.
    pub allocator: &'static str,
    /// Memory of the machine in bytes; 0 if unknown.
    pub system_memory: u64,
    /// Measures the resources of the process for a reply. `None` in simulations, whose replies must not vary: they show the
    /// engine's own account.
    pub usage: Option<fn() -> Usage>,
    /// Rounds of the event loop, and the microseconds in which it did not wait, since its start. `None` without an event loop.
    pub event_loop: Option<fn() -> [u64; 2]>,
    /// Bytes allocated, if they can be read at less than the cost of a command.
    pub allocated: Option<fn() -> u64>,
}

impl Default for Environment {
    fn default() -> Self {
        Environment {
            process_id: 0,
            os: std::env::consts::OS.to_owned(),
            tcp_port: 0,
            listeners: Vec::new(),
            executable: String::new(),
            config_file: String::new(),
            multiplexing: "none",
            allocator: "libc",
            system_memory: 0,
            usage: None,
            event_loop: None,
            allocated: None,
        }
    }
}

/// Resource usage of the process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes resident in memory.
    pub resident: u64,
    /// Maximum of the resident bytes.
    pub resident_peak: u64,
    /// Processor time spent in the kernel, microseconds.
    pub cpu_system_us: u64,
    /// Processor time spent in the program, microseconds.
    pub cpu_user_us: u64,
    /// The part of the kernel time of the thread that executes commands, microseconds.
    pub thread_system_us: u64,
    /// The part of the program's time of the thread that executes commands, microseconds.
    pub thread_user_us: u64,
}
