//! The credentials of a request.

use std::fmt;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::http::trouble::Trouble;

/// The user whose password is given without a name.
pub const DEFAULT: &str = "default";

/// Who asks.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// Nobody in particular: the default user, if it needs no password.
    Anyone,
    /// A user, with the password.
    User(String, String),
}

/// Passwords are not shown.
impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Who {
    /// The user's name.
    pub fn name(&self) -> &str {
        match self {
            Who::Anyone => DEFAULT,
            Who::User(name, _) => name,
        }
    }

    /// Reads the value of the header `Authorization`; `None` if it cannot be understood.
    fn read(header: &str) -> Option<Who> {
        let (scheme, value) = header.trim().split_once(' ')?;
        let value = value.trim();
        if scheme.eq_ignore_ascii_case("basic") {
            let (user, password) = pair(value)?;
            let user = if user.is_empty() { DEFAULT.to_owned() } else { user };
            return Some(Who::User(user, password));
        }
        if !scheme.eq_ignore_ascii_case("bearer") || value.is_empty() {
            return None;
        }
        // A token is a user and its password in base64, or the password of the default user itself.
        let token = pair(value).filter(|(user, _)| !user.is_empty());
        let (user, password) = token.unwrap_or_else(|| (DEFAULT.to_owned(), value.to_owned()));
        Some(Who::User(user, password))
    }
}

/// The user and the password of `user:password` in base64.
fn pair(value: &str) -> Option<(String, String)> {
    let bytes = STANDARD.decode(value).or_else(|_| URL_SAFE_NO_PAD.decode(value)).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Trouble;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Who, Trouble> {
        let Some(header) = parts.headers.get(AUTHORIZATION) else { return Ok(Who::Anyone) };
        let who = header.to_str().ok().and_then(Who::read);
        who.ok_or_else(|| Trouble::wrong("the header Authorization is neither Basic nor Bearer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_in_each_form() {
        let user = |name: &str, password: &str| Some(Who::User(name.to_owned(), password.to_owned()));
        for (header, who) in [
            ("Basic YWxpY2U6YTpi", user("alice", "a:b")),
            ("basic  OnNlY3JldA==", user("default", "secret")),
            ("Bearer YWxpY2U6YTpi", user("alice", "a:b")),
            ("Bearer secret", user("default", "secret")),
            ("Bearer OnNlY3JldA==", user("default", "OnNlY3JldA==")),
            ("Basic secret", None),
            ("Basic", None),
            ("Digest x", None),
            ("Bearer ", None),
        ] {
            assert_eq!(Who::read(header), who, "{header}");
        }
        assert_eq!(format!("{:?}", user("alice", "secret")), "Some(alice)");
    }
}
