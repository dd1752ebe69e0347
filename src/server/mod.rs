//! The server: sockets, clock and signals round the engine.
//!
//! One OS thread, the executor, runs everything that touches the engine: the connections, the listeners and the timer are tasks
//! of its single-threaded runtime and call the engine inline. Other threads talk to it through [`Server::control`], never on a
//! request's way.
//!
//! ```text
//!   listener ──▶ connection ──▶ shell: engine, clock, shared buffers ◀── timer
//!                                 ▲
//!                 Server::control ┘ (tests, signals)
//! ```

pub mod clock;
pub mod connection;
pub mod directory;
pub mod listener;
pub mod shell;
pub mod timer;

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use crate::engine::config::Config;
use crate::server::clock::Clock;
use crate::server::directory::Directory;
use crate::server::shell::Shell;

/// Stack of the executor's thread, in bytes; Lua and nested replies live on it.
const STACK: usize = 64 << 20;

/// What is run on the executor's thread on behalf of another.
type Order = Box<dyn FnOnce(&mut Shell) + Send>;

/// How a server is started, beyond its configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What all randomness in the engine follows from; drawn from the system where it is `None`.
    pub seed: Option<u64>,
    /// Start with the clock standing still.
    pub frozen: bool,
}

/// A running server.
pub struct Server {
    executor: Option<JoinHandle<io::Result<()>>>,
    orders: mpsc::UnboundedSender<Order>,
    addresses: Vec<SocketAddr>,
    directory: Arc<Directory>,
}

impl Server {
    /// Binds, starts the executor and returns; connections are accepted from here on.
    pub fn start(config: Config, port: u16, options: Options) -> io::Result<Server> {
        let listeners = vec![listener::bind("127.0.0.1", port, 511)?];
        let addresses = listeners.iter().map(|l| l.local_addr()).collect::<io::Result<Vec<_>>>()?;
        let seed = match options.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?,
        };
        let directory = Arc::new(Directory::default());
        let (orders, inbox) = mpsc::unbounded_channel();
        let shared = Arc::clone(&directory);
        let executor = std::thread::Builder::new()
            .name("executor".into())
            .stack_size(STACK)
            .spawn(move || execute(config, seed, options.frozen, listeners, inbox, shared))?;
        Ok(Server { executor: Some(executor), orders, addresses, directory })
    }

    /// The TCP addresses it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Live connections.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Runs something on the executor's thread, between two turns, and gives what it returned; `None` when the server has ended.
    pub fn control<T: Send + 'static>(&self, what: impl FnOnce(&mut Shell) -> T + Send + 'static) -> Option<T> {
        let (done, result) = std::sync::mpsc::sync_channel(1);
        let order: Order = Box::new(move |shell| drop(done.send(what(shell))));
        self.orders.send(order).ok()?;
        result.recv().ok()
    }

    /// Asks it to end; does not wait for it.
    pub fn stop(&self) {
        let _ = self.orders.send(Box::new(|shell| shell.stop.notify_one()));
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> io::Result<()> {
        match self.executor.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the executor panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = self.wait();
    }
}

/// The executor's thread.
fn execute(
    config: Config,
    seed: u64,
    frozen: bool,
    listeners: Vec<TcpListener>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    directory: Arc<Directory>,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let mut clock = Clock::new();
        if frozen {
            clock.freeze();
        }
        let shell = Rc::new(RefCell::new(Shell::new(config, seed, clock, directory)?));
        let stop = Rc::clone(&shell.borrow().stop);
        for listener in listeners {
            tokio::task::spawn_local(listener::accept_tcp(Rc::clone(&shell), listener));
        }
        tokio::task::spawn_local(timer::run(Rc::clone(&shell)));
        tokio::task::spawn_local(async move {
            while let Some(order) = orders.recv().await {
                order(&mut shell.borrow_mut());
            }
        });
        stop.notified().await;
        Ok(())
    })
}
