//! Where the engine runs: facts about the process for `INFO`, `MEMORY` and `ROLE`, its files, and its random numbers.

use crate::base::time::Now;
use crate::engine::config::Config;
use crate::engine::users::file::UsersFile;

/// Writes a configuration, and users as lines of it, to its file.
pub type RewriteConfig = Box<dyn FnMut(&Config, &[Vec<u8>]) -> Result<(), String>>;

/// Applies a new configuration, in which the named directives were set, outside of the engine and before the engine applies it.
/// Records in the environment what that changes about the process. Refuses with the directive's name and the reason.
pub type ApplyConfig = Box<dyn FnMut(&Config, &[&'static str], &mut Environment) -> Result<(), (&'static str, String)>>;

/// Fills a buffer with unpredictable bytes. Returns false where no source is available.
pub type Entropy = Box<dyn FnMut(&mut [u8]) -> bool>;

/// What differs between two engines with the same data.
pub(super) struct Host {
    /// Facts about the process, for `INFO`. Nothing in it changes the effects of commands on data.
    pub(super) environment: Environment,
    /// Writes the configuration file, for `CONFIG REWRITE`; `None` without a file.
    pub(super) rewrite_config: Option<RewriteConfig>,
    /// Called before `CONFIG SET` takes effect.
    pub(super) apply_config: Option<ApplyConfig>,
    /// Whether the server is a node: what it does not pass on, `CONFIG SET` does not permit.
    pub(super) is_node: bool,
    /// The ACL file; `None` without one.
    pub(super) users_file: Option<UsersFile>,
    /// Source of secrets, for `ACL GENPASS`; `None` in simulations.
    pub(super) entropy: Option<Entropy>,
    /// Identifier of this run: forty hexadecimal digits.
    pub(super) run_id: String,
    /// Identifier of the history of changes: forty hexadecimal digits.
    pub(super) replication_id: String,
    /// The instant at which the engine was created.
    pub(super) started: Now,
    /// The seed of all random sequences.
    pub(super) seed: u64,
    /// The state of the sequence of `Engine::random`.
    pub(super) random: u64,
}

impl Host {
    /// No environment, and no identifiers yet.
    pub(super) fn new(seed: u64, now: Now) -> Host {
        Host {
            environment: Environment::default(),
            rewrite_config: None,
            apply_config: None,
            is_node: false,
            users_file: None,
            entropy: None,
            run_id: String::new(),
            replication_id: String::new(),
            started: now,
            seed,
            random: seed,
        }
    }
}

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
