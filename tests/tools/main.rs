//! Short runs of the tools `portcullis bench` and `portcullis torture`.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod durable;
mod live;
mod replicas;
mod torture;

/// The document that a page draws.
fn document(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"document\">").expect("a document");
    serde_json::from_str(rest.split("</script>").next().unwrap_or_default()).expect("JSON")
}
