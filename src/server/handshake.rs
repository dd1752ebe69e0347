//! TLS handshakes: those that are under way, and how many of them and for how long there may be.
//!
//! A client has no session before its handshake is done, so that one who never gets there costs a socket and little more, and that
//! not for long. A storm of clients that mean it waits in the backlog; clients that are silent make room after a second.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::engine::turns::Task;
use crate::server::listener::{self, pause};
use crate::server::shell::Shell;
use crate::server::tls::Socket;
use crate::server::turns;

/// Handshakes that may be under way at once.
const UNFINISHED_MAX: usize = 256;
/// How long one may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long one is safe from being given up for others.
const PATIENCE: Duration = Duration::from_secs(1);

type Shared = Rc<RefCell<Pin<Box<Accept<Socket>>>>>;

/// A handshake that is under way.
struct Unfinished {
    since: Instant,
    addr: SocketAddr,
    accept: Shared,
    task: Option<AbortHandle>,
}

/// A client whose handshake is done.
pub(super) struct Greeted {
    pub(super) tls: TlsStream<Socket>,
    pub(super) addr: SocketAddr,
}

/// The handshakes of a server.
pub(super) struct Handshakes {
    settings: RefCell<Arc<ServerConfig>>,
    unfinished: RefCell<BTreeMap<u64, Unfinished>>,
    begun: Cell<u64>,
    ended: Notify,
    /// Whether sockets are to be used past the runtime.
    direct: Rc<Cell<bool>>,
}

impl Handshakes {
    /// None is under way yet.
    pub(super) fn new(settings: Arc<ServerConfig>) -> Handshakes {
        Handshakes {
            settings: RefCell::new(settings),
            unfinished: RefCell::default(),
            begun: Cell::new(0),
            ended: Notify::new(),
            direct: Rc::default(),
        }
    }

    /// Has the handshakes to come made by something else.
    pub(super) fn renew(&self, settings: Arc<ServerConfig>) {
        *self.settings.borrow_mut() = settings;
    }

    /// Has all sockets used past the runtime from now on, or through it.
    pub(super) fn set_direct(&self, direct: bool) {
        self.direct.set(direct);
    }

    /// Begins one.
    pub(super) fn begin(self: &Rc<Self>, shell: Rc<RefCell<Shell>>, stream: TcpStream, addr: SocketAddr) {
        let number = self.begun.get();
        self.begun.set(number + 1);
        let socket = Socket::new(stream, Rc::clone(&self.direct));
        let acceptor = TlsAcceptor::from(Arc::clone(&self.settings.borrow()));
        let accept: Shared = Rc::new(RefCell::new(Box::pin(acceptor.accept(socket))));
        let unfinished = Unfinished { since: Instant::now(), addr, accept: Rc::clone(&accept), task: None };
        self.unfinished.borrow_mut().insert(number, unfinished);
        let this = Rc::clone(self);
        let state = Rc::clone(&shell);
        let task = tokio::task::spawn_local(turns::timed(&state, Task::Accept, async move {
            let done = timeout(HANDSHAKE_MAX, poll_fn(|cx| accept.borrow_mut().as_mut().poll(cx))).await;
            this.end(number);
            match done {
                Ok(Ok(tls)) => listener::welcome_tls(&shell, Greeted { tls, addr }).await,
                Ok(Err(error)) => tell(addr, &error),
                Err(_) => tracing::debug!(%addr, "a TLS handshake took too long"),
            }
        }));
        if let Some(unfinished) = self.unfinished.borrow_mut().get_mut(&number) {
            unfinished.task = Some(task.abort_handle());
        }
    }

    fn end(&self, number: u64) -> Option<Unfinished> {
        let ended = self.unfinished.borrow_mut().remove(&number);
        self.ended.notify_one();
        ended
    }

    /// Waits until another may begin.
    async fn room(&self) {
        loop {
            let oldest = {
                let unfinished = self.unfinished.borrow();
                if unfinished.len() < UNFINISHED_MAX {
                    return;
                }
                unfinished.first_key_value().map(|(number, oldest)| (*number, oldest.since.elapsed()))
            };
            let Some((number, age)) = oldest else { return };
            if age < PATIENCE {
                let _ = timeout(PATIENCE - age, self.ended.notified()).await;
            } else if let Some(Unfinished { task: Some(task), .. }) = self.end(number) {
                task.abort();
            }
        }
    }

    /// Goes on with all handshakes without waiting for any, while a script has the thread; gives those that are done by that. Sockets
    /// must be used past the runtime.
    pub(super) fn go_on(&self) -> Vec<Greeted> {
        let numbers: Vec<u64> = self.unfinished.borrow().keys().copied().collect();
        let mut greeted = Vec::new();
        for number in numbers {
            let Some(accept) = self.unfinished.borrow().get(&number).map(|unfinished| Rc::clone(&unfinished.accept)) else {
                continue;
            };
            let mut cx = Context::from_waker(Waker::noop());
            let polled = match accept.try_borrow_mut() {
                Ok(mut accept) => accept.as_mut().poll(&mut cx),
                Err(_) => continue,
            };
            let Poll::Ready(done) = polled else { continue };
            let Some(Unfinished { addr, task, .. }) = self.end(number) else { continue };
            if let Some(task) = task {
                task.abort();
            }
            match done {
                Ok(tls) => greeted.push(Greeted { tls, addr }),
                Err(error) => tell(addr, &error),
            }
        }
        greeted
    }

    /// Whether another may begin at once.
    pub(super) fn has_room(&self) -> bool {
        self.unfinished.borrow().len() < UNFINISHED_MAX
    }
}

fn tell(addr: SocketAddr, error: &io::Error) {
    tracing::debug!(%addr, %error, "a TLS handshake failed");
}

/// Accepts on a socket for TLS for as long as the runtime runs.
pub(super) async fn accept(shell: Rc<RefCell<Shell>>, handshakes: Rc<Handshakes>, listener: TcpListener) {
    loop {
        handshakes.room().await;
        match listener.accept().await {
            Ok((stream, addr)) => handshakes.begin(Rc::clone(&shell), stream, addr),
            Err(error) => pause(error).await,
        }
    }
}
