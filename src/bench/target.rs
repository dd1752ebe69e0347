//! Servers that are measured: started for it, or given by their URLs.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::bench::identity::{field, title};
use crate::bench::peer::{Peer, on_path};
use crate::bench::process::{self, Process};
use crate::client::{Client, Command, Error, Options, Value};

/// Servers that are started for what needs several.
const SEVERAL: usize = 3;
/// CPU seconds by which the account of a process may differ from what the server says of itself, for it to be the same process.
const SAME_PROCESS_S: f64 = 0.25;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// This program.
    Own,
    /// A redis-server, a valkey-server, a kevy, or something that takes Redis's flags.
    Program(PathBuf),
    /// Servers that run already: one, or several for what needs several.
    Urls(Vec<String>),
}

impl FromStr for Against {
    type Err = String;

    /// `portcullis`, a URL or several with commas between them, or a program in the path or by its path.
    fn from_str(text: &str) -> Result<Against, String> {
        if text == "portcullis" {
            return Ok(Against::Own);
        }
        if text.contains(':') {
            let urls: Vec<String> = text.split(',').map(str::to_owned).collect();
            for url in &urls {
                Options::from_str(url).map_err(|error| format!("{url}: {error}"))?;
            }
            return Ok(Against::Urls(urls));
        }
        let path = PathBuf::from(text);
        let program = match Peer::by_name(text) {
            _ if text.contains('/') => Some(path).filter(|path| path.is_file()),
            Some(peer) => peer.find(),
            None => on_path(text),
        };
        program.map(Against::Program).ok_or_else(|| match Peer::by_name(text) {
            Some(peer) => format!("{text} is neither in the path nor named by {}: {}", peer.variable(), peer.how_to_install()),
            None => format!("there is no program '{text}', and it is no URL"),
        })
    }
}

/// A server, or several.
pub struct Target {
    /// What it is called in tables.
    pub name: String,
    /// Whether it was started, and is gone afterwards.
    pub started: bool,
    /// Where each of its servers is.
    pub urls: Vec<String>,
    meters: Vec<Meter>,
    _processes: Vec<Process>,
}

/// Tells how much CPU a server has used.
enum Meter {
    /// The accounts of the system, of a process on this machine.
    Process(u32),
    /// The server's own, which come in steps.
    Info(Client),
}

impl Target {
    /// Starts it, or connects to it, and finds out what it is.
    ///
    /// # Errors
    /// Where that fails, in words for people.
    pub async fn start(against: &Against, several: bool) -> Result<Target, String> {
        let count = if several { SEVERAL } else { 1 };
        let start = |peer: Peer, program: &std::path::Path| {
            let tell = |error| format!("{}: {error}", program.display());
            (0..count).map(|_| peer.start(program)).collect::<std::io::Result<Vec<_>>>().map_err(tell)
        };
        let processes = match against {
            Against::Own => start(Peer::Portcullis, &std::env::current_exe().map_err(|error| error.to_string())?)?,
            Against::Program(program) => start(Peer::of(program), program)?,
            Against::Urls(_) => Vec::new(),
        };
        let urls = match against {
            Against::Urls(urls) => urls.clone(),
            _ => processes.iter().map(|process| format!("redis://{}", process.addr())).collect(),
        };
        let (mut name, mut meters) = (String::new(), Vec::new());
        for (number, url) in urls.iter().enumerate() {
            let tell = |error: Error| format!("{url}: {error}");
            let client = Client::connect(url).await.map_err(tell)?;
            let info: String = client.query(Command::new("INFO")).await.map_err(tell)?;
            if number == 0 {
                name = title(&info);
            }
            meters.push(match processes.get(number) {
                Some(process) if process::cpu_ns(process.pid()).is_some() => Meter::Process(process.pid()),
                _ => same_process(&info).map_or(Meter::Info(client), Meter::Process),
            });
        }
        Ok(Target { name, started: !processes.is_empty(), urls, meters, _processes: processes })
    }

    /// Nanoseconds of CPU that its first servers have used.
    ///
    /// # Errors
    /// Where one cannot be asked, in words for people.
    pub async fn cpu_ns(&self, servers: usize) -> Result<u64, String> {
        let mut sum = 0;
        for meter in &self.meters[..servers.min(self.meters.len())] {
            sum += match meter {
                Meter::Process(pid) => process::cpu_ns(*pid).ok_or("a server has ended while it was measured")?,
                Meter::Info(client) => {
                    let info: Result<String, Error> = client.query(Command::new("INFO").arg("cpu")).await;
                    (used_cpu_s(&info.map_err(|error| error.to_string())?) * 1e9) as u64
                }
            };
        }
        Ok(sum)
    }

    /// Where CPU time is known from.
    pub fn cpu_source(&self) -> &'static str {
        match self.meters.first() {
            Some(Meter::Process(_)) => "scheduler",
            _ => "INFO",
        }
    }

    /// Deletes what was left behind on servers that were there before.
    pub async fn tidy(&self, prefix: &str) {
        for url in self.urls.iter().filter(|_| !self.started) {
            // It is best effort: what is left has names that say what it is.
            let Ok(client) = Client::connect(url).await else { continue };
            let mut cursor = String::from("0");
            loop {
                let scan = Command::new("SCAN").arg(&cursor).arg("MATCH").arg(format!("*{prefix}*")).arg("COUNT").arg(1000);
                let Ok((next, keys)) = client.query::<(String, Vec<Value>)>(scan).await else { break };
                for key in keys.iter().filter_map(Value::as_bytes) {
                    let _ = client.run(Command::new("DEL").arg(key)).await;
                }
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
    }
}

/// Numbers those that have the same name.
pub fn tell_apart(targets: &mut [Target]) {
    for index in 0..targets.len() {
        let name = targets[index].name.clone();
        let same = targets.iter().filter(|target| target.name == name).count();
        if same > 1 {
            targets.iter_mut().filter(|target| target.name == name).enumerate().for_each(|(number, target)| {
                target.name = format!("{name} #{}", number + 1);
            });
        }
    }
}

fn used_cpu_s(info: &str) -> f64 {
    ["used_cpu_sys", "used_cpu_user"].iter().filter_map(|name| field(info, name)?.parse::<f64>().ok()).sum()
}

/// The process of a server, where it runs on this machine and its accounts can be read: one of that number that has used as much CPU.
fn same_process(info: &str) -> Option<u32> {
    let pid = field(info, "process_id")?.parse().ok()?;
    let used = Duration::from_nanos(process::cpu_ns(pid)?).as_secs_f64();
    ((used - used_cpu_s(info)).abs() < SAME_PROCESS_S).then_some(pid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_to_measure_is_a_name_a_program_or_urls() {
        assert_eq!("portcullis".parse(), Ok(Against::Own));
        let urls = Against::Urls(vec!["redis://a:1".to_owned(), "redis://b:2".to_owned()]);
        assert_eq!("redis://a:1,redis://b:2".parse(), Ok(urls));
        assert_eq!("sh".parse::<Against>().unwrap(), Against::Program(on_path("sh").unwrap()));
        for wrong in ["nosuch-program", "/nosuch/program", "redis://a:x", "http://a"] {
            assert!(wrong.parse::<Against>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_server_says_how_much_it_has_used() {
        let info = format!("process_id:{}\r\nused_cpu_sys:1000000\r\n", std::process::id());
        assert_eq!(same_process(&info), None);
        assert!((used_cpu_s("used_cpu_sys:1.5\r\nused_cpu_user:2.25\r\nused_cpu_sys_children:7\r\n") - 3.75).abs() < 1e-9);
    }
}
