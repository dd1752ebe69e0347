//! Hides secrets in requests: passwords and the names of their users.

use smallvec::SmallVec;

use crate::engine::command::Command;

/// The replacement for secrets.
const REDACTED: &[u8] = b"(redacted)";

/// Directives whose values are secrets.
const SECRETS: [&[u8]; 4] = [b"requirepass", b"masterauth", b"masteruser", b"tls-key-file-pass"];

/// Whether the value of a directive is a secret.
pub fn is_secret(directive: &[u8]) -> bool {
    SECRETS.iter().any(|secret| secret.eq_ignore_ascii_case(directive))
}

/// The arguments of a request without its secrets.
pub fn shown<'a>(command: &'static Command, args: &[&'a [u8]]) -> SmallVec<[&'a [u8]; 16]> {
    let mut shown = SmallVec::from_slice(args);
    for position in (command.secrets)(args) {
        shown[position] = REDACTED;
    }
    shown
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::commands::table;

    #[test]
    fn passwords_are_not_shown() {
        for (request, expected) in [
            ("AUTH secret", "AUTH (redacted)"),
            ("auth alice secret", "auth (redacted) (redacted)"),
            ("HELLO 3 SETNAME auth AUTH alice secret", "HELLO 3 SETNAME auth AUTH (redacted) (redacted)"),
            ("HELLO 3 AUTH alice", "HELLO 3 AUTH alice"),
            ("ACL SETUSER alice >secret", "ACL SETUSER (redacted) (redacted)"),
            ("CONFIG SET maxclients 5 requirepass secret", "CONFIG SET maxclients 5 requirepass (redacted)"),
            ("SET requirepass secret", "SET requirepass secret"),
        ] {
            let args: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
            assert_eq!(shown(table().named(&args).unwrap(), &args).join(&b" "[..]), expected.as_bytes());
        }
    }
}
