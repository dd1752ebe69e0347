//! Replaces `tls` in a build without the feature of that name: there is no acceptor, so nothing is encrypted.

use std::io;

use crate::http::serve::Timed;

/// Provides settings of TLS. There are none.
#[derive(Clone, Debug)]
pub enum Acceptor {}

/// A connection after its handshake. There is none; the type is that of a plain one.
pub type Encrypted = Timed;

/// Never called.
///
/// # Errors
/// None.
pub async fn accept(acceptor: &Acceptor, _: Timed) -> io::Result<Encrypted> {
    match *acceptor {}
}
