//! Asks every node what it knows of its cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::durations::Durations;
use crate::client::{Client, Command, Options, Value};

/// Time within which a node must answer.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// What a node says of another one, or of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Among the nodes.
    pub address: String,
    pub host: String,
    pub port: u16,
    pub tls_port: u16,
    pub votes: bool,
    pub link_up: bool,
    /// The last index that it has, as far as the leader knows.
    pub index: Option<u64>,
    pub failure: String,
    pub pings: Durations,
    pub appends: Durations,
}

/// What a node says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub node: u64,
    /// The id of its cluster; empty if it has none.
    pub cluster: String,
    pub role: String,
    pub term: u64,
    /// 0 without a leader.
    pub leader: u64,
    pub version: String,
    pub committed: u64,
    pub applied: u64,
    pub flushes: Durations,
    /// How its disk is: `answers`, `hangs` or `refuses`.
    pub disk: String,
    /// For how many milliseconds the disk has not done what it does.
    pub disk_ms: u64,
    pub members: Vec<Member>,
    /// The nodes whose connections it has refused lately, with the reasons.
    pub refused: Vec<String>,
}

/// A connection to a node, and what it says.
pub struct Asked {
    pub client: Client,
    pub status: Status,
}

/// What is known of a cluster.
#[derive(Default)]
pub struct Survey {
    /// What each member that answers says, by its number.
    pub answers: BTreeMap<u64, Asked>,
    /// Why the others do not.
    pub silent: BTreeMap<u64, String>,
    /// All members.
    pub members: Vec<Member>,
}

impl Survey {
    /// The node that leads, by what it says itself; of several the one with the highest term.
    pub fn leader(&self) -> Option<&Asked> {
        self.answers.values().filter(|asked| asked.status.role == "leader").max_by_key(|asked| asked.status.term)
    }
}

/// Asks one node.
///
/// # Errors
/// In words.
pub async fn ask(options: &Options) -> Result<Asked, String> {
    let asking = async {
        let client = Client::with(options.clone()).await?;
        let status = client.run(Command::new("NODE").arg("STATUS")).await?;
        Ok::<_, crate::client::Error>(Asked { status: read(&status), client })
    };
    let answered = tokio::time::timeout(ANSWER_TIME, asking).await;
    answered.map_err(|_| format!("no answer within {} s", ANSWER_TIME.as_secs()))?.map_err(|error| {
        let text = error.to_string();
        if text.contains("unknown command") { "this server is not one of a cluster of nodes".to_owned() } else { text }
    })
}

/// Asks the nodes at the URLs, which are separated by commas, until one answers that knows the leader, and all that it knows. A node
/// that has just started knows little.
///
/// # Errors
/// In words: none answers.
pub async fn survey(urls: &str) -> Result<Survey, String> {
    let (mut failures, mut leaderless) = (Vec::new(), None);
    for url in urls.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        let options: Options = url.parse().map_err(|error: crate::client::Error| error.to_string())?;
        match ask(&options).await {
            Ok(asked) => {
                let survey = ask_all(&options, asked).await;
                if survey.leader().is_some() {
                    return Ok(survey);
                }
                leaderless.get_or_insert(survey);
            }
            Err(reason) => failures.push(format!("{url}: {reason}")),
        }
    }
    leaderless.ok_or_else(|| if failures.is_empty() { "no URL of a node is given".to_owned() } else { failures.join("; ") })
}

/// Asks all members that a node knows. If the leader knows others, those too.
async fn ask_all(options: &Options, first: Asked) -> Survey {
    let mut survey = Survey { members: first.status.members.clone(), ..Survey::default() };
    survey.answers.insert(first.status.node, first);
    loop {
        let is_new = |member: &&Member| !survey.answers.contains_key(&member.id) && !survey.silent.contains_key(&member.id);
        let Some(member) = survey.members.iter().find(is_new).cloned() else {
            let known = survey.leader().map(|leader| leader.status.members.clone()).unwrap_or_default();
            let ids = |members: &[Member]| members.iter().map(|member| member.id).collect::<Vec<_>>();
            if known.is_empty() || ids(&known) == ids(&survey.members) {
                survey.members = if known.is_empty() { survey.members } else { known };
                return survey;
            }
            survey.members = known;
            continue;
        };
        match reach(options, &member).await {
            Ok(asked) => _ = survey.answers.insert(member.id, asked),
            Err(reason) => _ = survey.silent.insert(member.id, reason),
        }
    }
}

/// Asks a member at its address for clients, with the credentials and the TLS of `options`.
async fn reach(options: &Options, member: &Member) -> Result<Asked, String> {
    let port = match (options.tls.is_some(), member.port, member.tls_port) {
        (true, _, tls_port @ 1..) => tls_port,
        (_, port, _) => port,
    };
    if port == 0 {
        let reason = if member.failure.is_empty() { "its address for clients is not known" } else { &member.failure };
        return Err(reason.to_owned());
    }
    let asked = ask(&options.clone().at(&member.host, port)).await?;
    if asked.status.node == member.id {
        Ok(asked)
    } else {
        Err(format!("node {} answers at {}:{port}", asked.status.node, member.host))
    }
}

fn read(reply: &Value) -> Status {
    let text = |name| text_of(reply, name);
    let number = |name| number_of(reply, name).unwrap_or(0);
    let list = |name| reply.field(name).and_then(Value::as_array).unwrap_or_default();
    Status {
        node: number("node"),
        cluster: text("cluster"),
        role: text("role"),
        term: number("term"),
        leader: number("leader"),
        version: text("version"),
        committed: number("committed"),
        applied: number("applied"),
        flushes: durations(reply, "flushes"),
        disk: text("disk"),
        disk_ms: number("disk-ms"),
        members: list("nodes").iter().map(member).collect(),
        refused: list("refused").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
    }
}

fn member(node: &Value) -> Member {
    let port = |name| number_of(node, name).and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    Member {
        id: number_of(node, "id").unwrap_or(0),
        address: text_of(node, "address"),
        host: text_of(node, "host"),
        port: port("port"),
        tls_port: port("tls-port"),
        votes: text_of(node, "vote") == "yes",
        link_up: text_of(node, "link") == "up",
        index: number_of(node, "index"),
        failure: text_of(node, "failure"),
        pings: durations(node, "pings"),
        appends: durations(node, "appends"),
    }
}

fn text_of(value: &Value, name: &str) -> String {
    value.field(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A number; `None` if it is not known.
fn number_of(value: &Value, name: &str) -> Option<u64> {
    value.field(name).and_then(Value::as_integer).and_then(|number| u64::try_from(number).ok())
}

fn durations(value: &Value, name: &str) -> Durations {
    let Some(of) = value.field(name) else { return Durations::default() };
    let number = |name| number_of(of, name).unwrap_or(0);
    Durations { count: number("count"), p50_us: number("p50-us"), p99_us: number("p99-us"), max_us: number("max-us") }
}
