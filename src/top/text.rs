//! A look at a server as plain text.

use crate::top::ask::LOCKS_MAX;
use crate::top::facts::{Absence, Facts};
use crate::top::headline::headline;
use crate::top::rows::{self, Leases, Row};
use crate::top::words::counted;

const HEAD: [&str; 10] = ["LOCK", "KIND", "WAITERS", "OLDEST", "HOLDER", "HELD", "LEASE", "CLIENT", "ADDRESS", "GONE"];

/// The whole text, which ends with a line end.
pub fn text(facts: &Facts) -> String {
    let mut lines = vec![headline(facts).text, rows::server(facts), rows::figures(facts, None).join("  ")];
    if let Ok(locks) = &facts.locks
        && !locks.is_empty()
    {
        let mut leases = Leases::default();
        leases.see(locks);
        let cells = locks.iter().map(|lock| {
            let Row { name, kind, waiters, oldest, holder, held, lease, client, address, gone, .. } = Row::of(lock, &leases);
            // Whole names are in the JSON: one of 300 characters would widen each line.
            [name, kind, waiters, oldest, holder, held, lease, client, address, gone].map(|cell| rows::brief_text(&cell))
        });
        let table: Vec<[String; 10]> = [HEAD.map(str::to_owned)].into_iter().chain(cells).collect();
        lines.push(String::new());
        lines.extend(aligned(&table));
        if let Some(contended) =
            facts.stat("contended").filter(|contended| locks.len() >= LOCKS_MAX && *contended > LOCKS_MAX as u64)
        {
            lines.push(format!("These are the {LOCKS_MAX} longest waits, of {contended} contended locks in all databases."));
        }
    }
    if let (Ok(locks), Some(held @ 1..)) = (&facts.locks, facts.stat("held"))
        && locks.is_empty()
    {
        lines.extend([
            String::new(),
            format!("No lock has waiters. {} held in all databases; --all lists those of this one.", are(held)),
        ]);
    }
    match &facts.graph {
        Ok(nodes) if nodes.is_empty() => {}
        Ok(nodes) => {
            let part = if nodes.iter().any(|node| node.is_partial) { ", AS FAR AS THE SERVER HAS FOLLOWED THEM" } else { "" };
            lines.extend([String::new(), format!("WHO WAITS FOR WHOM{part}")]);
            lines.extend(
                rows::tree(nodes).iter().map(|branch| format!("{}{}  {}", branch.lead, rows::brief(&branch.name), branch.text)),
            );
        }
        // The headline of a server without any command for locks says so.
        Err(Absence::Missing) if facts.locks.is_err() => {}
        Err(absence) => lines.extend([String::new(), rows::absent("LOCK.GRAPH", absence)]),
    }
    let broken: Vec<String> = facts.broken.iter().map(|(name, end)| rows::broken(name, end, end.ago_ms)).collect();
    if !broken.is_empty() {
        lines.extend([String::new(), "BROKEN".to_owned()]);
        lines.extend(broken);
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn are(held: u64) -> String {
    format!("{} {}", counted(held, "lock"), if held == 1 { "is" } else { "are" })
}

fn aligned(table: &[[String; 10]]) -> Vec<String> {
    let mut widths = [0; 10];
    for cells in table {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String; 10]| {
        let padded: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    table.iter().map(line).collect()
}
