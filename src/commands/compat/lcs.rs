//! LCS: the longest common subsequence of two strings.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::command::{Command, Flags, Group, Keys};
use crate::engine::context::Context;

/// The row.
pub const COMMANDS: &[Command] = &[Command {
    name: "lcs",
    arity: -3,
    flags: Flags::READONLY,
    keys: Keys::TWO,
    group: Group::String,
    since: "7.0.0",
    summary: "Finds the longest common subsequence of two string values.",
    complexity: "O(N*M) for strings of N and M bytes",
    syntax: "key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
    handler: lcs,
    ..Command::DEFAULT
}];

/// A run of bytes that both strings have: its start in each, and its length.
struct Match {
    a: usize,
    b: usize,
    len: usize,
}

/// The lengths of the longest common subsequences of all pairs of prefixes.
struct Table {
    width: usize,
    cells: Vec<u32>,
}

impl Table {
    fn new(a: &[u8], b: &[u8]) -> Table {
        let width = b.len() + 1;
        let mut cells = vec![0; (a.len() + 1) * width];
        for (i, x) in (1..).zip(a) {
            let (above, row) = cells[(i - 1) * width..].split_at_mut(width);
            for (j, y) in (1..).zip(b) {
                row[j] = if x == y { above[j - 1] + 1 } else { above[j].max(row[j - 1]) };
            }
        }
        Table { width, cells }
    }

    fn at(&self, i: usize, j: usize) -> u32 {
        self.cells[i * self.width + j]
    }

    /// The subsequence, and its runs in reverse order.
    fn walk(&self, a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Match>) {
        let (mut i, mut j) = (a.len(), b.len());
        let (mut found, mut runs): (Vec<u8>, Vec<Match>) = (Vec::new(), Vec::new());
        let mut running = false;
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                found.push(a[i]);
                match runs.last_mut() {
                    Some(run) if running => *run = Match { a: i, b: j, len: run.len + 1 },
                    _ => runs.push(Match { a: i, b: j, len: 1 }),
                }
                running = true;
            } else {
                if self.at(i - 1, j) > self.at(i, j - 1) {
                    i -= 1
                } else {
                    j -= 1
                }
                running = false;
            }
        }
        found.reverse();
        (found, runs)
    }
}

fn lcs(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut string = |key: &[u8]| match cx.db().string(key) {
        Ok(found) => Ok(found.unwrap_or_default().to_vec()),
        Err(_) => Err(Error::new("ERR The specified keys must contain string values")),
    };
    let (a, b) = (string(args[1])?, string(args[2])?);
    let (mut len, mut idx, mut with_len, mut min) = (false, false, false, 0);
    let mut options = args[3..].iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"LEN") {
            len = true;
        } else if option.eq_ignore_ascii_case(b"IDX") {
            idx = true;
        } else if option.eq_ignore_ascii_case(b"WITHMATCHLEN") {
            with_len = true;
        } else if option.eq_ignore_ascii_case(b"MINMATCHLEN")
            && let Some(value) = options.next()
        {
            min = usize::try_from(parse_i64(value).ok_or(Error::NOT_INTEGER)?).unwrap_or(0);
        } else {
            return Err(Error::SYNTAX);
        }
    }
    if len && idx {
        return Err(Error::new("ERR If you want both the length and indexes, please just use IDX."));
    }
    let bytes = (a.len() as u64 + 1).saturating_mul(b.len() as u64 + 1).saturating_mul(4);
    if bytes > cx.engine.config.proto_max_bulk_len {
        return Err(Error::new("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"));
    }
    let table = Table::new(&a, &b);
    let total = i64::from(table.at(a.len(), b.len()));
    if len {
        cx.reply.integer(total);
        return Ok(());
    }
    let (found, runs) = table.walk(&a, &b);
    if !idx {
        cx.reply.bulk(&found);
        return Ok(());
    }
    let runs: Vec<&Match> = runs.iter().filter(|run| run.len >= min).collect();
    cx.reply.map(2);
    cx.reply.bulk(b"matches");
    cx.reply.array(runs.len());
    for run in runs {
        cx.reply.array(2 + usize::from(with_len));
        for start in [run.a, run.b] {
            cx.reply.array(2);
            cx.reply.integer(start as i64);
            cx.reply.integer((start + run.len - 1) as i64);
        }
        if with_len {
            cx.reply.integer(run.len as i64);
        }
    }
    cx.reply.bulk(b"len");
    cx.reply.integer(total);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn runs_are_given_from_the_last_to_the_first() {
        Harness::new().script(&[
            ("MSET a ohmytext b mynewtext", "+OK"),
            ("LCS a b", "$6 mytext"),
            ("LCS a b LEN", ":6"),
            ("LCS a b IDX", "*4 $7 matches *2 *2 *2 :4 :7 *2 :5 :8 *2 *2 :2 :3 *2 :0 :1 $3 len :6"),
            ("LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN", "*4 $7 matches *1 *3 *2 :4 :7 *2 :5 :8 :4 $3 len :6"),
            ("LCS a none", "$0"),
            ("LCS a b LEN IDX", "-ERR If you want both the length and indexes, please just use IDX."),
        ]);
    }
}
