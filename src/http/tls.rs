//! TLS of the endpoint.

use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use crate::http::serve::Timed;

/// Provides the settings of the next handshake. They change when the certificates are loaded again.
pub type Acceptor = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A connection after its handshake.
pub type Encrypted = TlsStream<Timed>;

/// Performs a handshake.
///
/// # Errors
/// The client's fault, or that of its connection.
pub async fn accept(acceptor: &Acceptor, stream: Timed) -> io::Result<Encrypted> {
    tokio_rustls::TlsAcceptor::from(acceptor()).accept(stream).await
}
