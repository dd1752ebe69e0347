//! The server: sockets, clock and signals around the engine.
//!
//! One OS thread, the executor, runs everything that touches the engine: connections, listeners and the timer take turns in its
//! event loop and call the engine inline. Other threads reach it through [`Server::control`], never on a request's path.
//!
//! ```text
//!   listener ──▶ connection ──▶ shell: engine, clock, shared buffers ◀── timer        event_loop: schedules the turns
//!                                 ▲
//!                 Server::control ┘ (tests, signals)
//! ```

mod busy;
pub mod clock;
mod clock_orders;
pub mod directory;
pub mod durable;
#[cfg_attr(not(feature = "http"), path = "no_endpoint.rs")]
mod endpoint;
pub mod environment;
pub mod file;
pub mod heap;
pub mod net;
#[cfg(feature = "cli")]
pub mod program;
#[cfg(feature = "quorum")]
pub mod replicated;
pub mod shell;
mod turn_meter;
pub mod users_file;
mod warnings;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::commands;
use crate::driver::round::Driving;
use crate::engine::config::Config;
use crate::engine::environment::Environment;
use crate::engine::users::Users;
use crate::script;
use crate::server::busy::Watch;
use crate::server::clock::Clock;
use crate::server::directory::Directory;
use crate::server::durable::start::Starts;
use crate::server::endpoint::{Endpoint, Prepared as PreparedEndpoint, SharedTls};
use crate::server::file::UserLine;
use crate::server::net::accept::Listening;
use crate::server::net::control::{Closure, Control, Inbox};
use crate::server::net::event_loop::EventLoop;
use crate::server::net::handshake::Handshakes;
use crate::server::net::listener::{Addresses, BindError, Endpoints, Listeners};
use crate::server::net::poller::Poller;
use crate::server::net::tls::{self, ServerConfig};
use crate::server::shell::Shell;

/// Stack of the executor's thread, in bytes; Lua and nested replies live on it.
const STACK: usize = 64 << 20;

/// Options of a server besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Seed of all randomness in the engine; `None` draws one from the system.
    pub seed: Option<u64>,
    /// Start with a frozen clock.
    pub frozen: bool,
    /// Test mode: the commands `CLOCK` and `FAULT` are allowed.
    pub test_mode: bool,
    /// The configuration file, for `INFO` and `CONFIG REWRITE`.
    pub config_file: Option<PathBuf>,
    /// Users and their rules, from the `user` lines of the configuration file.
    pub users: Vec<UserLine>,
}

/// Why a server did not start.
#[derive(Debug)]
pub enum StartError {
    /// A configured address cannot be bound.
    Bind(BindError),
    /// The users or their rules are invalid.
    Users(String),
    /// The certificates or keys are invalid.
    Tls(String),
    /// The HTTP endpoint cannot be offered.
    Http(String),
    /// The server would run alone, and is meant to be one of several nodes.
    Alone(&'static str),
    /// The system provided no thread or no randomness.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind(error) => error.fmt(f),
            StartError::Users(reason) => f.write_str(reason),
            StartError::Alone(reason) => f.write_str(reason),
            StartError::Tls(reason) => write!(f, "TLS cannot be configured: {reason}"),
            StartError::Http(reason) => write!(f, "http: {reason}"),
            StartError::System(error) => write!(f, "Could not start: {error}."),
        }
    }
}

impl std::error::Error for StartError {}

/// Checks that a server that is meant to be a node can be one: on its own, it would lose what the others would keep.
fn refuse_to_run_alone(config: &Config) -> Result<(), &'static str> {
    match config.node_id {
        0 if !config.peers.is_empty() => Err("peers: node-id has to say which of them this node is"),
        1.. if cfg!(not(feature = "quorum")) => Err("node-id: this build has no replication"),
        _ => Ok(()),
    }
}

/// A running server.
pub struct Server {
    executor: Option<JoinHandle<io::Result<()>>>,
    /// Starts accepting connections; `None` once accepting.
    accept: Option<Box<Accepting>>,
    control: Control<Shell>,
    /// Set when the server is asked to end; the supervisor of a running script reads it.
    ending: Arc<AtomicBool>,
    addresses: Arc<Mutex<Addresses>>,
    directory: Arc<Directory>,
    /// The HTTP endpoint, if there is one.
    endpoint: Option<Endpoint>,
}

/// What [`Server::accept`] needs.
struct Accepting {
    accept: SyncSender<Environment>,
    environment: Environment,
    /// Told when the files are loaded; fails if the server ends before that. The mutex lets threads share a server.
    loaded: Mutex<Receiver<()>>,
}

/// An executor thread that prepares itself while it waits for its work.
pub struct Prepared {
    thread: JoinHandle<io::Result<()>>,
    work: SyncSender<Executor>,
}

impl Prepared {
    /// Starts the thread. Dropping this ends the thread.
    pub fn new() -> Result<Prepared, StartError> {
        let (work, given) = sync_channel::<Executor>(1);
        let thread = std::thread::Builder::new().name("executor".into()).stack_size(STACK);
        let thread = thread.spawn(move || {
            let _heap = crate::server::heap::allocator::own_heap();
            given.recv().map_or(Ok(()), Executor::run)
        });
        Ok(Prepared { thread: thread.map_err(StartError::System)?, work })
    }

    /// Binds and returns. Clients can connect from here on; their connections wait for [`Server::accept`].
    pub fn start(self, mut config: Config, options: ServerOptions) -> Result<Server, StartError> {
        refuse_to_run_alone(&config).map_err(StartError::Alone)?;
        let users = crate::server::users_file::at_start(&config, &options.users).map_err(StartError::Users)?;
        let tls = match config.tls_port {
            0 => None,
            _ => Some(tls::settings(&config).map_err(StartError::Tls)?),
        };
        let listeners = Listeners::bind(&config).map_err(StartError::Bind)?;
        let endpoint = PreparedEndpoint::new(&config, &users).map_err(StartError::Http)?;
        let mut bound = listeners.addresses(&config);
        bound.http = endpoint.as_ref().map(PreparedEndpoint::address);
        for line in warnings::of(&config, &users, &bound) {
            tracing::warn!("{line}");
        }
        config.port = bound.port;
        let addresses = Arc::new(Mutex::new(bound.clone()));
        let seed = match options.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(|error| StartError::System(io::Error::other(error.to_string())))?,
        };
        let directory = Arc::new(Directory::default());
        let (control, inbox) = crate::server::net::control::queue().map_err(StartError::System)?;
        let (accept, accepting) = sync_channel(1);
        let (tell_loaded, loaded) = sync_channel(1);
        let config_file = options.config_file.clone();
        let ending = Arc::new(AtomicBool::new(false));
        let executor = Executor {
            config,
            users,
            tls,
            seed,
            options,
            listeners,
            addresses: Arc::clone(&addresses),
            accept: accepting,
            loaded: tell_loaded,
            inbox,
            control: control.clone(),
            ending: Arc::clone(&ending),
            directory: Arc::clone(&directory),
            endpoint_tls: endpoint.as_ref().and_then(PreparedEndpoint::tls),
        };
        // If the thread failed to prepare, it has ended, and `Server::wait` returns why.
        let _ = self.work.send(executor);
        // Meanwhile, prepare what only the first request needs: the command lookup table and the description of the process.
        commands::lookup(b"");
        script::check_layout();
        let environment = environment::describe(&bound, config_file.as_deref());
        let (executor, accept) =
            (Some(self.thread), Some(Box::new(Accepting { accept, environment, loaded: Mutex::new(loaded) })));
        let endpoint = endpoint.map(|endpoint| endpoint.start(control.clone())).transpose().map_err(StartError::System)?;
        Ok(Server { executor, accept, control, ending, addresses, directory, endpoint })
    }
}

impl Server {
    /// Binds, starts the executor, begins to accept connections, and waits until the files are loaded.
    pub fn start(config: Config, options: ServerOptions) -> Result<Server, StartError> {
        let mut server = Prepared::new()?.start(config, options)?;
        if !server.accept() {
            server.wait().map_err(StartError::System)?;
        }
        Ok(server)
    }

    /// Begins to accept connections, first those that are already waiting, and waits until the files of the configuration are loaded.
    /// Requests that come before that are answered as Redis does: most of them with `LOADING` errors. Returns false if the server has
    /// ended instead: [`Server::wait`] returns why.
    pub fn accept(&mut self) -> bool {
        self.accept.take().is_none_or(|waiting| {
            let Accepting { accept, environment, loaded } = *waiting;
            let loaded = loaded.into_inner().unwrap_or_else(PoisonError::into_inner);
            accept.send(environment).is_ok() && loaded.recv().is_ok()
        })
    }

    /// The TCP addresses that the server listens on now, all with the same port. `CONFIG SET port` and `bind` change them.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.bound().tcp
    }

    /// The TLS addresses that the server listens on now, all with the same port.
    pub fn tls_addresses(&self) -> Vec<SocketAddr> {
        self.bound().tls
    }

    /// The address of the HTTP endpoint, if there is one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.bound().http
    }

    /// All addresses that the server listens on now.
    pub(crate) fn bound(&self) -> Addresses {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Live connections.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Runs a closure on the executor's thread, between two turns, and returns its result; `None` if the server has ended.
    pub(crate) fn control<T: Send + 'static>(&self, what: impl FnOnce(&mut Shell) -> T + Send + 'static) -> Option<T> {
        let (done, result) = sync_channel(1);
        let closure: Closure<Shell> = Box::new(move |shell| {
            let outcome = what(shell);
            shell.after_closure();
            let _ = done.send(outcome);
        });
        if self.control.send(closure) { result.recv().ok() } else { None }
    }

    /// Returns a function that does what [`Server::stop`] does, for a thread that does not own the server.
    pub fn stopper(&self) -> impl Fn() + Send + use<> {
        self.ender(false)
    }

    /// With `force` the server ends whatever its files say.
    fn ender(&self, force: bool) -> impl Fn() + Send + use<> {
        let (control, ending) = (self.control.clone(), Arc::clone(&self.ending));
        move || {
            ending.store(true, Ordering::Relaxed);
            let ending = Arc::clone(&ending);
            control.send(Box::new(move |shell| {
                shell.told_to_end(force);
                ending.store(shell.ending, Ordering::Relaxed);
            }));
        }
    }

    /// Asks the server to end, and does not wait for it. As `SHUTDOWN`, it goes on if a snapshot is to be written and fails, or while
    /// the append-only file is being switched on; [`Server::wait`] then waits on. Dropping the server always ends it. A script that is still running a tenth of a second later is killed, even
    /// if it has written.
    pub fn stop(&self) {
        self.stopper()();
    }

    /// Waits until the server has ended. A server that was never told to accept connections ends at once.
    pub fn wait(&mut self) -> io::Result<()> {
        self.accept = None;
        let result = match self.executor.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the executor panicked")),
            None => Ok(()),
        };
        // It asks the executor until the end.
        self.endpoint = None;
        let unix = self.addresses.lock().unwrap_or_else(PoisonError::into_inner).unix.take();
        if let Some(path) = unix {
            let _ = std::fs::remove_file(path);
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ender(true)();
        let _ = self.wait();
    }
}

/// Everything that the executor's thread starts with.
struct Executor {
    config: Config,
    users: Users,
    tls: Option<Arc<ServerConfig>>,
    seed: u64,
    options: ServerOptions,
    listeners: Listeners,
    addresses: Arc<Mutex<Addresses>>,
    /// Receives the description of the process when the server begins to accept connections. If the sender is dropped, it never
    /// accepts any.
    accept: Receiver<Environment>,
    /// Told when the files are loaded.
    loaded: SyncSender<()>,
    inbox: Inbox<Shell>,
    /// Sends control to the executor itself, for its other threads.
    control: Control<Shell>,
    ending: Arc<AtomicBool>,
    directory: Arc<Directory>,
    /// The TLS of the HTTP endpoint, which `CONFIG SET` renews.
    endpoint_tls: Option<SharedTls>,
}

impl Executor {
    fn run(mut self) -> io::Result<()> {
        let poller = Poller::new()?;
        let mut clock = Clock::new();
        if self.options.frozen {
            clock.freeze();
        }
        clock.jump_wall(self.config.test_wall_clock_ms);
        self.config.maxclients = crate::server::net::descriptors::raise(self.config.maxclients);
        let users_file = crate::server::users_file::open(&self.config);
        let endpoints = Endpoints::of(&self.config);
        let mut shell = Shell::new(self.config, self.seed, clock, self.directory)?;
        shell.driver.engine.set_users(self.users);
        shell.driver.engine.set_users_file(users_file);
        shell.driver.engine.set_test_mode(self.options.test_mode);
        if self.options.seed.is_none() {
            shell.driver.engine.set_entropy(Box::new(|bytes| getrandom::fill(bytes).is_ok()));
        }
        if let Some(path) = self.options.config_file {
            let write = move |config: &Config, users: &[Vec<u8>]| {
                crate::server::file::rewrite(&path, config, users).map_err(|error| error.to_string())
            };
            shell.driver.engine.on_rewrite_config(Box::new(write));
        }
        shell.control = Some(self.control.clone());
        let Ok(environment) = self.accept.recv() else { return Ok(()) };
        *shell.driver.engine.environment_mut() = environment;
        #[cfg(feature = "quorum")]
        let is_node = shell.driver.engine.config().node_id > 0;
        #[cfg(not(feature = "quorum"))]
        let is_node = false;
        if is_node {
            #[cfg(feature = "quorum")]
            replicated::start(&mut shell, &self.control).map_err(io::Error::other)?;
            let _ = self.loaded.send(());
        } else {
            shell.background.tells = Some(self.loaded);
            shell.begin_to_load().map_err(io::Error::other)?;
        }
        let handshakes = Rc::new(Handshakes::new(self.tls, poller.registry.clone()));
        let listening = Listening::new(self.listeners, endpoints, self.addresses, handshakes, poller.registry.clone())?;
        let listening = Rc::new(listening);
        let mut watch = Watch::new(Rc::clone(&shell.busy), Rc::clone(&listening), self.ending);
        shell.driver.engine.set_supervisor(Some(Box::new(move |engine, now, id, first| watch.check(engine, now, id, first))));
        let (applied, control, endpoint_tls) = (Rc::clone(&listening), self.control.clone(), self.endpoint_tls);
        shell.driver.engine.on_apply_config(Box::new(move |config, names, environment| {
            apply_config(&applied, endpoint_tls.as_ref(), config, names, environment)?;
            if names.contains(&"test-wall-clock-ms") {
                let wrong_ms = config.test_wall_clock_ms;
                control.send(Box::new(move |shell: &mut Shell| shell.clock.jump_wall(wrong_ms - shell.clock.stepped_ms())));
            }
            #[cfg(feature = "quorum")]
            if names.contains(&"test-disk-hangs-ms") {
                let for_ms = config.test_disk_hangs_ms;
                control.send(Box::new(move |shell: &mut Shell| {
                    if let Some(hang) = &shell.background.hang {
                        hang.hang(for_ms);
                    }
                }));
            }
            Ok(())
        }));
        let mut event_loop = EventLoop::new(shell, poller, listening, self.inbox)?;
        // A panic in the middle of a command may leave the engine in a state that no command could have left it in. A lock server
        // that continued from there could give one lock to two clients, so it ends with an error instead.
        match catch_unwind(AssertUnwindSafe(|| event_loop.run())) {
            Ok(ended) => ended,
            Err(_) => Err(io::Error::other("the executor panicked")),
        }
    }
}

/// Applies what `CONFIG SET` changes about the sockets, all of it or nothing: loads certificates and keys again if a TLS
/// directive was set, and listens on the new addresses.
fn apply_config(
    listening: &Listening,
    endpoint_tls: Option<&SharedTls>,
    config: &Config,
    names: &[&'static str],
    environment: &mut Environment,
) -> Result<(), (&'static str, String)> {
    let mut settings = None;
    if (config.tls_port != 0 || endpoint_tls.is_some())
        && let Some(name) = names.iter().find(|name| name.starts_with("tls-"))
    {
        settings = Some(tls::settings(config).map_err(|reason| {
            tracing::warn!(reason, "invalid TLS configuration");
            (*name, tls::NOT_UPDATED.to_owned())
        })?);
    }
    if names.contains(&"appendonly") && config.appendonly {
        durable::switch::check(&durable::load::folder_of(config)).map_err(|text| ("appendonly", text))?;
    }
    if names.iter().any(|name| matches!(*name, "bind" | "port" | "tls-port")) {
        let addresses = listening.rebind(config, names)?;
        environment::listen_on(environment, &addresses);
    }
    if let Some(settings) = settings {
        if let Some(shared) = endpoint_tls {
            endpoint::renew(shared, &settings);
        }
        listening.handshakes().renew(settings);
    }
    Ok(())
}
