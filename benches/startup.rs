//! How long a server takes from exec to its first reply: `cargo bench --bench startup [-- ROUNDS]`.
//!
//! Starts Portcullis and redis-server in turn, each as a process of its own on a fixed loopback port that was free, and connects over and over
//! until it is let in; then sends a PING. The figure is the time from just before the process is made to the reply. A port that is
//! known beforehand leaves nothing else to wait for: no file, no line of output. Prints medians and the ends of the range, and the
//! floor: what a program takes that does nothing (`/bin/true`). Ends with one line of JSON.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn started(mut command: Command) -> Running {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Running(child.expect("the program starts"))
}

/// From exec to the first reply.
fn first_reply(program: &Path, args: impl Fn(SocketAddr) -> Vec<String>) -> Duration {
    let addr = TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr()).expect("a free port");
    let mut command = Command::new(program);
    command.args(args(addr));
    let begin = Instant::now();
    let server = started(command);
    let end = begin + Duration::from_secs(20);
    let mut reply = [0; 7];
    loop {
        assert!(Instant::now() < end, "{} does not answer", program.display());
        if let Ok(mut stream) = TcpStream::connect(addr)
            && stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && &reply == b"+PONG\r\n"
        {
            break;
        }
        // Lets the server have this core, too.
        std::thread::sleep(Duration::from_micros(20));
    }
    let took = begin.elapsed();
    drop(server);
    took
}

fn floor() -> Duration {
    let begin = Instant::now();
    let mut nothing = started(Command::new("/bin/true"));
    nothing.0.wait().expect("it ends");
    begin.elapsed()
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

fn main() {
    let rounds: usize = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(100);
    let here = PathBuf::from(env!("CARGO_BIN_EXE_portcullis"));
    let words = |text: String| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    let plain = |addr: SocketAddr| words(format!("serve --bind 127.0.0.1 --port {}", addr.port()));
    let tested = |addr: SocketAddr| words(format!("serve --test-mode --bind 127.0.0.1 --port {}", addr.port()));
    let redis_args = |addr: SocketAddr| words(format!("--bind 127.0.0.1 --port {} --save  --appendonly no", addr.port()));
    let redis = on_path("redis-server");
    let mut took: [Vec<Duration>; 4] = Default::default();
    for _ in 0..rounds {
        took[0].push(first_reply(&here, plain));
        took[1].push(first_reply(&here, tested));
        if let Some(redis) = &redis {
            took[2].push(first_reply(redis, redis_args));
        }
        took[3].push(floor());
    }
    println!("exec to first PONG, {rounds} rounds each, ms\n{:<24}{:>8}{:>8}{:>8}", "", "median", "least", "p90");
    let mut json = Vec::new();
    for (name, took) in ["portcullis", "portcullis --test-mode", "redis-server", "/bin/true"].iter().zip(&mut took) {
        if took.is_empty() {
            println!("{name:<24} is not installed");
            continue;
        }
        took.sort_unstable();
        let ms = |at: usize| took[at.min(took.len() - 1)].as_secs_f64() * 1000.0;
        let [median, least, p90] = [took.len() / 2, 0, took.len() * 9 / 10].map(ms);
        println!("{name:<24}{median:>8.2}{least:>8.2}{p90:>8.2}");
        json.push(format!("\"{name}\":{median:.3}"));
    }
    println!("{{{}}}", json.join(","));
}
