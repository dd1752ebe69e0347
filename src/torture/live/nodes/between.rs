//! Proxies between the nodes: they cut any direction between any two of them, delay what is sent, and break connections.
//!
//! As in TCP, nothing is lost on a connection: what is sent across a cut arrives when the cut is over, and so does the end of a
//! connection.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::quorum::net::{INTRODUCTION, introduced};
use crate::torture::live::world::lock;
use crate::torture::random::Random;
use crate::torture::sim::link::{Delivery, Link};
use crate::torture::sim::replica::links::Links;

/// Maximum number of bytes read at once.
const CHUNK: usize = 64 << 10;
/// Interval between looks at a direction that is cut.
const LOOK: Duration = Duration::from_millis(5);
/// Only longer delays are added to the network's own latency.
const LATE: Duration = Duration::from_millis(1);

/// The proxies. They stop accepting connections when dropped.
pub struct Between {
    /// The ports at which the nodes reach each other.
    pub ports: Vec<u16>,
    ways: Arc<Ways>,
    accepting: Vec<AbortHandle>,
}

struct Ways {
    start: Instant,
    cuts: Mutex<Links>,
    /// The impairment of all connections.
    link: Mutex<Link>,
}

impl Ways {
    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn is_cut(&self, from: u32, to: u32) -> bool {
        let now_us = self.now_us();
        lock(&self.cuts).is_cut(now_us, from, to)
    }

    /// Waits until nothing is cut in the direction.
    async fn until_open(&self, from: u32, to: u32) {
        while self.is_cut(from, to) {
            sleep(LOOK).await;
        }
    }

    /// Waits until nothing is cut in either direction.
    async fn until_open_both(&self, one: u32, other: u32) {
        while self.is_cut(one, other) || self.is_cut(other, one) {
            sleep(LOOK).await;
        }
    }
}

impl Between {
    /// Starts a proxy before each node, which listens on one of these ports for the others.
    ///
    /// # Errors
    /// Those of binding a socket.
    pub async fn start(targets: &[u16], mut random: Random) -> io::Result<Between> {
        let cuts = Mutex::new(Links::new(random.clone()));
        random.draw();
        let ways = Arc::new(Ways { start: Instant::now(), cuts, link: Mutex::new(Link::new(random)) });
        let (mut ports, mut accepting) = (Vec::new(), Vec::new());
        for (to, target) in (0..).zip(targets) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            ports.push(listener.local_addr()?.port());
            accepting.push(tokio::spawn(accept(listener, to, *target, Arc::clone(&ways))).abort_handle());
        }
        Ok(Between { ports, ways, accepting })
    }

    /// Cuts nodes off from others for a time: whether they cannot send, and whether they cannot receive.
    pub fn part(&self, for_us: u64, apart: (u32, u32), ways: (bool, bool)) {
        let until_us = self.ways.now_us() + for_us;
        lock(&self.ways.cuts).part(until_us, apart, ways);
    }

    /// Delays all messages for a time, and breaks connections with this probability for each message, in percent.
    pub fn disorder(&self, for_us: u64, most_us: u64, percent: u64) {
        let until_us = self.ways.now_us() + for_us;
        let mut link = lock(&self.ways.link);
        link.delay(until_us, most_us);
        link.lose(until_us, percent, true);
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.accepting.iter().for_each(AbortHandle::abort);
    }
}

async fn accept(listener: TcpListener, to: u32, target: u16, ways: Arc<Ways>) {
    while let Ok((near, _)) = listener.accept().await {
        let ways = Arc::clone(&ways);
        tokio::spawn(async move {
            // An error ends the connection, which the nodes notice.
            let _ = carry(near, to, target, &ways).await;
        });
    }
}

/// Carries a connection that a node has opened to the node `to`.
async fn carry(mut near: TcpStream, to: u32, target: u16, ways: &Ways) -> io::Result<()> {
    let mut first = [0; INTRODUCTION];
    near.read_exact(&mut first).await?;
    let from = introduced(&first) as u32 - 1;
    // The handshake of TCP needs both directions.
    ways.until_open_both(from, to).await;
    let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    far.write_all(&first).await?;
    {
        let ((from_near, to_near), (from_far, to_far)) = (near.split(), far.split());
        tokio::select! {
            _ = pump(from_near, to_far, ways, (from, to)) => {}
            _ = pump(from_far, to_near, ways, (to, from)) => {}
        }
    }
    ways.until_open_both(from, to).await;
    Ok(())
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    ways: &Ways,
    (source, target): (u32, u32),
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let len = from.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        ways.until_open(source, target).await;
        let delivery = lock(&ways.link).send(ways.now_us());
        match delivery {
            Delivery::Breaks => return Ok(()),
            Delivery::Arrives(after_us) if Duration::from_micros(after_us) > LATE => sleep(Duration::from_micros(after_us)).await,
            Delivery::Arrives(_) => {}
        }
        to.write_all(&buffer[..len]).await?;
    }
}
