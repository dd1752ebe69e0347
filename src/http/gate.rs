//! What every request passes: the checks that keep other web sites out, the time limit, and the headers of every response.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY};
use axum::http::header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::{sleep, timeout};

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
        Ok(()) => match guesser(&request) {
            Some(from) => slowed(&app, from, request, next).await,
            None => run(request, next).await,
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

async fn run(request: Request, next: Next) -> Response {
    let late = |_| Trouble::new(StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response();
    timeout(REQUEST_TIME, next.run(request)).await.unwrap_or_else(late)
}

/// The client of a request that may be a guess of a password: it has one, and comes from another machine.
fn guesser(request: &Request) -> Option<IpAddr> {
    let from = request.extensions().get::<SocketAddr>()?.ip().to_canonical();
    let is_guess = request.headers().contains_key(AUTHORIZATION) && !is_health(request) && !from.is_loopback();
    is_guess.then_some(from)
}

/// Answers a request when its client may try a password, and has the server remember a wrong one.
async fn slowed(app: &App, from: IpAddr, request: Request, next: Next) -> Response {
    match app.link.login_wait(from).await {
        Err(trouble) => return trouble.into_response(),
        Ok(Duration::ZERO) => {}
        Ok(wait) => {
            let Ok(_place) = app.logins.try_acquire() else {
                return Trouble::new(StatusCode::TOO_MANY_REQUESTS, "too many logins wait already").into_response();
            };
            sleep(wait).await;
        }
    }
    let response = run(request, next).await;
    if response.status() == StatusCode::UNAUTHORIZED {
        app.link.login_failed(from);
    }
    response
}

fn is_health(request: &Request) -> bool {
    matches!(request.uri().path(), "/healthz" | "/readyz")
}

/// Beyond loopback nobody does without credentials, except for health. At the start there were passwords; should they be taken away
/// later, the endpoint is not open.
fn needs_credentials(app: &App, request: &Request) -> bool {
    app.beyond_loopback && !is_health(request) && !request.headers().contains_key(AUTHORIZATION)
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
    use std::io;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::time::Instant;

    use axum::body::Body;
    use axum::routing::get;
    use axum::{Extension, Router, middleware};
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::http::api::LOGINS_MAX;
    use crate::http::link::{Inside, Serves, State as Health};

    const WAIT: Duration = Duration::from_millis(40);

    /// A server whose logins wait, and that remembers what it was asked.
    #[derive(Default)]
    struct Slow(Mutex<Vec<String>>);

    impl Slow {
        fn note(&self, what: String) {
            self.0.lock().expect("nothing panics").push(what);
        }
    }

    impl Inside for Slow {
        fn connect(&self, _: Serves) -> io::Result<UnixStream> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn state(&self, _: Box<dyn FnOnce(Health) + Send>) {}

        fn login(&self, from: IpAddr, tell: Box<dyn FnOnce(Duration) + Send>) {
            self.note(format!("login from {from}"));
            tell(WAIT);
        }

        fn login_failed(&self, from: IpAddr) {
            self.note(format!("failure from {from}"));
        }
    }

    #[tokio::test]
    async fn passwords_from_other_machines_wait_and_wrong_ones_are_counted() {
        let server = Arc::new(Slow::default());
        let app = Arc::new(App::new(Arc::clone(&server) as Arc<dyn Inside>, None, false, true, 0));
        let wrong = async || Trouble::new(StatusCode::UNAUTHORIZED, "WRONGPASS");
        let router = Router::new()
            .route("/right", get(async || "ok"))
            .route("/wrong", get(wrong))
            .route("/healthz", get(async || "ok"))
            .layer(middleware::from_fn_with_state(Arc::clone(&app), pass));
        for (from, path, password, waits, told) in [
            ("192.0.2.1:5", "/wrong", true, true, &["login from 192.0.2.1", "failure from 192.0.2.1"][..]),
            ("[::ffff:192.0.2.1]:5", "/right", true, true, &["login from 192.0.2.1"]),
            ("192.0.2.1:5", "/right", false, false, &[]),
            ("192.0.2.1:5", "/healthz", true, false, &[]),
            ("127.0.0.1:5", "/wrong", true, false, &[]),
            ("[::1]:5", "/wrong", true, false, &[]),
        ] {
            let from: SocketAddr = from.parse().expect("an address");
            let service = TowerToHyperService::new(router.clone().layer(Extension(from)));
            let mut request = Request::builder().uri(path).header(HOST, "127.0.0.1");
            if password {
                request = request.header(AUTHORIZATION, "Basic YTpi");
            }
            let begin = Instant::now();
            let response = service.call(request.body(Body::empty()).expect("a request")).await.expect("an answer");
            assert!(!waits || begin.elapsed() >= WAIT, "{from} {path}");
            let seen = std::mem::take(&mut *server.0.lock().expect("nothing panics"));
            assert_eq!(seen, told, "{from} {path}: {}", response.status());
        }
        // Logins that wait leave connections to others.
        let places = app.logins.try_acquire_many(LOGINS_MAX as u32).expect("nobody waits");
        let service = TowerToHyperService::new(router.layer(Extension(SocketAddr::from(([192, 0, 2, 1], 5)))));
        let request = Request::builder().uri("/right").header(HOST, "127.0.0.1").header(AUTHORIZATION, "Basic YTpi");
        let response = service.call(request.body(Body::empty()).expect("a request")).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        drop(places);
    }

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
