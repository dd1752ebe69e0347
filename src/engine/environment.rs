//! What the engine is told of the process it runs in, for `INFO`, `MEMORY` and `ROLE`. Nothing in it changes what commands do to
//! data.

/// The process and the machine, as whoever drives the engine describes them.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Number of the process; 0 where there is none to speak of.
    pub process_id: u32,
    /// Operating system, release and machine: `Linux 6.1.0 x86_64`.
    pub os: String,
    /// Port it listens on for TCP; 0 where it does not.
    pub tcp_port: u16,
    /// What else it listens on, as `INFO` lists it: `name=tcp,bind=127.0.0.1,port=6379`.
    pub listeners: Vec<String>,
    /// Path of the program.
    pub executable: String,
    /// Path of the configuration file; empty without one.
    pub config_file: String,
    /// How the shell waits for its sockets: `epoll`, `kqueue`, …
    pub multiplexing: &'static str,
    /// The memory allocator's name.
    pub allocator: &'static str,
    /// Memory of the machine, bytes; 0 where it is not known.
    pub system_memory: u64,
    /// Measures what the process uses, whenever a reply is to show it. `None` in simulations, whose replies must not vary: they
    /// show what the engine accounts for by itself.
    pub usage: Option<fn() -> Usage>,
    /// How often the loop that serves the sockets has come round, and for how many microseconds it did not wait; since its start.
    /// `None` where there is none.
    pub event_loop: Option<fn() -> [u64; 2]>,
    /// Bytes that the allocator has given out, where they can be told at less than the cost of a command.
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

/// What the process uses at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the allocator has given out.
    pub allocated: u64,
    /// Bytes resident in memory.
    pub resident: u64,
    /// The most bytes that were resident.
    pub resident_peak: u64,
    /// Processor time spent in the kernel, microseconds.
    pub cpu_system_us: u64,
    /// Processor time spent in the program, microseconds.
    pub cpu_user_us: u64,
    /// Of the time in the kernel, that of the thread that executes commands, microseconds.
    pub thread_system_us: u64,
    /// Of the time in the program, that of the thread that executes commands, microseconds.
    pub thread_user_us: u64,
}
