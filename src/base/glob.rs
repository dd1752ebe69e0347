//! Glob patterns on bytes: `*`, `?`, `[abc]`, `[^a-z]`, and `\` to match a character literally.
//!
//! Backtracking tries only the last `*` that was reached at other places: whatever an earlier one would reach by matching more,
//! the last one reaches, too. So the cost is at most the product of the two lengths, whatever the pattern.

use std::ops::Range;

use smallvec::SmallVec;

/// A pattern with more pending `*` than this matches nothing.
const STARS_MAX: usize = 1000;

/// As many short elements take as long as one that is matched with this pattern. A long pattern may have to be read whole for each
/// byte of the text.
pub fn cost(pattern: &[u8]) -> usize {
    1 + pattern.len() / 64
}

/// Whether the whole text matches. An empty text matches only an empty pattern, not even `*`: callers for which `*` means
/// everything ask [`is_all`] first.
pub fn matches(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    // Where to continue when the part behind the last star does not match: behind the star, and one byte further in the text.
    let mut retry: Option<(usize, usize)> = None;
    let mut stars = 0;
    let (mut p, mut t) = (0, 0);
    loop {
        let matched = loop {
            if p >= pattern.len() || t >= text.len() {
                break p >= pattern.len() && t >= text.len();
            }
            if pattern[p] == b'*' {
                while pattern.get(p + 1) == Some(&b'*') {
                    p += 1;
                }
                p += 1;
                if p >= pattern.len() {
                    return true;
                }
                stars += 1;
                if stars > STARS_MAX {
                    return false;
                }
                retry = Some((p, t));
                continue;
            }
            let Some(next) = step(pattern, p, text[t], nocase) else { break false };
            p = next;
            t += 1;
            if t >= text.len() {
                while pattern.get(p) == Some(&b'*') {
                    p += 1;
                }
            }
        };
        if matched {
            return true;
        }
        let Some((behind, from)) = retry else { return false };
        if from + 1 >= text.len() {
            return false;
        }
        retry = Some((behind, from + 1));
        (p, t) = (behind, from + 1);
    }
}

/// As [`matches()`], and returns what each `*` matches: each as little as possible, except the last one, which has to match the
/// rest. Adjacent stars count as one.
pub fn stars(pattern: &[u8], text: &[u8]) -> Option<SmallVec<[Range<usize>; 4]>> {
    let mut stars: SmallVec<[Range<usize>; 4]> = SmallVec::new();
    // The position in the pattern behind the last star.
    let mut behind = None;
    let (mut p, mut t) = (0, 0);
    loop {
        if pattern.get(p) == Some(&b'*') {
            if stars.len() >= STARS_MAX {
                return None;
            }
            while pattern.get(p) == Some(&b'*') {
                p += 1;
            }
            stars.push(t..t);
            behind = Some(p);
            if p == pattern.len() {
                stars.last_mut()?.end = text.len();
                return Some(stars);
            }
        }
        let next = match (p < pattern.len(), text.get(t)) {
            (false, None) => return Some(stars),
            (true, Some(&byte)) => step(pattern, p, byte, false),
            _ => None,
        };
        if let Some(next) = next {
            (p, t) = (next, t + 1);
            continue;
        }
        // The last star matches one more byte.
        let star = stars.last_mut()?;
        if star.end >= text.len() {
            return None;
        }
        star.end += 1;
        (p, t) = (behind?, star.end);
    }
}

/// The number of `*` in a pattern that [`stars`] reports.
pub fn star_count(pattern: &[u8]) -> usize {
    let (mut count, mut p) = (0, 0);
    while p < pattern.len() {
        if pattern[p] == b'*' {
            count += 1;
            while pattern.get(p) == Some(&b'*') {
                p += 1;
            }
        } else {
            p = match pattern[p] {
                b'[' => class(pattern, p + 1, 0, false).1,
                b'\\' => p + 2,
                _ => p + 1,
            };
        }
    }
    count
}

/// Whether the pattern is `*` alone, which is treated as no pattern at all.
pub fn is_all(pattern: &[u8]) -> bool {
    pattern == b"*"
}

/// Matches one byte against the element of the pattern at `p`, which is not a star. Returns the start of the next element.
fn step(pattern: &[u8], p: usize, byte: u8, nocase: bool) -> Option<usize> {
    match pattern[p] {
        b'?' => Some(p + 1),
        b'[' => {
            let (hit, next) = class(pattern, p + 1, byte, nocase);
            hit.then_some(next)
        }
        b'\\' if p + 1 < pattern.len() => same(pattern[p + 1], byte, nocase).then_some(p + 2),
        literal => same(literal, byte, nocase).then_some(p + 1),
    }
}

/// Matches a byte against the class whose first byte is at `p`. Returns whether it matches and where the pattern continues. An
/// unclosed class ends with the pattern.
fn class(pattern: &[u8], mut p: usize, byte: u8, nocase: bool) -> (bool, usize) {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut hit = false;
    while let Some(&c) = pattern.get(p) {
        let left = pattern.len() - p;
        if c == b'\\' && left >= 2 {
            // An escaped byte is matched literally, with its own case even where case is ignored.
            hit |= pattern[p + 1] == byte;
            p += 2;
        } else if c == b']' {
            p += 1;
            break;
        } else if left >= 3 && pattern[p + 1] == b'-' {
            // Compared as signed bytes, as C's char on x86 is.
            let (from, to) = (c as i8, pattern[p + 2] as i8);
            let (from, to) = (from.min(to), from.max(to));
            let fold = |b: i8| if nocase { b.wrapping_add(if (65..=90).contains(&b) { 32 } else { 0 }) } else { b };
            hit |= (fold(from)..=fold(to)).contains(&fold(byte as i8));
            p += 3;
        } else {
            hit |= same(c, byte, nocase);
            p += 1;
        }
    }
    (hit != negated, p)
}

fn same(a: u8, b: u8, nocase: bool) -> bool {
    if nocase { a.eq_ignore_ascii_case(&b) } else { a == b }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn m(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes(), false)
    }

    #[test]
    fn what_the_elements_match() {
        for (pattern, text) in [
            ("", ""),
            ("*", "a"),
            ("a*", "a"),
            ("a**", "a"),
            ("*a", "ba"),
            ("h?llo", "hallo"),
            ("h*llo", "hllo"),
            ("h*o", "heeeello"),
            ("h[ae]llo", "hello"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("h[b-a]llo", "hallo"),
            ("\\*x", "*x"),
            ("a\\", "a\\"),
            ("[\\]]", "]"),
            ("[a-", "-"),
            ("[abc", "b"),
            ("*[0-9]*", "ab3cd"),
            ("a*b*c*d", "aXbXcXXd"),
            ("*aab", "aaaaab"),
            ("[^]", "x"),
        ] {
            assert!(m(pattern, text), "{pattern} must match {text}");
        }
        for (pattern, text) in [
            ("*", ""),
            ("", "a"),
            ("?", ""),
            ("a", "b"),
            ("h[^e]llo", "hello"),
            ("h[ae]llo", "hillo"),
            ("a*b", "acc"),
            ("*a*b*c", "abab"),
            ("[]a]", "a"),
            ("\\*", "a"),
            ("ab", "a"),
            ("[", "a"),
        ] {
            assert!(!m(pattern, text), "{pattern} must not match {text}");
        }
    }

    #[test]
    fn case_counts_unless_told() {
        assert!(!m("HELLO", "hello"));
        assert!(matches(b"H[A-E]L?O", b"hello", true));
        assert!(matches(b"h[^x]LLO", b"HELlo", true));
        assert!(!matches(b"h[\\E]llo", b"hello", true));
    }

    #[test]
    fn each_star_stands_for_as_little_as_it_can() {
        for (pattern, text, expected) in [
            ("*", "abc", &["abc"][..]),
            ("*", "", &[""]),
            ("abc", "abc", &[]),
            ("*:*", "a:b:c", &["a", "b:c"]),
            ("*:*:*", "a:b:c:d", &["a", "b", "c:d"]),
            ("*b", "abab", &["aba"]),
            ("*-*b", "x-aab", &["x", "aa"]),
            ("a***c?", "abbcd", &["bb"]),
            ("[*]*", "*x", &["x"]),
            ("\\**", "*x", &["x"]),
            ("a*", "a", &[""]),
        ] {
            let found: Vec<&str> = stars(pattern.as_bytes(), text.as_bytes()).unwrap().into_iter().map(|at| &text[at]).collect();
            assert_eq!(found, expected, "{pattern} on {text}");
            assert_eq!(star_count(pattern.as_bytes()), expected.len(), "{pattern}");
        }
        assert_eq!(stars(b"*a*", b"bcd"), None);
    }

    proptest! {
        #[test]
        fn stars_are_told_of_what_matches(pattern in "[ab*?\\[\\]\\\\^-]{0,8}", text in "[ab\\[*-]{1,8}") {
            let found = stars(pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(found.is_some(), m(&pattern, &text));
            if let Some(found) = found {
                prop_assert_eq!(found.len(), star_count(pattern.as_bytes()));
                prop_assert!(found.iter().is_sorted_by(|a, b| a.end <= b.start));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn many_stars_do_not_blow_up() {
        let pattern = b"a*".repeat(900);
        let mut text = vec![b'a'; 50_000];
        assert!(matches(&pattern, &text, false));
        text.push(b'b');
        let mut other = pattern.clone();
        other.extend_from_slice(b"c");
        assert!(!matches(&other, &text, false));
        assert!(!matches(&b"a*".repeat(1100)[..2199], &text, false), "more stars than are allowed to wait");
        assert!(matches(&b"*".repeat(100_000), &text, false));
    }
}
