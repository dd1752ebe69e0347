//! Hides secrets in requests: passwords and the names of their users.

use smallvec::SmallVec;

use crate::engine::command::Command;
use crate::engine::config::{Directive, Kind};

/// The replacement for secrets, and for what `hide-user-data-from-log` hides.
pub(super) const REDACTED: &[u8] = b"(redacted)";

/// Whether the value of a directive is a secret. An unknown name may be that of a secret with a typing error.
pub fn is_secret(directive: &[u8]) -> bool {
    Directive::find(directive).is_none_or(|(directive, _)| directive.kind == Kind::Secret)
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
            (
                "CONFIG SET cluster-secret secret PrimaryAuth secret",
                "CONFIG SET cluster-secret (redacted) PrimaryAuth (redacted)",
            ),
            ("CONFIG SET requirepas secret timeout 1", "CONFIG SET requirepas (redacted) timeout 1"),
            ("SET requirepass secret", "SET requirepass secret"),
        ] {
            let args: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
            assert_eq!(shown(table().named(&args).unwrap(), &args).join(&b" "[..]), expected.as_bytes());
        }
    }
}
