//! A user: its passwords, and the selectors that define its permissions.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::engine::command::Command;
use crate::engine::command::keys::KeyPositions;
use crate::engine::table::CommandTable;
use crate::engine::users::selector::{Denial, Permission, Refusal, Selector};
use crate::engine::users::sight::Sight;
use crate::resp::request::split_words;

/// The SHA-256 of a password.
pub type Hash = [u8; 32];

/// The permissions of a session that is authenticated as this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Whether the user can authenticate.
    pub enabled: bool,
    /// Whether any password is accepted.
    pub nopass: bool,
    /// Whether `RESTORE` validates its payload.
    pub sanitize: bool,
    passwords: Vec<Hash>,
    /// The first is the root selector, which rules outside of parentheses change.
    selectors: Vec<Selector>,
}

impl User {
    /// A user without permissions that cannot authenticate.
    pub fn new(table: &'static CommandTable, all_channels: bool) -> User {
        let selectors = vec![Selector::new(table, all_channels)];
        User { enabled: false, nopass: false, sanitize: true, passwords: Vec::new(), selectors }
    }

    /// A user with all permissions that needs no password.
    pub fn superuser(table: &'static CommandTable) -> User {
        let mut user = User { enabled: true, nopass: true, ..User::new(table, true) };
        for rule in [b"+@all".as_slice(), b"~*"] {
            debug_assert!(user.selectors[0].apply(rule).is_ok(), "a rule that there is");
            let _ = user.selectors[0].apply(rule);
        }
        user
    }

    /// Applies a rule. `all_channels` decides whether a reset user may access all channels.
    pub fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), Refusal> {
        match rule.to_ascii_lowercase().as_slice() {
            b"" => {}
            b"on" => self.enabled = true,
            b"off" => self.enabled = false,
            b"skip-sanitize-payload" => self.sanitize = false,
            b"sanitize-payload" => self.sanitize = true,
            b"nopass" => self.set_nopass(true),
            b"resetpass" => self.set_nopass(false),
            b"clearselectors" => self.selectors.truncate(1),
            b"reset" => *self = User::new(self.selectors[0].table(), all_channels),
            _ => return self.apply_one(rule, all_channels),
        }
        Ok(())
    }

    fn apply_one(&mut self, rule: &[u8], all_channels: bool) -> Result<(), Refusal> {
        match *rule {
            [b'>', ref password @ ..] => self.add_password(Sha256::digest(password).into()),
            [b'#', ref hash @ ..] => self.add_password(parse_hash(hash)?),
            [b'<', ref password @ ..] => self.remove_password(&Sha256::digest(password).into())?,
            [b'!', ref hash @ ..] => self.remove_password(&parse_hash(hash)?)?,
            [b'(', ref rules @ .., b')'] => {
                let mut selector = Selector::new(self.selectors[0].table(), all_channels);
                for rule in split_words(rules).map_err(|_| Refusal::Syntax)? {
                    selector.apply(&rule)?;
                }
                self.selectors.push(selector);
            }
            _ => self.selectors[0].apply(rule)?,
        }
        Ok(())
    }

    fn set_nopass(&mut self, nopass: bool) {
        self.nopass = nopass;
        self.passwords.clear();
    }

    fn add_password(&mut self, hash: Hash) {
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.nopass = false;
    }

    fn remove_password(&mut self, hash: &Hash) -> Result<(), Refusal> {
        let at = self.passwords.iter().position(|known| known == hash).ok_or(Refusal::NoSuchPassword)?;
        self.passwords.remove(at);
        Ok(())
    }

    /// Replaces all passwords by a single one, or requires none.
    pub fn set_only_password(&mut self, password: Option<&[u8]>) {
        self.set_nopass(password.is_none());
        if let Some(password) = password {
            self.add_password(Sha256::digest(password).into());
        }
    }

    /// Whether the password is right. Takes the same time for every wrong password.
    pub fn admits(&self, password: &[u8]) -> bool {
        if !self.enabled || self.nopass {
            return self.enabled;
        }
        let given = Sha256::digest(password);
        let right = self.passwords.iter().fold(0u8, |right, known| right | known.ct_eq(given.as_slice()).unwrap_u8());
        right != 0
    }

    /// The passwords' hashes in hexadecimal digits.
    pub fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(|hash| hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The names of the flags that are set.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        flags.extend(self.nopass.then_some("nopass"));
        flags.push(if self.sanitize { "sanitize-payload" } else { "skip-sanitize-payload" });
        flags
    }

    /// The selectors; the first is the root selector, which rules outside of parentheses change.
    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// Whether everything is allowed.
    pub fn is_unrestricted(&self) -> bool {
        self.selectors.iter().any(Selector::is_unrestricted)
    }

    /// Whether a request is allowed: one selector must allow all of it.
    pub fn check(&self, command: &'static Command, args: &[&[u8]]) -> Result<(), Denial> {
        let keys = keys_of(command, args);
        let mut denial = Denial::Command;
        for selector in &self.selectors {
            match selector.check(command, args, &keys) {
                Ok(()) => return Ok(()),
                Err(other) => denial = denial.max(other),
            }
        }
        Err(denial)
    }

    /// Whether a single selector allows the request and also grants this permission on all keys.
    pub fn check_with_every_key(&self, command: &'static Command, args: &[&[u8]], needed: Permission) -> bool {
        let keys = keys_of(command, args);
        self.selectors.iter().any(|selector| selector.allows_every_key(needed) && selector.check(command, args, &keys).is_ok())
    }

    /// The keys that a request shows: each by a selector that allows the request and lets it read the key.
    pub fn sight(&self, command: &'static Command, args: &[&[u8]]) -> Sight {
        let (keys, mut patterns) = (keys_of(command, args), Vec::new());
        for selector in self.selectors.iter().filter(|selector| selector.check(command, args, &keys).is_ok()) {
            if selector.allows_every_key(Permission::READ) {
                return Sight::ALL;
            }
            patterns.extend(selector.key_patterns(Permission::READ).map(Box::from));
        }
        Sight::of(patterns)
    }

    /// Whether any selector lets the user read a key.
    pub fn may_read(&self, key: &[u8]) -> bool {
        self.selectors.iter().any(|selector| selector.allows_key(key, Permission::READ))
    }

    /// All rules, in a form that can be applied again.
    pub fn describe(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for flag in self.flags() {
            text.extend_from_slice(flag.as_bytes());
            text.push(b' ');
        }
        for hash in self.passwords() {
            text.push(b'#');
            text.extend_from_slice(hash.as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(&self.selectors[0].describe());
        for selector in &self.selectors[1..] {
            text.extend_from_slice(b" (");
            text.extend_from_slice(&selector.describe());
            text.push(b')');
        }
        text
    }
}

/// The keys of a request. If they cannot be determined there are none: the command refuses the request itself.
fn keys_of(command: &'static Command, args: &[&[u8]]) -> KeyPositions {
    command.key_positions(args).unwrap_or_default()
}

/// Decodes 64 hexadecimal digits in lower case.
fn parse_hash(digits: &[u8]) -> Result<Hash, Refusal> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(Refusal::BadHash),
    };
    let mut hash = Hash::default();
    fail_if!(digits.len() != 2 * hash.len(), Refusal::BadHash);
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(hash)
}

/// Joins the words of each selector, from `(` to `)`, into one. The error is the first word of a selector that does not end.
pub fn merge_selectors<'a>(words: &[&'a [u8]]) -> Result<Vec<Vec<u8>>, &'a [u8]> {
    let mut merged: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for word in words {
        match &mut open {
            None if word.starts_with(b"(") && !word.ends_with(b")") => open = Some((word, word.to_vec())),
            None => merged.push(word.to_vec()),
            Some((_, selector)) => {
                selector.push(b' ');
                selector.extend_from_slice(word);
                if word.ends_with(b")") {
                    merged.extend(open.take().map(|(_, selector)| selector));
                }
            }
        }
    }
    if let Some((word, _)) = open { Err(word) } else { Ok(merged) }
}
