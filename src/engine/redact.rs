//! What is not shown of a request: passwords and who has them.

use smallvec::SmallVec;

use crate::commands::full_name;
use crate::engine::command::Command;

/// What is shown in their place.
const REDACTED: &[u8] = b"(redacted)";

/// Directives whose values are secrets.
const SECRETS: [&[u8]; 4] = [b"requirepass", b"masterauth", b"masteruser", b"tls-key-file-pass"];

/// The arguments of a request as others may see them.
pub fn shown<'a>(command: &'static Command, args: &[&'a [u8]]) -> SmallVec<[&'a [u8]; 16]> {
    let mut shown = SmallVec::from_slice(args);
    match command.name {
        "auth" => shown[1..].fill(REDACTED),
        "hello" => {
            let mut at = 2;
            while at < args.len() {
                if args[at].eq_ignore_ascii_case(b"auth") && at + 2 < args.len() {
                    shown[at + 1..at + 3].fill(REDACTED);
                    at += 3;
                } else {
                    at += if args[at].eq_ignore_ascii_case(b"setname") { 2 } else { 1 };
                }
            }
        }
        "setuser" | "deluser" | "getuser" if full_name(command).starts_with("acl|") => shown[2..].fill(REDACTED),
        "set" if full_name(command) == "config|set" => {
            for pair in shown[2..].chunks_exact_mut(2) {
                if SECRETS.iter().any(|secret| secret.eq_ignore_ascii_case(pair[0])) {
                    pair[1] = REDACTED;
                }
            }
        }
        _ => {}
    }
    shown
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::commands::named;

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
            assert_eq!(shown(named(&args).unwrap(), &args).join(&b" "[..]), expected.as_bytes());
        }
    }
}
