//! The command tables in Markdown, generated from the rows: the table in the guide, and COMMANDS.md.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::commands;
use crate::commands::reference::missing;
use crate::commands::reference::syntax;
use crate::engine::command::{Command, Group};

/// The groups in the order of the tables, with their headings.
const HEADINGS: [(Group, &str); 17] = [
    (Group::Lock, "Locks"),
    (Group::String, "Strings"),
    (Group::Generic, "Keys"),
    (Group::Hash, "Hashes"),
    (Group::List, "Lists"),
    (Group::Set, "Sets"),
    (Group::SortedSet, "Sorted sets"),
    (Group::Stream, "Streams"),
    (Group::Bitmap, "Bitmaps"),
    (Group::Hyperloglog, "HyperLogLogs"),
    (Group::Geo, "Geospatial"),
    (Group::PubSub, "Publish and subscribe"),
    (Group::Transactions, "Transactions"),
    (Group::Scripting, "Scripts"),
    (Group::Connection, "Connections"),
    (Group::Server, "Server"),
    (Group::Cluster, "Cluster"),
];

/// The rows of a group, sorted by their full names in upper case.
fn listed(group: Group) -> Vec<(String, &'static Command)> {
    let mut rows: Vec<(String, &Command)> = commands::all()
        .filter(|command| command.group == group)
        .flat_map(|command| match command.subcommands {
            [] => vec![(command.name.to_uppercase(), command)],
            subs => subs.iter().map(|sub| (format!("{} {}", command.name, sub.name).to_uppercase(), sub)).collect(),
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

/// The names of all commands as a Markdown table with one row per group, for the guide.
pub fn markdown_names() -> String {
    let mut text = String::from("\n| | |\n| --- | --- |\n");
    for (group, heading) in HEADINGS {
        let names: Vec<String> = listed(group).into_iter().map(|(name, _)| format!("`{name}`")).collect();
        if !names.is_empty() {
            let _ = writeln!(text, "| **{heading}** | {} |", names.join(" "));
        }
    }
    text
}

/// COMMANDS.md: arguments, summary and cost of all commands, and what Redis has and Portcullis does not.
pub fn markdown_page() -> String {
    let count = commands::all().count();
    let mut text = format!(
        "# Commands\n\nGenerated from the command table (`UPDATE_README=1 cargo test --test commands_table`), like `COMMAND COUNT` ({count}), \
         `COMMAND DOCS` and the checks of every request.\n\n\
         \"Since\" is the version of Redis (or Valkey) that introduced a command.\n",
    );
    for (group, heading) in HEADINGS {
        let rows = listed(group);
        if rows.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## {heading}\n\n| command | what it does | cost | since |\n| --- | --- | --- | --- |\n");
        for (name, command) in rows {
            let args = syntax::parse(command.syntax).unwrap_or_default();
            let line = format!("{name} {}", syntax::display(&args));
            // A bar would end the table cell, even in code.
            let cell = |text: &str| text.trim_end().replace('|', "\\|");
            let (summary, cost) = (cell(command.summary), cell(command.complexity));
            let _ = writeln!(text, "| `{}` | {summary} | {cost} | {} |", cell(&line), command.since);
        }
    }
    let has_not = [missing::COMMANDS, missing::OPTIONS].concat();
    let has_not = has_not.iter().map(|(why, names)| (*why, names.iter().map(|name| (*name).to_owned()).collect()));
    reasons(&mut text, "What Redis 7.4 has and Portcullis does not", has_not);
    let mut refused: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in commands::all().flat_map(|row| std::iter::once(row).chain(row.subcommands)).filter(|row| !row.refused.is_empty()) {
        refused.entry(row.refused).or_default().push(commands::full_name(row).into_owned());
    }
    refused.values_mut().for_each(|names| names.sort());
    reasons(&mut text, "Commands that are always refused", refused.into_iter());
    text
}

fn reasons<'a>(text: &mut String, heading: &str, all: impl Iterator<Item = (&'a str, Vec<String>)>) {
    let _ = write!(text, "\n## {heading}\n\n");
    for (why, names) in all {
        let names: Vec<String> = names.iter().map(|name| format!("`{}`", name.replace('|', " ").to_uppercase())).collect();
        let _ = writeln!(text, "- {why} {}", names.join(" "));
    }
}
