//! The HTTP endpoint of a server: metrics for Prometheus, health, and what the page about locks shows.
//!
//! ```text
//!   listener ─▶ serve: hyper, TLS, limits ─▶ gate: Host, Origin, credentials ─┬─▶ health
//!                                                                            ├─▶ metrics
//!                                                                            ├─▶ api, figures, recent, events ─▶ json
//!                                                                            └─▶ page
//!                                                  all of them ─▶ link ─▶ Inside: client connections within the process
//! ```
//!
//! It has a thread and a runtime of its own and shares nothing with the executor. What it knows of the server it asks as a client
//! does, over socket pairs of which the executor has the other ends, with the credentials of the HTTP request. So users' rules,
//! limits and meanings are those of any client.

mod api;
mod credentials;
mod events;
mod figures;
mod gate;
mod health;
mod json;
mod link;
pub mod metrics;
mod page;
mod recent;
mod serve;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod trouble;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::http::api::App;
pub use crate::http::link::{Inside, Serves, State};
pub use crate::http::tls::Acceptor;

/// What an endpoint needs.
pub struct Settings {
    /// The socket that it listens on.
    pub listener: TcpListener,
    /// Provides the present settings of TLS; `None` for plain HTTP.
    pub tls: Option<Acceptor>,
    /// The host name that it is bound by, if it is not an address.
    pub name: Option<String>,
    /// Maximum number of locks with metrics of their own.
    pub metrics_locks: usize,
}

/// Niceness of the thread.
const NICE: i32 = 5;

/// A running endpoint. Dropping it ends it.
pub struct Endpoint {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts the endpoint's thread.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(settings: Settings, inside: Arc<dyn Inside>) -> io::Result<Endpoint> {
        let beyond_loopback = !settings.listener.local_addr()?.ip().is_loopback();
        settings.listener.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let (end, ended) = oneshot::channel();
        let run = move || {
            // On Linux the niceness is the thread's own: pages and scrapes do not take the processor from the executor.
            let _ = rustix::process::setpriority_process(None, NICE);
            runtime.block_on(async move {
                let Settings { listener, tls, name, metrics_locks } = settings;
                let app = Arc::new(App::new(inside, name, tls.is_some(), beyond_loopback, metrics_locks));
                tokio::select! {
                    served = serve::serve(listener, tls, app) => if let Err(error) = served {
                        tracing::error!(%error, "the HTTP endpoint has failed");
                    },
                    _ = ended => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(run)?;
        Ok(Endpoint { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It has told of a panic already.
            let _ = thread.join();
        }
    }
}
