//! A connection's socket: what the driver wants next of it is done here (see [`crate::driver::connections`]).
//!
//! ```text
//!   readable ─▶ recv into the shared buffer ─▶ parse, execute, parse, execute … ─▶ one send of all replies
//! ```

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;

use crate::base::ids::SessionId;
use crate::driver::connections::turn::{Next, Turn};
use crate::driver::round::{Driving, Socket};
use crate::engine::session::SessionFlags;
use crate::server::net::poller::Readiness;
use crate::server::net::tls;
use crate::server::net::tls::Tls;
use crate::server::shell::Shell;

/// A connected, non-blocking socket.
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP, encrypted.
    Tls(Tls),
}

impl Stream {
    /// Its file descriptor.
    pub fn fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.borrow().get_ref().0.stream().as_raw_fd(),
        }
    }

    /// Calls `act` with its file descriptor.
    pub(crate) fn with_fd<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Stream::Tcp(stream) => act(stream.as_fd()),
            Stream::Unix(stream) => act(stream.as_fd()),
            Stream::Tls(stream) => act(stream.borrow().get_ref().0.stream().as_fd()),
        }
    }

    #[inline]
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Stream::Tcp(stream) => rustix::net::recv(stream, buffer, RecvFlags::empty()).map(|(count, _)| count),
            Stream::Unix(stream) => rustix::net::recv(stream, buffer, RecvFlags::empty()).map(|(count, _)| count),
            Stream::Tls(stream) => tls::receive(stream, buffer),
        }
    }

    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Stream::Tcp(stream) => rustix::net::send(stream, bytes, SendFlags::NOSIGNAL),
            Stream::Unix(stream) => rustix::net::send(stream, bytes, SendFlags::NOSIGNAL),
            Stream::Tls(stream) => tls::send(stream, bytes),
        }
    }

    /// Whether a read that fills less than its buffer has emptied the socket.
    #[inline]
    fn tells_all(&self) -> bool {
        !matches!(self, Stream::Tls(_))
    }

    /// Makes the connection end with a TCP reset when it is closed, as if the machine had lost it.
    #[cold]
    fn reset_when_closed(&self) {
        let lingers = match self {
            Stream::Tcp(stream) => SockRef::from(stream).set_linger(Some(Duration::ZERO)),
            Stream::Tls(stream) => SockRef::from(stream.borrow().get_ref().0.stream()).set_linger(Some(Duration::ZERO)),
            Stream::Unix(_) => Ok(()),
        };
        if let Err(error) = lingers {
            tracing::debug!(%error, "a connection is closed without a reset");
        }
    }

    /// Flushes bytes that were written but have not reached the socket. Only TLS buffers them.
    #[inline]
    fn flush(&self) -> Result<(), Errno> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
            Stream::Tls(stream) => tls::flush(stream),
        }
    }
}

/// One connection, from accept to close.
pub struct Connection {
    stream: Stream,
    pub(super) id: SessionId,
    /// Known state of the socket: edge-triggered epoll reports changes only.
    readable: bool,
    writable: bool,
    /// Whether the socket holds more even after a read that fills less than its buffer.
    read_on: bool,
}

impl Connection {
    /// Creates the connection of a session that the shell has registered.
    pub fn new(stream: Stream, id: SessionId) -> Self {
        // epoll reports what the socket holds, but does not know of bytes that TLS has already decrypted.
        let readable = !stream.tells_all();
        Connection { stream, id, readable, writable: true, read_on: false }
    }

    /// Records the readiness of its socket.
    #[inline]
    pub fn note(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
        self.read_on |= readiness.read_on;
    }

    /// Closes the connection and ends its session.
    pub fn close(self, shell: &mut Shell) {
        if let Stream::Tls(stream) = &self.stream {
            tls::say_goodbye(stream);
        }
        if shell.driver.engine.sessions()[self.id].flags.contains(SessionFlags::RESET_SOCKET) {
            self.stream.reset_when_closed();
        }
        shell.disconnect(self.id);
    }
}

impl Socket<Shell> for Connection {
    #[inline]
    fn id(&self) -> SessionId {
        self.id
    }

    #[inline]
    fn write(&mut self, shell: &mut Shell, turn: &mut Turn) -> Result<(), Next> {
        fail_if!(!self.writable, Next::Wait);
        // What was not asked for does not count with another client's turn.
        shell.charge_open_turn();
        match self.stream.write(shell.driver.output(self.id, turn)) {
            Ok(0) => Err(Next::Close),
            Ok(written) => {
                shell.driver.written(self.id, written, turn);
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(Errno::AGAIN) => {
                self.writable = false;
                Err(Next::Wait)
            }
            Err(_) => Err(Next::Close),
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), Next> {
        match self.stream.flush() {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) => {
                self.writable = false;
                Err(Next::Wait)
            }
            Err(_) => Err(Next::Close),
        }
    }

    #[inline]
    fn receive(&mut self, shell: &mut Shell, turn: &mut Turn) -> Result<(), Next> {
        if let Some(bytes) = shell.busy.take(self.id) {
            shell.execute(self.id, |driver, at| driver.execute_received(at, self.id, &bytes, turn));
            return Ok(());
        }
        fail_if!(!self.readable, Next::Wait);
        let mut buffer = std::mem::take(&mut shell.read_buffer);
        let read = self.stream.read(&mut buffer);
        let received = read.map(|count| {
            // epoll reports later input with a new event, but it has already reported the end of the input (`read_on`).
            self.readable = count == buffer.len() || (count > 0 && (self.read_on || !self.stream.tells_all()));
            shell.received(self.id, &buffer[..count], turn)
        });
        shell.read_buffer = buffer;
        match received {
            Ok(next) => next,
            Err(Errno::INTR) => Ok(()),
            Err(Errno::AGAIN) => {
                (self.readable, self.read_on) = (false, false);
                Err(Next::Wait)
            }
            Err(_) => Err(Next::Close),
        }
    }
}

/// Executes input as a session's connection does, but without a socket, for benches that count the cost. The replies are in the
/// session's outbox. Returns the number of input bytes consumed.
#[cfg(any(test, feature = "internals"))]
pub fn execute_input(shell: &mut Shell, id: SessionId, input: &[u8]) -> usize {
    shell.execute(id, |driver, at| driver.execute_input(at, id, input))
}
