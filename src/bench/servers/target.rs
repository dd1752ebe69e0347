//! A target: the server or servers that a workload runs on, started here or given by their URLs.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::bench::servers::cpu::CpuSource;
use crate::bench::servers::info::name_and_version;
use crate::bench::servers::kind::{ServerKind, on_path};
use crate::bench::servers::process::{self, Process};
use crate::client::{Client, Command, Error, Options};

/// Number of servers to start for workloads that need several.
const SEVERAL: usize = 3;
/// Time within which one of several nodes must lead.
const LEADER_TIME: Duration = Duration::from_secs(10);
/// Pause between attempts to find the node that leads.
const PAUSE: Duration = Duration::from_millis(50);

/// A server that the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerSpec {
    /// This program.
    Own,
    /// redis-server, valkey-server, kevy, or another program that takes Redis's flags.
    Program(PathBuf),
    /// Running servers: one, or several for workloads that need several. The nodes of a replicated server have one URL.
    Urls(Vec<String>),
}

impl FromStr for ServerSpec {
    type Err = String;

    /// Parses `portcullis`, one or more URLs separated by commas, or a program's name or path.
    fn from_str(text: &str) -> Result<ServerSpec, String> {
        if text == "portcullis" {
            return Ok(ServerSpec::Own);
        }
        if text.contains(':') {
            let mut urls: Vec<String> = Vec::new();
            for part in text.split(',') {
                match urls.last_mut() {
                    // Another node of the same server.
                    Some(url) if !part.contains("://") => *url = format!("{url},{part}"),
                    _ => urls.push(part.to_owned()),
                }
            }
            for url in &urls {
                Options::from_str(url).map_err(|error| format!("{url}: {error}"))?;
            }
            return Ok(ServerSpec::Urls(urls));
        }
        let path = PathBuf::from(text);
        let program = match ServerKind::by_name(text) {
            _ if text.contains('/') => Some(path).filter(|path| path.is_file()),
            Some(kind) => kind.find(),
            None => on_path(text),
        };
        program.map(ServerSpec::Program).ok_or_else(|| match ServerKind::by_name(text) {
            Some(kind) => format!(
                "{text} is not in PATH, and {} does not name it; to install it: {}",
                kind.variable(),
                kind.how_to_install()
            ),
            None => format!("there is no program '{text}', and it is not a URL"),
        })
    }
}

/// A running server, or several.
pub struct Target {
    /// The name in tables.
    pub name: String,
    /// Whether the servers were started here, and end when the target is dropped.
    pub started: bool,
    /// The URL of each server.
    pub urls: Vec<String>,
    cpu: Vec<CpuSource>,
    _processes: Vec<Process>,
}

impl Target {
    /// Starts or connects to the servers, and reads their name from `INFO`. `several` asks for several servers.
    ///
    /// # Errors
    /// The reason of a failure, in words for people.
    pub async fn start(spec: &ServerSpec, several: bool) -> Result<Target, String> {
        let count = if several { SEVERAL } else { 1 };
        let start = |kind: ServerKind, program: &std::path::Path| {
            let message = |error| format!("{}: {error}", program.display());
            (0..count).map(|_| kind.start(program)).collect::<std::io::Result<Vec<_>>>().map_err(message)
        };
        let processes = match spec {
            ServerSpec::Own => start(ServerKind::Portcullis, &std::env::current_exe().map_err(|error| error.to_string())?)?,
            ServerSpec::Program(program) => start(ServerKind::of(program), program)?,
            ServerSpec::Urls(_) => Vec::new(),
        };
        let urls = match spec {
            ServerSpec::Urls(urls) => urls.clone(),
            _ => processes.iter().map(|process| format!("redis://{}", process.addr())).collect(),
        };
        let (mut name, mut cpu) = (String::new(), Vec::new());
        for (number, url) in urls.iter().enumerate() {
            let message = |error: Error| format!("{url}: {error}");
            let client = connect(url).await.map_err(message)?;
            let info: String = client.query(Command::new("INFO").idempotent()).await.map_err(message)?;
            if number == 0 {
                name = name_and_version(&info);
            }
            cpu.push(match processes.get(number) {
                Some(process) if process::cpu_ns(process.pid()).is_some() => CpuSource::Process(process.pid()),
                _ => match nodes(url) {
                    nodes if nodes.len() > 1 => CpuSource::of_nodes(nodes),
                    _ => CpuSource::of(client, &info),
                },
            });
        }
        Ok(Target { name, started: !processes.is_empty(), urls, cpu, _processes: processes })
    }

    /// Nanoseconds of CPU time that the first `servers` servers have used.
    ///
    /// # Errors
    /// The reason why a server's figure is missing, in words for people.
    pub async fn cpu_ns(&self, servers: usize) -> Result<u64, String> {
        let mut sum = 0;
        for source in &self.cpu[..servers.min(self.cpu.len())] {
            sum += source.used_ns().await?;
        }
        Ok(sum)
    }

    /// The name of the CPU time's source.
    pub fn cpu_source(&self) -> &'static str {
        self.cpu.first().map_or("INFO", CpuSource::name)
    }

    /// Deletes the keys with this prefix from servers that were not started here.
    pub async fn delete_leftovers(&self, prefix: &str) {
        for url in self.urls.iter().filter(|_| !self.started) {
            // Best effort: the names of keys that stay say what they are.
            if let Ok(client) = connect(url).await {
                delete_keys(&client, prefix).await;
            }
        }
    }
}

/// Connects to a server. Of several nodes none may lead at this moment.
///
/// # Errors
/// Those of [`Client::connect`].
pub async fn connect(url: &str) -> Result<Client, Error> {
    let (began, nodes) = (Instant::now(), nodes(url).len());
    loop {
        match Client::connect(url).await {
            Err(_) if nodes > 1 && began.elapsed() < LEADER_TIME => tokio::time::sleep(PAUSE).await,
            connected => return connected,
        }
    }
}

/// The URL of each node of a replicated server, or of the one server.
fn nodes(url: &str) -> Vec<String> {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..].find(['/', '?']).map_or(url.len(), |at| begin + at);
    let begin = url[begin..end].rfind('@').map_or(begin, |at| begin + at + 1);
    url[begin..end].split(',').map(|addr| format!("{}{addr}{}", &url[..begin], &url[end..])).collect()
}

/// Deletes all keys of a server that have `part` in their names. A key that cannot be deleted stays.
pub async fn delete_keys(client: &Client, part: &str) {
    let mut cursor = "0".to_owned();
    loop {
        let scan = Command::new("SCAN").arg(&cursor).arg("MATCH").arg(format!("*{part}*")).arg("COUNT").arg(1000);
        let Ok((next, keys)) = client.query::<(String, Vec<Vec<u8>>)>(scan).await else { return };
        for key in keys {
            // One key at a time: a cluster node refuses keys of several slots.
            let _ = client.run(Command::new("DEL").arg(key)).await;
        }
        if next == "0" {
            return;
        }
        cursor = next;
    }
}

/// Appends numbers to the names of targets that have the same name.
pub fn number_equal_names(targets: &mut [Target]) {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_a_name_a_program_or_urls() {
        assert_eq!("portcullis".parse(), Ok(ServerSpec::Own));
        let urls = ServerSpec::Urls(vec!["redis://a:1".to_owned(), "redis://b:2".to_owned()]);
        assert_eq!("redis://a:1,redis://b:2".parse(), Ok(urls));
        let nodes = ServerSpec::Urls(vec!["redis://a:1,b:2,c".to_owned(), "redis://d".to_owned()]);
        assert_eq!("redis://a:1,b:2,c,redis://d".parse(), Ok(nodes));
        assert_eq!("sh".parse::<ServerSpec>().unwrap(), ServerSpec::Program(on_path("sh").unwrap()));
        for wrong in ["nosuch-program", "/nosuch/program", "redis://a:x", "http://a"] {
            assert!(wrong.parse::<ServerSpec>().is_err(), "{wrong}");
        }
    }
    #[test]
    fn nodes_have_the_login_and_the_parameters_of_their_url() {
        assert_eq!(nodes("redis://a:1"), ["redis://a:1"]);
        assert_eq!(nodes("redis://me:pw@a:1,b/2?name=x"), ["redis://me:pw@a:1/2?name=x", "redis://me:pw@b/2?name=x"]);
    }
}
