//! SLOWLOG: the last slow requests. [`crate::engine::observe::timing`] says which requests are timed, and how exactly.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::reference::help;
use crate::engine::command::{Command, Flags, Group, row, rows, subrows};
use crate::engine::context::Context;

/// Number of entries that GET returns without a count.
const COUNT: i64 = 10;

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);

const ROW: Command = Command { group: Group::Server, since: "2.2.12", flags: Flags::ADMIN.union(ANY_TIME), ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("slowlog", "A container for slow log commands.";
    flags: Flags::empty(), complexity: "Depends on subcommand.", subcommands: &subrows([
        row!("get", get, "[count]", "Returns the entries of the slow log, the newest first.";
            complexity: "O(N) where N is the number of entries returned",
            tips: &["request_policy:all_nodes", "nondeterministic_output"], ..ROW),
        help::row(Group::Server, "6.2.0"),
        row!("len", len, "Returns the number of entries in the slow log.";
            tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"], ..ROW),
        row!("reset", reset, "Clears the slow log.";
            complexity: "O(N) where N is the number of entries in the slowlog",
            tips: &["request_policy:all_nodes", "response_policy:all_succeeded"], ..ROW),
    ]), ..ROW)]);

fn get(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = match args {
        [_, _] => COUNT,
        [_, _, count] => match parse_i64(count) {
            Some(-1) => i64::MAX,
            Some(count @ 0..) => count,
            _ => return Err(Error::new("ERR count should be greater than or equal to -1")),
        },
        _ => return Err(Error::subcommand_syntax(args)),
    };
    let log = cx.engine.slowlog();
    let count = log.entries().len().min(usize::try_from(count).unwrap_or(usize::MAX));
    cx.reply.array(count);
    for entry in log.entries().take(count) {
        cx.reply.array(6);
        cx.reply.integer(entry.id as i64);
        cx.reply.integer(entry.unix_s);
        cx.reply.integer(entry.us as i64);
        cx.reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| cx.reply.bulk(arg));
        cx.reply.bulk(entry.addr.as_bytes());
        cx.reply.bulk(&entry.name);
    }
    Ok(())
}

fn len(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let len = cx.engine.slowlog().entries().len();
    cx.reply.integer(len as i64);
    Ok(())
}

fn reset(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.engine.slowlog_mut().reset();
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn requests_of_a_transaction_are_logged_in_order() {
        let mut h = Harness::new();
        for request in ["MULTI", "CONFIG SET slowlog-log-slower-than 0", "GET k", "EXEC"] {
            h.run(request);
        }
        h.engine.take_actions();
        h.engine.finish_actions(h.now);
        let (text, words) = (h.run("SLOWLOG GET"), ["$3 GET", "$6 CONFIG"]);
        let found = words.map(|word| text.find(word));
        assert!(text.starts_with("*2 ") && found[0].is_some() && found[0] < found[1], "{text}");
    }

    #[test]
    fn requests_are_logged_with_their_arguments_cut() {
        let mut h = Harness::new();
        h.script(&[("SLOWLOG LEN", ":0"), ("CONFIG SET slowlog-log-slower-than 0", "+OK")]);
        h.engine.take_actions();
        h.engine.finish_actions(h.now);
        h.run("SET k v");
        assert_eq!(h.run("SLOWLOG GET 1"), "*1 *6 :1 :1700001000 :0 *3 $3 SET $1 k $1 v $0  $0");
        let args: Vec<Vec<u8>> = std::iter::once(b"RPUSH".to_vec()).chain((0..40).map(|_| vec![b'x'; 130])).collect();
        h.args(&args.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let cut = format!("$146 {}... (2 more bytes) ", "x".repeat(128));
        let wanted = format!("*1 *6 :3 :1700001000 :0 *32 $5 RPUSH {}$23 ... (10 more arguments) $0  $0", cut.repeat(30));
        assert_eq!(h.run("SLOWLOG GET 1"), wanted);
        h.script(&[
            ("SLOWLOG RESET", "+OK"),
            ("SLOWLOG LEN", ":1"),
            ("CONFIG SET slowlog-log-slower-than -1", "+OK"),
            ("SLOWLOG RESET", "+OK"),
            ("GET k", "$1 v"),
            ("SLOWLOG GET", "*0"),
            ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1"),
            ("SLOWLOG GET x", "-ERR count should be greater than or equal to -1"),
            ("SLOWLOG GET 1 2", "-ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP."),
        ]);
    }

    #[test]
    fn a_log_has_no_passwords_and_no_exec_and_no_more_than_it_may() {
        let mut h = Harness::new();
        h.run("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3");
        for request in ["AUTH hunter2", "MULTI", "ACL SETUSER u >hunter2", "CONFIG SET requirepass hunter2", "EXEC"] {
            h.run(request);
        }
        let log = h.run("SLOWLOG GET -1");
        assert!(!log.contains("hunter2") && !log.contains("EXEC") && log.contains("SETUSER $10 (redacted)"), "{log}");
        assert!(log.starts_with("*3 "), "{log}");
        assert!(h.run("INFO commandstats").contains("cmdstat_exec:calls=1,usec=0,usec_per_call=0.00,rejected_calls=0"));
    }

    #[test]
    fn what_the_driver_does_for_a_request_counts_as_its_time() {
        let mut h = Harness::new();
        h.run("CONFIG SET latency-monitor-threshold 100");
        h.engine.take_actions();
        h.engine.finish_actions(h.now);
        h.run("DEBUG SLEEP 0.25");
        h.engine.take_actions();
        h.now.advance_us(250_000);
        h.engine.finish_actions(h.now);
        assert_eq!(h.run("SLOWLOG GET"), "*1 *6 :0 :1700001000 :250000 *3 $5 DEBUG $5 SLEEP $4 0.25 $0  $0");
        h.script(&[
            ("LATENCY LATEST", "*1 *4 $7 command :1700001000 :250 :250"),
            ("LATENCY HISTORY command", "*1 *2 :1700001000 :250"),
            ("LATENCY HISTORY other", "*0"),
            ("LATENCY GRAPH other", "-ERR No samples available for event 'other'"),
            ("LATENCY HISTOGRAM debug nosuch", "*2 $5 debug *4 $5 calls :1 $14 histogram_usec *2 :270532 :1"),
            ("LATENCY RESET other command", ":1"),
            ("LATENCY RESET", ":0"),
        ]);
    }
}
