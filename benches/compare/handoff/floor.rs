//! The least that handing a lock on can cost a server on this machine: a loop of `epoll_wait`, `recv` and `send` that knows one lock,
//! and of requests only where they end. It parses nothing, keeps no leases and has no history.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::epoll;

/// With this and a port this program is that server.
pub const FLAG: &str = "--floor";

/// Serves `LOCK.ACQUIRE … WAIT 0`, `LOCK.RELEASE` and the parts of `INFO` that a bench asks for, until it is killed.
pub fn serve(port: u16) -> ! {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    const LISTENER: u64 = u64::MAX;
    let add = |socket: &dyn std::os::fd::AsFd, data: u64| {
        epoll::add(&poll, socket.as_fd(), epoll::EventData::new_u64(data), epoll::EventFlags::IN).expect("epoll");
    };
    add(&listener, LISTENER);
    let mut sockets: Vec<TcpStream> = Vec::new();
    let (mut line, mut held, mut token) = (VecDeque::new(), false, 1_000_000_000_000_000_u64);
    let mut events = Vec::with_capacity(64);
    let mut buffer = [0; 4096];
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None).expect("epoll");
        for event in &events {
            let data = event.data.u64();
            if data == LISTENER {
                let (socket, _) = listener.accept().expect("accept");
                socket.set_nodelay(true).expect("nodelay");
                add(&socket, sockets.len() as u64);
                sockets.push(socket);
                continue;
            }
            let who = data as usize;
            let count = sockets[who].read(&mut buffer).unwrap_or(0);
            if count == 0 {
                epoll::delete(&poll, &sockets[who]).expect("epoll");
                continue;
            }
            // The names of the commands begin at the same place of every request.
            let name = &buffer[buffer.iter().position(|&byte| byte == b'\n').unwrap_or(0)..count];
            if name.starts_with(b"\n$4\r\nINFO") {
                let text = format!("blocked_clients:{}\r\n", line.len());
                sockets[who].write_all(format!("${}\r\n{text}\r\n", text.len()).as_bytes()).expect("write");
                sockets[who].shutdown(std::net::Shutdown::Write).expect("shutdown");
                continue;
            }
            let releases = name.starts_with(b"\n$12\r\nLOCK.RELEASE");
            held &= !releases;
            line.push_back(who);
            let next = if held { None } else { line.pop_front() };
            held = true;
            if let Some(next) = next {
                token += 1;
                let own = if releases && next == who { ":0\r\n" } else { "" };
                sockets[next].write_all(format!("{own}:{token}\r\n").as_bytes()).expect("write");
            }
            if releases && next != Some(who) {
                sockets[who].write_all(b":0\r\n").expect("write");
            }
        }
    }
}
