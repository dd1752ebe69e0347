//! Proxies between the nodes. They cut any direction between any two of them, and hand over later what was sent meanwhile, as TCP does.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a direction that is cut is looked at again.
const LOOK: Duration = Duration::from_millis(5);
/// Where a node says its number in its first frame: length, kind, id, magic and version are before it.
const NUMBER_AT: usize = 4 + 1 + 8 + 8 + 2;

/// What is cut: `[from][to]`, by the nodes counted from 0.
#[derive(Default)]
pub struct Cuts([[AtomicBool; 3]; 3]);

impl Cuts {
    /// Cuts one direction.
    pub fn cut(&self, from: usize, to: usize) {
        self.0[from][to].store(true, Ordering::Relaxed);
    }

    /// Cuts both directions between two nodes.
    pub fn part(&self, a: usize, b: usize) {
        self.cut(a, b);
        self.cut(b, a);
    }

    /// Cuts a node off from all others.
    pub fn isolate(&self, node: usize) {
        (0..3).filter(|other| *other != node).for_each(|other| self.part(node, other));
    }

    /// Everything gets through again.
    pub fn heal(&self) {
        self.0.iter().flatten().for_each(|cut| cut.store(false, Ordering::Relaxed));
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.0[from][to].load(Ordering::Relaxed)
    }
}

/// Starts a proxy before each of these ports. Returns their ports. They end with the process.
pub fn start(targets: &[u16], cuts: &Arc<Cuts>) -> Vec<u16> {
    let before = |(to, target): (usize, &u16)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cuts, target) = (Arc::clone(cuts), *target);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let cuts = Arc::clone(&cuts);
                std::thread::spawn(move || carry(stream, to, target, &cuts));
            }
        });
        port
    };
    targets.iter().enumerate().map(before).collect()
}

/// Carries a connection that a node has opened to the node `to`.
fn carry(mut near: TcpStream, to: usize, target: u16, cuts: &Arc<Cuts>) {
    let mut first = [0; NUMBER_AT + 1];
    if near.read_exact(&mut first).is_err() {
        return;
    }
    let from = usize::from(first[NUMBER_AT]) - 1;
    while cuts.is_cut(from, to) || cuts.is_cut(to, from) {
        // The handshake of TCP needs both directions.
        std::thread::sleep(LOOK);
    }
    let Ok(mut far) = TcpStream::connect(("127.0.0.1", target)) else { return };
    if far.write_all(&first).is_err() {
        return;
    }
    let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else { return };
    let there = {
        let cuts = Arc::clone(cuts);
        std::thread::spawn(move || pump(near, far, || cuts.is_cut(from, to)))
    };
    pump(far_again, near_again, || cuts.is_cut(to, from));
    let _ = there.join();
}

/// Copies bytes until the connection ends, except while they are cut off.
fn pump(mut from: TcpStream, mut to: TcpStream, is_cut: impl Fn() -> bool) {
    let mut buffer = vec![0; 64 << 10];
    let _ = (from.set_nodelay(true), to.set_nodelay(true), from.set_read_timeout(Some(Duration::from_millis(50))));
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        while is_cut() {
            std::thread::sleep(LOOK);
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The end of a connection is not told across a cut either.
    while is_cut() {
        std::thread::sleep(LOOK);
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
