//! TLS of the client: reads certificates and keys, and performs the handshake.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::client::error::{Error, Result};
use crate::client::options::Tls;

/// An encrypted stream.
pub type TlsStream = tokio_rustls::client::TlsStream<TcpStream>;

/// Opens encrypted streams to one server.
#[derive(Clone)]
pub struct TlsConnector {
    connector: tokio_rustls::TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnector {
    /// Reads certificates and keys. `host` is the name that the server's certificate must have, unless the options give another.
    pub fn new(tls: &Tls, host: &str) -> Result<TlsConnector> {
        let name = tls.server_name.clone().unwrap_or_else(|| host.to_owned());
        let name = ServerName::try_from(name).map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(TlsConnector { connector: tls_config(tls)?.into(), name })
    }

    /// Performs the handshake.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

fn tls_config(tls: &Tls) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            let fail = |error: &dyn std::fmt::Display| Error::Invalid(format!("{}: {error}", path.display()));
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fail(&error))? {
                roots.add(certificate.map_err(|error| fail(&error))?).map_err(|error| fail(&error))?;
            }
        }
        None => {
            // Like other programs, this skips certificates of the system that are unreadable or unusable.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    fail_if!(roots.is_empty(), Error::Invalid("no trusted certificate authority was found".to_owned()));
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Invalid(error.to_string()))?
        .with_root_certificates(roots);
    let config = match &tls.identity {
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
    Ok(Arc::new(config))
}
