//! Text that fits: wrapped, cut, and padded to a width in cells. Some characters take two cells.

use ratatui::text::Span;

/// The width of a text in cells.
pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// Cuts a text, which then ends with `…`.
pub fn cut(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_owned();
    }
    let mut kept = beginning(text, cells.saturating_sub(1)).to_owned();
    if cells > 0 {
        kept.push('…');
    }
    kept
}

/// Cuts or pads a text to exactly this width.
pub fn padded(text: &str, cells: usize, right: bool) -> String {
    let text = cut(text, cells);
    let blanks = " ".repeat(cells - width(&text).min(cells));
    if right { format!("{blanks}{text}") } else { format!("{text}{blanks}") }
}

/// The beginning of a text that takes at most this many cells.
fn beginning(text: &str, cells: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += width(c.encode_utf8(&mut [0; 4]));
        if used > cells {
            return &text[..at];
        }
    }
    text
}

/// Breaks a text at blanks into lines of at most this width. A word that is longer is broken, too. The last of `lines_max` lines
/// ends with `…` if there are more.
pub fn wrapped(text: &str, cells: usize, lines_max: usize) -> Vec<String> {
    let cells = cells.max(2);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let mut word = word;
        if !line.is_empty() && width(&line) + 1 + width(word) > cells {
            lines.push(std::mem::take(&mut line));
        }
        while width(word) > cells {
            let head = beginning(word, cells);
            lines.push(head.to_owned());
            word = &word[head.len()..];
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    if lines.len() > lines_max {
        let rest = lines.split_off(lines_max.saturating_sub(1)).join(" ");
        lines.extend((lines_max > 0).then(|| cut(&rest, cells)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_takes_the_cells_that_it_has() {
        assert_eq!((cut("order:42", 8).as_str(), cut("order:42", 7).as_str(), cut("a", 0).as_str()), ("order:42", "order:…", ""));
        assert_eq!(cut("鍵鍵鍵", 5), "鍵鍵…");
        assert_eq!(cut("鍵鍵鍵", 4), "鍵…");
        assert_eq!((padded("ab", 4, false), padded("ab", 4, true)), ("ab  ".to_owned(), "  ab".to_owned()));
        assert_eq!(width(&padded("鍵鍵鍵", 4, false)), 4);
    }

    #[test]
    fn sentences_are_wrapped_at_blanks() {
        assert_eq!(wrapped("24 clients wait for order:42", 12, 5), ["24 clients", "wait for", "order:42"]);
        assert_eq!(wrapped("24 clients wait for order:42", 12, 2), ["24 clients", "wait for or…"]);
        assert_eq!(wrapped("abcdefghij k", 4, 9), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrapped("", 4, 1), [""]);
    }
}
