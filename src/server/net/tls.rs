//! TLS: turns the directives into the settings of handshakes, and reads and writes encrypted sockets without waiting.
//!
//! ```text
//!   tls-cert-file, tls-key-file, … ─▶ settings ─▶ handshake ─▶ Tls ─▶ connection
//!                       CONFIG SET ─▶ settings ─────┘ (open connections keep their settings)
//! ```

use std::cell::RefCell;
use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
#[cfg(feature = "quorum")]
use tokio_rustls::rustls::ClientConfig;
pub use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, RootCertStore, SupportedProtocolVersion};
pub use tokio_rustls::server::TlsStream;
pub use tokio_rustls::{Accept, TlsAcceptor};

use crate::engine::config::Config;

/// Answer to a `CONFIG SET` whose directives [`settings`] refuses.
pub const NOT_UPDATED: &str = "Unable to update TLS configuration. Check server logs.";

/// Builds the settings of handshakes from the directives.
///
/// # Errors
/// Names the directive or file that is wrong, and the reason, for the operator.
pub fn settings(config: &Config) -> Result<Arc<ServerConfig>, String> {
    let (chain, key) = identity(config)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&versions(&config.tls_protocols)?)
        .map_err(|error| error.to_string())?;
    let builder = match config.tls_auth_clients {
        "no" => builder.with_no_client_auth(),
        word => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(config)?), Arc::new(ring::default_provider()));
            let verifier = if word == "optional" { verifier.allow_unauthenticated() } else { verifier };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| error.to_string())?)
        }
    };
    let mut settings = builder.with_single_cert(chain, key).map_err(|error| unfit(config, &error))?;
    settings.ignore_client_order = config.tls_prefer_server_ciphers;
    // Session tickets, encrypted, are kept by the client: the server stores nothing for clients that may resume.
    settings.session_storage = Arc::new(NoServerSessionStorage {});
    if config.tls_session_caching {
        settings.ticketer = ring::Ticketer::new().map_err(|error| error.to_string())?;
    } else {
        settings.send_tls13_tickets = 0;
    }
    Ok(Arc::new(settings))
}

/// The server's certificate with its chain, and its key.
fn identity(config: &Config) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = certificates("tls-cert-file", &config.tls_cert_file)?;
    fail_if!(config.tls_key_file.is_empty(), "tls-key-file is not set".to_owned());
    let key = PrivateKeyDer::from_pem_file(&config.tls_key_file)
        .map_err(|error| format!("tls-key-file {}: {error}", config.tls_key_file))?;
    Ok((chain, key))
}

/// Why the certificate and its key cannot be used.
fn unfit(config: &Config, error: &Error) -> String {
    let told = error.to_string();
    let old = if told.contains("UnsupportedCertVersion") {
        "; it must be one of X.509 version 3, see guide/users-and-tls.md"
    } else {
        ""
    };
    format!("tls-cert-file {} and tls-key-file {}: {told}{old}", config.tls_cert_file, config.tls_key_file)
}

/// Builds the settings of the connections among replicated servers, opened and accepted. Both sides must present a certificate that
/// an authority of `tls-ca-cert-file` has signed.
///
/// # Errors
/// As [`settings`].
#[cfg(feature = "quorum")]
pub fn settings_of_nodes(config: &Config) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), String> {
    let provider = Arc::new(ring::default_provider());
    let (chain, key) = identity(config)?;
    if config.tls_ca_cert_file.is_empty() && config.tls_ca_cert_dir.is_empty() {
        return Err(
            "tls-cluster: tls-ca-cert-file or tls-ca-cert-dir must name the authority of the nodes' certificates".to_owned()
        );
    }
    let (authorities, versions) = (Arc::new(authorities(config)?), versions(&config.tls_protocols)?);
    let told = |error: Error| error.to_string();
    let connector = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions).map_err(told)?;
    let connector = connector.with_root_certificates(Arc::clone(&authorities));
    let connector = connector.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(|error| unfit(config, &error))?;
    let acceptor = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions).map_err(told)?;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(authorities, provider).build().map_err(|error| error.to_string())?;
    let acceptor = acceptor.with_client_cert_verifier(verifier);
    let acceptor = acceptor.with_single_cert(chain, key).map_err(|error| unfit(config, &error))?;
    Ok((Arc::new(connector), Arc::new(acceptor)))
}

fn certificates(name: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    fail_if!(path.is_empty(), format!("{name} is not set"));
    let fail = |error: &dyn std::fmt::Display| format!("{name} {path}: {error}");
    let found = CertificateDer::pem_file_iter(path).map_err(|error| fail(&error))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| fail(&error))?;
    if found.is_empty() { Err(fail(&"there is no certificate in it")) } else { Ok(found) }
}

/// The certificate authorities that client certificates must be signed by.
fn authorities(config: &Config) -> Result<RootCertStore, String> {
    let mut found = Vec::new();
    if !config.tls_ca_cert_file.is_empty() {
        found = certificates("tls-ca-cert-file", &config.tls_ca_cert_file)?;
    }
    if !config.tls_ca_cert_dir.is_empty() {
        let fail = |error: io::Error| format!("tls-ca-cert-dir {}: {error}", config.tls_ca_cert_dir);
        for file in std::fs::read_dir(&config.tls_ca_cert_dir).map_err(fail)? {
            let path = file.map_err(fail)?.path();
            if path.is_file() {
                found.extend(certificates("tls-ca-cert-dir", &path.to_string_lossy())?);
            }
        }
    }
    if found.is_empty() {
        return Err("Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-auth-clients is enabled".to_owned());
    }
    let mut store = RootCertStore::empty();
    for certificate in found {
        store.add(certificate).map_err(|error| format!("tls-ca-cert-file: {error}"))?;
    }
    Ok(store)
}

fn versions(protocols: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut versions = Vec::new();
    for word in protocols.split([' ', ',']).filter(|word| !word.is_empty()) {
        versions.push(match word.to_ascii_lowercase().as_str() {
            "tlsv1.2" => &TLS12,
            "tlsv1.3" => &TLS13,
            _ => return Err(format!("tls-protocols: {word}: only TLSv1.2 and TLSv1.3 are supported")),
        });
    }
    if versions.is_empty() {
        versions = vec![&TLS13, &TLS12];
    }
    Ok(versions)
}

/// A TCP socket whose calls never block. It registers no waker: its user learns elsewhere when to try again.
pub struct Socket {
    stream: TcpStream,
}

impl Socket {
    /// Wraps a socket.
    pub fn new(stream: TcpStream) -> Socket {
        Socket { stream }
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// Converts the result of a non-blocking system call.
fn at_once<T>(result: Result<T, Errno>) -> Poll<io::Result<T>> {
    match result {
        Err(Errno::AGAIN | Errno::INTR) => Poll::Pending,
        other => Poll::Ready(other.map_err(io::Error::from)),
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let into = buf.initialize_unfilled();
        at_once(rustix::net::recv(&self.stream, into, RecvFlags::DONTWAIT)).map_ok(|(count, _)| buf.advance(count))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        at_once(rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        at_once(rustix::net::shutdown(&self.stream, Shutdown::Write))
    }
}

/// Polls a future once, and returns its result as a system call would.
pub fn go_on<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>) -> Result<T, Errno> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => Err(Errno::AGAIN),
        Poll::Ready(done) => done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::CONNRESET)),
    }
}

/// Receives decrypted bytes.
pub fn receive(tls: &Tls, into: &mut [u8]) -> Result<usize, Errno> {
    let mut into = ReadBuf::new(into);
    go_on(|cx| Pin::new(&mut *tls.borrow_mut()).poll_read(cx, &mut into))?;
    Ok(into.filled().len())
}

/// Encrypts and sends.
pub fn send(tls: &Tls, bytes: &[u8]) -> Result<usize, Errno> {
    go_on(|cx| Pin::new(&mut *tls.borrow_mut()).poll_write(cx, bytes))
}

/// Flushes encrypted bytes to the socket.
pub fn flush(tls: &Tls) -> Result<(), Errno> {
    go_on(|cx| Pin::new(&mut *tls.borrow_mut()).poll_flush(cx))
}

/// A connection after its handshake. The connection shares it with `server::busy`, which serves the sockets while a script runs.
pub type Tls = Rc<RefCell<TlsStream<Socket>>>;

/// Whether decrypted bytes wait to be read, and whether encrypted bytes wait to be sent.
pub fn holds(tls: &Tls) -> (bool, bool) {
    let mut tls = tls.borrow_mut();
    let (_, state) = tls.get_mut();
    // The next read reports an error.
    let decrypted = state.process_new_packets().map_or(true, |io| io.plaintext_bytes_to_read() > 0 || io.peer_has_closed());
    (decrypted, state.wants_write())
}

/// Sends close_notify, as far as the socket takes it at once.
pub fn say_goodbye(tls: &Tls) {
    let mut tls = tls.borrow_mut();
    let (socket, state) = tls.get_mut();
    state.send_close_notify();
    let mut rest = Vec::new();
    while state.wants_write() {
        if state.write_tls(&mut rest).is_err() {
            return;
        }
    }
    let _ = rustix::net::send(&socket.stream, &rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}
