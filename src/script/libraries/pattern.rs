//! Lua's string patterns: the matcher.
//!
//! It takes and gives what Lua 5.1's own does, but within bounds: that one follows any pattern as deep as the stack of the
//! process goes and then some, and for as long as it takes. Here a match is followed to [`DEPTH_MAX`] and costs [`STEPS_MAX`].

use std::mem::MaybeUninit;

/// Captures of a pattern at most.
pub(super) const CAPTURES_MAX: usize = 32;
/// Items of a pattern (captures, and parts that repeat) that may be in each other at most.
const DEPTH_MAX: u32 = 400;
/// Steps of a match at one place of the subject at most, each a few nanoseconds; fewer in tests.
const STEPS_MAX: u64 = 1 << if cfg!(test) { 22 } else { 28 };
/// Steps between two looks at whether the script may go on.
const STEPS_PER_LOOK: u64 = 1 << 14;

const ESCAPE: u8 = b'%';

/// What a capture holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// Its end has not been found.
    Open(usize),
    /// Only where it is.
    Position(usize),
    /// From here, so many bytes.
    Span(usize, usize),
}

/// Why a match was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// An error of the pattern, with Lua's text.
    Malformed(&'static std::ffi::CStr),
    /// The script is to end.
    Killed,
}

const COMPLEX: Fault = Fault::Malformed(c"pattern too complex");

type Found = Result<Option<usize>, Fault>;

/// A match under way.
pub(super) struct Matcher<'a, F> {
    subject: &'a [u8],
    pattern: &'a [u8],
    level: usize,
    /// Those up to `level` are there.
    captures: [MaybeUninit<Capture>; CAPTURES_MAX],
    depth: u32,
    /// Steps of all matches.
    steps: u64,
    /// How many they were when the match that is under way began.
    steps_before: u64,
    /// How many of them are counted as work.
    steps_spent: u64,
    /// Told of work done; gives whether the script is to end.
    spend: F,
}

impl<'a, F: FnMut(u64) -> bool> Matcher<'a, F> {
    /// A matcher of a pattern, its anchor left out, against a subject.
    pub(super) fn new(subject: &'a [u8], pattern: &'a [u8], spend: F) -> Self {
        Matcher {
            subject,
            pattern,
            level: 0,
            captures: [const { MaybeUninit::uninit() }; CAPTURES_MAX],
            depth: 0,
            steps: 0,
            steps_before: 0,
            steps_spent: 0,
            spend,
        }
    }

    /// The captures of the last match.
    pub(super) fn captures(&self) -> &[Capture] {
        // SAFETY: `open_capture` writes a capture before it counts it.
        unsafe { std::slice::from_raw_parts(self.captures.as_ptr().cast(), self.level) }
    }

    /// Matches at a place of the subject; gives where the match ends.
    #[inline]
    pub(super) fn match_at(&mut self, at: usize) -> Found {
        self.level = 0;
        self.depth = 0;
        self.steps_before = self.steps;
        self.follow(at, 0)
    }

    /// Counts all work that was done; gives whether the script is to end.
    pub(super) fn finish(&mut self) -> bool {
        (self.spend)(self.steps - std::mem::replace(&mut self.steps_spent, self.steps))
    }

    #[inline]
    fn step(&mut self, count: u64) -> Result<(), Fault> {
        self.steps += count;
        if self.steps - self.steps_spent < STEPS_PER_LOOK { Ok(()) } else { self.look() }
    }

    /// Counts the reading of a set, which may be long.
    #[inline]
    fn step_set(&mut self, p: usize, end: usize) -> Result<(), Fault> {
        if end - p > 8 { self.step((end - p) as u64 / 4) } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), Fault> {
        if self.steps - self.steps_before > STEPS_MAX {
            return Err(COMPLEX);
        }
        if self.finish() { Err(Fault::Killed) } else { Ok(()) }
    }

    fn byte(&self, p: usize) -> Option<u8> {
        self.pattern.get(p).copied()
    }

    /// Follows the pattern from `p` at `s`, one level deeper.
    fn follow(&mut self, s: usize, p: usize) -> Found {
        if self.depth == DEPTH_MAX {
            return Err(COMPLEX);
        }
        self.depth += 1;
        let found = self.walk(s, p);
        self.depth -= 1;
        found
    }

    fn walk(&mut self, mut s: usize, mut p: usize) -> Found {
        loop {
            self.step(1)?;
            let Some(item) = self.byte(p) else { return Ok(Some(s)) };
            match item {
                b'(' if self.byte(p + 1) == Some(b')') => return self.open_capture(s, p + 2, Capture::Position(s)),
                b'(' => return self.open_capture(s, p + 1, Capture::Open(s)),
                b')' => return self.close_capture(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => return Ok((s == self.subject.len()).then_some(s)),
                ESCAPE => match self.byte(p + 1) {
                    Some(b'b') => match self.balance(s, p + 2)? {
                        Some(end) => {
                            (s, p) = (end, p + 4);
                            continue;
                        }
                        None => return Ok(None),
                    },
                    Some(b'f') => {
                        p += 2;
                        if self.byte(p) != Some(b'[') {
                            return Err(Fault::Malformed(c"missing '[' after '%f' in pattern"));
                        }
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
                    if here && let Some(found) = self.follow(s + 1, end + 1)? {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'*') => return self.expand_most(s, p, end),
                Some(b'+') => return if here { self.expand_most(s + 1, p, end) } else { Ok(None) },
                Some(b'-') => return self.expand_least(s, p, end),
                _ if here => (s, p) = (s + 1, end),
                _ => return Ok(None),
            }
        }
    }

    fn expand_most(&mut self, s: usize, p: usize, end: usize) -> Found {
        let count = self.count_singles(s, p, end)?;
        for more in (0..=count).rev() {
            if let Some(found) = self.follow(s + more, end + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// How many bytes from `s` on match the item from `p` to `end`.
    fn count_singles(&mut self, s: usize, p: usize, end: usize) -> Result<usize, Fault> {
        let (mut count, cost) = (0, 1 + (end - p) / 4);
        loop {
            let rest = &self.subject[s + count..];
            let piece = &rest[..rest.len().min(1 + STEPS_PER_LOOK as usize / cost)];
            let matched = self.leading(piece, p, end);
            let more = matched == piece.len() && piece.len() < rest.len();
            self.step((matched * cost) as u64)?;
            if more {
                // Long texts are not what makes a pattern complex.
                self.steps_before += (matched * cost) as u64;
            }
            count += matched;
            if !more {
                return Ok(count);
            }
        }
    }

    /// How many bytes of a piece match the item, up to the first that does not.
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

    fn expand_least(&mut self, mut s: usize, p: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.follow(s, end + 1)? {
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
        let found = self.follow(s, p)?;
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
        let found = self.follow(s, p)?;
        if found.is_none() {
            self.captures[index].write(Capture::Open(start));
        }
        Ok(found)
    }

    fn balance(&mut self, s: usize, p: usize) -> Found {
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

    fn back_reference(&mut self, s: usize, digit: u8) -> Found {
        let capture = (digit as usize).checked_sub(b'1' as usize).and_then(|index| self.captures().get(index));
        match capture {
            Some(&Capture::Span(start, len)) => {
                self.step(len as u64 / 16)?;
                let same = self.subject[s..].starts_with(&self.subject[start..start + len]);
                Ok(same.then_some(s + len))
            }
            // The length of a position reads as more than there is.
            Some(Capture::Position(_)) => Ok(None),
            Some(Capture::Open(_)) | None => Err(Fault::Malformed(c"invalid capture index")),
        }
    }

    /// Where the single-character item at `p` ends.
    #[inline]
    fn class_end(&self, p: usize) -> Result<usize, Fault> {
        match self.byte(p) {
            Some(ESCAPE) if p + 1 >= self.pattern.len() => Err(Fault::Malformed(c"malformed pattern (ends with '%')")),
            Some(ESCAPE) => Ok(p + 2),
            Some(b'[') => {
                let mut at = p + 1 + usize::from(self.byte(p + 1) == Some(b'^'));
                // The first one stands for itself even if it is a bracket.
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

/// What `%` and a letter stand for.
#[derive(Clone, Copy)]
struct Class {
    /// The letter, or the character itself where it is no letter of a class.
    letter: u8,
    /// One bit of [`KINDS`]; none where the character stands for itself.
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

/// Of which classes each byte is.
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

/// The bit of each letter of a class, in either case.
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
