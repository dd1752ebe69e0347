//! The users at the start, and the file of `ACL LOAD` and `ACL SAVE`.

use std::io;
use std::path::PathBuf;

use crate::commands;
use crate::engine::config::Config;
use crate::engine::users::Users;
use crate::engine::users::file::UsersFile;
use crate::files::replace_durably;
use crate::server::file::UserLine;

const BOTH: &str = "Users are declared in the configuration and aclfile is set as well. This setup is very likely to lead to \
                    configuration errors and security holes: define either an ACL file or users of the configuration, but not both.";

/// The users of a starting server: those of the configuration, or those of `aclfile`.
///
/// # Errors
/// A message for the author of either.
pub fn at_start(config: &Config, lines: &[UserLine]) -> Result<Users, String> {
    let mut users = Users::new(commands::table(), config.acl_pubsub_default == "allchannels");
    users.set_default_password(&config.requirepass);
    if config.aclfile.is_empty() {
        users.configure(lines)?;
    } else if !lines.is_empty() {
        return Err(BOTH.to_owned());
    } else {
        let path = &config.aclfile;
        let text =
            std::fs::read(path).map_err(|error| format!("Error loading ACLs, opening file '{path}': {}", plain(&error)))?;
        let others = users.parse_file(path, &text).map_err(|errors| String::from_utf8_lossy(&errors).into_owned())?;
        // No session exists yet that would have to be told.
        users.replace(others);
    }
    Ok(users)
}

/// Returns the engine's access to `aclfile`; `None` without one.
pub fn open(config: &Config) -> Option<UsersFile> {
    let path = PathBuf::from(&config.aclfile);
    if config.aclfile.is_empty() {
        return None;
    }
    let (from, to) = (path.clone(), path);
    Some(UsersFile {
        path: config.aclfile.clone(),
        load: Box::new(move || std::fs::read(&from).map_err(|error| plain(&error))),
        save: Box::new(move |text| replace_durably(&to, text).map_err(|error| plain(&error))),
    })
}

/// The system's message for an error, without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    if let Some(end) = text.find(" (os error ") { text[..end].to_owned() } else { text }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("portcullis-users-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn users_come_from_the_configuration_or_from_a_file_but_not_from_both() {
        let line = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<UserLine>();
        let mut config = Config { requirepass: b"x".to_vec(), ..Config::default() };
        let users = at_start(&config, &[line("bob on >pw ~* +@all")]).unwrap();
        assert_eq!(users.iter().len(), 2);
        assert!(!users.default_user().nopass);
        assert!(at_start(&config, &[line("bob +nosuch")]).unwrap_err().contains("'+nosuch': Unknown command"));
        assert!(!at_start(&config, &[line("bob #secret")]).unwrap_err().contains("secret"));
        assert!(at_start(&config, &[line("bob"), line("bob")]).unwrap_err().contains("Duplicate user"));

        let dir = scratch("start");
        let path = dir.join("users.acl");
        config.aclfile = path.to_string_lossy().into_owned();
        let missing = at_start(&config, &[]).unwrap_err();
        assert_eq!(missing, format!("Error loading ACLs, opening file '{}': No such file or directory", path.display()));
        std::fs::write(&path, "user default on >y ~* +@all\n\nuser ann off\n").unwrap();
        let users = at_start(&config, &[]).unwrap();
        assert_eq!(users.iter().map(|(name, _)| name).collect::<Vec<_>>(), [b"ann".as_slice(), b"default"]);
        assert!(users.default_user().admits(b"y") && !users.default_user().admits(b"x"));
        assert_eq!(at_start(&config, &[line("bob")]).unwrap_err(), BOTH);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = scratch("replace");
        let path = dir.join("users.acl");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut file = open(&Config { aclfile: path.to_string_lossy().into_owned(), ..Config::default() }).unwrap();
        (file.save)(b"new").unwrap();
        assert_eq!((file.load)().unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
        assert!((file.save)(b"new").is_err());
    }
}
