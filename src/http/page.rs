//! The page about locks: one file, whose inline parts alone may run in it.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::http::api::App;
use crate::http::credentials::Who;

const PAGE: &str = include_str!("page.html");

static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| HeaderValue::from_str(&policy(PAGE)).ok());

/// The page, with a policy by which the browser runs nothing else in it and lets it talk to nobody else. Where a user is needed, the
/// page asks for it already: the browser sends the same credentials with the page's own requests.
pub async fn page(State(app): State<Arc<App>>, who: Who) -> Response {
    if let Err(trouble) = app.link.ask(&who, 0, &[]).await
        && trouble.status == StatusCode::UNAUTHORIZED
    {
        return trouble.into_response();
    }
    let mut response = Html(PAGE).into_response();
    if let Some(policy) = &*POLICY {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy.clone());
    }
    response
}

/// The policy for a page: its inline parts by their hashes.
fn policy(page: &str) -> String {
    let sources = |element: &str| {
        let hashes =
            contents(page, element).into_iter().map(|text| format!(" 'sha256-{}'", STANDARD.encode(Sha256::digest(text))));
        let hashes: String = hashes.collect();
        if hashes.is_empty() { " 'none'".to_owned() } else { hashes }
    };
    format!(
        "default-src 'none'; script-src{}; style-src{}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        sources("script"),
        sources("style")
    )
}

/// The text between the tags of each element of a kind. It is exactly what a browser hashes.
fn contents<'a>(page: &'a str, element: &str) -> Vec<&'a str> {
    let (start, end) = (format!("<{element}"), format!("</{element}>"));
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find(&start) {
        let after = &rest[at + start.len()..];
        let Some((tag, inside)) = after.split_once('>') else { break };
        // Another element's name may begin in the same way.
        if !tag.is_empty() && !tag.starts_with(|c: char| c.is_ascii_whitespace()) {
            rest = inside;
            continue;
        }
        let Some((text, behind)) = inside.split_once(&end) else { break };
        found.push(text);
        rest = behind;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_the_inline_parts_alone() {
        let told = policy("<style>a{}</style><script defer>alert(1)</script><p>");
        // Of `alert(1)`, as browsers print it.
        assert!(told.contains("script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='; style-src 'sha256-"), "{told}");
        assert!(policy("<p>").contains("script-src 'none'; style-src 'none'"));
        assert_eq!(contents("<style>\n x </style><styled>y</styled><style a='b'>z</style>", "style"), ["\n x ", "z"]);
    }

    #[test]
    fn the_page_needs_nothing_that_its_policy_forbids() {
        let told = policy(PAGE);
        assert!(!told.contains("unsafe"), "{told}");
        for sign in [" style=\"", " onclick=", " onload=", "javascript:", "<link", "src=\"http", "<iframe", "<form"] {
            assert!(!PAGE.contains(sign), "the policy forbids {sign}");
        }
    }
}
