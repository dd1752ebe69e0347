//! Accepts connections and serves them with hyper, within bounds.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::http::api;
use crate::http::api::App;
use crate::http::tls;
use crate::http::tls::Acceptor;

/// Maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// Time for the head of a request to arrive, from its first byte, and for a TLS handshake.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// A connection on which nothing is read or written for this long is closed.
const STILL_TIME: Duration = Duration::from_secs(30);
/// Rest after `accept` fails for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The answer to a client beyond the maximum.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 44\r\nConnection: close\r\n\
\r\n{\"error\":\"64 connections are open already\"}\n";

/// Serves until the system refuses the socket. Dropping the future closes all connections.
///
/// # Errors
/// The socket cannot be used.
pub async fn serve(listener: std::net::TcpListener, acceptor: Option<Acceptor>, app: Arc<App>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let router = api::router(Arc::clone(&app));
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
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
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else {
            refuse(stream, acceptor.is_none()).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (router, acceptor) = (router.clone().layer(Extension(from)), acceptor.clone());
        connections.spawn(async move {
            let stream = Timed::new(stream);
            match acceptor {
                None => converse(stream, router).await,
                Some(acceptor) => {
                    if let Ok(Ok(stream)) = timeout(HEAD_TIME, tls::accept(&acceptor, stream)).await {
                        converse(stream, router).await;
                    }
                }
            }
            drop(permit);
        });
    }
}

/// Tells a client that there are too many, as far as its socket takes it at once.
async fn refuse(mut stream: TcpStream, plain: bool) {
    if plain {
        let _ = timeout(Duration::from_millis(10), stream.write_all(FULL)).await;
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_MAX);
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
