//! The page of a run: one file of HTML without anything from elsewhere. It has the run's JSON document in it, and a script that
//! draws the document: see `page.html`. `portcullis bench` and `portcullis torture` share it.

use serde_json::Value;

/// The page, with a word in the place of the document.
const PAGE: &str = include_str!("page.html");
/// The word.
const PLACE: &str = "DOCUMENT";

/// Renders the page of a run's document.
pub fn render(document: &Value) -> String {
    // A `<` in a string could end the script or begin a comment in it. JSON has `<` in strings alone.
    PAGE.replacen(PLACE, &document.to_string().replace('<', "\\u003c"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_string_ends_the_script() -> Result<(), serde_json::Error> {
        let document = serde_json::json!({ "command": "</script><!--<script>", "tool": "DOCUMENT" });
        let page = render(&document);
        let (before, after) = PAGE.split_once(PLACE).unwrap_or_default();
        let text = page.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).unwrap_or_default();
        assert!(!text.contains('<'), "{text}");
        assert_eq!(serde_json::from_str::<Value>(text)?, document);
        Ok(())
    }
}
