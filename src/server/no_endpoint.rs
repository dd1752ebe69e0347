//! Replaces `endpoint` in a build without the feature `http`. It refuses to configure HTTP, and declares the types of `endpoint`
//! without values.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::engine::config::Config;
use crate::engine::users::Users;
use crate::server::net::control::Control;
use crate::server::net::tls::ServerConfig;
use crate::server::shell::Shell;

/// The TLS settings of an endpoint. There are none.
pub type SharedTls = Infallible;

/// A running endpoint. There is none.
pub struct Endpoint(Infallible);

/// An endpoint whose address is bound. There is none.
pub struct Prepared(Infallible);

/// Never called.
pub fn renew(shared: &SharedTls, _: &Arc<ServerConfig>) {
    match *shared {}
}

impl Prepared {
    /// Refuses to configure HTTP.
    ///
    /// # Errors
    /// For the operator who configured it.
    pub fn new(config: &Config, _: &Users) -> Result<Option<Prepared>, String> {
        if config.http.is_empty() { Ok(None) } else { Err("this server is built without it (cargo feature 'http')".to_owned()) }
    }

    /// The address that it is bound to.
    pub fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    /// Its TLS settings.
    pub fn tls(&self) -> Option<SharedTls> {
        match self.0 {}
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// None.
    pub fn start(self, _: Control<Shell>) -> io::Result<Endpoint> {
        match self.0 {}
    }
}
