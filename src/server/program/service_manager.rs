//! The service manager that started the server, as systemd does with `Type=notify`: it learns when the server is ready, when it
//! ends, and that a long load is no hang. Not socket activation, and no watchdog.
//!
//! The protocol is that of `sd_notify(3)`: a datagram of lines `NAME=VALUE` to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between messages while the files are loaded.
const LOADING_EVERY: Duration = Duration::from_secs(10);

/// What a message while loading asks for: the manager waits at least 30 s from then on. In microseconds, as the protocol has it.
const EXTENSION: &str = "EXTEND_TIMEOUT_USEC=30000000";

/// Bound on the time that one message takes. The socket of a manager that does not read it fills up, and a message that waited for
/// ever would keep the server from starting or ending. A message that failed at once would lose `READY=1` to a manager that is
/// only busy.
const SEND_WITHIN: Duration = Duration::from_secs(1);

/// The service manager, or nobody: without `NOTIFY_SOCKET` every method does nothing.
#[derive(Clone, Default)]
pub struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
}

impl ServiceManager {
    /// Connects to the socket of the environment.
    pub fn of_environment() -> io::Result<ServiceManager> {
        if let Some(name) = std::env::var_os("NOTIFY_SOCKET") { ServiceManager::at(&name) } else { Ok(ServiceManager::default()) }
    }

    /// Connects to a path, or to an abstract name, which begins with `@`.
    fn at(name: &OsStr) -> io::Result<ServiceManager> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_WITHIN))?;
        socket.connect_addr(&address)?;
        Ok(ServiceManager { socket: Some(Arc::new(socket)) })
    }

    /// The server loads its files: asks the manager to wait until the returned value is dropped.
    pub fn loading(&self) -> io::Result<Option<Loading>> {
        if self.socket.is_none() {
            return Ok(None);
        }
        let manager = self.clone();
        let tell = move || manager.send(&["STATUS=loading the files", EXTENSION]);
        // Before the thread starts, so that it is the first message.
        tell();
        let (loading, loaded) = channel();
        let repeat = move || {
            while loaded.recv_timeout(LOADING_EVERY) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        };
        let thread = std::thread::Builder::new().name("service-manager".into()).spawn(repeat)?;
        Ok(Some(Loading { lasts: Some(loading), thread: Some(thread) }))
    }

    /// The server accepts connections and has loaded its files.
    pub fn ready(&self, addresses: &str) {
        self.send(&["READY=1", &format!("STATUS=listening on {addresses}")]);
    }

    /// The server has ended, and the process ends next.
    pub fn stopping(&self) {
        self.send(&["STOPPING=1", "STATUS=ended"]);
    }

    /// Sends a message, and logs a warning if the manager does not take it within [`SEND_WITHIN`].
    fn send(&self, lines: &[&str]) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(lines.join("\n").as_bytes())
        {
            tracing::warn!(%error, "the service manager does not take messages");
        }
    }
}

/// Lasts while the files are loaded. After its drop no message about that is sent.
pub struct Loading {
    lasts: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Loading {
    fn drop(&mut self) {
        // The end of the channel ends the thread.
        drop(self.lasts.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that tells the service manager of the load panicked");
        }
    }
}
