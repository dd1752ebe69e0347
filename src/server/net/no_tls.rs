//! Replaces `tls` in a build without the feature of that name. It refuses to configure TLS, and declares the types of `tls`
//! without values: the compiler knows that no handshake begins and no stream is encrypted.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::TcpStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;

use crate::engine::config::Config;

/// Answer to a `CONFIG SET` that asks for TLS.
pub const NOT_UPDATED: &str = "this server is built without TLS (cargo feature 'tls')";

/// Settings of TLS. There are none.
pub struct ServerConfig {
    none: Infallible,
}

/// A connected socket below TLS. There is none.
pub struct Socket {
    none: Infallible,
}

/// An encrypted stream. There is none.
pub struct TlsStream<S> {
    none: Infallible,
    socket: PhantomData<S>,
}

/// A handshake. There is none.
pub struct Accept<S> {
    none: Infallible,
    socket: PhantomData<S>,
}

/// An acceptor of handshakes. There is none.
pub struct TlsAcceptor {
    none: Infallible,
}

/// The type of an encrypted connection.
pub type Tls = Rc<RefCell<TlsStream<Socket>>>;

/// Refuses to configure TLS.
///
/// # Errors
/// Always, for the operator who configured TLS.
pub fn settings(_: &Config) -> Result<Arc<ServerConfig>, String> {
    Err(NOT_UPDATED.to_owned())
}

impl Socket {
    /// Never called: there are no settings to begin a handshake with.
    pub fn new(_: TcpStream) -> Socket {
        unreachable!("{NOT_UPDATED}")
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        match self.none {}
    }
}

impl<S> TlsStream<S> {
    /// The socket below, and the TLS state.
    pub fn get_ref(&self) -> (&S, &Infallible) {
        match self.none {}
    }
}

impl From<Arc<ServerConfig>> for TlsAcceptor {
    fn from(settings: Arc<ServerConfig>) -> TlsAcceptor {
        match settings.none {}
    }
}

impl TlsAcceptor {
    /// Begins a handshake.
    pub fn accept<S>(&self, _: S) -> Accept<S> {
        match self.none {}
    }
}

impl<S> Future for Accept<S> {
    type Output = io::Result<TlsStream<S>>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.none {}
    }
}

/// Continues a handshake.
pub fn go_on<T>(_: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>) -> Result<T, Errno> {
    unreachable!("{NOT_UPDATED}")
}

/// Receives decrypted bytes.
pub fn receive(tls: &Tls, _: &mut [u8]) -> Result<usize, Errno> {
    match tls.borrow().none {}
}

/// Encrypts and sends.
pub fn send(tls: &Tls, _: &[u8]) -> Result<usize, Errno> {
    match tls.borrow().none {}
}

/// Flushes encrypted bytes.
pub fn flush(tls: &Tls) -> Result<(), Errno> {
    match tls.borrow().none {}
}

/// Whether decrypted or encrypted bytes wait.
pub fn holds(tls: &Tls) -> (bool, bool) {
    match tls.borrow().none {}
}

/// Sends close_notify.
pub fn say_goodbye(tls: &Tls) {
    match tls.borrow().none {}
}
