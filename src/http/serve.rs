//! Accepts connections and serves them with hyper, within bounds.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::http::api;
use crate::http::api::{App, CONNECTIONS_MAX};
use crate::http::tls;
use crate::http::tls::Acceptor;

/// Maximum number of bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// Time for the head of a request to arrive, from its first byte, and for a TLS handshake.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// A connection on which nothing is read or written for this long is closed.
const STILL_TIME: Duration = Duration::from_secs(30);
/// Rest after `accept` fails for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of connections beyond these, which get health alone: clients that take all the others do not make the server look
/// dead. The oldest one gives way to a new one.
const RESERVED_MAX: usize = 32;
/// Time for such a connection to be answered.
const RESERVED_TIME: Duration = Duration::from_secs(5);

/// Serves until the system refuses the socket. Dropping the future closes all connections.
///
/// # Errors
/// The socket cannot be used.
pub async fn serve(listener: std::net::TcpListener, acceptor: Option<Acceptor>, app: Arc<App>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let (router, health) = (api::router(Arc::clone(&app)), api::health_router(Arc::clone(&app)));
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut reserved: VecDeque<AbortHandle> = VecDeque::new();
    connections.spawn(api::watch(app));
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for HTTP");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (from, acceptor) = (Extension(from), acceptor.clone());
        if let Ok(permit) = Arc::clone(&free).try_acquire_owned() {
            let talk = converse(stream, acceptor, router.clone().layer(from), true);
            connections.spawn(async move {
                talk.await;
                drop(permit);
            });
            continue;
        }
        reserved.retain(|connection| !connection.is_finished());
        if reserved.len() == RESERVED_MAX
            && let Some(oldest) = reserved.pop_front()
        {
            oldest.abort();
        }
        let talk = timeout(RESERVED_TIME, converse(stream, acceptor, health.clone().layer(from), false));
        reserved.push_back(connections.spawn(async { drop(talk.await) }));
        // Its request may be there. It is answered before others that wait to be accepted displace it.
        yield_now().await;
    }
}

/// Answers the requests of a connection: one, or as many as it has time for.
async fn converse(stream: TcpStream, acceptor: Option<Acceptor>, router: Router, keep_alive: bool) {
    let stream = Timed::new(stream);
    match acceptor {
        None => answer(stream, router, keep_alive).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = timeout(HEAD_TIME, tls::accept(&acceptor, stream)).await {
                answer(stream, router, keep_alive).await;
            }
        }
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, router: Router, keep_alive: bool) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_MAX).keep_alive(keep_alive);
    // A client that leaves or talks nonsense has been answered as far as possible.
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
}

/// A socket that fails when nothing is read from it or written to it for [`STILL_TIME`].
pub struct Timed {
    stream: TcpStream,
    still: Pin<Box<Sleep>>,
}

impl Timed {
    fn new(stream: TcpStream) -> Timed {
        Timed { stream, still: Box::pin(sleep(STILL_TIME)) }
    }

    /// Notes progress, or fails if there was none for too long.
    fn watch<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.still.as_mut().reset(Instant::now() + STILL_TIME);
            return polled;
        }
        ready!(self.still.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Timed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.watch(cx, polled)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
