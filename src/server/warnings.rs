//! What an operator should know of a configuration that starts: where it protects less than it seems to.

use crate::commands::clients::acl::may_set_users;
use crate::engine::config::Config;
use crate::engine::users::user::User;
use crate::engine::users::{DEFAULT_NAME, Users};
use crate::server::net::listener::Addresses;

/// The warnings, a line each.
pub fn of(config: &Config, users: &Users, bound: &Addresses) -> Vec<String> {
    let default = users.default_user();
    let mut lines = Vec::new();
    if has_everything(default)
        && let Some(address) = reachable(config, bound)
    {
        lines.push(match config.protected_mode {
            true => format!(
                "{address} can be reached from other machines, but their clients are refused while the default user has no password \
                 (protected-mode): set requirepass or users with passwords"
            ),
            false => format!(
                "{address} can be reached from other machines, and whoever reaches it may do everything without a password: set \
                 requirepass or users with passwords, or protected-mode yes"
            ),
        });
    }
    let source = if config.aclfile.is_empty() { "the configuration".to_owned() } else { config.aclfile.clone() };
    if !config.requirepass.is_empty() && (default.nopass || !default.admits(&config.requirepass)) {
        lines.push(format!("requirepass is not in force: the default user has the passwords that {source} gives it"));
    }
    let is_given = |name: &[u8]| !config.aclfile.is_empty() || name != DEFAULT_NAME;
    for (name, _) in users.iter().filter(|(name, user)| is_given(name) && has_everything(user)) {
        lines.push(format!("the user '{}' of {source} may do everything without a password", String::from_utf8_lossy(name)));
    }
    lines
}

/// Whether whoever names this user may do everything, or may give the user what is missing.
fn has_everything(user: &User) -> bool {
    user.enabled && user.nopass && (user.is_unrestricted() || may_set_users(user))
}

/// An address that clients of other machines reach, and need no certificate for.
fn reachable(config: &Config, bound: &Addresses) -> Option<String> {
    let tls = bound.tls.iter().filter(|_| config.tls_auth_clients != "yes");
    bound.tcp.iter().chain(tls).find(|address| !address.ip().to_canonical().is_loopback()).map(ToString::to_string)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::server::users_file;

    /// The warnings of a server at these addresses with these directives and lines of an ACL file.
    fn warnings(bind: &str, set: impl FnOnce(&mut Config), acl: Option<&str>) -> Vec<String> {
        let mut config = Config::default();
        set(&mut config);
        let folder = crate::files::temporary_folder(&format!("portcullis-warnings-{}", std::process::id())).unwrap();
        if let Some(text) = acl {
            let path = folder.join("users.acl");
            crate::files::replace(&path, text.as_bytes()).unwrap();
            config.aclfile = path.display().to_string();
        }
        let users = users_file::at_start(&config, &[]).unwrap();
        let bound = Addresses { tcp: vec![bind.parse().unwrap()], ..Addresses::default() };
        let lines = of(&config, &users, &bound);
        std::fs::remove_dir_all(&folder).unwrap();
        let users = folder.join("users.acl").display().to_string();
        lines.into_iter().map(|line| line.replace(&users, "FILE")).collect()
    }

    #[test]
    fn an_open_address_a_password_that_is_not_in_force_and_an_open_user_are_warned_of() {
        let nothing = Vec::<String>::new();
        let password = |config: &mut Config| config.requirepass = b"x".to_vec();
        for bind in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(warnings(bind, |_| {}, None), nothing, "{bind}");
        }
        for bind in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let lines = warnings(bind, |_| {}, None);
            assert!(lines.len() == 1 && lines[0].contains("are refused while the default user has no password"), "{lines:?}");
            let lines = warnings(bind, |config| config.protected_mode = false, None);
            assert!(lines.len() == 1 && lines[0].contains("whoever reaches it may do everything"), "{lines:?}");
            assert_eq!(warnings(bind, password, None), nothing, "{bind}");
            assert_eq!(warnings(bind, |_| {}, Some("user default off")), nothing, "{bind}");
        }
        let overridden = "requirepass is not in force: the default user has the passwords that FILE gives it";
        let open = |name: &str| format!("the user '{name}' of FILE may do everything without a password");
        let at = "127.0.0.1:1";
        assert_eq!(warnings(at, password, Some("user default on >y ~* +@all")), [overridden]);
        assert_eq!(warnings(at, password, Some("user default on >x ~* +@all")), nothing);
        assert_eq!(warnings(at, password, Some("user ann on >x ~* +@all")), [overridden, &open("default")], "it is as new");
        let rest = "user default off\n";
        for (rules, is_open) in [
            ("on nopass ~* &* +@all", true),
            ("on nopass +acl", true),
            ("on nopass ~a:* +@all", true),
            ("off nopass ~* &* +@all", false),
            ("on >x ~* &* +@all", false),
            ("on nopass ~* &* +@all -@admin", false),
            ("on nopass ~* +get", false),
        ] {
            let lines = warnings(at, |_| {}, Some(&format!("{rest}user ann {rules}\n")));
            assert_eq!(lines, if is_open { vec![open("ann")] } else { nothing.clone() }, "{rules}");
        }
    }

    #[test]
    fn an_address_for_which_clients_need_certificates_is_not_open() {
        let bound = Addresses { tls: vec!["10.0.0.1:1".parse().unwrap()], ..Addresses::default() };
        let users = Users::new(crate::commands::table(), false);
        for (clients, is_open) in [("yes", false), ("no", true), ("optional", true)] {
            let config = Config { tls_auth_clients: clients, ..Config::default() };
            assert_eq!(!of(&config, &users, &bound).is_empty(), is_open, "{clients}");
        }
    }
}
