//! Stands in for `tls` in a build without the feature of that name: it refuses to connect over TLS.

use std::io;

use tokio::net::TcpStream;

use crate::client::error::{Error, Result};
use crate::client::options::Tls;

/// The stream that there would be. None is made.
pub type TlsStream = TcpStream;

/// What makes encrypted streams. There is none.
#[derive(Clone)]
pub enum TlsConnector {}

impl TlsConnector {
    /// Refuses.
    pub fn new(_: &Tls, _: &str) -> Result<TlsConnector> {
        Err(Error::Invalid("this client is built without TLS (cargo feature 'tls')".to_owned()))
    }

    /// Is not called: there is no connector.
    pub async fn connect(&self, _: TcpStream) -> io::Result<TlsStream> {
        match *self {}
    }
}
