//! Replaces `tls` in a build without the feature `tls`: refuses to connect over TLS.

use std::io;

use tokio::net::TcpStream;

use crate::client::error::{Error, Result};
use crate::client::options::Tls;

/// Placeholder for the encrypted stream. No value of it is ever created.
pub type TlsStream = TcpStream;

/// Placeholder for the connector: an enum without variants, so no value can exist.
#[derive(Clone)]
pub enum TlsConnector {}

impl TlsConnector {
    /// Returns an error.
    pub fn new(_: &Tls, _: &str) -> Result<TlsConnector> {
        Err(Error::Invalid("this client is built without TLS (cargo feature 'tls')".to_owned()))
    }

    /// Unreachable: there is no connector.
    pub async fn connect(&self, _: TcpStream) -> io::Result<TlsStream> {
        match *self {}
    }
}
