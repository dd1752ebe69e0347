//! A TCP proxy between one client and one server, which delays and loses bytes and breaks connections.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::torture::random::Random;
use crate::torture::sim::link::{Delivery, Link};

/// Maximum number of bytes read at once.
const CHUNK: usize = 16 << 10;
/// Only longer delays are added to the network's own latency.
const LATE: Duration = Duration::from_millis(1);

/// A running proxy. It stops accepting connections when dropped.
pub struct Proxy {
    /// The address that it listens on.
    pub addr: String,
    way: Arc<Way>,
    accepting: AbortHandle,
}

struct Way {
    target: String,
    start: Instant,
    /// The impairments, as in the simulation.
    link: Mutex<Link>,
    /// Whether the next reply is lost with its connection.
    swallow: AtomicBool,
    /// Until then the server does not learn that a connection ended, because the client's machine is gone.
    silent_until: Mutex<Option<Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Starts a proxy to a server.
    ///
    /// # Errors
    /// Those of binding a socket.
    pub async fn start(target: String, start: Instant, random: Random) -> io::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?.to_string();
        let link = Mutex::new(Link::new(random));
        let way = Arc::new(Way { target, start, link, swallow: AtomicBool::new(false), silent_until: Mutex::new(None) });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&way))).abort_handle();
        Ok(Proxy { addr, way, accepting })
    }

    /// The link that decides on delays and losses.
    pub fn link(&self) -> MutexGuard<'_, Link> {
        lock(&self.way.link)
    }

    /// Loses the next reply with its connection.
    pub fn swallow(&self) {
        self.way.swallow.store(true, Ordering::Relaxed);
    }

    /// Keeps the end of connections from the server until a time.
    pub fn silent_until(&self, until: Instant) {
        *lock(&self.way.silent_until) = Some(until);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, way: Arc<Way>) {
    while let Ok((client, _)) = listener.accept().await {
        let way = Arc::clone(&way);
        tokio::spawn(async move {
            // If the server cannot be reached, the client's connection is closed.
            if let Ok(server) = TcpStream::connect(&way.target).await {
                carry(client, server, &way).await;
            }
        });
    }
}

async fn carry(client: TcpStream, mut server: TcpStream, way: &Way) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    {
        let mut client = client;
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        // The end of one direction ends the other.
        tokio::select! {
            _ = pump(from_client, to_server, way, false) => {}
            _ = pump(from_server, to_client, way, true) => {}
        }
    }
    let silent_until = *lock(&way.silent_until);
    if let Some(until) = silent_until.filter(|until| *until > Instant::now()) {
        tokio::time::sleep_until(until.into()).await;
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, way: &Way, back: bool) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let len = from.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        let now_us = way.start.elapsed().as_micros() as u64;
        let delivery = lock(&way.link).send(now_us);
        match delivery {
            Delivery::Breaks => return Ok(()),
            Delivery::Arrives(after_us) if Duration::from_micros(after_us) > LATE => {
                tokio::time::sleep(Duration::from_micros(after_us)).await;
            }
            Delivery::Arrives(_) => {}
        }
        if back && way.swallow.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        to.write_all(&buffer[..len]).await?;
    }
}
