//! Compares the output on a page with the printed output.
//!
//! Both must be equal, except for what varies between runs:
//!
//! - `…` on a line of its own stands for any number of lines, and within a line for any text;
//! - a number of sixteen digits is a fencing token: all tokens of a page may be off by the same number, also those in commands;
//! - a number of thirteen or ten digits is a time of day in milliseconds or seconds, and may vary;
//! - the port behind `127.0.0.1:` may vary if it has five digits;
//! - a word of 32 hexadecimal digits is a random id, and may vary;
//! - the number behind `client` is that of a connection, and may vary;
//! - in a block with the comment `<!-- figures vary -->` every number with its unit may vary, and so may the width of columns.
//!
//! Spaces at the end of a line do not matter.

/// The fencing tokens of a page.
#[derive(Default)]
pub struct Tokens {
    /// The printed tokens minus the tokens on the page.
    offset: Option<i128>,
}

impl Tokens {
    /// The word of a command as a reader sends it, who copies tokens from the output before.
    pub fn sent(&self, word: String) -> String {
        let token = if word.len() == 16 { word.parse::<i128>().ok() } else { None };
        token.map_or(word, |shown| (shown + self.offset.unwrap_or(0)).to_string())
    }
}

/// Whether the lines are equal.
pub fn same(expected: &[String], printed: &[String], figures_vary: bool, tokens: &mut Tokens) -> bool {
    let plain = |line: &String, found: &mut Vec<i128>| {
        let line = without_what_varies(line.trim_end(), found);
        if figures_vary { without_figures(&line) } else { line }
    };
    let (mut shown_tokens, mut printed_tokens) = (Vec::new(), Vec::new());
    let expected: Vec<String> = expected.iter().map(|line| plain(line, &mut shown_tokens)).collect();
    let printed: Vec<String> = printed.iter().map(|line| plain(line, &mut printed_tokens)).collect();
    if !lines_match(&expected, &printed) {
        return false;
    }
    let elided = expected.iter().any(|line| line.contains('…'));
    elided
        || (shown_tokens.iter().zip(&printed_tokens))
            .all(|(shown, printed)| *tokens.offset.get_or_insert(printed - shown) == printed - shown)
}

fn lines_match(expected: &[String], printed: &[String]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.trim() == "…" => (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, others)| line_matches(line, first) && lines_match(rest, others))
        }
    }
}

fn line_matches(expected: &str, printed: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// Replaces what varies by its kind, and appends the fencing tokens to `tokens`.
fn without_what_varies(line: &str, tokens: &mut Vec<i128>) -> String {
    let mut out = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let is_word = |c: char| c.is_ascii_alphanumeric();
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let Some((word, behind)) = rest.split_at_checked(len).filter(|_| len > 0) else {
            let len = rest.chars().next().map_or(1, char::len_utf8);
            out += &rest[..len];
            rest = &rest[len..];
            continue;
        };
        rest = behind;
        let digits = word.bytes().all(|byte| byte.is_ascii_digit());
        match word.len() {
            16 if digits => {
                tokens.extend(word.parse::<i128>());
                out += "<token>";
            }
            13 | 10 if digits => out += "<time>",
            5 if digits && out.ends_with("127.0.0.1:") => out += "<port>",
            32 if word.bytes().all(|byte| byte.is_ascii_hexdigit()) => out += "<id>",
            _ if digits && ["client ", "\"client\" => (integer) "].iter().any(|before| out.ends_with(before)) => {
                out += "<client>"
            }
            _ => out += word,
        }
    }
    out
}

/// Replaces numbers and their units by `#`, and shortens runs of spaces and the lines of tables.
fn without_figures(line: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let last = out.last_mut().filter(|last| last.ends_with('#'));
        match (without_digits(word), last) {
            (word, Some(_)) if is_unit(&word) => {}
            // `1.30 ms/1.46 ms` has a unit before the slash. It counts as one figure, because a missing one is shown as a single
            // dash.
            (word, Some(_)) if word.strip_suffix("/#").is_some_and(is_unit) => {}
            (word, _) if word.chars().all(|c| c == '-') => out.push("-".to_owned()),
            (word, _) => out.push(word),
        }
    }
    out.join(" ")
}

fn is_unit(word: &str) -> bool {
    ["ns", "µs", "ms", "s"].contains(&word)
}

/// Replaces each number, and the dash of a missing figure, by `#`. A list of pairs of numbers becomes one pair.
fn without_digits(word: &str) -> String {
    let mut out = String::new();
    for c in word.chars() {
        match c {
            '0'..='9' | '–' if out.ends_with('#') => {}
            '0'..='9' | '–' => out.push('#'),
            c => out.push(c),
        }
        for (long, short) in [("#.#", "#"), ("#/#", "#"), ("#=#,#=#", "#=#")] {
            if let Some(begin) = out.strip_suffix(long) {
                out = format!("{begin}{short}");
            }
        }
    }
    out
}
