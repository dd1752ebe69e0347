//! Users: their rules, and the log of denied requests.
//!
//! A session refers to its user by number; [`Users`] holds the rules. A session that may do everything is marked by a flag, so
//! that the rules are checked only for the others; see `engine/users/access.rs`.

pub mod access;
pub mod categories;
pub mod file;
pub mod guesses;
pub mod log;
pub mod selector;
pub mod sight;
pub mod user;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use sha2::{Digest, Sha256};
use slab::Slab;

pub use crate::base::ids::UserId;
use crate::engine::table::CommandTable;
use crate::engine::users::guesses::Guesses;
use crate::engine::users::log::Log;
use crate::engine::users::selector::{Refusal, has_space};
use crate::engine::users::user::{User, merge_selectors};
use crate::lock::UserKey;

/// The name of [`UserId::DEFAULT`].
pub const DEFAULT_NAME: &[u8] = b"default";

/// A user and its name.
#[derive(Clone, Debug)]
struct Named {
    name: Box<[u8]>,
    user: User,
    key: UserKey,
}

impl Named {
    fn new(name: &[u8], user: User) -> Named {
        // The digest makes equal keys of different names unlikely, whoever chooses the names.
        let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(name));
        let key = if name == DEFAULT_NAME { 0 } else { u32::from_be_bytes([a, b, c, d]).max(1) };
        Named { name: name.into(), user, key: UserKey(key) }
    }
}

/// All users, by number and by name.
#[derive(Clone, Debug)]
pub struct Users {
    /// The commands that rules refer to.
    table: &'static CommandTable,
    all: Slab<Named>,
    names: BTreeMap<Box<[u8]>, u32>,
    /// The log of denied requests.
    pub log: Log,
    /// Failed logins by address.
    pub guesses: Guesses,
    /// Whether new users may access all channels by default (`acl-pubsub-default`).
    pub all_channels: bool,
}

/// What [`Users::replace`] did to an existing user.
#[derive(Debug)]
pub enum Replaced {
    /// The user has new rules; these were the old ones.
    Changed(UserId, Box<User>),
    /// The user was removed.
    Gone(UserId),
}

impl Users {
    /// Only the default user, who may do everything.
    pub fn new(table: &'static CommandTable, all_channels: bool) -> Users {
        let mut all = Slab::new();
        let default = all.insert(Named::new(DEFAULT_NAME, User::superuser(table))) as u32;
        debug_assert_eq!(default, UserId::DEFAULT.0, "an empty slab begins with 0");
        Users {
            all,
            names: BTreeMap::from([(DEFAULT_NAME.into(), default)]),
            log: Log::default(),
            guesses: Guesses::default(),
            all_channels,
            table,
        }
    }

    /// The user with this name.
    pub fn find(&self, name: &[u8]) -> Option<UserId> {
        self.names.get(name).copied().map(UserId)
    }

    /// The rules of a user; `None` only for [`UserId::INSIDE`].
    pub fn get(&self, id: UserId) -> Option<&User> {
        self.all.get(id.0 as usize).map(|named| &named.user)
    }

    /// The name of a user; `None` only for [`UserId::INSIDE`].
    pub fn name(&self, id: UserId) -> Option<&[u8]> {
        self.all.get(id.0 as usize).map(|named| &*named.name)
    }

    /// Tells the owners of a user from those of others. A caller inside the process has those of the default user.
    pub fn key(&self, id: UserId) -> UserKey {
        self.all.get(id.0 as usize).map(|named| named.key).unwrap_or_default()
    }

    /// All users, ordered by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &User)> {
        self.names.iter().map(|(name, number)| (&**name, &self.all[*number as usize].user))
    }

    /// The rules of [`UserId::DEFAULT`].
    pub fn default_user(&self) -> &User {
        &self.all[UserId::DEFAULT.0 as usize].user
    }

    /// Whether a new connection must authenticate.
    pub fn login_needed(&self) -> bool {
        let default = self.default_user();
        !(default.nopass && default.enabled)
    }

    /// Sets the default user's only password, or lets it do without one.
    pub fn set_default_password(&mut self, password: &[u8]) {
        let password = (!password.is_empty()).then_some(password);
        self.all[UserId::DEFAULT.0 as usize].user.set_only_password(password);
    }

    /// A user's rules after applying further ones. A new name starts with the rules of a new user.
    pub fn changed(&self, name: &[u8], rules: &[&[u8]]) -> Result<User, Vec<u8>> {
        let mut user = match self.find(name) {
            Some(id) => self.all[id.0 as usize].user.clone(),
            None => User::new(self.table, self.all_channels),
        };
        let merged = merge_selectors(rules)
            .map_err(|open| [b"Unmatched parenthesis in acl selector starting at '", open, b"'."].concat())?;
        for rule in merged {
            user.apply(&rule, self.all_channels)
                .map_err(|refusal| [b"Error in ACL SETUSER modifier '", &*rule, b"': ", refusal.text().as_bytes()].concat())?;
        }
        Ok(user)
    }

    /// Replaces a user's rules, or creates the user.
    pub fn set(&mut self, name: &[u8], user: User) -> UserId {
        match self.names.entry(name.into()) {
            Entry::Occupied(known) => {
                self.all[*known.get() as usize].user = user;
                UserId(*known.get())
            }
            Entry::Vacant(new) => UserId(*new.insert(self.all.insert(Named::new(name, user)) as u32)),
        }
    }

    /// Removes a user, which must not be the default one.
    pub fn remove(&mut self, name: &[u8]) -> Option<UserId> {
        if name == DEFAULT_NAME {
            return None;
        }
        let number = self.names.remove(name)?;
        self.all.remove(number as usize);
        Some(UserId(number))
    }

    /// Replaces all users. A user whose name stays keeps its id.
    pub fn replace(&mut self, mut others: BTreeMap<Box<[u8]>, User>) -> Vec<Replaced> {
        others.entry(DEFAULT_NAME.into()).or_insert_with(|| User::superuser(self.table));
        let mut replaced = Vec::new();
        let names: Vec<Box<[u8]>> = self.names.keys().cloned().collect();
        for name in names {
            if let Some(user) = others.remove(&name) {
                let number = self.names[&name];
                let old = std::mem::replace(&mut self.all[number as usize].user, user);
                replaced.push(Replaced::Changed(UserId(number), Box::new(old)));
            } else if let Some(id) = self.remove(&name) {
                replaced.push(Replaced::Gone(id));
            }
        }
        for (name, user) in others {
            self.set(&name, user);
        }
        replaced
    }

    /// Adds the users of a configuration file: the name and the rules of each.
    ///
    /// # Errors
    /// A message for the author of the file.
    pub fn configure(&mut self, lines: &[Vec<Vec<u8>>]) -> Result<(), String> {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let mut seen: Vec<&[u8]> = Vec::new();
        for line in lines {
            let Some((name, rules)) = line.split_first() else { return Err("user: a name is wanted".to_owned()) };
            fail_if!(has_space(name), "Spaces not allowed in ACL usernames".to_owned());
            if seen.contains(&name.as_slice()) {
                return Err(format!(
                    "user {}: Duplicate user found. A user can only be defined once in config files",
                    shown(name)
                ));
            }
            seen.push(name);
            let rules: Vec<&[u8]> = rules.iter().map(Vec::as_slice).collect();
            let rules = merge_selectors(&rules).map_err(|open| {
                format!("user {}: Unmatched parenthesis in acl selector starting at '{}'.", shown(name), shown(open))
            })?;
            let mut user = User::new(self.table, self.all_channels);
            for rule in rules {
                user.apply(&rule, self.all_channels).map_err(|refusal| {
                    // A rule may be a password; only one that names a command is shown.
                    let rule = if refusal == Refusal::Unknown { format!(" '{}'", shown(&rule)) } else { String::new() };
                    format!("user {}: Error in ACL rule{rule}: {}", shown(name), refusal.text())
                })?;
            }
            if !user.enabled {
                tracing::info!(user = shown(name), "a user of the configuration is disabled: there is no 'on' among the rules");
            }
            self.set(name, user);
        }
        Ok(())
    }

    /// Parses the users of an ACL file; `path` is for error messages.
    ///
    /// # Errors
    /// All errors of the file, in one line.
    pub fn parse_file(&self, path: &str, text: &[u8]) -> Result<BTreeMap<Box<[u8]>, User>, Vec<u8>> {
        let mut users = BTreeMap::new();
        let mut errors = Vec::new();
        for (index, line) in text.split(|&b| b == b'\n').enumerate() {
            let line = line.trim_ascii();
            if !line.is_empty() {
                self.parse_line(&format!("{path}:{}", index + 1), line, &mut users, &mut errors);
            }
        }
        if errors.is_empty() {
            return Ok(users);
        }
        errors.extend_from_slice(b"WARNING: ACL errors detected, no change to the previously active ACL rules was performed");
        Err(errors)
    }

    fn parse_line(&self, place: &str, line: &[u8], users: &mut BTreeMap<Box<[u8]>, User>, errors: &mut Vec<u8>) {
        let mut fail = |parts: &[&[u8]]| errors.extend_from_slice(&parts.concat());
        let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let [b"user", name, rules @ ..] = words.as_slice() else {
            fail(&[place.as_bytes(), b" should start with user keyword followed by the username. "]);
            return;
        };
        if has_space(name) {
            fail(&[b"'", place.as_bytes(), b": username '", name, b"' contains invalid characters. "]);
            return;
        }
        if users.contains_key(*name) {
            let number = place.rsplit(':').next().unwrap_or_default();
            fail(&[b"WARNING: Duplicate user '", name, b"' found on line ", number.as_bytes(), b". "]);
            return;
        }
        let mut user = User::new(self.table, self.all_channels);
        let Ok(rules) = merge_selectors(rules) else {
            fail(&[place.as_bytes(), b": Unmatched parenthesis in selector definition."]);
            users.insert((*name).into(), user);
            return;
        };
        // Unknown rules are all reported, of the others only the first that is refused.
        let mut reported = false;
        for rule in rules {
            let rule = rule.trim_ascii();
            match user.apply(rule, self.all_channels) {
                Ok(()) => {}
                Err(refusal @ Refusal::Unknown) => {
                    let text = refusal.text().as_bytes();
                    fail(&[place.as_bytes(), b": Error in applying operation '", rule, b"': ", text, b". "]);
                }
                Err(refusal) if !reported => {
                    reported = true;
                    fail(&[place.as_bytes(), b": ", refusal.text().as_bytes(), b". "]);
                }
                Err(_) => {}
            }
        }
        users.insert((*name).into(), user);
    }

    /// All users as the lines of an ACL file, without line ends.
    pub fn lines(&self) -> Vec<Vec<u8>> {
        self.iter().map(|(name, user)| [b"user ", name, b" ", &*user.describe()].concat()).collect()
    }

    /// Panics if the state violates an invariant.
    pub fn check_invariants(&self) {
        self.guesses.check_invariants();
        assert_eq!(self.names.len(), self.all.len(), "a name for each user");
        assert_eq!(self.find(DEFAULT_NAME), Some(UserId::DEFAULT), "the default user is there");
        for (name, number) in &self.names {
            assert_eq!(self.name(UserId(*number)), Some(&**name), "a user under its name");
        }
    }
}

#[cfg(test)]
mod login_tests;
#[cfg(test)]
mod tests;
