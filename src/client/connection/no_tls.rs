//! Replaces the module `tls` in a build without the cargo feature `tls`: refuses options that ask for TLS.

use std::io;

use tokio::net::TcpStream;

use crate::client::error::{Error, Result};
use crate::client::options::Tls;

/// Stands for the encrypted stream. No value of this type is ever created.
pub type TlsStream = TcpStream;

/// Stands for the connector. An enum without variants has no values.
#[derive(Clone)]
pub enum TlsConnector {}

impl TlsConnector {
    /// Returns an error.
    pub fn new(_: &Tls, _: &str) -> Result<TlsConnector> {
        Err(Error::Invalid("this client is built without TLS (cargo feature 'tls')".to_owned()))
    }

    /// Unreachable, because there is no connector.
    pub async fn connect(&self, _: TcpStream) -> io::Result<TlsStream> {
        match *self {}
    }
}
