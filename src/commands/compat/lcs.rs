//! LCS: the longest common subsequence of two strings.

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Command, Flags, Group, Keys, row, rows};
use crate::engine::context::Context;
use crate::engine::jobs::{ReplyKind, Work};
use crate::resp::reply::{Sink, WireReply};

/// The row.
pub const COMMANDS: &[Command] = &rows([row!("lcs", lcs, "key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
    "Finds the longest common subsequence of two string values.";
    flags: Flags::READONLY, keys: Keys::TWO, group: Group::String, since: "7.0.0",
    complexity: "O(N*M) for strings of N and M bytes", ..Command::DEFAULT)]);

/// Number of cells of the table that count as one element of a job.
const CELLS: usize = 32;
/// Number of cells that take as long to fill as one step back.
const STEP: usize = 8;

/// Number of bits of the table in one block. Its blocks are freed one by one.
const BLOCK: usize = 1 << 23;

/// A run of bytes that both strings have: its start in each, and its length.
struct Match {
    a: usize,
    b: usize,
    len: usize,
}

/// What the reply shows.
#[derive(Clone, Copy)]
enum Shows {
    Length,
    Bytes,
    /// The runs of at least `min` bytes.
    Runs {
        min: usize,
        with_len: bool,
    },
}

/// The work of `LCS`. It fills a table of the lengths of the longest common subsequences of all pairs of prefixes, a row for each byte of
/// the longer string, and walks back through it. Of each cell it keeps one bit: whether the way back drops a byte of the first string.
struct Lcs {
    a: Vec<u8>,
    b: Vec<u8>,
    shows: Shows,
    /// The row that is being filled: lengths of this row up to `column`, and of the row before from there on.
    row: Vec<u32>,
    /// The length in the row before, in front of `column`.
    diagonal: u32,
    /// The next cell.
    at: (usize, usize),
    bits: Vec<Vec<u64>>,
    /// Where the way back is: bytes of each string that are left. `None` while the table is being filled.
    back: Option<(usize, usize)>,
    running: bool,
    found: Vec<u8>,
    runs: Vec<Match>,
}

impl Lcs {
    fn new(a: Vec<u8>, b: Vec<u8>, shows: Shows) -> Lcs {
        let row = vec![0; a.len().min(b.len()) + 1];
        Lcs {
            a,
            b,
            shows,
            row,
            diagonal: 0,
            at: (0, 0),
            bits: Vec::new(),
            back: None,
            running: false,
            found: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Number of elements of the job.
    fn elements(a: usize, b: usize) -> usize {
        a.saturating_mul(b) / CELLS
    }

    /// Fills cells up to a number of them. Returns how many are left of that.
    fn fill(&mut self, mut budget: usize) -> usize {
        let swapped = self.a.len() < self.b.len();
        let (long, short) = if swapped { (&self.b, &self.a) } else { (&self.a, &self.b) };
        let keeps = !matches!(self.shows, Shows::Length);
        let (mut line, mut column) = self.at;
        while budget > 0 && line < long.len() && !short.is_empty() {
            let until = short.len().min(column.saturating_add(budget));
            budget -= until - column;
            let mut cell = line * short.len() + column;
            for y in &short[column..until] {
                let (before, above) = (self.row[column], self.row[column + 1]);
                let here = if long[line] == *y { self.diagonal + 1 } else { above.max(before) };
                self.diagonal = above;
                self.row[column + 1] = here;
                if keeps {
                    let (block, bit) = (cell / BLOCK, cell % BLOCK);
                    if bit == 0 {
                        self.bits.push(vec![0; BLOCK.min(long.len() * short.len() - cell).div_ceil(64)]);
                    }
                    let drops = if swapped { before > above } else { above > before };
                    self.bits[block][bit / 64] |= u64::from(drops) << (bit % 64);
                }
                (column, cell) = (column + 1, cell + 1);
            }
            if column == short.len() {
                (line, column, self.diagonal) = (line + 1, 0, 0);
            }
        }
        self.at = (line, column);
        if line == long.len() || short.is_empty() {
            self.back = Some((self.a.len(), self.b.len()));
        }
        budget
    }

    /// Goes back by up to a number of steps. Returns whether it is at the beginning.
    fn walk(&mut self, mut budget: usize) -> bool {
        let Some((mut i, mut j)) = self.back else { return false };
        if matches!(self.shows, Shows::Length) {
            return true;
        }
        while budget > 0 && i > 0 && j > 0 {
            budget -= 1;
            if self.a[i - 1] == self.b[j - 1] {
                (i, j) = (i - 1, j - 1);
                self.found.push(self.a[i]);
                match self.runs.last_mut() {
                    Some(run) if self.running => *run = Match { a: i, b: j, len: run.len + 1 },
                    _ => self.runs.push(Match { a: i, b: j, len: 1 }),
                }
                self.running = true;
                continue;
            }
            let (i_here, j_here) = (i - 1, j - 1);
            let cell = if self.a.len() < self.b.len() { j_here * self.a.len() + i_here } else { i_here * self.b.len() + j_here };
            self.bits.truncate(cell / BLOCK + 1);
            let drops = self.bits[cell / BLOCK][cell % BLOCK / 64] >> (cell % 64) & 1 == 1;
            (i, j) = if drops { (i - 1, j) } else { (i, j - 1) };
            self.running = false;
        }
        self.back = Some((i, j));
        i == 0 || j == 0
    }

    /// Does as much as `count` elements are. Returns whether that was all.
    fn work(&mut self, count: usize) -> bool {
        let mut budget = count.saturating_mul(CELLS);
        if self.back.is_none() {
            budget = self.fill(budget);
        }
        self.walk(budget / STEP)
    }

    fn reply(&mut self, reply: &mut dyn Sink) {
        let total = i64::from(self.row.last().copied().unwrap_or(0));
        let (min, with_len) = match self.shows {
            Shows::Length => return reply.integer(total),
            Shows::Bytes => {
                self.found.reverse();
                return reply.bulk(&self.found);
            }
            Shows::Runs { min, with_len } => (min, with_len),
        };
        let runs: Vec<&Match> = self.runs.iter().filter(|run| run.len >= min).collect();
        reply.map(2);
        reply.bulk(b"matches");
        reply.array(runs.len());
        for run in runs {
            reply.array(2 + usize::from(with_len));
            for start in [run.a, run.b] {
                reply.array(2);
                reply.integer(start as i64);
                reply.integer((start + run.len - 1) as i64);
            }
            if with_len {
                reply.integer(run.len as i64);
            }
        }
        reply.entry("len", total);
    }
}

impl Work for Lcs {
    fn go_on(&mut self, engine: &mut Engine, _: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        let all = self.work(count as usize);
        if all {
            self.reply(&mut WireReply::new(reply, engine.sessions()[id].protocol));
        }
        all
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Whole
    }
}

fn lcs(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut len_of = |key: &[u8]| match cx.db().string(key) {
        Ok(found) => Ok(found.map_or(0, |string| string.len())),
        Err(_) => Err(Error::new("ERR The specified keys must contain string values")),
    };
    let lens = (len_of(args[1])?, len_of(args[2])?);
    let (mut len, mut idx, mut with_len, mut min) = (false, false, false, 0);
    let mut rest = Tail(&args[3..]);
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"LEN" => len = true,
            b"IDX" => idx = true,
            b"WITHMATCHLEN" => with_len = true,
            b"MINMATCHLEN" => min = usize::try_from(rest.integer()?).unwrap_or(0),
            _ => return Err(Error::SYNTAX),
        }
    }
    fail_if!(len && idx, Error::new("ERR If you want both the length and indexes, please just use IDX."));
    // Redis has a table of four bytes for each cell.
    let bytes = (lens.0 as u64 + 1).saturating_mul(lens.1 as u64 + 1).saturating_mul(4);
    if bytes > cx.engine.config().proto_max_bulk_len {
        return Err(Error::new("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"));
    }
    let shows = match (len, idx) {
        (true, _) => Shows::Length,
        (_, true) => Shows::Runs { min, with_len },
        _ => Shows::Bytes,
    };
    let mut copy = |key: &[u8]| cx.db().string(key).ok().flatten().unwrap_or_default().to_vec();
    let mut work = Lcs::new(copy(args[1]), copy(args[2]), shows);
    if cx.may_start_job(Lcs::elements(lens.0, lens.1)) {
        cx.start_job(work);
        return Ok(());
    }
    while !work.work(usize::MAX) {}
    work.reply(cx.reply);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Lcs, Shows};
    use crate::engine::harness::Harness;
    use crate::resp::reply::{Protocol, WireReply};

    /// What Redis computes, with its whole table.
    fn by_table(a: &[u8], b: &[u8]) -> Vec<u8> {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                let longer = table[i - 1][j].max(table[i][j - 1]);
                table[i][j] = if a[i - 1] == b[j - 1] { table[i - 1][j - 1] + 1 } else { longer };
            }
        }
        let (mut i, mut j, mut found) = (a.len(), b.len(), Vec::new());
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                found.push(a[i]);
            } else if table[i - 1][j] > table[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        found.reverse();
        found
    }

    #[test]
    fn in_slices_it_finds_what_redis_finds() {
        let (mut state, mut work_done) = (7_u64, 0);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..60 {
            let mut text = || (0..random(90)).map(|_| b'a' + random(3) as u8).collect::<Vec<u8>>();
            let (a, b) = (text(), text());
            let expected = by_table(&a, &b);
            for shows in [Shows::Bytes, Shows::Length, Shows::Runs { min: 0, with_len: false }] {
                let mut work = Lcs::new(a.clone(), b.clone(), shows);
                while !work.work(1) {
                    work_done += 1;
                }
                let mut reply = Vec::new();
                work.reply(&mut WireReply::new(&mut reply, Protocol::Resp2));
                match shows {
                    Shows::Bytes => assert_eq!(work.found, expected),
                    Shows::Length => assert_eq!(reply, format!(":{}\r\n", expected.len()).into_bytes()),
                    Shows::Runs { .. } => {
                        let runs: Vec<u8> = work.runs.iter().rev().flat_map(|run| a[run.a..run.a + run.len].to_vec()).collect();
                        assert_eq!(runs, expected);
                        assert!(work.runs.iter().all(|run| a[run.a..run.a + run.len] == b[run.b..run.b + run.len]));
                    }
                }
            }
        }
        assert!(work_done > 1_000, "in slices");
    }

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
