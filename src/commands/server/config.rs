//! CONFIG and its subcommands.

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::commands::reference::help;
use crate::engine::command::{Command, Flags, Group, Positions, row, rows, subrows};
use crate::engine::config::{Config, Directive, Section, did_you_mean, nearest};
use crate::engine::context::Context;
use crate::engine::observe::notices::Notice;
use crate::engine::observe::redact;

const ADMIN: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE);
const TO_ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

/// The base of the rows of `CONFIG`.
const SUB: Command = Command { flags: ADMIN, group: Group::Server, since: "2.0.0", ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("config", "A container for server configuration commands.";
    group: Group::Server, since: "2.0.0", complexity: "Depends on subcommand.", subcommands: &subrows([
        row!("get", get, "parameter [parameter ...]", "Returns the directives that match the patterns, and their values.";
            complexity: "O(N) when N is the number of configuration parameters provided", ..SUB),
        Command { handler: |cx, args| help::reply(cx, args, HELP), ..help::row(Group::Server, "5.0.0") },
        row!("resetstat", resetstat, "Resets the statistics of INFO."; tips: TO_ALL_NODES, ..SUB),
        row!("rewrite", rewrite, "Writes the current directives to the configuration file.";
            since: "2.8.0", tips: TO_ALL_NODES, ..SUB),
        row!("set", set, "parameter value [parameter value ...]", "Sets directives: all of them, or none if one fails.";
            secrets: secret_values, complexity: "O(N) when N is the number of configuration parameters provided",
            tips: TO_ALL_NODES, ..SUB),
    ]), ..Command::DEFAULT)]);

/// The secret values in a `CONFIG SET`.
fn secret_values(args: &[&[u8]]) -> Positions {
    (2..args.len()).step_by(2).filter(|&at| redact::is_secret(args[at])).map(|at| at + 1).filter(|&at| at < args.len()).collect()
}

/// Finds a directive of `CONFIG`.
fn find(name: &[u8]) -> Option<(&'static Directive, &'static str)> {
    Directive::find(name).filter(|(directive, _)| directive.section != Section::File)
}

fn get(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut found: Vec<(&[u8], &Directive)> = Vec::new();
    for &pattern in &args[2..] {
        if !pattern.iter().any(|b| b"[*?".contains(b)) {
            // A name that is not a pattern is returned as the client wrote it.
            if let Some((directive, _)) = find(pattern)
                && !found.iter().any(|(name, _)| name.eq_ignore_ascii_case(pattern))
            {
                found.push((pattern, directive));
            }
            continue;
        }
        for directive in Directive::all().iter().filter(|row| !matches!(row.section, Section::Testing | Section::File)) {
            for name in directive.names().map(str::as_bytes) {
                if glob::matches(pattern, name, true) && !found.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                    found.push((name, directive));
                }
            }
        }
    }
    cx.reply.map(found.len());
    for (name, directive) in found {
        cx.reply.bulk(name);
        cx.reply.bulk(&directive.get(cx.engine.config()));
    }
    Ok(())
}

fn set(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(args.len() % 2 == 1, Error::SYNTAX);
    let failed = |name: &[u8], reason: &str| {
        Error::quoting("ERR CONFIG SET failed (possibly related to argument '", name, &format!("') - {reason}"))
    };
    // All names are checked before any value.
    let mut wanted: Vec<(&Directive, &'static str, &[u8])> = Vec::new();
    for pair in args[2..].chunks_exact(2) {
        let Some((directive, name)) = find(pair[0]) else {
            let near = nearest(pair[0]).filter(|known| find(known.as_bytes()).is_some());
            let end = format!("'{}", did_you_mean(near));
            return Err(Error::quoting("ERR Unknown option or number of arguments for CONFIG SET - '", pair[0], &end));
        };
        if directive.fixed {
            let kind = if directive.protected { "protected" } else { "immutable" };
            return Err(failed(pair[0], &format!("can't set {kind} config")));
        }
        fail_if!(wanted.iter().any(|(_, known, _)| *known == name), failed(pair[0], "duplicate parameter"));
        wanted.push((directive, name, pair[1]));
    }
    let mut config: Config = cx.engine.config().clone();
    for (directive, name, value) in &wanted {
        directive.set_from_value(&mut config, value).map_err(|reason| failed(name.as_bytes(), &reason))?;
    }
    let set: Vec<&'static Directive> = wanted.iter().map(|(directive, _, _)| *directive).collect();
    cx.engine.apply_config(config, &set).map_err(|(name, reason)| failed(name.as_bytes(), &reason))?;
    let shown = |(_, name, value): &(&Directive, &'static str, &[u8])| match redact::is_secret(name.as_bytes()) {
        true => format!("{name}=(redacted)"),
        false => format!("{name}={}", String::from_utf8_lossy(value)),
    };
    let directives = wanted.iter().map(shown).collect::<Vec<_>>().join(" ");
    let (now, by) = (cx.now, Some(cx.session));
    cx.engine.notice(now, by, Notice::Configured { directives: &directives });
    cx.reply.ok();
    Ok(())
}

fn resetstat(cx: &mut Context<'_>, _args: &[&[u8]]) -> Result {
    // Commands that still wait for their shared clock read belong to the statistics before the reset.
    cx.engine.take_time(cx.now);
    cx.engine.reset_stats(cx.now);
    cx.engine.count(cx.command);
    cx.reply.ok();
    Ok(())
}

fn rewrite(cx: &mut Context<'_>, _args: &[&[u8]]) -> Result {
    match cx.engine.rewrite_config() {
        None => return Err(Error::new("ERR The server is running without a config file")),
        Some(Err(reason)) => return Err(Error::new(format!("ERR Rewriting config file: {reason}"))),
        Some(Ok(())) => {}
    }
    cx.reply.ok();
    Ok(())
}

/// What `HELP` replies, as in Redis.
const HELP: &[&str] = &[
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Set the configuration <directive> to <value>.",
    "RESETSTAT",
    "    Reset statistics reported by the INFO command.",
    "REWRITE",
    "    Rewrite the configuration file.",
];

#[cfg(test)]
mod tests {
    use crate::engine::Action;
    use crate::engine::config::Effect;
    use crate::engine::harness::Harness;
    use crate::keyspace::change::Classes;

    #[test]
    fn get_takes_names_and_patterns_and_shows_plain_names_as_written() {
        let mut h = Harness::new();
        h.script(&[
            ("config get PORT port Port port", "*2 $4 PORT $4 6379"),
            ("config get nosuch", "*0"),
            ("config get PO?T", "*2 $4 port $4 6379"),
            ("config get maxmemory-p*", "*2 $16 maxmemory-policy $10 noeviction"),
            ("config get key-load-dela*", "*0"),
            ("config get key-load-delay", "*2 $14 key-load-delay $1 0"),
            ("config get *ziplist-value", "*4 $22 hash-max-ziplist-value $2 64 $22 zset-max-ziplist-value $2 64"),
            ("config get", "-ERR wrong number of arguments for 'config|get' command"),
            ("config nosuch", "-ERR unknown subcommand 'nosuch'. Try CONFIG HELP."),
        ]);
        h.run("hello 3");
        assert_eq!(h.run("config get timeout"), "%1 $7 timeout $1 0");
    }

    #[test]
    fn set_is_all_or_nothing() {
        let mut h = Harness::new();
        h.script(&[
            ("config set timeout 5 MAXCLIENTS 7", "+OK"),
            ("config get timeout maxclients", "*4 $7 timeout $1 5 $10 maxclients $1 7"),
            (
                "config set timeout 6 MaxClients x",
                "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - argument couldn't be parsed into an integer",
            ),
            ("config get timeout", "*2 $7 timeout $1 5"),
            ("config set nosuch 1 timeout 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
            ("config set timeout 1 timeout 2", "-ERR CONFIG SET failed (possibly related to argument 'timeout') - duplicate parameter"),
            ("config set databases 3", "-ERR CONFIG SET failed (possibly related to argument 'databases') - can't set immutable config"),
            (
                "config set dbfilename a",
                "-ERR CONFIG SET failed (possibly related to argument 'dbfilename') - can't set protected config",
            ),
            ("config set timeout", "-ERR wrong number of arguments for 'config|set' command"),
            ("config set timeout 1 hz", "-ERR syntax error"),
            ("config rewrite", "-ERR The server is running without a config file"),
        ]);
    }

    #[test]
    fn a_typing_error_is_told_and_what_redis_alone_has_is_taken_or_refused_with_a_reason() {
        let mut h = Harness::new();
        h.script(&[
            (
                "config set requirepas x",
                "-ERR Unknown option or number of arguments for CONFIG SET - 'requirepas'; did you mean 'requirepass'?",
            ),
            ("config set rename-command x", "-ERR Unknown option or number of arguments for CONFIG SET - 'rename-command'"),
            ("config get rename-command log-format watchdog-peri* loadmod*", "*0"),
            ("config get watchdog-period", "*2 $15 watchdog-period $1 0"),
            ("config get min-*-to-write", "*4 $21 min-replicas-to-write $1 0 $19 min-slaves-to-write $1 0"),
            ("config set min-replicas-to-write 0 hz 20 repl-backlog-size 1kb", "+OK"),
            ("config get hz REPL-backlog-size", "*4 $2 hz $2 20 $17 REPL-backlog-size $4 1024"),
            (
                "config set hz 30 min-slaves-to-write 1",
                "-ERR CONFIG SET failed (possibly related to argument 'min-slaves-to-write') - A server alone has no replicas to wait \
                 for, and of nodes that replicate a majority always has each write; it can only be 0",
            ),
            ("config get hz", "*2 $2 hz $2 20"),
            ("config set io-threads 1", "-ERR CONFIG SET failed (possibly related to argument 'io-threads') - can't set immutable config"),
        ]);
        let text = h.run("info server");
        assert!(text.contains(" hz:20 configured_hz:20 "), "{text}");
    }

    #[test]
    fn events_and_passwords_take_effect_at_once_and_the_driver_is_told() {
        let mut h = Harness::new();
        h.run("config set notify-keyspace-events Kx");
        assert_eq!(h.engine.keyspace().changes.notify, Classes::KEYSPACE | Classes::EXPIRED);
        assert_eq!(h.engine.take_actions(), []);
        h.run("config set timeout 5 appendfsync no");
        assert_eq!(h.engine.take_actions(), [Action::Reconfigured(Effect::Sweep), Action::Reconfigured(Effect::Syncs)]);
        h.run("config set requirepass hidden");
        let other = h.engine.connect(h.now, Default::default());
        h.session = other;
        assert_eq!(h.run("get k"), "-NOAUTH Authentication required.");
    }

    #[test]
    fn resetstat_clears_the_counters() {
        let mut h = Harness::new();
        h.run("get missing");
        h.run("nosuch");
        assert_eq!((h.engine.keyspace().stats.misses, h.engine.stats().error_replies), (1, 1));
        assert_eq!(h.run("config resetstat"), "+OK");
        assert_eq!((h.engine.keyspace().stats.misses, h.engine.stats().error_replies), (0, 0));
        // A call is counted when it completes: CONFIG RESETSTAT is counted, INFO is not yet.
        let text = h.run("info all");
        assert!(text.contains("cmdstat_config|resetstat:calls=1,") && !text.contains("cmdstat_info"), "{text}");
        assert!(text.contains("total_commands_processed:1 "), "{text}");
        assert!(h.run("info commandstats").contains("cmdstat_info:calls=1,"));
    }
}
