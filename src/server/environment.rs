//! Facts about the process and the machine, for `INFO`.

use std::path::Path;

use rustix::system::{sysinfo, uname};

use crate::engine::environment::{Environment, Usage};
use crate::server::heap::allocator;
use crate::server::net::listener::Addresses;
use crate::server::turn_meter;

/// Describes the process, which listens on these addresses.
pub fn describe(addresses: &Addresses, config_file: Option<&Path>) -> Environment {
    let name = uname();
    let os = [name.sysname(), name.release(), name.machine()].map(|part| part.to_string_lossy().into_owned()).join(" ");
    let memory = sysinfo();
    let mut environment = Environment {
        process_id: std::process::id(),
        os,
        executable: std::env::current_exe().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        config_file: config_file.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        multiplexing: "epoll",
        allocator: "libc",
        system_memory: memory.totalram as u64 * u64::from(memory.mem_unit),
        usage: Some(usage),
        event_loop: Some(turn_meter::event_loop),
        // Called by the executor's thread, and so returns that thread's balance. If allocations are counted on this thread, they
        // are there, too.
        allocated: allocator::balance().map(|_| allocated as fn() -> u64),
        ..Environment::default()
    };
    listen_on(&mut environment, addresses);
    environment
}

/// Records the addresses that the process listens on.
pub fn listen_on(environment: &mut Environment, addresses: &Addresses) {
    environment.tcp_port = if addresses.port == 0 { addresses.tls_port } else { addresses.port };
    environment.listeners.clear();
    for (name, addresses) in [("tcp", &addresses.tcp), ("tls", &addresses.tls)] {
        if let Some(first) = addresses.first() {
            let binds: Vec<String> = addresses.iter().map(|addr| format!("bind={}", addr.ip())).collect();
            environment.listeners.push(format!("name={name},{},port={}", binds.join(","), first.port()));
        }
    }
    if let Some(path) = &addresses.unix {
        environment.listeners.push(format!("name=unix,bind={path}"));
    }
}

fn allocated() -> u64 {
    allocator::balance().unwrap_or_default()
}

/// Resident bytes of the process: all of them, and those that are shared or mapped from a file.
fn resident() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let page = rustix::param::page_size() as u64;
    [(); 2].map(|()| pages.next().unwrap_or_default() * page)
}

/// Resident bytes of the process that are neither shared nor mapped from a file; 0 if the system does not report them.
pub(super) fn private() -> u64 {
    let [all, shared] = resident();
    all.saturating_sub(shared)
}

/// User CPU time of the process, in microseconds.
pub fn user_us() -> u64 {
    us(spent_by(libc::RUSAGE_SELF).ru_utime)
}

fn us(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
}

fn spent_by(whom: libc::c_int) -> libc::rusage {
    // SAFETY: an all-zero `rusage` is a valid value, and the call writes no further than its end.
    unsafe {
        let mut spent: libc::rusage = std::mem::zeroed();
        libc::getrusage(whom, &mut spent);
        spent
    }
}

/// Current resource use of the process.
fn usage() -> Usage {
    let [resident, _] = resident();
    // Called by the thread that executes commands.
    let (spent, by_thread) = (spent_by(libc::RUSAGE_SELF), spent_by(libc::RUSAGE_THREAD));
    Usage {
        allocated: allocator::balance().unwrap_or(resident),
        resident,
        resident_peak: (spent.ru_maxrss as u64 * 1024).max(resident),
        cpu_system_us: us(spent.ru_stime),
        cpu_user_us: us(spent.ru_utime),
        thread_system_us: us(by_thread.ru_stime),
        thread_user_us: us(by_thread.ru_utime),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

    use super::*;

    #[test]
    fn what_the_process_uses_is_plausible() {
        let block = vec![1u8; 8 << 20];
        let used = usage();
        assert!(used.allocated >= block.len() as u64);
        assert!(used.resident >= block.len() as u64 && used.resident_peak >= used.resident);
        assert!(used.cpu_user_us + used.cpu_system_us > 0);
    }

    #[test]
    fn listeners_are_named_as_info_shows_them() {
        let tcp: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 7000).into(), (Ipv6Addr::LOCALHOST, 7000).into()];
        let unix = Some("/run/p.sock".to_owned());
        let mut addresses = Addresses { port: 7000, tcp: tcp.to_vec(), unix, ..Addresses::default() };
        let mut environment = describe(&addresses, None);
        assert_eq!(environment.listeners, ["name=tcp,bind=127.0.0.1,bind=::1,port=7000", "name=unix,bind=/run/p.sock"]);
        assert_eq!(environment.tcp_port, 7000);
        assert!(environment.system_memory > 1 << 20 && environment.os.contains(' '));
        // As on Redis, `tcp_port` is the TLS port if there is no other, even if nothing is bound to it.
        (addresses.port, addresses.tls_port, addresses.tcp, addresses.unix) = (0, 7001, Vec::new(), None);
        listen_on(&mut environment, &addresses);
        assert!(environment.tcp_port == 7001 && environment.listeners.is_empty());
    }
}
