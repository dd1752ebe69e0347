//! LATENCY: latency events, and the execution times of commands.

use std::iter;

use crate::base::error::{Error, Result};
use crate::base::version::PORTCULLIS_VERSION;
use crate::commands;
use crate::commands::reference::help;
use crate::engine::command::{Command, Flags, Group, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::observe::histogram::Histogram;
use crate::engine::observe::turns::Longest;
use crate::resp::reply::Sink;

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);

const FROM_ALL_NODES: &[&str] = &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];

const ROW: Command = Command {
    group: Group::Server,
    since: "2.8.13",
    flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(ANY_TIME),
    tips: FROM_ALL_NODES,
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("latency", "A container for latency diagnostics commands.";
    flags: Flags::empty(), complexity: "Depends on subcommand.", tips: &[], subcommands: &subrows([
        row!("doctor", doctor, "Reports latency problems in words."; ..ROW),
        row!("graph", graph, "event", "Draws the latency of an event as a graph."; ..ROW),
        help::row(Group::Server, "2.8.13"),
        row!("histogram", histogram, "[command [command ...]]", "Returns the distribution of the execution times of commands.";
            since: "7.0.0", complexity: "O(N) where N is the number of commands with latency information being retrieved.",
            ..ROW),
        row!("history", history, "event", "Returns the latency of an event over time, the maximum of each second."; ..ROW),
        row!("latest", latest, "Returns the last and the maximum latency of each event."; ..ROW),
        row!("reset", reset, "[event [event ...]]", "Clears the latency data of the given events, or of all events.";
            tips: &["request_policy:all_nodes", "response_policy:agg_sum"], ..ROW),
        row!("turns", turns, "Returns how long the event loop ran without a break, during which no other client was served.";
            since: PORTCULLIS_VERSION, complexity: "O(1)", ..ROW),
    ]), ..ROW)]);

fn doctor(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let config = cx.engine.config();
    let text = cx.engine.latency().report(cx.now, config.latency_monitor_threshold, config.slowlog_log_slower_than);
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn graph(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let Some((name, series)) = cx.engine.latency().get(args[2]) else {
        let event = String::from_utf8_lossy(args[2]);
        return Err(Error::new(format!("ERR No samples available for event '{event}'")));
    };
    let text = series.graph(name, cx.now);
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn history(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let Some((_, series)) = cx.engine.latency().get(args[2]) else {
        cx.reply.array(0);
        return Ok(());
    };
    cx.reply.array(series.samples.len());
    for sample in &series.samples {
        cx.reply.array(2);
        cx.reply.integer(sample.unix_s);
        cx.reply.integer(sample.ms as i64);
    }
    Ok(())
}

fn latest(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let events = cx.engine.latency().events();
    cx.reply.array(events.len());
    for (name, series) in events {
        let last = series.samples.back();
        cx.reply.array(4);
        cx.reply.bulk(name.as_bytes());
        cx.reply.integer(last.map_or(0, |sample| sample.unix_s));
        cx.reply.integer(last.map_or(0, |sample| sample.ms as i64));
        cx.reply.integer(series.max_ms as i64);
    }
    Ok(())
}

fn reset(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = match &args[2..] {
        [] => cx.engine.latency_mut().reset(),
        events => events.iter().filter(|event| cx.engine.latency_mut().forget(event)).count(),
    };
    cx.reply.integer(count as i64);
    Ok(())
}

fn histogram(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let with_subcommands = |row: &'static Command| iter::once(row).chain(row.subcommands);
    let rows: Vec<&'static Command> = match &args[2..] {
        [] => commands::all().flat_map(with_subcommands).collect(),
        names => {
            names.iter().filter_map(|name| commands::table().find(name)).flat_map(|(_, row)| with_subcommands(row)).collect()
        }
    };
    // Includes commands that still wait for their shared clock read.
    cx.engine.take_time(cx.now);
    let stats = cx.engine.command_stats();
    let histogram = |row: &&'static Command| stats.get(row).and_then(|slot| slot.histogram.as_ref());
    cx.reply.map(rows.iter().filter_map(histogram).count());
    for row in rows {
        let Some(histogram) = histogram(&row) else { continue };
        cx.reply.bulk(commands::full_name(row).as_bytes());
        cx.reply.map(2);
        cx.reply.entry("calls", histogram.total());
        cx.reply.bulk(b"histogram_usec");
        write_bounds(&mut *cx.reply, histogram);
    }
    Ok(())
}

fn turns(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let turns = cx.engine.turns();
    cx.reply.map(10);
    cx.reply.entry("turns", turns.histogram.total());
    cx.reply.entry("usec", turns.ns / 1000);
    cx.reply.entry("over_1_millisecond", turns.long);
    cx.reply.entry("without_processor_usec", turns.off_cpu_ns / 1000);
    let Longest { ns, cpu_ns, unix_ms, task, command } = turns.longest.clone().unwrap_or_default();
    cx.reply.entry("longest_usec", ns / 1000);
    cx.reply.entry("longest_processor_usec", cpu_ns / 1000);
    cx.reply.entry("longest_time", unix_ms.div_euclid(1000));
    cx.reply.entry("longest_task", task);
    cx.reply.entry("longest_command", command.as_deref());
    cx.reply.bulk(b"histogram_usec");
    write_bounds(&mut *cx.reply, &turns.histogram);
    Ok(())
}

/// Writes the cumulative distribution: upper bounds in microseconds, with the number of calls up to each.
fn write_bounds(reply: &mut dyn Sink, histogram: &Histogram) {
    let bounds = histogram.cumulative();
    reply.map(bounds.len());
    for (us, count) in bounds {
        reply.integer(us as i64);
        reply.integer(count as i64);
    }
}
