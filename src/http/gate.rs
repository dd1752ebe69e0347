//! What every request passes: the checks that keep other web sites out, the time limit, and the headers of every response.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY};
use axum::http::header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use crate::http::api::App;
use crate::http::trouble::Trouble;

/// Time for a request's body to arrive and for its response to begin.
const REQUEST_TIME: Duration = Duration::from_secs(15);

/// Answers a request, or refuses it.
pub async fn pass(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match check(&app, request.headers()) {
        Err(trouble) => trouble.into_response(),
        Ok(()) if needs_credentials(&app, &request) => {
            Trouble::new(StatusCode::UNAUTHORIZED, "NOAUTH Authentication required.").into_response()
        }
        Ok(()) => match timeout(REQUEST_TIME, next.run(request)).await {
            Ok(response) => response,
            Err(_) => Trouble::new(StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response(),
        },
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ] {
        if !headers.contains_key(&name) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    response
}

/// Beyond loopback nobody does without credentials, except for health. At the start there were passwords; should they be taken away
/// later, the endpoint is not open.
fn needs_credentials(app: &App, request: &Request) -> bool {
    let is_health = matches!(request.uri().path(), "/healthz" | "/readyz");
    app.beyond_loopback && !is_health && !request.headers().contains_key(AUTHORIZATION)
}

/// Refuses what a page of another site may have caused: under a name that its owner has pointed at this machine, or from another
/// origin.
fn check(app: &App, headers: &HeaderMap) -> Result<(), Trouble> {
    let host = match headers.get(HOST).map(HeaderValue::to_str) {
        Some(Ok(host)) => host,
        _ => return Err(Trouble::wrong("the header Host is missing")),
    };
    // Over TLS, the certificate proves the name.
    if !app.encrypted && !is_known(host_of(host), app.name.as_deref()) {
        let text = "the header Host is neither an address nor localhost nor the name that the endpoint is bound by";
        return Err(Trouble::forbidden(text));
    }
    let scheme = if app.encrypted { "https://" } else { "http://" };
    match headers.get(ORIGIN) {
        None => Ok(()),
        Some(origin) => {
            let origin = origin.to_str().ok().and_then(|origin| origin.strip_prefix(scheme));
            let is_own = origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host));
            if is_own { Ok(()) } else { Err(Trouble::forbidden("requests from other origins are refused")) }
        }
    }
}

/// The host of `host:port`, without brackets.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

fn is_known(host: &str, name: Option<&str>) -> bool {
    let is_address = host.parse::<IpAddr>().is_ok() || host.parse::<Ipv6Addr>().is_ok();
    is_address || host.eq_ignore_ascii_case("localhost") || name.is_some_and(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_known_names() {
        for (authority, known) in [
            ("127.0.0.1:9121", true),
            ("[::1]:9121", true),
            ("[::1]", true),
            ("localhost", true),
            ("LOCALHOST:80", true),
            ("locks.internal:9121", true),
            ("evil.example:9121", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
            ("[", false),
        ] {
            assert_eq!(is_known(host_of(authority), Some("locks.internal")), known, "{authority}");
        }
    }
}
