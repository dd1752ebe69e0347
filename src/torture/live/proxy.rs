//! A TCP proxy between one client and one server, on which bytes are late or lost and connections break.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::torture::random::Random;
use crate::torture::sim::link::{Fate, Link};

/// Bytes that are taken at once.
const CHUNK: usize = 16 << 10;
/// What is later than this is made late; all else takes the time that it takes.
const LATE: Duration = Duration::from_millis(1);

/// A client's way to a server.
pub struct Proxy {
    /// Where it listens.
    pub addr: String,
    way: Arc<Way>,
    accepting: AbortHandle,
}

struct Way {
    target: String,
    start: Instant,
    /// What happens to bytes: as in the simulation.
    link: Mutex<Link>,
    /// The next reply is lost with its connection.
    swallow: AtomicBool,
    /// The client's machine is gone: until then nobody tells the server.
    silent_until: Mutex<Option<Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Listens for connections to a server.
    ///
    /// # Errors
    /// Where there is no port.
    pub async fn start(target: String, start: Instant, random: Random) -> io::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?.to_string();
        let link = Mutex::new(Link::new(random));
        let way = Arc::new(Way { target, start, link, swallow: AtomicBool::new(false), silent_until: Mutex::new(None) });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&way))).abort_handle();
        Ok(Proxy { addr, way, accepting })
    }

    /// What is wrong with it.
    pub fn link(&self) -> MutexGuard<'_, Link> {
        lock(&self.way.link)
    }

    /// Loses the next reply with its connection.
    pub fn swallow(&self) {
        self.way.swallow.store(true, Ordering::Relaxed);
    }

    /// The client's machine is gone.
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
            // Where there is no server, the client is told so by the end of its connection.
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
        // Whichever ends first takes the other with it.
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
        let fate = lock(&way.link).send(now_us);
        match fate {
            Fate::Breaks => return Ok(()),
            Fate::Arrives(after_us) if Duration::from_micros(after_us) > LATE => {
                tokio::time::sleep(Duration::from_micros(after_us)).await;
            }
            Fate::Arrives(_) => {}
        }
        if back && way.swallow.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        to.write_all(&buffer[..len]).await?;
    }
}
