//! The matcher of Lua's string patterns.
//!
//! It behaves as that of Lua 5.1, but within limits. Lua's own recurses until the stack of the process overflows, and runs without
//! a limit of time. Here a match goes at most [`DEPTH_MAX`] deep and takes at most [`STEPS_MAX`] steps.

use std::mem::MaybeUninit;

/// Maximum number of captures in a pattern.
pub(super) const CAPTURES_MAX: usize = 32;
/// Maximum depth of nested captures and repetitions in a match.
const DEPTH_MAX: u32 = 400;
/// Maximum number of steps of a match at one position of the subject. A step takes a few nanoseconds. Smaller in tests.
const STEPS_MAX: u64 = 1 << if cfg!(test) { 22 } else { 28 };
/// Steps between two checks of the fuel.
const STEPS_PER_CHECK: u64 = 1 << 14;

const ESCAPE: u8 = b'%';

/// A capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// It begins here, and its end has not been found.
    Open(usize),
    /// Only a position, `()`.
    Position(usize),
    /// Start and length in bytes.
    Span(usize, usize),
}

/// Why a match was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The pattern is invalid or too complex. The text is that of Lua.
    Malformed(&'static std::ffi::CStr),
    /// The script must end.
    Killed,
}

const COMPLEX: Fault = Fault::Malformed(c"pattern too complex");

type Found = Result<Option<usize>, Fault>;

/// Matches one pattern against one subject.
pub(super) struct Matcher<'a, F> {
    subject: &'a [u8],
    pattern: &'a [u8],
    /// Number of captures.
    level: usize,
    /// The first `level` of them are initialized.
    captures: [MaybeUninit<Capture>; CAPTURES_MAX],
    depth: u32,
    /// Number of steps of all matches.
    steps: u64,
    /// `steps` when the current match began.
    steps_before: u64,
    /// Number of steps for which fuel was consumed.
    steps_consumed: u64,
    /// Consumes fuel. Returns whether the script must end.
    consume: F,
}

impl<'a, F: FnMut(u64) -> bool> Matcher<'a, F> {
    /// A matcher for a pattern without its anchor `^`.
    pub(super) fn new(subject: &'a [u8], pattern: &'a [u8], consume: F) -> Self {
        Matcher {
            subject,
            pattern,
            level: 0,
            captures: [const { MaybeUninit::uninit() }; CAPTURES_MAX],
            depth: 0,
            steps: 0,
            steps_before: 0,
            steps_consumed: 0,
            consume,
        }
    }

    /// The captures of the last match.
    pub(super) fn captures(&self) -> &[Capture] {
        // SAFETY: `open_capture` writes a capture before it counts it.
        unsafe { std::slice::from_raw_parts(self.captures.as_ptr().cast(), self.level) }
    }

    /// Matches at a position of the subject. Returns the end of the match.
    #[inline]
    pub(super) fn match_at(&mut self, at: usize) -> Found {
        self.level = 0;
        self.depth = 0;
        self.steps_before = self.steps;
        self.match_rest(at, 0)
    }

    /// Consumes fuel for all steps so far. Returns whether the script must end.
    pub(super) fn finish(&mut self) -> bool {
        (self.consume)(self.steps - std::mem::replace(&mut self.steps_consumed, self.steps))
    }

    #[inline]
    fn step(&mut self, count: u64) -> Result<(), Fault> {
        self.steps += count;
        if self.steps - self.steps_consumed < STEPS_PER_CHECK { Ok(()) } else { self.check() }
    }

    /// Counts the steps for reading a set, which may be long.
    #[inline]
    fn step_set(&mut self, p: usize, end: usize) -> Result<(), Fault> {
        if end - p > 8 { self.step((end - p) as u64 / 4) } else { Ok(()) }
    }

    #[cold]
    fn check(&mut self) -> Result<(), Fault> {
        fail_if!(self.steps - self.steps_before > STEPS_MAX, COMPLEX);
        if self.finish() { Err(Fault::Killed) } else { Ok(()) }
    }

    fn byte(&self, p: usize) -> Option<u8> {
        self.pattern.get(p).copied()
    }

    /// Matches the pattern from `p` on at `s`, one level deeper.
    fn match_rest(&mut self, s: usize, p: usize) -> Found {
        fail_if!(self.depth == DEPTH_MAX, COMPLEX);
        self.depth += 1;
        let found = self.match_items(s, p);
        self.depth -= 1;
        found
    }

    /// Matches the pattern from `p` on at `s`.
    fn match_items(&mut self, mut s: usize, mut p: usize) -> Found {
        loop {
            self.step(1)?;
            let Some(item) = self.byte(p) else { return Ok(Some(s)) };
            match item {
                b'(' if self.byte(p + 1) == Some(b')') => return self.open_capture(s, p + 2, Capture::Position(s)),
                b'(' => return self.open_capture(s, p + 1, Capture::Open(s)),
                b')' => return self.close_capture(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => return Ok((s == self.subject.len()).then_some(s)),
                ESCAPE => match self.byte(p + 1) {
                    Some(b'b') => match self.match_balanced(s, p + 2)? {
                        Some(end) => {
                            (s, p) = (end, p + 4);
                            continue;
                        }
                        None => return Ok(None),
                    },
                    Some(b'f') => {
                        p += 2;
                        fail_if!(self.byte(p) != Some(b'['), Fault::Malformed(c"missing '[' after '%f' in pattern"));
                        let end = self.class_end(p)?;
                        self.step_set(p, end)?;
                        let before = if s == 0 { 0 } else { self.subject[s - 1] };
                        let here = self.subject.get(s).copied().unwrap_or(0);
                        if self.in_set(before, p, end - 1) || !self.in_set(here, p, end - 1) {
                            return Ok(None);
                        }
                        p = end;
                        continue;
                    }
                    Some(digit) if digit.is_ascii_digit() => match self.back_reference(s, digit)? {
                        Some(end) => {
                            (s, p) = (end, p + 2);
                            continue;
                        }
                        None => return Ok(None),
                    },
                    _ => {}
                },
                _ => {}
            }
            let end = self.class_end(p)?;
            self.step_set(p, end)?;
            let here = self.subject.get(s).is_some_and(|&byte| self.single(byte, p, end));
            match self.byte(end) {
                Some(b'?') => {
                    if here && let Some(found) = self.match_rest(s + 1, end + 1)? {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'*') => return self.match_greedy(s, p, end),
                Some(b'+') => return if here { self.match_greedy(s + 1, p, end) } else { Ok(None) },
                Some(b'-') => return self.match_lazy(s, p, end),
                _ if here => (s, p) = (s + 1, end),
                _ => return Ok(None),
            }
        }
    }

    /// Matches the item from `p` to `end` as often as possible, and then the rest of the pattern.
    fn match_greedy(&mut self, s: usize, p: usize, end: usize) -> Found {
        let count = self.count_singles(s, p, end)?;
        for more in (0..=count).rev() {
            if let Some(found) = self.match_rest(s + more, end + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Number of bytes from `s` on that match the item from `p` to `end`.
    fn count_singles(&mut self, s: usize, p: usize, end: usize) -> Result<usize, Fault> {
        let (mut count, cost) = (0, 1 + (end - p) / 4);
        loop {
            let rest = &self.subject[s + count..];
            let piece = &rest[..rest.len().min(1 + STEPS_PER_CHECK as usize / cost)];
            let matched = self.leading(piece, p, end);
            let more = matched == piece.len() && piece.len() < rest.len();
            self.step((matched * cost) as u64)?;
            if more {
                // A long subject does not make a pattern complex.
                self.steps_before += (matched * cost) as u64;
            }
            count += matched;
            if !more {
                return Ok(count);
            }
        }
    }

    /// Number of bytes at the beginning of `piece` that match the item from `p` to `end`.
    #[inline]
    fn leading(&self, piece: &[u8], p: usize, end: usize) -> usize {
        match self.pattern[p] {
            b'.' => piece.len(),
            ESCAPE => {
                let class = Class::of(self.pattern[p + 1]);
                piece.iter().take_while(|&&byte| class.has(byte)).count()
            }
            b'[' => piece.iter().take_while(|&&byte| self.in_set(byte, p, end - 1)).count(),
            literal => piece.iter().take_while(|&&byte| byte == literal).count(),
        }
    }

    /// Matches the item from `p` to `end` as rarely as possible, and then the rest of the pattern.
    fn match_lazy(&mut self, mut s: usize, p: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.match_rest(s, end + 1)? {
                return Ok(Some(found));
            }
            match self.subject.get(s) {
                Some(&byte) if self.single(byte, p, end) => s += 1,
                _ => return Ok(None),
            }
            self.step_set(p, end)?;
        }
    }

    fn open_capture(&mut self, s: usize, p: usize, capture: Capture) -> Found {
        let level = self.level;
        let Some(slot) = self.captures.get_mut(level) else { return Err(Fault::Malformed(c"too many captures")) };
        slot.write(capture);
        self.level = level + 1;
        let found = self.match_rest(s, p)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close_capture(&mut self, s: usize, p: usize) -> Found {
        let open = self.captures().iter().rposition(|capture| matches!(capture, Capture::Open(_)));
        let Some(index) = open else { return Err(Fault::Malformed(c"invalid pattern capture")) };
        let Capture::Open(start) = self.captures()[index] else { return Ok(None) };
        self.captures[index].write(Capture::Span(start, s - start));
        let found = self.match_rest(s, p)?;
        if found.is_none() {
            self.captures[index].write(Capture::Open(start));
        }
        Ok(found)
    }

    /// Matches `%bxy`. `p` is the index of `x`.
    fn match_balanced(&mut self, s: usize, p: usize) -> Found {
        let (Some(open), Some(close)) = (self.byte(p), self.byte(p + 1)) else {
            return Err(Fault::Malformed(c"unbalanced pattern"));
        };
        if self.subject.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1u64;
        for (offset, &byte) in self.subject[s + 1..].iter().enumerate() {
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    self.step(offset as u64)?;
                    return Ok(Some(s + offset + 2));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        self.step((self.subject.len() - s) as u64)?;
        Ok(None)
    }

    /// Matches `%1`: the text of an earlier capture.
    fn back_reference(&mut self, s: usize, digit: u8) -> Found {
        let capture = (digit as usize).checked_sub(b'1' as usize).and_then(|index| self.captures().get(index));
        match capture {
            Some(&Capture::Span(start, len)) => {
                self.step(len as u64 / 16)?;
                let same = self.subject[s..].starts_with(&self.subject[start..start + len]);
                Ok(same.then_some(s + len))
            }
            // In Lua the length of a position capture is larger than any subject.
            Some(Capture::Position(_)) => Ok(None),
            Some(Capture::Open(_)) | None => Err(Fault::Malformed(c"invalid capture index")),
        }
    }

    /// The end of the single-character item at `p`.
    #[inline]
    fn class_end(&self, p: usize) -> Result<usize, Fault> {
        match self.byte(p) {
            Some(ESCAPE) if p + 1 >= self.pattern.len() => Err(Fault::Malformed(c"malformed pattern (ends with '%')")),
            Some(ESCAPE) => Ok(p + 2),
            Some(b'[') => {
                let mut at = p + 1 + usize::from(self.byte(p + 1) == Some(b'^'));
                // The first character stands for itself, even if it is a bracket.
                loop {
                    let Some(byte) = self.byte(at) else { return Err(Fault::Malformed(c"malformed pattern (missing ']')")) };
                    at += 1 + usize::from(byte == ESCAPE && at + 1 < self.pattern.len());
                    if self.byte(at) == Some(b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether a byte matches the item from `p` to `end`.
    #[inline]
    fn single(&self, byte: u8, p: usize, end: usize) -> bool {
        match self.pattern[p] {
            b'.' => true,
            ESCAPE => Class::of(self.pattern[p + 1]).has(byte),
            b'[' => self.in_set(byte, p, end - 1),
            literal => literal == byte,
        }
    }

    /// Whether a byte is in the set whose brackets are at `open` and `close`.
    fn in_set(&self, byte: u8, open: usize, close: usize) -> bool {
        let set = self.pattern;
        let negated = set[open + 1] == b'^';
        let mut at = open + 1 + usize::from(negated);
        while at < close {
            if set[at] == ESCAPE {
                at += 1;
                if Class::of(set[at]).has(byte) {
                    return !negated;
                }
            } else if set[at + 1] == b'-' && at + 2 < close {
                if (set[at]..=set[at + 2]).contains(&byte) {
                    return !negated;
                }
                at += 2;
            } else if set[at] == byte {
                return !negated;
            }
            at += 1;
        }
        negated
    }
}

/// A character class, `%` and a letter.
#[derive(Clone, Copy)]
struct Class {
    /// The letter, or any other character, which then stands for itself.
    letter: u8,
    /// One bit of [`KINDS`]. 0 if the character stands for itself.
    kind: u16,
}

impl Class {
    #[inline]
    fn of(letter: u8) -> Self {
        Class { letter, kind: LETTERS[usize::from(letter)] }
    }

    #[inline]
    fn has(self, byte: u8) -> bool {
        if self.kind == 0 {
            return byte == self.letter;
        }
        (KINDS[usize::from(byte)] & self.kind != 0) != self.letter.is_ascii_uppercase()
    }
}

/// The classes of each byte, one bit for each.
static KINDS: [u16; 256] = {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let of = byte as u8;
        let is = [
            of.is_ascii_alphabetic(),
            of.is_ascii_control(),
            of.is_ascii_digit(),
            of.is_ascii_lowercase(),
            of.is_ascii_punctuation(),
            matches!(of, b' ' | 9..=13),
            of.is_ascii_uppercase(),
            of.is_ascii_alphanumeric(),
            of.is_ascii_hexdigit(),
            of == 0,
        ];
        let mut kind = 0;
        while kind < is.len() {
            kinds[byte] |= (is[kind] as u16) << kind;
            kind += 1;
        }
        byte += 1;
    }
    kinds
};

/// The bit of each class letter in [`KINDS`], for both cases. An upper-case letter means the complement.
static LETTERS: [u16; 256] = {
    let letters = b"acdlpsuwxz";
    let mut bits = [0; 256];
    let mut kind = 0;
    while kind < letters.len() {
        bits[letters[kind] as usize] = 1 << kind;
        bits[letters[kind].to_ascii_uppercase() as usize] = 1 << kind;
        kind += 1;
    }
    bits
};
