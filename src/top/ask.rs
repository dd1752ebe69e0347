//! Asks a server: one pipeline a look, of the commands that the server has.

use crate::client::{Client, Command, Error, Options, ReplyError, Value};
use crate::top::facts::{Absence, Answer, Replies};
use crate::top::names::{Name, escaped};
use crate::top::rows;

/// Maximum number of locks that are listed.
pub const LOCKS_MAX: usize = 200;
/// Maximum number of locks in the tree.
pub const NODES_MAX: usize = 100;

/// Maximum number of holders, and of waiters, that are shown of each lock in a list.
const SHOWN_MAX: usize = 20;
/// The same while a filter looks at owners, names and addresses of clients, which needs to see them.
const SHOWN_TO_FILTER_MAX: usize = 100;
/// Maximum number of recent events.
const RECENT_MAX: usize = 256;

/// The commands that not every server has.
const OPTIONAL: [&str; 5] = ["LOCK.LIST", "LOCK.GRAPH", "LOCK.STATS", "LOCK.BREAK", "LOCK.RECENT"];

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Pattern of the names.
    pub matching: Option<Vec<u8>>,
    /// An owner that holds the locks or waits for them, or a part of an owner, of the name or of the address of a client. The server
    /// knows whole owners only: it is asked for those, and the rest is found among the locks that it lists anyway.
    pub who: Option<Name>,
    /// Whether all holders and waiters of each lock are listed.
    pub whole: bool,
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
    db: u32,
    /// `None` before it is known, and after the connection broke: the next server may be another version.
    known: Option<Known>,
}

#[derive(Clone)]
struct Known {
    /// Which of [`OPTIONAL`] it has.
    has: [bool; 5],
    /// Whether `LOCK.LIST` takes `OWNER` and `WAITING`.
    filters: bool,
    /// Whether `LOCK.LIST` takes `SHOW`.
    shows: bool,
    user: Answer,
}

impl Asker {
    /// Connects. `at` is shown as the server's address.
    ///
    /// # Errors
    /// As [`Client::with`].
    pub async fn connect(options: Options, at: String) -> Result<Asker, Error> {
        let db = options.db;
        Ok(Asker { client: Client::with(options).await?, at, db, known: None })
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
        let known = if let Some(known) = self.known.take() { known } else { know(&self.client).await? };
        let [has_list, has_graph, has_stats, can_break, has_recent] = known.has;
        let by_owner = has_list && known.filters && question.who.is_some();
        let mut commands = vec![Command::new("INFO")];
        let mut ask = |is_there: bool, command: Command| {
            commands.extend(is_there.then_some(command.idempotent()));
        };
        ask(has_list, list(question, &known, false));
        ask(by_owner, list(question, &known, true));
        ask(has_recent, Command::new("LOCK.RECENT").arg("COUNT").arg(RECENT_MAX));
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
            owned: next(by_owner),
            recent: next(has_recent),
            db: self.db,
            graph: next(has_graph),
            stats: next(has_stats),
            can_break,
            detail: question.detail.clone().map(|name| (name, next(has_list), next(has_list))),
        };
        let mut known = known;
        while (known.shows || known.filters)
            && matches!(&found.list, Err(Absence::Refused(reason)) if reason.contains("syntax error"))
        {
            // An older server.
            (known.shows, known.filters) = (false, known.shows && known.filters);
            let again = self.client.pipeline(&[list(question, &known, false).idempotent()]).await?;
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
        None => [true; 5],
    };
    Ok(Known { has, filters: true, shows: true, user: replies.next().map_or(Err(Absence::Missing), answer) })
}

/// `LOCK.LIST`. `owned`: only the locks that the wanted owner holds or waits for.
fn list(question: &Question, known: &Known, owned: bool) -> Command {
    let mut command = Command::new("LOCK.LIST");
    if let Some(pattern) = &question.matching {
        command = command.arg("MATCH").arg(pattern);
    }
    if !question.all {
        command = command.arg("CONTENDED");
    }
    if owned && let Some(owner) = &question.who {
        command = command.arg("OWNER").arg(&owner.0);
    }
    if known.shows && !question.whole {
        command = command.arg("SHOW").arg(if question.who.is_some() { SHOWN_TO_FILTER_MAX } else { SHOWN_MAX });
    }
    if known.filters && !question.all && question.longest_waits {
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

/// Ends the grant with this token. Returns what came of it, and who holds the lock now, in a sentence or two.
pub async fn break_grant(client: Client, name: Name, token: u64, reason: String) -> String {
    let command = Command::new("LOCK.BREAK").arg(&name.0).arg("TOKEN").arg(token).arg("REASON").arg(&reason);
    let outcome = match client.run(command).await {
        Ok(_) => "Broken.".to_owned(),
        Err(Error::NotHeld(cause)) => format!("Nothing was broken. NOTHELD {}.", escaped(cause.as_bytes())),
        Err(error) if error.maybe_applied() => {
            return format!("It is not known whether the grant has ended: {}", explained(&error));
        }
        Err(error) => return format!("Nothing was broken. {}", explained(&error)),
    };
    match client.run(Command::new("LOCK.INFO").arg(&name.0).idempotent()).await {
        Ok(info) => format!("{outcome} {}", rows::holds_now(&info)),
        // The next look shows it.
        Err(_) => outcome,
    }
}

/// An error of the connection or of a command, in words that say what to do about it.
pub fn explained(error: &Error) -> String {
    let text = escaped(error.to_string().as_bytes());
    match error {
        Error::Reply(reply) if reply.code() == "NOAUTH" => {
            "NOAUTH the server needs a password: set REDISCLI_AUTH, or give redis://:PASSWORD@HOST".to_owned()
        }
        // The first byte of an HTTP answer is that of a greeting in RESP3.
        Error::Protocol(reason) if reason.contains("parse_hello") => {
            "this looks like an HTTP port: give the port for clients, which is 6379 unless the server has another one".to_owned()
        }
        Error::Protocol(_) => format!("{text}: what answers does not speak the Redis protocol; a port for TLS needs rediss://"),
        Error::Connect(reason) if reason.contains("InvalidContentType") => {
            "the server does not speak TLS here: give redis://, or its port for TLS".to_owned()
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(question: &Question, filters: bool, shows: bool, owned: bool) -> String {
        let known = Known { has: [true; 5], filters, shows, user: Err(Absence::Missing) };
        let command = list(question, &known, owned);
        String::from_utf8_lossy(command.wire()).split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_older_server_is_asked_for_what_it_knows() {
        let question = Question { who: Some(Name::from("ann")), longest_waits: true, ..Question::default() };
        assert_eq!(sent(&question, true, true, false), "LOCK.LIST CONTENDED SHOW 100 WAITING 0 COUNT 200");
        assert_eq!(sent(&question, true, true, true), "LOCK.LIST CONTENDED OWNER ann SHOW 100 WAITING 0 COUNT 200");
        assert_eq!(sent(&question, true, false, false), "LOCK.LIST CONTENDED WAITING 0 COUNT 200");
        assert_eq!(sent(&question, false, false, false), "LOCK.LIST CONTENDED COUNT 200");
        let whole = Question { whole: true, ..Question::default() };
        assert_eq!(sent(&whole, true, true, false), "LOCK.LIST CONTENDED COUNT 200");
        assert_eq!(sent(&Question::default(), true, true, false), "LOCK.LIST CONTENDED SHOW 20 COUNT 200");
    }

    #[test]
    fn errors_say_what_to_do() {
        let of = |error: Error| explained(&error);
        let http = Error::Protocol("Decode Error: parse_hello: Invalid HELLO.".to_owned());
        assert!(of(http).starts_with("this looks like an HTTP port"));
        assert!(of(Error::Protocol("invalid type".to_owned())).ends_with("a port for TLS needs rediss://"));
        let tls = Error::Connect("received corrupt message of type InvalidContentType".to_owned());
        assert_eq!(of(tls), "the server does not speak TLS here: give redis://, or its port for TLS");
        assert_eq!(of(Error::Connect("refused".to_owned())), "no connection: refused");
    }
}
