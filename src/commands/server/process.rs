//! Server commands: INFO, TIME, ROLE, WAIT, SAVE, BGSAVE, BGREWRITEAOF, SHUTDOWN.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::base::version::{PORTCULLIS_VERSION, REDIS_VERSION};
use crate::commands::server::{debug, info, replication};
use crate::engine::Action;
use crate::engine::command::options::{flag, integer};
use crate::engine::command::{Categories, Command, Flags, Group, Traits, row, rows};
use crate::engine::context::Context;
use crate::engine::observe::monitor;
use crate::engine::session::SessionFlags;
use crate::keyspace::waits::TimeOut;

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("info", info_command, "[section [section ...]]", "Returns information and statistics about the server.";
        traits: Traits::COUNTS_KEYS_IN_SECTIONS, flags: ANY_TIME, group: Group::Server, categories: Categories::DANGEROUS,
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"], ..Command::DEFAULT),
    row!("time", time, "Returns the server's time in seconds and microseconds.";
        flags: ANY_TIME.union(Flags::FAST), group: Group::Server, since: "2.6.0", tips: &["nondeterministic_output"],
        ..Command::DEFAULT),
    row!("role", replication::role, "Returns the replication role of the server.";
        flags: ANY_TIME.union(Flags::NOSCRIPT).union(Flags::FAST), group: Group::Server,
        categories: Categories::ADMIN.union(Categories::DANGEROUS), since: "2.8.12", ..Command::DEFAULT),
    row!("wait", wait, "numreplicas timeout",
        "Blocks until enough replicas have the changes so far. Returns how many have them for certain: when all are settled, a majority of the nodes but the leader. Without replication it waits for the timeout and returns 0.";
        traits: Traits::SHOWS_NO_KEY.union(Traits::WAITS_FOR_REPLICAS), flags: Flags::BLOCKING, group: Group::Generic,
        categories: Categories::CONNECTION, since: "3.0.0", tips: &["request_policy:all_shards", "response_policy:agg_min"],
        ..Command::DEFAULT),
    row!("waitaof", waitaof, "numlocal numreplicas timeout",
        "Blocks until the changes so far are durable in the append-only file, or on a majority of replicated nodes. Returns 1 if they are durable, and how many replicas have them durably, as WAIT does.";
        traits: Traits::SHOWS_NO_KEY.union(Traits::WAITS_FOR_REPLICAS), flags: Flags::BLOCKING, group: Group::Generic,
        categories: Categories::CONNECTION, since: "7.2.0", tips: &["request_policy:all_shards", "response_policy:agg_min"],
        ..Command::DEFAULT),
    row!("lastsave", lastsave,
        "Returns the Unix time of the last RDB snapshot that succeeded; of the start of the server before the first.";
        flags: ANY_TIME.union(Flags::FAST), group: Group::Server, categories: Categories::ADMIN.union(Categories::DANGEROUS),
        tips: &["nondeterministic_output"], ..Command::DEFAULT),
    row!("save", save, "Writes an RDB snapshot, and replies when it is on the disk. Other clients are served meanwhile.";
        flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING).union(Flags::NO_MULTI), group: Group::Server,
        ..Command::DEFAULT),
    row!("bgsave", bgsave, "[SCHEDULE]", "Writes an RDB snapshot in the background.";
        flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING), group: Group::Server, ..Command::DEFAULT),
    row!("bgrewriteaof", bgrewriteaof,
        "Rewrites the append-only file in the background: makes a new base of it. Refused without appendonly.";
        flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING), group: Group::Server, ..Command::DEFAULT),
    row!("shutdown", shutdown, "[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]", "Shuts down the server.";
        flags: ANY_TIME.union(Flags::ADMIN).union(Flags::NOSCRIPT).union(Flags::NO_MULTI).union(Flags::ALLOW_BUSY),
        group: Group::Server, ..Command::DEFAULT),
    row!("debug", debug::debug,
        "<SLEEP seconds:double | SET-ACTIVE-EXPIRE switch | CHANGE-REPL-ID | QUICKLIST-PACKED-THRESHOLD size | ERROR message | LOG message | SET-DISABLE-DENY-SCRIPTS switch | RELOAD [MERGE] [NOFLUSH] [NOSAVE] | LOADAOF | PROTOCOL type | OBJECT name | HELP>",
        "Runs a debugging command, such as DIGEST, OBJECT, SET-ACTIVE-EXPIRE or SLEEP.";
        traits: Traits::DEBUG, flags: ANY_TIME.union(Flags::ADMIN).union(Flags::NOSCRIPT), group: Group::Server,
        complexity: "Depends on subcommand.", ..Command::DEFAULT),
    row!("monitor", |cx, _| monitor::begin(cx),
        "Streams the requests of all clients to this one, except administrative commands.";
        flags: ANY_TIME.union(Flags::ADMIN).union(Flags::NOSCRIPT), group: Group::Server, ..Command::DEFAULT),
    row!("lolwut", lolwut, "[VERSION version]", "Draws a gate with the version of the server.";
        flags: Flags::READONLY.union(Flags::FAST), group: Group::Server, since: "5.0.0", ..Command::DEFAULT),
]);

fn info_command(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    // INFO is counted after its report, when it completes.
    cx.engine.uncount(cx.command);
    let text = info::report(cx.engine, cx.now, &args[1..]);
    cx.engine.count(cx.command);
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn time(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let us = cx.now.unix_us();
    cx.reply.array(2);
    cx.reply.bulk(us.div_euclid(1_000_000).to_string().as_bytes());
    cx.reply.bulk(us.rem_euclid(1_000_000).to_string().as_bytes());
    Ok(())
}

/// Parses a timeout in milliseconds. Returns the deadline in monotonic milliseconds; `None` for 0, which is no timeout.
fn deadline(cx: &Context<'_>, text: &[u8]) -> Result<Option<u64>> {
    match parse_i64(text) {
        None => Err(Error::TIMEOUT_NOT_INTEGER),
        Some(ms) if ms < 0 => Err(Error::TIMEOUT_NEGATIVE),
        Some(0) => Ok(None),
        Some(ms) => Ok(Some(cx.now.deadline_in(ms as u64))),
    }
}

/// Without replication, waiting for at least one replica takes the whole timeout.
fn wait(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(cx.engine.replication().refuses(), Error::WAIT_ON_REPLICA);
    let replicas = integer(args[1])?;
    let deadline = deadline(cx, args[2])?;
    if cx.engine.replication().is_on() {
        cx.wait_for_followers(args, replicas.max(0) as u64, false, false, deadline);
    } else if replicas > 0 && cx.may_block() {
        cx.block_in_vain(args, deadline, TimeOut::NoReplica);
    } else {
        cx.reply.integer(0);
    }
    Ok(())
}

/// Waits for all changes so far, those of other connections included: there is no record of what each connection changed.
fn waitaof(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let numlocal = integer(args[1])?;
    fail_if!(!(0..=1).contains(&numlocal), Error::NOT_ZERO_OR_ONE);
    let replicas = parse_i64(args[2]).filter(|n| *n >= 0).ok_or(Error::NOT_POSITIVE)?;
    let deadline = deadline(cx, args[3])?;
    fail_if!(cx.engine.replication().refuses(), Error::WAITAOF_ON_REPLICA);
    if cx.engine.replication().is_on() {
        cx.wait_for_followers(args, replicas as u64, true, numlocal > 0, deadline);
        return Ok(());
    }
    let position = cx.engine.persistence().position();
    fail_if!(numlocal > 0 && position.is_none(), Error::WAITAOF_WITHOUT_AOF);
    let unsynced = position.filter(|position| position.durable < position.recorded);
    let may_block = cx.may_block();
    match unsynced {
        // No replica will acknowledge anything, whatever happens here.
        _ if replicas > 0 && may_block => {
            let time_out = TimeOut::Acknowledged(position.map(|position| position.recorded));
            cx.block_in_vain(args, deadline, time_out);
        }
        Some(position) if numlocal > 0 && may_block => cx.block_for_log(args, position.recorded, deadline),
        _ => {
            cx.reply.array(2);
            cx.reply.integer(i64::from(position.is_some() && unsynced.is_none()));
            cx.reply.integer(0);
        }
    }
    Ok(())
}

fn lastsave(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let started_s = cx.engine.started().unix_ms() / 1000;
    let saved_s = cx.engine.persistence().snapshot.last_unix_s;
    cx.reply.integer(saved_s.unwrap_or(started_s));
    Ok(())
}

/// The driver replies when the snapshot is on the disk.
fn save(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(cx.engine.persistence().snapshot.since_ms.is_some(), Error::SAVE_IN_PROGRESS);
    cx.block_for_driver(args);
    let session = Some(cx.session);
    cx.engine.ask(Action::Save { session, anew: false });
    Ok(())
}

fn bgsave(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let schedule = flag(&args[1..], &["SCHEDULE"])?;
    let persistence = cx.engine.persistence_mut();
    fail_if!(persistence.snapshot.since_ms.is_some(), Error::SAVE_IN_PROGRESS);
    if persistence.rewriting() {
        fail_if!(!schedule, Error::SAVE_BESIDE_REWRITE);
        persistence.snapshot.scheduled = true;
        cx.reply.simple("Background saving scheduled");
        return Ok(());
    }
    cx.engine.ask(Action::Save { session: None, anew: false });
    cx.reply.simple("Background saving started");
    Ok(())
}

fn bgrewriteaof(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let replicated = cx.engine.replication().is_on();
    let persistence = cx.engine.persistence_mut();
    // A node has figures of the quorum's log, and no append-only file.
    fail_if!(persistence.figures.is_none() || replicated, Error::NO_APPEND_ONLY);
    fail_if!(persistence.rewriting(), Error::REWRITE_IN_PROGRESS);
    if persistence.snapshot.since_ms.is_some() {
        persistence.rewrite_scheduled = true;
        cx.reply.simple("Background append only file rewriting scheduled");
        return Ok(());
    }
    cx.engine.ask(Action::RewriteLog);
    cx.reply.simple("Background append only file rewriting started");
    Ok(())
}

/// Shuts the server down without a reply: the connection is closed instead.
fn shutdown(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let has = |word: &str| args[1..].iter().any(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    let known = ["nosave", "save", "now", "force", "abort"];
    let unknown = |arg: &&[u8]| !known.iter().any(|word| arg.eq_ignore_ascii_case(word.as_bytes()));
    let others = known[..4].iter().any(|word| has(word));
    fail_if!(args[1..].iter().any(unknown) || has("abort") && others || has("save") && has("nosave"), Error::SYNTAX);
    fail_if!(has("abort"), Error::NO_SHUTDOWN);
    if let Some(run) = cx.engine.long_run()
        && !has("nosave")
    {
        return Err(run.busy());
    }
    cx.session().flags |= SessionFlags::CLOSE_AFTER_REPLY;
    let save = if has("save") { Some(true) } else { has("nosave").then_some(false) };
    let session = cx.session;
    cx.engine.ask(Action::Shutdown { session, save, force: has("force") });
    Ok(())
}

/// Accepts any version, but draws only one picture.
fn lolwut(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if let [_, word, version, ..] = args
        && word.eq_ignore_ascii_case(b"version")
    {
        integer(version)?;
    }
    let text = format!(
        "  |>                |>\n  ##_/\\/\\/\\/\\/\\/\\/\\_##\n  ##################\n  ##### | | | | #####\n  ##### +-+-+-+ #####\n  \
         ##### | | | | #####\n  ##### V V V V #####\n\nPortcullis {PORTCULLIS_VERSION}, speaking as Redis ver. {REDIS_VERSION}\n"
    );
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::base::error::Error;
    use crate::engine::Action;
    use crate::engine::harness::Harness;
    use crate::engine::session::SessionFlags;

    #[test]
    fn there_are_no_replicas_to_wait_for() {
        Harness::new().script(&[
            ("ROLE", "*3 $6 master :0 *0"),
            ("WAIT 0 0", ":0"),
            ("WAIT -1 5", ":0"),
            ("MULTI", "+OK"),
            ("WAIT 3 0", "+QUEUED"),
            ("WAITAOF 0 3 0", "+QUEUED"),
            ("EXEC", "*2 :0 *2 :0 :0"),
            ("WAIT x 0", "-ERR value is not an integer or out of range"),
            ("WAIT 0 x", "-ERR timeout is not an integer or out of range"),
            ("WAIT 0 -1", "-ERR timeout is negative"),
            ("WAITAOF 0 0 0", "*2 :0 :0"),
            ("WAITAOF 1 0 0", "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."),
            ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1"),
            ("WAITAOF x 0 0", "-ERR value is not an integer or out of range"),
            ("WAITAOF 0 -1 0", "-ERR value is out of range, must be positive"),
        ]);
    }

    #[test]
    fn the_time_is_the_wall_clock_to_the_microsecond() {
        let mut harness = Harness::new();
        harness.now.advance_us(42);
        assert_eq!(harness.run("TIME"), "*2 $10 1700001000 $2 42");
        assert_eq!(harness.run("LASTSAVE"), ":1700001000");
    }

    #[test]
    fn the_driver_is_asked_for_snapshots() {
        let mut harness = Harness::new();
        harness.script(&[
            ("BGSAVE now", "-ERR syntax error"),
            ("BGSAVE", "+Background saving started"),
            ("BGREWRITEAOF", "-ERR Portcullis has no append-only file to rewrite: appendonly is no"),
        ]);
        assert_eq!(harness.engine.take_actions(), [Action::Save { session: None, anew: false }]);
        harness.engine.persistence_mut().snapshot.since_ms = Some(0);
        harness.script(&[
            ("BGSAVE", "-ERR Background save already in progress"),
            ("SAVE", "-ERR Background save already in progress"),
        ]);
        harness.engine.persistence_mut().snapshot.since_ms = None;
        assert_eq!(harness.run("SAVE"), "", "the reply comes when the snapshot is on the disk");
        assert_eq!(harness.engine.take_actions(), [Action::Save { session: Some(harness.session), anew: false }]);
        let (now, session) = (harness.now, harness.session);
        assert!(!harness.engine.unblock(now, session, None), "no other client ends the wait");
        harness.engine.end_wait_for_driver(now, session, None);
        let output = |harness: &mut Harness| std::mem::take(&mut harness.engine.sessions_mut()[session].out);
        assert_eq!(output(&mut harness), b"+OK\r\n");
        assert_eq!(harness.run("SAVE"), "");
        harness.engine.end_wait_for_driver(now, session, Some(&Error::SAVE_FAILED));
        assert_eq!(output(&mut harness), b"-ERR\r\n");
    }

    #[test]
    fn a_shutdown_is_asked_of_the_driver_and_closes_without_a_reply() {
        let mut harness = Harness::new();
        harness.script(&[
            ("SHUTDOWN ABORT", "-ERR No shutdown in progress."),
            ("SHUTDOWN ABORT NOW", "-ERR syntax error"),
            ("SHUTDOWN SAVE NOSAVE", "-ERR syntax error"),
            ("SHUTDOWN later", "-ERR syntax error"),
        ]);
        assert_eq!(harness.engine.take_actions(), []);
        assert_eq!(harness.run("shutdown nosave force"), "");
        let session = harness.session;
        assert_eq!(harness.engine.take_actions(), [Action::Shutdown { session, save: Some(false), force: true }]);
        assert!(harness.engine.sessions()[harness.session].flags.contains(SessionFlags::CLOSE_AFTER_REPLY));
    }

    #[test]
    fn info_is_a_text_that_resp3_marks_as_one() {
        let mut harness = Harness::new();
        assert!(harness.run("INFO replication").starts_with("$"));
        harness.run("HELLO 3");
        let info = harness.run("INFO cluster keyspace");
        assert_eq!(info, "=48 txt:# Cluster cluster_enabled:0  # Keyspace");
        assert!(harness.run("LOLWUT VERSION 5").starts_with("="));
        assert_eq!(harness.run("LOLWUT VERSION x"), "-ERR value is not an integer or out of range");
    }
}
