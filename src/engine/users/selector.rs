//! A selector: a set of rules about commands, keys and channels that apply together.
//!
//! The allowed commands are stored twice: as bits, for checks, and as rules, for display. The stored rules are the given ones
//! without those that a later one overrides.

use crate::base::glob;
use crate::engine::command::keys::{KeyAt, KeyUse};
use crate::engine::command::{Categories, Channels, Command, Flags};
use crate::engine::table::CommandTable;
use crate::engine::users::categories::category;

/// Why a rule is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The command or category does not exist.
    Unknown,
    /// Invalid syntax.
    Syntax,
    /// A key pattern after one that matches all keys.
    KeysAll,
    /// A channel pattern after one that matches all channels.
    ChannelsAll,
    /// The password to remove does not exist.
    NoSuchPassword,
    /// The password's hash is malformed.
    BadHash,
    /// A first argument for a subcommand.
    FirstArgument,
}

impl Refusal {
    /// The text on the wire.
    pub fn text(self) -> &'static str {
        match self {
            Refusal::Unknown => "Unknown command or category name in ACL",
            Refusal::Syntax => "Syntax error",
            Refusal::KeysAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try \
                 'resetkeys' to start with an empty list of patterns"
            }
            Refusal::ChannelsAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try \
                 'resetchannels' to start with an empty list of channels"
            }
            Refusal::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            Refusal::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            Refusal::FirstArgument => "Allowing first-arg of a subcommand is not supported",
        }
    }
}

/// What the rules deny. If several selectors deny a request, the greatest value is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// The command.
    Command,
    /// The key at this position.
    Key(usize),
    /// The channel at this position.
    Channel(usize),
}

bitflags::bitflags! {
    /// Permissions on a key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Permission: u8 {
        /// The value may be returned or stored elsewhere.
        const READ = 1 << 0;
        /// The value may be changed or removed.
        const WRITE = 1 << 1;
    }
}

impl Permission {
    /// The permission that a use of a key requires; none if a command only checks the key's existence or type.
    pub fn of(uses: KeyUse) -> Permission {
        let mut needed = Permission::empty();
        needed.set(Permission::READ, uses.contains(KeyUse::ACCESS));
        needed.set(Permission::WRITE, uses.intersects(KeyUse::UPDATE | KeyUse::INSERT | KeyUse::DELETE));
        needed
    }
}

/// A key pattern, and the permission on matching keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPattern {
    pattern: Box<[u8]>,
    permission: Permission,
}

/// A set of the table's commands.
#[derive(Clone, Debug)]
struct Commands {
    table: &'static CommandTable,
    bits: Vec<u64>,
}

/// Only sets of one table are compared, so comparing the bits is enough.
impl PartialEq for Commands {
    fn eq(&self, other: &Commands) -> bool {
        self.bits == other.bits
    }
}

impl Eq for Commands {}

impl Commands {
    fn filled(table: &'static CommandTable, with: bool) -> Commands {
        Commands { table, bits: vec![if with { u64::MAX } else { 0 }; table.len().div_ceil(64)] }
    }

    fn set(&mut self, command: &'static Command, allowed: bool) {
        if let Some(number) = self.table.number(command) {
            let bit = 1 << (number % 64);
            if allowed { self.bits[number / 64] |= bit } else { self.bits[number / 64] &= !bit }
        }
    }

    fn contains(&self, command: &'static Command) -> bool {
        self.table.number(command).is_some_and(|number| self.bits[number / 64] & (1 << (number % 64)) != 0)
    }

    fn is_full(&self) -> bool {
        self.bits.iter().all(|word| *word == u64::MAX)
    }
}

/// A set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    all_keys: bool,
    all_channels: bool,
    commands: Commands,
    /// Whether the rules begin with `+@all`.
    from_all: bool,
    /// The rules after `+@all` or `-@all`, with their signs.
    rules: Vec<String>,
    /// First arguments that allow a command that is otherwise denied.
    first_arguments: Vec<(usize, Box<[u8]>)>,
    keys: Vec<KeyPattern>,
    channels: Vec<Box<[u8]>>,
}

impl Selector {
    /// A selector that allows nothing, or only all channels.
    pub fn new(table: &'static CommandTable, all_channels: bool) -> Selector {
        Selector {
            all_keys: false,
            all_channels,
            commands: Commands::filled(table, false),
            from_all: false,
            rules: Vec::new(),
            first_arguments: Vec::new(),
            keys: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// The table of its commands.
    pub fn table(&self) -> &'static CommandTable {
        self.commands.table
    }

    /// Applies a rule.
    pub fn apply(&mut self, rule: &[u8]) -> Result<(), Refusal> {
        match rule.to_ascii_lowercase().as_slice() {
            b"allkeys" | b"~*" => self.set_all_keys(true),
            b"resetkeys" => self.set_all_keys(false),
            b"allchannels" | b"&*" => self.set_all_channels(true),
            b"resetchannels" => self.set_all_channels(false),
            b"allcommands" | b"+@all" => self.set_all_commands(true),
            b"nocommands" | b"-@all" => self.set_all_commands(false),
            _ => return self.apply_one(rule),
        }
        Ok(())
    }

    fn apply_one(&mut self, rule: &[u8]) -> Result<(), Refusal> {
        match *rule {
            [b'~', ref pattern @ ..] => self.add_keys(pattern, Permission::all()),
            [b'%', ..] if self.all_keys => Err(Refusal::KeysAll),
            [b'%', ref rest @ ..] => {
                let (pattern, permission) = split_permission(rest).ok_or(Refusal::Syntax)?;
                self.add_keys(pattern, permission)
            }
            [b'&', ref pattern @ ..] => self.add_channels(pattern),
            [sign @ (b'+' | b'-'), b'@', ref name @ ..] => self.change_category(name, sign == b'+'),
            [b'+', ref name @ ..] => self.allow(name),
            [b'-', ref name @ ..] => {
                let (full_name, command) = self.commands.table.find(name).ok_or(Refusal::Unknown)?;
                self.change(command, false);
                self.note(&full_name, false);
                Ok(())
            }
            _ => Err(Refusal::Syntax),
        }
    }

    fn set_all_keys(&mut self, all: bool) {
        self.all_keys = all;
        self.keys.clear();
    }

    fn set_all_channels(&mut self, all: bool) {
        self.all_channels = all;
        self.channels.clear();
    }

    fn set_all_commands(&mut self, all: bool) {
        self.commands = Commands::filled(self.commands.table, all);
        self.from_all = all;
        self.rules.clear();
        self.first_arguments.clear();
    }

    fn add_keys(&mut self, pattern: &[u8], permission: Permission) -> Result<(), Refusal> {
        fail_if!(self.all_keys, Refusal::KeysAll);
        fail_if!(has_space(pattern), Refusal::Syntax);
        match self.keys.iter_mut().find(|known| *known.pattern == *pattern) {
            Some(known) => known.permission |= permission,
            None => self.keys.push(KeyPattern { pattern: pattern.into(), permission }),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), Refusal> {
        fail_if!(self.all_channels, Refusal::ChannelsAll);
        fail_if!(has_space(pattern), Refusal::Syntax);
        if !self.channels.iter().any(|known| **known == *pattern) {
            self.channels.push(pattern.into());
        }
        Ok(())
    }

    fn change_category(&mut self, name: &[u8], allowed: bool) -> Result<(), Refusal> {
        let wanted = category(name).ok_or(Refusal::Unknown)?;
        self.note(&format!("@{}", String::from_utf8_lossy(name)), allowed);
        let is_in = |command: &Command, category: Categories| command.acl_categories().intersects(category);
        for command in self.commands.table.all() {
            if is_in(command, wanted) {
                self.change(command, allowed);
            }
            for sub in command.subcommands {
                if is_in(sub, wanted) {
                    self.change(sub, allowed);
                }
            }
        }
        Ok(())
    }

    /// `+command`, `+container|subcommand` or `+command|first-argument`.
    fn allow(&mut self, name: &[u8]) -> Result<(), Refusal> {
        let Some(bar) = name.iter().rposition(|&b| b == b'|') else {
            let (full_name, command) = self.commands.table.find(name).ok_or(Refusal::Unknown)?;
            self.change(command, true);
            self.note(&full_name, true);
            return Ok(());
        };
        let (container, word) = (&name[..bar], &name[bar + 1..]);
        let (_, command) = self.commands.table.find(container).ok_or(Refusal::Unknown)?;
        fail_if!(container.contains(&b'|'), Refusal::FirstArgument);
        fail_if!(word.is_empty(), Refusal::Syntax);
        let shown = String::from_utf8_lossy(name).into_owned();
        if command.subcommands.is_empty() {
            tracing::warn!(
                "Allowing a first arg of an otherwise blocked command is a misuse of ACL and may get disabled: +{shown}"
            );
            let number = self.commands.table.number(command).ok_or(Refusal::Unknown)?;
            if !self.first_arguments.iter().any(|(of, known)| *of == number && known.eq_ignore_ascii_case(word)) {
                self.first_arguments.push((number, word.into()));
            }
        } else {
            let (_, command) = self.commands.table.find(name).ok_or(Refusal::Unknown)?;
            self.change(command, true);
        }
        self.note(&shown, true);
        Ok(())
    }

    /// Allows or denies a command and, for a container, all of its subcommands.
    fn change(&mut self, command: &'static Command, allowed: bool) {
        self.commands.set(command, allowed);
        if let Some(number) = self.commands.table.number(command) {
            self.first_arguments.retain(|(of, _)| *of != number);
        }
        for sub in command.subcommands {
            self.commands.set(sub, allowed);
        }
    }

    /// Records a rule, and removes the rules that it overrides: those about the same command or a part of it.
    fn note(&mut self, rule: &str, allowed: bool) {
        let rule = rule.to_ascii_lowercase();
        self.rules.retain(|known| {
            let known = &known[1..];
            let is_part = known.strip_prefix(rule.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('|'));
            !is_part
        });
        self.rules.push(format!("{}{rule}", if allowed { '+' } else { '-' }));
    }

    /// Whether it allows everything.
    pub fn is_unrestricted(&self) -> bool {
        self.all_keys && self.all_channels && self.commands.is_full()
    }

    /// Whether it allows a request with these keys.
    pub fn check(&self, command: &'static Command, args: &[&[u8]], keys: &[KeyAt]) -> Result<(), Denial> {
        if !command.flags.contains(Flags::NO_AUTH) && !self.commands.contains(command) && !self.allows_by_argument(command, args)
        {
            return Err(Denial::Command);
        }
        for key in keys {
            fail_if!(!self.allows_key(args[key.position], Permission::of(key.uses)), Denial::Key(key.position));
        }
        if !self.all_channels {
            for (position, channel) in command.channels.of(args) {
                fail_if!(!self.allows_channel(channel, command.channels == Channels::Patterns), Denial::Channel(position));
            }
        }
        Ok(())
    }

    fn allows_by_argument(&self, command: &'static Command, args: &[&[u8]]) -> bool {
        if self.first_arguments.is_empty() {
            return false;
        }
        let (Some(number), Some(given)) = (self.commands.table.number(command), args.get(1)) else { return false };
        self.first_arguments.iter().any(|(of, word)| *of == number && word.eq_ignore_ascii_case(given))
    }

    /// Whether this permission is granted on a key.
    pub fn allows_key(&self, key: &[u8], needed: Permission) -> bool {
        let fits = |known: &&KeyPattern| known.permission.contains(needed);
        self.all_keys || self.keys.iter().filter(fits).any(|known| glob::matches(&known.pattern, key, false))
    }

    /// Whether this permission is granted on all keys.
    pub fn allows_every_key(&self, needed: Permission) -> bool {
        self.all_keys || self.keys.iter().any(|known| known.permission.contains(needed) && glob::is_all(&known.pattern))
    }

    /// The patterns that grant this permission, if it is not granted on all keys.
    pub fn key_patterns(&self, needed: Permission) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().filter(move |known| known.permission.contains(needed)).map(|known| &*known.pattern)
    }

    /// Whether all channels are allowed.
    pub fn allows_every_channel(&self) -> bool {
        self.all_channels
    }

    /// Whether a channel is allowed. A channel pattern must equal one of the rules literally.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let matches = |known: &[u8]| if is_pattern { known == channel } else { glob::matches(known, channel, false) };
        self.all_channels || self.channels.iter().any(|known| matches(known))
    }

    /// The channel patterns, if not all channels are allowed.
    pub fn channels(&self) -> &[Box<[u8]>] {
        &self.channels
    }

    /// The command rules, in a form that can be applied again.
    pub fn describe_commands(&self) -> String {
        let mut text = String::from(if self.from_all { "+@all" } else { "-@all" });
        for rule in &self.rules {
            text.push(' ');
            text.push_str(rule);
        }
        text
    }

    /// The key rules.
    pub fn describe_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let shown = self.keys.iter().map(|known| {
            let sign: &[u8] = match known.permission {
                Permission::READ => b"%R~",
                Permission::WRITE => b"%W~",
                _ => b"~",
            };
            [sign, &known.pattern].concat()
        });
        shown.collect::<Vec<_>>().join(&b' ')
    }

    /// The channel rules.
    pub fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let shown = self.channels.iter().map(|channel| [b"&", &**channel].concat());
        shown.collect::<Vec<_>>().join(&b' ')
    }

    /// All rules, in a form that can be applied again.
    pub fn describe(&self) -> Vec<u8> {
        let mut text = self.describe_keys();
        if !text.is_empty() {
            text.push(b' ');
        }
        if !self.all_channels {
            text.extend_from_slice(b"resetchannels ");
        }
        let channels = self.describe_channels();
        if !channels.is_empty() {
            text.extend_from_slice(&channels);
            text.push(b' ');
        }
        text.extend_from_slice(self.describe_commands().as_bytes());
        text
    }
}

/// Parses `RW~pattern`, letters in any case and order, each once. Returns the pattern and the permission.
fn split_permission(rest: &[u8]) -> Option<(&[u8], Permission)> {
    let mut permission = Permission::empty();
    for (at, byte) in rest.iter().enumerate() {
        let letter = match byte.to_ascii_uppercase() {
            b'R' => Permission::READ,
            b'W' => Permission::WRITE,
            b'~' if !permission.is_empty() => return Some((&rest[at + 1..], permission)),
            _ => return None,
        };
        if permission.contains(letter) {
            return None;
        }
        permission |= letter;
    }
    // Letters without a `~`: an empty pattern.
    (!permission.is_empty()).then_some((b"", permission))
}

/// Whether the text contains a character that would break a line of rules.
pub fn has_space(text: &[u8]) -> bool {
    text.iter().any(|&b| matches!(b, b'\t'..=b'\r' | b' ' | 0))
}
