//! The socket under a connection: TCP, TLS over TCP, or a unix socket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::client::error::{Error, Result};
use crate::client::options::{Address, Options, Tls};

/// A peer that has gone without a word is noticed within about half a minute, also where nothing is to be sent.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// How to connect, with certificates read.
#[derive(Clone)]
pub(crate) struct Connector {
    address: Address,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    /// Reads certificates, where there are any.
    pub fn new(options: &Options) -> Result<Connector> {
        let tls = match (&options.tls, &options.address) {
            (None, _) => None,
            (Some(_), Address::Unix(_)) => return Err(Error::Invalid("no TLS over a unix socket".to_owned())),
            (Some(tls), Address::Tcp { host, .. }) => {
                let name = tls.server_name.clone().unwrap_or_else(|| host.clone());
                let name = ServerName::try_from(name).map_err(|error| Error::Invalid(error.to_string()))?;
                Some((TlsConnector::from(settings(tls)?), name))
            }
        };
        Ok(Connector { address: options.address.clone(), tls })
    }

    pub async fn connect(&self) -> io::Result<Stream> {
        let (host, port) = match &self.address {
            Address::Unix(path) => return UnixStream::connect(path).await.map(Stream::Unix),
            Address::Tcp { host, port } => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let (after, every, times) = KEEPALIVE;
        let keepalive = socket2::TcpKeepalive::new().with_time(after).with_interval(every).with_retries(times);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        match &self.tls {
            None => Ok(Stream::Tcp(stream)),
            Some((connector, name)) => Ok(Stream::Tls(Box::new(connector.connect(name.clone(), stream).await?))),
        }
    }
}

fn settings(tls: &Tls) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            let fail = |error: &dyn std::fmt::Display| Error::Invalid(format!("{}: {error}", path.display()));
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fail(&error))? {
                roots.add(certificate.map_err(|error| fail(&error))?).map_err(|error| fail(&error))?;
            }
        }
        None => {
            // Those that cannot be read or used are left out, as other programs do.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(Error::Invalid("no authority is known that a server's certificate could be signed by".to_owned()));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Invalid(error.to_string()))?
        .with_root_certificates(roots);
    let settings = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let fail = |error: &dyn std::fmt::Display| {
                Error::Invalid(format!("{} and {}: {error}", certificate.display(), key.display()))
            };
            let chain = CertificateDer::pem_file_iter(certificate).map_err(|error| fail(&error))?;
            let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| fail(&error))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| fail(&error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| fail(&error))?
        }
    };
    Ok(Arc::new(settings))
}

/// Does the same to whatever kind of socket it is.
macro_rules! of_each {
    ($self:expr, $stream:ident => $what:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $what,
            Stream::Tls($stream) => $what,
            Stream::Unix($stream) => $what,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        of_each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        of_each!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
