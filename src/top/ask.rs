//! Asks a server: one pipeline a look, of the commands that the server has.

use crate::client::{Client, Command, Error, Options, ReplyError, Value};
use crate::top::facts::{Absence, Answer, Replies};
use crate::top::names::{Name, escaped};

/// Maximum number of locks that are listed.
pub const LOCKS_MAX: usize = 200;
/// Maximum number of locks in the tree.
const NODES_MAX: usize = 100;

/// The commands that not every server has.
const OPTIONAL: [&str; 4] = ["LOCK.LIST", "LOCK.GRAPH", "LOCK.STATS", "LOCK.BREAK"];

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Pattern of the names.
    pub matching: Option<Vec<u8>>,
    /// An owner that holds the locks or waits for them.
    pub owner: Option<Name>,
    /// Also locks that nobody waits for.
    pub all: bool,
    /// If there are too many locks: those with the longest waits, rather than those with the longest queues.
    pub longest_waits: bool,
    /// A lock to describe.
    pub detail: Option<Name>,
}

/// A connection to a server, and what it can be asked.
pub struct Asker {
    client: Client,
    /// Address and database, without a password.
    at: String,
    /// `None` before it is known, and after the connection broke: the next server may be another version.
    known: Option<Known>,
}

#[derive(Clone)]
struct Known {
    /// Which of [`OPTIONAL`] it has.
    has: [bool; 4],
    /// Whether `LOCK.LIST` takes `OWNER` and `WAITING`.
    filters: bool,
    user: Answer,
}

impl Asker {
    /// Connects. `at` is shown as the server's address.
    ///
    /// # Errors
    /// As [`Client::with`].
    pub async fn connect(options: Options, at: String) -> Result<Asker, Error> {
        Ok(Asker { client: Client::with(options).await?, at, known: None })
    }

    /// The client, for commands that are no question.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Asks.
    ///
    /// # Errors
    /// If the connection fails. A command that the server refuses is an [`Absence`] in the replies.
    pub async fn look(&mut self, question: &Question) -> Result<Replies, Error> {
        let looked = self.replies(question).await;
        if looked.is_err() {
            self.known = None;
        }
        looked
    }

    async fn replies(&mut self, question: &Question) -> Result<Replies, Error> {
        let known = match self.known.take() {
            Some(known) => known,
            None => know(&self.client).await?,
        };
        let [has_list, has_graph, has_stats, can_break] = known.has;
        let mut commands = vec![Command::new("INFO")];
        let mut ask = |is_there: bool, command: Command| {
            commands.extend(is_there.then_some(command.idempotent()));
        };
        ask(has_list, list(question, known.filters));
        ask(has_graph, Command::new("LOCK.GRAPH").arg("COUNT").arg(NODES_MAX));
        ask(has_stats, Command::new("LOCK.STATS"));
        if let Some(name) = &question.detail {
            ask(has_list, Command::new("LOCK.INFO").arg(&name.0));
            ask(has_list, Command::new("LOCK.WHY").arg(&name.0));
        }
        commands[0] = commands[0].clone().idempotent();
        let mut replies = self.client.pipeline(&commands).await?.into_iter();
        let mut next = |is_there: bool| match is_there.then(|| replies.next()).flatten() {
            Some(reply) => answer(reply),
            None => Err(Absence::Missing),
        };
        let mut found = Replies {
            at: self.at.clone(),
            info: next(true),
            user: known.user.clone(),
            list: next(has_list),
            owner_filtered: question.owner.is_some() && known.filters,
            graph: next(has_graph),
            stats: next(has_stats),
            can_break,
            detail: question.detail.clone().map(|name| (name, next(has_list), next(has_list))),
        };
        let mut known = known;
        if known.filters && matches!(&found.list, Err(Absence::Refused(reason)) if reason.contains("syntax error")) {
            // An older server.
            known.filters = false;
            found.owner_filtered = false;
            let again = self.client.pipeline(&[list(question, false).idempotent()]).await?;
            found.list = again.into_iter().next().map_or(Err(Absence::Missing), answer);
        }
        if let Some((name, info @ Err(_), _)) = &mut found.detail
            && matches!(info, Err(Absence::Refused(reason)) if reason.starts_with("WRONGTYPE"))
        {
            // An older server describes semaphores with a command of their own.
            let again = self.client.pipeline(&[Command::new("SEM.INFO").arg(&name.0).idempotent()]).await?;
            *info = again.into_iter().next().map_or(Err(Absence::Missing), answer);
        }
        self.known = Some(known);
        Ok(found)
    }
}

/// Asks what the server has, and who asks. A user who may not ask that finds out when a command is refused.
async fn know(client: &Client) -> Result<Known, Error> {
    let commands =
        [Command::new("COMMAND").arg("INFO").args(OPTIONAL).idempotent(), Command::new("ACL").arg("WHOAMI").idempotent()];
    let mut replies = client.pipeline(&commands).await?.into_iter();
    let has = match replies.next().as_ref().and_then(Value::as_array) {
        Some(rows) => std::array::from_fn(|at| rows.get(at).is_some_and(|row| !row.is_null())),
        None => [true; 4],
    };
    Ok(Known { has, filters: true, user: replies.next().map_or(Err(Absence::Missing), answer) })
}

fn list(question: &Question, filters: bool) -> Command {
    let mut command = Command::new("LOCK.LIST");
    if let Some(pattern) = &question.matching {
        command = command.arg("MATCH").arg(pattern);
    }
    if !question.all {
        command = command.arg("CONTENDED");
    }
    if filters && let Some(owner) = &question.owner {
        command = command.arg("OWNER").arg(&owner.0);
    }
    if filters && !question.all && question.longest_waits {
        command = command.arg("WAITING").arg(0);
    }
    command.arg("COUNT").arg(LOCKS_MAX)
}

fn answer(reply: Value) -> Answer {
    match reply {
        Value::Error(error) if error.text().starts_with("ERR unknown command") => Err(Absence::Missing),
        Value::Error(error) => Err(Absence::Refused(refusal(&error))),
        reply => Ok(reply),
    }
}

fn refusal(error: &ReplyError) -> String {
    escaped(error.text().as_bytes())
}

/// Ends the grant with this token. Returns what came of it, in a sentence.
pub async fn break_grant(client: Client, name: Name, token: u64, reason: String) -> String {
    let command = Command::new("LOCK.BREAK").arg(&name.0).arg("TOKEN").arg(token).arg("REASON").arg(&reason);
    match client.run(command).await {
        Ok(_) => format!("The grant with token {token} has ended."),
        Err(Error::NotHeld(cause)) => format!("Nothing was broken. NOTHELD {}", escaped(cause.as_bytes())),
        Err(error) if error.maybe_applied() => {
            format!("It is not known whether the grant has ended: {}", escaped(error.to_string().as_bytes()))
        }
        Err(error) => format!("Nothing was broken. {}", escaped(error.to_string().as_bytes())),
    }
}
