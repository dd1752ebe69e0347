//! The known name that somebody may have meant by an unknown one.

use super::Directive;

/// Maximum length in bytes of a name that is compared. No known name is nearly as long.
const NAME_MAX: usize = 64;
/// Names of lines that are no directives.
const LINES: [&str; 2] = ["include", "user"];

/// The known name that differs least from an unknown one; `None` if all differ in more than a third of it.
pub fn nearest(name: &[u8]) -> Option<&'static str> {
    if name.len() > NAME_MAX {
        return None;
    }
    let bound = (name.len() / 3).min(4);
    let known = Directive::all().iter().flat_map(Directive::names).chain(LINES);
    let near = known.filter(|known| known.len().abs_diff(name.len()) <= bound);
    let measured = near.map(|known| (distance(name, known.as_bytes()), known));
    measured.filter(|(steps, _)| *steps <= bound).min_by_key(|(steps, _)| *steps).map(|(_, known)| known)
}

/// The end of an error about an unknown name, with its [`nearest`].
pub fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |known| format!("; did you mean '{known}'?"))
}

/// Number of bytes to add, leave out, replace or swap with their neighbour to get from one name to the other.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let same = |a: u8, b: u8| a.eq_ignore_ascii_case(&b) || matches!((a, b), (b'_', b'-') | (b'-', b'_'));
    let first: Vec<usize> = (0..=other.len()).collect();
    let (mut before, mut last) = (first.clone(), first);
    for i in 0..one.len() {
        let mut row = vec![i + 1];
        for j in 0..other.len() {
            let mut steps = (last[j] + usize::from(!same(one[i], other[j]))).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && same(one[i], other[j - 1]) && same(one[i - 1], other[j]) {
                steps = steps.min(before[j - 1] + 1);
            }
            row.push(steps);
        }
        (before, last) = (last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognized_and_other_words_are_not() {
        for (typed, meant) in [
            ("cluster-secrets", "cluster-secret"),
            ("clutser-secret", "cluster-secret"),
            ("Require_Pass", "requirepass"),
            ("min-replica-to-write", "min-replicas-to-write"),
            ("bind-source-adr", "bind-source-addr"),
            ("hide-userdata-from-log", "hide-user-data-from-log"),
            ("prot", "port"),
            ("protected_mode", "protected-mode"),
            ("usr", "user"),
        ] {
            assert_eq!(nearest(typed.as_bytes()), Some(meant), "{typed}");
        }
        for other in ["", "x", "nosuch", "nosuchdirective", "cluster-", "repl-"] {
            assert_eq!(nearest(other.as_bytes()), None, "{other}");
        }
        assert_eq!(nearest(&[b'a'; 100_000]), None);
    }

    #[test]
    fn a_distance_is_the_same_both_ways() {
        for (one, other, steps) in
            [("", "", 0), ("", "abc", 3), ("abc", "abd", 1), ("ab", "ba", 1), ("a-b", "A_b", 0), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(one.as_bytes(), other.as_bytes()), steps, "{one} {other}");
            assert_eq!(distance(other.as_bytes(), one.as_bytes()), steps, "{other} {one}");
        }
    }
}
