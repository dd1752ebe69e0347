//! Running the server as a process: logs, the ready file, signals, the exit code.

pub mod cli;
pub mod log;
mod service_manager;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::base::version::{PORTCULLIS_VERSION, REDIS_VERSION};
use crate::files;
use crate::server::heap::allocator;
use crate::server::net::descriptors;
use crate::server::program::cli::Invocation;
use crate::server::program::service_manager::ServiceManager;
use crate::server::{Prepared, ServerOptions};

/// Time between the end of standard input and the exit of the process, if the server has not ended by then: there may be no one
/// left to force it with a second signal.
const LAST_WAY_OUT: Duration = Duration::from_secs(5);

/// Interval between checks whether the process is back in the foreground of its terminal.
const FOREGROUND_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Runs the server until `SHUTDOWN` or a signal. Reports errors on standard error.
pub fn run(invocation: Invocation) -> ExitCode {
    allocator::prepare();
    match serve(invocation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(io::stderr(), "portcullis: {message}");
            ExitCode::FAILURE
        }
    }
}

fn serve(invocation: Invocation) -> Result<(), String> {
    let Invocation { mut config, file, extra, ready_file, log_format, test_mode, end_with_stdin } = invocation;
    // Relative paths start at the working directory of the command line, and `dir` may change the working directory.
    let file = file.map(std::path::absolute).transpose().map_err(|error| error.to_string())?;
    let ready_file = ready_file.map(std::path::absolute).transpose().map_err(|error| error.to_string())?;
    std::env::set_current_dir(&config.dir).map_err(|error| format!("--dir {}: {error}", config.dir))?;
    config.dir = std::env::current_dir().map_err(|error| error.to_string())?.to_string_lossy().into_owned();
    descriptors::make_room(config.maxclients);
    let prepared = Prepared::new().map_err(|error| error.to_string())?;
    log::start(config.loglevel, &config.logfile, log_format).map_err(|error| format!("{}: {error}", config.logfile))?;
    if !config.foreign.is_empty() {
        let directives = config.foreign.keys().copied().collect::<Vec<_>>().join(" ");
        tracing::info!(directives, "these directives of Redis have no effect here; the guide says why");
    }
    if test_mode {
        tracing::warn!("test mode: clients may move the clock and inject faults");
    }
    let options = ServerOptions { config_file: file, users: extra.users, test_mode, ..ServerOptions::default() };
    let mut server = prepared.start(config, options).map_err(|error| error.to_string())?;
    let manager = ServiceManager::of_environment().map_err(|error| format!("NOTIFY_SOCKET: {error}"))?;
    let signals = Signals::install().map_err(|error| error.to_string())?;
    // From here on a signal ends the server in order, even while it loads its files, and no client gets an answer before that.
    signals.watch(server.stopper());
    if end_with_stdin {
        end_with_stdin_of(server.stopper()).map_err(|error| error.to_string())?;
    }
    let loading = manager.loading().map_err(|error| error.to_string())?;
    if !server.accept() {
        return server.wait().map_err(|error| error.to_string());
    }
    drop(loading);
    let addresses = server.bound();
    // Nobody is told that the server is ready if the file cannot be written.
    let first = addresses.tcp.first().or(addresses.tls.first()).map(ToString::to_string).unwrap_or_default();
    let ready = ready_file.map(|path| ReadyFile::write(path, &first)).transpose()?;
    // A program that started the server with --port 0 reads the port here. It does not matter if no one reads it.
    let _ = writeln!(io::stdout(), "portcullis {PORTCULLIS_VERSION} listening on {addresses}");
    tracing::info!(version = PORTCULLIS_VERSION, redis = REDIS_VERSION, pid = std::process::id(), "ready to accept connections");
    manager.ready(&addresses.to_string());
    let ended = server.wait().map_err(|error| error.to_string());
    // Not at the signal: the server may refuse to end, and the manager would kill it after its time-out.
    manager.stopping();
    drop(ready);
    tracing::info!("bye");
    ended
}

/// The starter of the server holds the other end of its standard input. Even if the starter crashes, the system closes that end,
/// and so ends the server.
fn end_with_stdin_of(stop: impl Fn() + Send + 'static) -> io::Result<()> {
    let watching = move || {
        until_stdin_ends();
        tracing::info!("standard input was closed: shutting down");
        stop();
        std::thread::sleep(LAST_WAY_OUT);
        std::process::exit(1);
    };
    std::thread::Builder::new().name("stdin".into()).spawn(watching).map(drop)
}

/// Returns when standard input ends. Its content is ignored.
fn until_stdin_ends() {
    let stdin = io::stdin();
    let mut said = [0; 1024];
    loop {
        // A background process that reads from its terminal is stopped by SIGTTIN, and with it the whole server.
        let elsewhere = tcgetpgrp(&stdin).is_ok_and(|foreground| foreground != getpgrp());
        let (events, wait) = if elsewhere { (PollFlags::empty(), Some(&FOREGROUND_EVERY)) } else { (PollFlags::IN, None) };
        let mut polled = [PollFd::new(&stdin, events)];
        match poll(&mut polled, wait) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) if elsewhere => return,
            // The process may have gone to the background meanwhile.
            Ok(_) if tcgetpgrp(&stdin).is_ok_and(|foreground| foreground != getpgrp()) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        match rustix::io::read(&stdin, &mut said) {
            Ok(0) => return,
            // Standard input may be non-blocking, and shared with another reader.
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}

/// SIGTERM and SIGINT, handled on a separate thread because the executor may be busy with a script.
struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    /// Keeps SIGHUP from ending the server when its terminal closes.
    _hangup: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let [terminate, interrupt, _hangup] =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        drop(entered);
        Ok(Signals { runtime, terminate: terminate?, interrupt: interrupt?, _hangup: _hangup? })
    }

    /// The first signal asks the server to end, the second ends the process.
    fn watch(mut self, stop: impl Fn() + Send + 'static) {
        let watching = std::thread::Builder::new().name("signals".into()).spawn(move || {
            let Signals { runtime, terminate, interrupt, .. } = &mut self;
            runtime.block_on(async {
                let mut next = async || tokio::select! { _ = terminate.recv() => "SIGTERM", _ = interrupt.recv() => "SIGINT" };
                let name = next().await;
                tracing::info!(signal = name, "ending; a second signal ends it at once");
                stop();
                next().await;
                std::process::exit(1);
            })
        });
        if let Err(error) = watching {
            tracing::error!(%error, "cannot watch for signals");
        }
    }
}

/// A file that exists while the server accepts connections, with its address. Removed on drop.
struct ReadyFile {
    path: PathBuf,
}

impl ReadyFile {
    fn write(path: PathBuf, address: &str) -> Result<Self, String> {
        let fail = |error: io::Error| format!("--ready-file {}: {error}", path.display());
        // Readers must see the whole content or no file.
        files::replace(&path, format!("{address}\n").as_bytes()).map_err(fail)?;
        Ok(ReadyFile { path })
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
