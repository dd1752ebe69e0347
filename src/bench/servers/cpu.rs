//! CPU time that servers have used.

use std::time::Duration;

use tokio::sync::Mutex;

use crate::bench::servers::info::field;
use crate::bench::servers::process;
use crate::client::{Client, Command, Error, Options};

/// Maximum difference in CPU seconds between the system's figure for a process and the server's own, for both to be the same
/// process.
const SAME_PROCESS_S: f64 = 0.25;
/// Time within which a node must answer. One that does not has used nothing meanwhile.
const ANSWER: Duration = Duration::from_millis(300);

/// The source of a server's CPU time.
pub enum CpuSource {
    /// The system's scheduler, for a process on this machine.
    Process(u32),
    /// The server's `INFO`, which has a coarse resolution.
    Info(Client),
    /// All nodes of a replicated server, which may end and start again.
    Nodes(Vec<Node>),
}

impl CpuSource {
    /// The source for a server that was not started here. `info`: its `INFO`.
    pub fn of(client: Client, info: &str) -> CpuSource {
        same_process(info).map_or(CpuSource::Info(client), CpuSource::Process)
    }

    /// The source for the nodes with these URLs.
    pub fn of_nodes(urls: Vec<String>) -> CpuSource {
        CpuSource::Nodes(urls.into_iter().map(|url| Node { url, known: Mutex::default() }).collect())
    }

    /// The name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            CpuSource::Process(_) => "scheduler",
            CpuSource::Info(_) => "INFO",
            CpuSource::Nodes(_) => "all nodes",
        }
    }

    /// Nanoseconds that the server has used.
    ///
    /// # Errors
    /// The reason why the figure is missing, in words for people.
    pub async fn used_ns(&self) -> Result<u64, String> {
        match self {
            CpuSource::Process(pid) => process::cpu_ns(*pid).ok_or_else(|| "a server ended during the measurement".to_owned()),
            CpuSource::Info(client) => Ok(used_ns(&ask(client).await.map_err(|error| error.to_string())?)),
            CpuSource::Nodes(nodes) => {
                let mut sum = 0;
                for node in nodes {
                    sum += node.used_ns().await;
                }
                Ok(sum)
            }
        }
    }
}

/// A node of a replicated server.
pub struct Node {
    url: String,
    known: Mutex<Known>,
}

/// What is known of a node.
#[derive(Default)]
struct Known {
    client: Option<Client>,
    /// Its process, if it runs on this machine.
    process: Option<u32>,
    /// What its process had used when it was last asked.
    last_ns: u64,
    /// What its earlier processes had used.
    before_ns: u64,
}

impl Node {
    /// What all processes of the node have used, as far as it could be asked.
    async fn used_ns(&self) -> u64 {
        let mut known = self.known.lock().await;
        let of_process = known.process.and_then(process::cpu_ns);
        if let Some(used_ns) = of_process {
            known.last_ns = used_ns;
        } else if let Some(info) = self.ask(&mut known).await {
            known.process = same_process(&info);
            let used_ns = known.process.and_then(process::cpu_ns).unwrap_or_else(|| used_ns(&info));
            // Less than before is another process.
            if used_ns < known.last_ns {
                known.before_ns += known.last_ns;
            }
            known.last_ns = used_ns;
        }
        known.before_ns + known.last_ns
    }

    async fn ask(&self, known: &mut Known) -> Option<String> {
        if known.client.is_none() {
            let options: Options = self.url.parse().ok()?;
            known.client = Client::with(options.connect_timeout(ANSWER).response_timeout(ANSWER)).await.ok();
        }
        ask(known.client.as_ref()?).await.ok()
    }
}

async fn ask(client: &Client) -> Result<String, Error> {
    client.query(Command::new("INFO").arg("server").arg("cpu")).await
}

fn used_ns(info: &str) -> u64 {
    (used_cpu_s(info) * 1e9) as u64
}

fn used_cpu_s(info: &str) -> f64 {
    ["used_cpu_sys", "used_cpu_user"].iter().filter_map(|name| field(info, name)?.parse::<f64>().ok()).sum()
}

/// The process of a server that runs on this machine: the process with the id in `INFO`, if it has used as much CPU time as
/// `INFO` says.
fn same_process(info: &str) -> Option<u32> {
    let pid = field(info, "process_id")?.parse().ok()?;
    let used = Duration::from_nanos(process::cpu_ns(pid)?).as_secs_f64();
    ((used - used_cpu_s(info)).abs() < SAME_PROCESS_S).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_tells_whether_a_process_is_the_server() {
        let info = format!("process_id:{}\r\nused_cpu_sys:1000000\r\n", std::process::id());
        assert_eq!(same_process(&info), None);
        assert!((used_cpu_s("used_cpu_sys:1.5\r\nused_cpu_user:2.25\r\nused_cpu_sys_children:7\r\n") - 3.75).abs() < 1e-9);
    }
}
