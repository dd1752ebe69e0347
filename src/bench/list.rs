//! What one can name on the command line of `portcullis bench`: algorithms, servers and ways to wait.

use std::fmt::Write;

use crate::bench::servers::kind::ServerKind;
use crate::recipes::{Facts, Live, Recipe, all};

/// The ways to wait, as in `--retry`.
const WAYS: [(&str, &str); 3] = [
    ("blocking", "as the algorithm does; one that can only poll does so every 10 ms"),
    ("fixed:MS", "polls after so many milliseconds"),
    ("back-off", "polls after times that grow, with jitter"),
];

/// The lines for these algorithms: number, name and summary.
pub fn algorithms(wanted: impl Fn(&Recipe<Live>) -> bool) -> String {
    let line = |facts: &Facts| {
        let flawed = if facts.flawed { " (flawed)" } else { "" };
        format!("  {:>2}  {:<20}{}{flawed}\n", facts.number, facts.name, facts.summary)
    };
    let chosen = all::<Live>().into_iter().filter(wanted);
    let lines: String = chosen.map(|recipe| line(recipe.facts)).collect();
    format!(
        "Algorithms:\n{lines}\nAlgorithms that can renew a lease also run with a watchdog: set-nx-px+watchdog. Flawed ones are here to show\n\
         how they fail.\n"
    )
}

/// The whole list.
pub fn render() -> String {
    let mut out = algorithms(|_| true);
    out.push_str("\nServers (--against):\n");
    for kind in ServerKind::ALL {
        let state = match kind {
            ServerKind::Portcullis => "this program".to_owned(),
            _ if kind.find().is_some() => "installed".to_owned(),
            _ => format!("not installed: {}", kind.how_to_install()),
        };
        let _ = writeln!(out, "      {:<20}{state}", kind.name());
    }
    let _ = writeln!(out, "      {:<20}another program that takes Redis's flags, by its path", "/path/to/program");
    let _ = writeln!(out, "      {:<20}a running server", "redis://host:port");
    out.push_str("\nWays to wait (--retry):\n");
    for (name, what) in WAYS {
        let _ = writeln!(out, "      {name:<20}{what}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_can_be_named_is_listed() {
        let list = render();
        for recipe in all::<Live>() {
            assert!(list.contains(&format!("  {:<20}", recipe.facts.name)), "{}", recipe.facts.name);
        }
        assert!(ServerKind::ALL.iter().all(|kind| list.contains(&format!("      {:<20}", kind.name()))), "{list}");
        assert!(list.contains("20  native") && list.contains("back-off"), "{list}");
    }
}
