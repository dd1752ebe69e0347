//! The frame of the pages that the tools write: one file of HTML without anything from elsewhere, in the colours of the live page.

use std::fmt::Write;

use crate::bench::report::run_facts::{RunFacts, VERSION};

/// The style that all pages share: colours, light and dark, cards, the head and the foot.
const STYLE: &str = include_str!("page.css");

/// A page of HTML.
pub struct Page<'a> {
    /// The tool's name, as on the command line.
    pub tool: &'a str,
    /// The title of the document.
    pub title: &'a str,
    /// Styles of this page besides the shared ones.
    pub style: &'a str,
    /// The script of this page; empty if it has none. Everything can be read without it.
    pub script: &'a str,
    /// What is between the head and the foot, as HTML.
    pub main: &'a str,
    /// Facts for the foot besides those of the run: a name and a value as HTML.
    pub facts: &'a [(&'a str, String)],
}

/// Escapes text for HTML, also for the value of an attribute.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A number with a comma every three digits.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Page<'_> {
    /// Renders the page of a run.
    pub fn render(&self, run: &RunFacts) -> String {
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n",
            escaped(self.title),
            self.style
        );
        let _ = write!(
            out,
            "<header><span class=\"brand\">Portcullis {}</span><span class=\"soft\">{}</span>\
             <a class=\"soft\" href=\"#run\">version {VERSION}, {}</a></header>\n<main>\n{}",
            self.tool,
            run.date(),
            escaped(&run.machine.to_string()),
            self.main
        );
        out.push_str("<section class=\"card\" id=\"run\" aria-labelledby=\"run-title\">\n<h2 id=\"run-title\">This run</h2>\n<dl class=\"pairs\">\n");
        let mut fact = |name: &str, value: &str| {
            let _ = writeln!(out, "<dt>{name}</dt><dd>{value}</dd>");
        };
        fact("Date", &run.date());
        fact("Machine", &escaped(&run.machine.to_string()));
        fact("Version", &format!("portcullis {VERSION}"));
        self.facts.iter().for_each(|(name, value)| fact(name, value));
        fact("To repeat it", &format!("<code>{}</code>", escaped(&run.command)));
        out.push_str("</dl>\n</section>\n</main>\n");
        if !self.script.is_empty() {
            let _ = write!(out, "<script>\n{}</script>\n", self.script);
        }
        out.push_str("</body>\n</html>\n");
        out
    }
}

/// Asserts that the elements of a page are closed in the order in which they were opened.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_well_formed(page: &str) {
    let (mut open, mut rest) = (Vec::new(), page);
    while let Some(at) = rest.find('<') {
        let element = &rest[at + 1..];
        let Some(end) = element.find('>') else { panic!("an element has no end: {element}") };
        let (inside, after) = element.split_at(end);
        let name = inside.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap_or_default();
        match inside {
            _ if inside.starts_with('/') => assert_eq!(open.pop(), Some(name), "{}", &rest[..at + end + 2]),
            _ if inside.ends_with('/') || inside.starts_with('!') || name == "meta" => {}
            _ => open.push(name),
        }
        assert_eq!(inside.matches('"').count() % 2, 0, "an attribute has no end: {inside}");
        // The text of styles and scripts is not HTML.
        rest = match name {
            "style" | "script" if !inside.starts_with('/') => &after[after.find("</").unwrap_or(after.len())..],
            _ => &after[1..],
        };
    }
    assert!(open.is_empty(), "never closed: {open:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;

    #[test]
    fn a_page_is_well_formed_and_escapes_what_others_wrote() {
        let machine = Machine { cpu: "<script>alert(1)</script>".to_owned(), cores: 1, kernel: "6".to_owned() };
        let run = RunFacts::of(
            std::time::SystemTime::UNIX_EPOCH,
            machine,
            ["bench", "--command", "<b onclick=\"'&"].map(str::to_owned),
        );
        let facts = [("Method", "one".to_owned())];
        let page =
            Page { tool: "bench", title: "a & b", style: "a > b {}\n", script: "1 < 2;\n", main: "<p>main</p>\n", facts: &facts }
                .render(&run);
        assert_well_formed(&page);
        assert!(!page.contains("<script>alert") && !page.contains("<b onclick"), "{page}");
        for text in [
            "1 January 1970, 00:00 UTC",
            "1 core, Linux 6",
            "<title>a &amp; b</title>",
            "&lt;b onclick=&quot;",
            "<dt>Method</dt><dd>one</dd>",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn an_element_that_is_not_closed_is_found() {
        assert_well_formed("<p><b>text</p>");
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands).join(" "), "0 999 1,000 1,234,567");
    }
}
