//! The HTTP endpoint of a server: whether it may be offered at its address, and its connections to the executor.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use crate::http::Endpoint;

use crate::driver::round::Driving;
use crate::engine::config::Config;
use crate::engine::observe::notices::Notice;
use crate::engine::users::Users;
use crate::engine::users::guesses::Source;
use crate::http::{Inside, Serves, Settings, State};
use crate::server::net::control::Control;
use crate::server::net::listener;
use crate::server::net::listener::Accepted;
use crate::server::net::tls::{self, ServerConfig};
use crate::server::shell::Shell;

/// What `CLIENT LIST` shows as the address of the endpoint's connections that serve nobody in particular.
const SHOWN: &str = "http:0";

/// The TLS settings of the endpoint, which may be renewed.
pub type SharedTls = Arc<Mutex<Arc<ServerConfig>>>;

/// Puts renewed settings in force for further handshakes.
pub fn renew(shared: &SharedTls, settings: &Arc<ServerConfig>) {
    *shared.lock().unwrap_or_else(PoisonError::into_inner) = for_http(settings);
}

/// Settings for HTTP: browsers ask for a protocol.
#[cfg(feature = "tls")]
fn for_http(settings: &Arc<ServerConfig>) -> Arc<ServerConfig> {
    let mut settings = ServerConfig::clone(settings);
    settings.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(settings)
}

#[cfg(not(feature = "tls"))]
fn for_http(settings: &Arc<ServerConfig>) -> Arc<ServerConfig> {
    Arc::clone(settings)
}

#[cfg(feature = "tls")]
fn acceptor(shared: SharedTls) -> crate::http::Acceptor {
    Arc::new(move || Arc::clone(&shared.lock().unwrap_or_else(PoisonError::into_inner)))
}

#[cfg(not(feature = "tls"))]
fn acceptor(_: SharedTls) -> crate::http::Acceptor {
    unreachable!("{}", tls::NOT_UPDATED)
}

/// An endpoint whose address is bound, and that does not serve yet.
pub struct Prepared {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<SharedTls>,
    name: Option<String>,
    metrics_locks: usize,
}

impl Prepared {
    /// Binds the address of the directive `http`; `None` without one.
    ///
    /// # Errors
    /// In words: the address is wrong or cannot be bound, or it lies beyond loopback and there is no TLS or no password.
    pub fn new(config: &Config, users: &Users) -> Result<Option<Prepared>, String> {
        let asked = config.http.as_str();
        if asked.is_empty() {
            return Ok(None);
        }
        let address = asked.to_socket_addrs().ok().and_then(|mut found| found.next());
        let address = address.ok_or_else(|| format!("'{asked}' is not an address of the form host:port"))?;
        let beyond_loopback = !address.ip().is_loopback();
        if beyond_loopback && !users.login_needed() {
            return Err(format!(
                "{asked} can be reached from other machines, but the default user needs no password: set requirepass or users with \
                 passwords, or choose an address such as 127.0.0.1:{}",
                address.port()
            ));
        }
        if beyond_loopback && config.tls_cert_file.is_empty() {
            return Err(format!(
                "{asked} can be reached from other machines, but passwords would cross the network in the clear: set tls-cert-file \
                 and tls-key-file, or choose an address such as 127.0.0.1:{}",
                address.port()
            ));
        }
        let tls = if beyond_loopback || config.http_tls {
            let settings = tls::settings(config).map_err(|reason| format!("TLS cannot be configured: {reason}"))?;
            Some(Arc::new(Mutex::new(for_http(&settings))))
        } else {
            None
        };
        let listener = TcpListener::bind(address).map_err(|error| format!("Could not bind {asked}: {error}."))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
        let is_name = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_err();
        let name = is_name.then(|| host.to_owned());
        Ok(Some(Prepared { listener, address, tls, name, metrics_locks: config.http_metrics_locks as usize }))
    }

    /// The address that it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its TLS settings, if it has any.
    pub fn tls(&self) -> Option<SharedTls> {
        self.tls.clone()
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(self, control: Control<Shell>) -> io::Result<Endpoint> {
        let Prepared { listener, tls, name, metrics_locks, .. } = self;
        let settings = Settings { listener, tls: tls.map(acceptor), name, metrics_locks };
        Endpoint::start(settings, Arc::new(Executor { control: Mutex::new(control) }))
    }
}

/// The way to the executor.
struct Executor {
    /// The mutex lets threads share it; the endpoint has only one.
    control: Mutex<Control<Shell>>,
}

impl Executor {
    fn send(&self, closure: impl FnOnce(&mut Shell) + Send + 'static) {
        self.control.lock().unwrap_or_else(PoisonError::into_inner).send(Box::new(closure));
    }
}

impl Inside for Executor {
    fn connect(&self, serves: Serves) -> io::Result<UnixStream> {
        let shown = if let Serves::One(addr) = serves { addr.to_string() } else { SHOWN.to_owned() };
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        // If the server has ended, the order is dropped, and with it the executor's end.
        self.send(move |shell| {
            let now = shell.clock.now();
            let Some(connection) = listener::welcome(&mut shell.driver.engine, now, Accepted::within(theirs.into(), shown))
            else {
                return;
            };
            if serves == Serves::Trusted {
                shell.driver.engine.trust(connection.id);
            }
            shell.busy.add_new_connection(connection);
            shell.after_closure();
        });
        Ok(ours)
    }

    fn login(&self, from: IpAddr, tell: Box<dyn FnOnce(Duration) + Send>) {
        self.send(move |shell| {
            let now = shell.clock.now();
            let due = Source::of(from).and_then(|source| shell.driver.engine.login_due(now, source));
            tell(Duration::from_millis(due.map_or(0, |due| due.saturating_sub(now.mono_ms()))));
        });
    }

    fn login_failed(&self, from: IpAddr) {
        self.send(move |shell| {
            let now = shell.clock.now();
            if let Some(source) = Source::of(from) {
                let wait_ms = shell.driver.engine.login_failed(now, source);
                shell.driver.engine.notice(now, None, Notice::HttpLoginFailed { addr: &from.to_string(), wait_ms });
            }
        });
    }

    fn state(&self, tell: Box<dyn FnOnce(State) + Send>) {
        self.send(move |shell| {
            let replication = shell.driver.engine.replication();
            let loading = shell.driver.engine.persistence().loading().is_some();
            // A follower names its last leader until it knows of another one, also while that is dead.
            let me = replication.state().node;
            let led = replication.leader().is_some_and(|leader| leader.id == me || leader.link_up);
            tell(State { loading, leaderless: replication.is_on() && !led });
        });
    }
}
