//! CLIENT and its subcommands.

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::base::number::parse_i64;
use crate::base::time::Now;
use crate::commands::clients::{blocking, list, tracking};
use crate::commands::reference::help;
use crate::engine::command::options::{choice, upper};
use crate::engine::command::{Command, Flags, Group, Traits, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::observe::client_line::shown;
use crate::engine::session::{Session, SessionFlags};
use crate::engine::users::{UserId, Users};

const OWN: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);
const ADMIN: Flags = OWN.union(Flags::ADMIN);
const TO_ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

/// The base of the rows of `CLIENT`.
const SUB: Command = Command { traits: Traits::KEEPS_CACHING, flags: OWN, group: Group::Connection, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("client", "A container for client connection commands.";
    group: Group::Connection, since: "2.4.0", complexity: "Depends on subcommand.", subcommands: &subrows([
        tracking::CACHING,
        row!("capa", capa, "capability [capability ...]", "Declares the capabilities of the client."; since: "8.0.0", ..SUB),
        row!("getname", getname, "Returns the name of the connection."; since: "2.6.9", ..SUB),
        tracking::GETREDIR,
        Command { traits: SUB.traits, handler: |cx, args| help::reply(cx, args, HELP), ..help::row(Group::Connection, "5.0.0") },
        row!("id", id, "Returns the ID of the connection."; since: "5.0.0", ..SUB),
        row!("info", list::info, "Returns information about the connection.";
            since: "6.2.0", tips: &["nondeterministic_output"], ..SUB),
        row!("kill", kill,
            "<ip:port | [ID client-id] [TYPE <NORMAL | MASTER | SLAVE | REPLICA | PUBSUB>] [USER username] [ADDR ip:port] \
                     [LADDR ip:port] [SKIPME <YES | NO>] [MAXAGE maxage]>", "Closes connections by address or by filters.";
            flags: ADMIN, since: "2.4.0", complexity: "O(N) where N is the number of connections", ..SUB),
        row!("list", list::list, "[TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]",
            "Lists the connections, one per line.";
            flags: ADMIN, since: "2.4.0", complexity: "O(N) where N is the number of connections",
            tips: &["nondeterministic_output"], ..SUB),
        row!("no-evict", no_evict, "<ON | OFF>", "Exempts the connection from client eviction, or ends the exemption.";
            flags: ADMIN, since: "7.0.0", ..SUB),
        row!("no-touch", no_touch, "<ON | OFF>", "Controls whether commands of the connection update the access time of keys.";
            since: "7.2.0", ..SUB),
        blocking::PAUSE,
        row!("reply", reply, "<ON | OFF | SKIP>", "Turns replies on or off, or skips the reply to the next command.";
            since: "3.2.0", ..SUB),
        row!("setinfo", setinfo, "<LIB-NAME libname | LIB-VER libver>", "Sets the name or the version of the client library.";
            since: "7.2.0", tips: TO_ALL_NODES, ..SUB),
        row!("setname", setname, "connection-name", "Sets the name of the connection.";
            since: "2.6.9", tips: TO_ALL_NODES, ..SUB),
        tracking::TRACKING,
        tracking::TRACKINGINFO,
        blocking::UNBLOCK,
        blocking::UNPAUSE,
    ]), ..Command::DEFAULT)]);

/// Whether a text can be a field of a `CLIENT LIST` line: it must not contain a separator.
fn fits_list(text: &[u8]) -> bool {
    shown(text).iter().all(u8::is_ascii_graphic)
}

/// Fails if a name cannot be listed.
pub fn check_name(name: &[u8]) -> Result {
    if fits_list(name) { Ok(()) } else { Err(Error::CLIENT_NAME) }
}

/// Sets the name of a session, which must have been checked. An empty name removes it.
pub fn set_name(session: &mut Session, name: &[u8]) {
    session.name = (!name.is_empty()).then(|| name.into());
}

fn capa(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    // Capabilities permit replies that this server never sends, such as a redirection to another server.
    cx.reply.ok();
    Ok(())
}

fn id(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let id = cx.session().id;
    cx.reply.integer(id as i64);
    Ok(())
}

fn getname(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.element(cx.engine.sessions()[cx.session].name.as_ref());
    Ok(())
}

fn setname(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_name(args[2])?;
    set_name(cx.session(), args[2]);
    cx.reply.ok();
    Ok(())
}

fn setinfo(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (option, value) = (args[2], args[3]);
    let version = choice(option, &[("LIB-NAME", false), ("LIB-VER", true)]);
    let version = version.ok_or_else(|| Error::quoting("ERR Unrecognized option '", option, "'"))?;
    fail_if!(!fits_list(value), Error::quoting("ERR ", option, " cannot contain spaces, newlines or special characters."));
    let value = String::from_utf8_lossy(shown(value)).into_owned();
    let lib = cx.session().lib.get_or_insert_default();
    *(if version { &mut lib.1 } else { &mut lib.0 }) = value;
    cx.reply.ok();
    Ok(())
}

pub(super) fn on_or_off(text: &[u8]) -> Result<bool> {
    choice(text, &[("ON", true), ("OFF", false)]).ok_or(Error::SYNTAX)
}

fn no_evict(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let on = on_or_off(args[2])?;
    cx.session().flags.set(SessionFlags::NO_EVICT, on);
    cx.reply.ok();
    Ok(())
}

fn no_touch(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let on = on_or_off(args[2])?;
    cx.session().flags.set(SessionFlags::NO_TOUCH, on);
    cx.reply.ok();
    Ok(())
}

fn reply(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if args[2].eq_ignore_ascii_case(b"skip") {
        let session = cx.session();
        if !session.flags.contains(SessionFlags::REPLY_OFF) {
            session.flags |= SessionFlags::REPLY_SKIP_NEXT;
        }
    } else if on_or_off(args[2])? {
        cx.session().flags.remove(SessionFlags::REPLY_OFF | SessionFlags::REPLY_SKIP);
        cx.reply.ok();
    } else {
        cx.session().flags |= SessionFlags::REPLY_OFF;
    }
    Ok(())
}

/// The types of connections, for filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Normal,
    Master,
    Replica,
    PubSub,
}

impl Type {
    pub(crate) fn parse(name: &[u8]) -> Result<Type> {
        Ok(match &*upper(name) {
            b"NORMAL" => Type::Normal,
            b"SLAVE" | b"REPLICA" => Type::Replica,
            b"PUBSUB" => Type::PubSub,
            b"MASTER" => Type::Master,
            _ => return Err(Error::quoting("ERR Unknown client type '", name, "'")),
        })
    }

    pub(crate) fn of(session: &Session) -> Type {
        if session.subscriptions != [0; 3] { Type::PubSub } else { Type::Normal }
    }
}

/// All sessions in the order of their connection.
pub(crate) fn by_age(cx: &Context<'_>) -> Vec<(u64, SessionId)> {
    let mut all: Vec<_> = cx.engine.sessions().iter().map(|(id, session)| (session.id, id)).collect();
    all.sort_unstable();
    all
}

/// The filters of `CLIENT KILL`. A session must match all of them.
#[derive(Debug, Default)]
struct Filter<'a> {
    id: Option<u64>,
    kind: Option<Type>,
    addr: Option<&'a [u8]>,
    laddr: Option<&'a [u8]>,
    user: Option<UserId>,
    /// In seconds.
    age_min: Option<i64>,
    skip_me: bool,
}

impl<'a> Filter<'a> {
    fn parse(options: &[&'a [u8]], users: &Users) -> Result<Filter<'a>> {
        let mut filter = Filter { skip_me: true, ..Filter::default() };
        for pair in options.chunks(2) {
            let [option, value] = *pair else { return Err(Error::SYNTAX) };
            match &*upper(option) {
                b"ID" => match parse_i64(value) {
                    Some(id @ 1..) => filter.id = Some(id as u64),
                    _ => return Err(Error::CLIENT_ID_POSITIVE),
                },
                b"MAXAGE" => match parse_i64(value).ok_or(Error::MAXAGE_NOT_INTEGER)? {
                    age @ 1.. => filter.age_min = Some(age),
                    _ => return Err(Error::MAXAGE_POSITIVE),
                },
                b"TYPE" => filter.kind = Some(Type::parse(value)?),
                b"ADDR" => filter.addr = Some(value),
                b"LADDR" => filter.laddr = Some(value),
                b"USER" => filter.user = Some(users.find(value).ok_or_else(|| Error::quoting("ERR No such user '", value, "'"))?),
                b"SKIPME" => filter.skip_me = choice(value, &[("YES", true), ("NO", false)]).ok_or(Error::SYNTAX)?,
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(filter)
    }

    fn matches(&self, session: &Session, now: Now) -> bool {
        let age = (now.mono_ms().saturating_sub(session.created_ms) / 1000) as i64;
        self.addr.is_none_or(|addr| addr == session.addr.as_bytes())
            && self.laddr.is_none_or(|laddr| laddr == session.laddr.as_bytes())
            && self.kind.is_none_or(|kind| kind == Type::of(session))
            && self.user.is_none_or(|user| user == session.user)
            && self.id.is_none_or(|id| id == session.id)
            && self.age_min.is_none_or(|min| age >= min)
    }
}

fn kill(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let old_form = args.len() == 3;
    let filter = if old_form {
        Filter { addr: Some(args[2]), ..Filter::default() }
    } else {
        Filter::parse(&args[2..], cx.engine.users())?
    };
    let now = cx.now;
    let mut found = Vec::new();
    for (id, session) in cx.engine.sessions().iter() {
        let gone = session.flags.contains(SessionFlags::CLOSE_NOW);
        let spared = gone || (filter.skip_me && id == cx.session);
        if !spared && filter.matches(session, now) {
            found.push(id);
        }
    }
    fail_if!(old_form && found.is_empty(), Error::NO_SUCH_CLIENT);
    for &id in &found {
        // A client that kills itself gets the reply first.
        if id == cx.session {
            cx.session().flags |= SessionFlags::CLOSE_AFTER_REPLY;
        } else {
            let session = &mut cx.engine.sessions_mut()[id];
            session.flags |= SessionFlags::CLOSE_NOW;
            let out = std::mem::take(&mut session.out);
            cx.engine.discard(out);
            // The locks for which the session waits go to other waiters.
            cx.engine.forget_wait(cx.now, id);
        }
        cx.engine.mark_pending_write(id);
    }
    if old_form {
        cx.reply.ok();
    } else {
        cx.reply.integer(found.len() as i64);
    }
    Ok(())
}

/// What `HELP` replies, as in Redis.
const HELP: &[&str] = &[
    "CACHING (YES|NO)",
    "    Enable/disable tracking of the keys for next command in OPTIN/OPTOUT modes.",
    "CAPA <capability> [<capability> ...]",
    "    Tell the server what the client is able to do.",
    "GETREDIR",
    "    Return the client ID we are redirecting to when tracking is enabled.",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current client connection.",
    "KILL <ip:port>",
    "    Kill connection made from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Kill connections. Options are:",
    "    * ADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made from the specified address",
    "    * LADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made to specified local address",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Kill connections by type.",
    "    * USER <username>",
    "      Kill connections authenticated by <username>.",
    "    * SKIPME (YES|NO)",
    "      Skip killing current connection (default: yes).",
    "    * ID <client-id>",
    "      Kill connections by client id.",
    "    * MAXAGE <maxage>",
    "      Kill connections older than the specified age.",
    "LIST [options ...]",
    "    Return information about client connections. Options:",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Return clients of specified type.",
    "UNPAUSE",
    "    Stop the current client pause, resuming traffic.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Suspend all, or just write, clients for <timeout> milliseconds.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "SETINFO <option> <value>",
    "    Set client meta attr. Options are:",
    "    * LIB-NAME: the client lib name.",
    "    * LIB-VER: the client lib version.",
    "UNBLOCK <clientid> [TIMEOUT|ERROR]",
    "    Unblock the specified blocked client.",
    "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
    "         [OPTIN] [OPTOUT] [NOLOOP]",
    "    Control server assisted client side caching.",
    "TRACKINGINFO",
    "    Report tracking status for the current connection.",
    "NO-EVICT (ON|OFF)",
    "    Protect current client connection from eviction.",
    "NO-TOUCH (ON|OFF)",
    "    Will not touch LRU/LFU stats when this mode is on.",
];
