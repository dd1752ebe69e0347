//! What a reader needs to judge a report and to repeat its run: when, where, by which version and with what command line.

use std::time::SystemTime;

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::bench::machine::Machine;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What stands for a password in a report.
const MASK: &str = "***";

/// When, where and how a tool ran.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// When the run began.
    began: OffsetDateTime,
    /// The machine.
    pub machine: Machine,
    /// The command line, quoted for a shell. Passwords in URLs are masked.
    pub command: String,
}

impl RunFacts {
    /// The facts of a run of this process that begins now.
    pub fn now() -> RunFacts {
        let arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        RunFacts::of(SystemTime::now(), Machine::here(), arguments)
    }

    /// The facts of a run with these arguments, without the program's name.
    pub fn of(began: SystemTime, machine: Machine, arguments: impl IntoIterator<Item = String>) -> RunFacts {
        let words = arguments.into_iter().map(|word| quoted(&masked(&word)));
        let command = std::iter::once("portcullis".to_owned()).chain(words).collect::<Vec<_>>().join(" ");
        RunFacts { began: began.into(), machine, command }
    }

    /// When the run began, in the form of RFC 3339.
    pub fn timestamp(&self) -> String {
        let at = self.began;
        let (month, day) = (u8::from(at.month()), at.day());
        format!("{:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", at.year(), at.hour(), at.minute(), at.second())
    }

    /// The JSON document of a run, with the same fields for every tool. `settings` are those of the whole run.
    pub fn document(&self, tool: &str, settings: &Value, results: &[Value]) -> Value {
        json!({
            "tool": tool,
            "portcullis": VERSION,
            "date": self.timestamp(),
            "machine": { "cpu": self.machine.cpu, "cores": self.machine.cores, "kernel": self.machine.kernel },
            "command": self.command,
            "settings": settings,
            "results": results,
        })
    }
}

/// A word of a command line with the passwords in its URLs masked.
pub fn masked(word: &str) -> String {
    let (mut out, mut rest) = (String::new(), word);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(['/', '?']).unwrap_or(after.len());
        let hosts = after[..end].rfind('@').unwrap_or(0);
        match after[..hosts].split_once(':') {
            Some((user, _)) => out.push_str(&format!("{user}:{MASK}")),
            None => out.push_str(&after[..hosts]),
        }
        rest = &after[hosts..];
    }
    out.push_str(rest);
    for name in ["password=", "pass="] {
        let mut from = 0;
        while let Some(at) = out[from..].find(name) {
            let begin = from + at + name.len();
            let end = out[begin..].find(['&', ',']).map_or(out.len(), |len| begin + len);
            out.replace_range(begin..end, MASK);
            from = begin + MASK.len();
        }
    }
    out
}

/// A word, quoted for a shell if it needs that.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn facts(arguments: &[&str]) -> RunFacts {
        let machine = Machine { cpu: "a <fast> one".to_owned(), cores: 2, kernel: "6.1.0".to_owned() };
        RunFacts::of(
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199),
            machine,
            arguments.iter().map(|&word| word.into()),
        )
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(facts(&[]).timestamp(), "2024-02-29T23:59:59Z");
    }

    #[test]
    fn a_command_line_can_be_pasted() {
        let facts = facts(&["bench", "--command", "SET {key} 'x'", "--against", "redis://a:1", ""]);
        assert_eq!(facts.command, r"portcullis bench --command 'SET {key} '\''x'\''' --against redis://a:1 ''");
    }

    #[test]
    fn passwords_are_masked() {
        for (word, shown) in [
            ("redis://me:s3c@ret@a:1,b:2/0", "redis://me:***@a:1,b:2/0"),
            ("redis://:secret@a", "redis://:***@a"),
            ("redis://a:1,redis://:p@b:2", "redis://a:1,redis://:***@b:2"),
            ("redis://me@a:1", "redis://me@a:1"),
            ("unix:///s?user=me&password=secret&db=1", "unix:///s?user=me&password=***&db=1"),
            ("unix:///s?pass=secret", "unix:///s?pass=***"),
            ("SET {key} a@b:c", "SET {key} a@b:c"),
        ] {
            assert_eq!(masked(word), shown);
        }
    }

    #[test]
    fn a_document_has_the_same_fields_for_every_tool() {
        let found = facts(&["bench"]).document("bench", &json!({"clients": 4}), &[json!({"workload": "native"})]);
        let fields: Vec<&str> = found.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        assert_eq!(fields, ["command", "date", "machine", "portcullis", "results", "settings", "tool"]);
        assert_eq!((&found["machine"]["cores"], &found["results"][0]["workload"]), (&json!(2), &json!("native")));
    }
}
