//! Configuration directives: their names, their valid values and their current values.
//!
//! [`table`] has one row per directive. `CONFIG GET` and `SET`, the program's flags, its configuration file and `CONFIG REWRITE`
//! all use that row; code that acts on a directive reads the typed field of [`Config`]. Names, defaults and error texts are those
//! of Redis if Redis has the directive. [`foreign`] has the directives of Redis that Portcullis does not have, and what follows
//! when they are set. All other names are unknown and refused.

pub mod foreign;
pub mod kind;
mod nearest;
pub mod rules;
pub mod table;

pub use foreign::Fate;
pub use kind::{Kind, OutputLimit, Raw};
pub use nearest::{did_you_mean, nearest};
pub use table::{Config, SCRIPT_MEMORY};

use foreign::FOREIGN;
use table::DIRECTIVES;

use crate::store::values::hash::Limits;
use crate::store::values::list;
use crate::store::values::stream::BlockLimits;
use crate::store::values::zset;

/// What follows from a change of a directive outside of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connections are looked at soon: some may be idle for too long, or have too much output.
    Sweep,
    /// The append-only file is synced otherwise.
    Syncs,
    /// The append-only file is switched on or off.
    Log,
    /// What is written into the append-only file, or told of it, changes in details.
    LogDetails,
    /// Snapshots are made at other times, or what follows from one that has failed.
    SavePoints,
    /// Other events are logged.
    LogLevel,
    /// The process may need more descriptors.
    Descriptors,
}

/// Section of a directive in `portcullis serve --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Sockets and addresses.
    Network,
    /// Passwords and access.
    Security,
    /// Limits on clients and memory.
    Limits,
    /// Behaviour of commands.
    Behaviour,
    /// Logs and files.
    Logging,
    /// The append-only file and snapshots.
    Persistence,
    /// For tests of the server itself. As in Redis, patterns of `CONFIG GET` do not match them.
    Testing,
    /// Accepted because clients and files have them; they only determine how values are encoded, or are in [`foreign`].
    Compatibility,
    /// Lines of a configuration file, and flags, which `CONFIG` does not know, as in Redis.
    File,
}

/// Where the value of a directive is.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// In a field of [`Config`].
    Field {
        /// Reads the field.
        read: fn(&Config) -> Raw,
        /// Writes the field. Returns whether the value fits.
        write: fn(&mut Config, Raw) -> bool,
    },
    /// In [`Config::foreign`]: Portcullis does not have the directive.
    Foreign {
        /// The value as long as it is not set.
        default: &'static str,
        /// What follows when it is set.
        fate: Fate,
    },
}

/// One row of a table.
#[derive(Clone, Copy)]
pub struct Directive {
    /// Its name.
    pub name: &'static str,
    /// An older name that still works.
    pub alias: Option<&'static str>,
    /// The kind of its values.
    pub kind: Kind,
    /// Whether it can be set only at startup.
    pub fixed: bool,
    /// Whether it is fixed because it names a place outside of the server: Redis refuses `CONFIG SET` of it with another text.
    pub protected: bool,
    /// What the driver does when it was set.
    pub effect: Option<Effect>,
    /// Its section in `--help`.
    pub section: Section,
    /// A one-line description, including units.
    pub help: &'static str,
    pub(crate) place: Place,
}

/// The rows of both tables.
static ALL: [Directive; DIRECTIVES.len() + FOREIGN.len()] = {
    let mut all = [DIRECTIVES[0]; DIRECTIVES.len() + FOREIGN.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < DIRECTIVES.len() { DIRECTIVES[at] } else { FOREIGN[at - DIRECTIVES.len()] };
        at += 1;
    }
    all
};

impl Directive {
    /// Finds a directive by name, case-insensitive. Returns it with the name (its own or its alias) in lower case.
    pub fn find(name: &[u8]) -> Option<(&'static Directive, &'static str)> {
        ALL.iter().find_map(|directive| {
            directive.names().find(|known| known.as_bytes().eq_ignore_ascii_case(name)).map(|known| (directive, known))
        })
    }

    /// All directives, in the order of the tables.
    pub fn all() -> &'static [Directive] {
        &ALL
    }

    /// Its name and its alias.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [Some(self.name), self.alias].into_iter().flatten()
    }

    /// What follows when it is set, if it is one that Portcullis does not have.
    pub fn fate(&self) -> Option<Fate> {
        match self.place {
            Place::Field { .. } => None,
            Place::Foreign { fate, .. } => Some(fate),
        }
    }

    fn read(&self, config: &Config) -> Raw {
        match self.place {
            Place::Field { read, .. } => read(config),
            Place::Foreign { default, .. } => {
                Raw::Text(config.foreign.get(self.name).map_or(default.as_bytes(), Vec::as_slice).to_vec())
            }
        }
    }

    fn write(&self, config: &mut Config, raw: Raw) -> Result<(), String> {
        match self.place {
            Place::Field { write, .. } => write(config, raw).then_some(()).ok_or_else(|| "value out of range".to_owned()),
            Place::Foreign { default, .. } => {
                let value = self.kind.show(&raw);
                if value == default.as_bytes() {
                    config.foreign.remove(self.name);
                } else {
                    config.foreign.insert(self.name, value);
                }
                Ok(())
            }
        }
    }

    fn parse(&self, words: &[&[u8]], old: &Raw) -> Result<Raw, String> {
        if let Some(fate) = self.fate() {
            fate.admit(words, self.help)?;
        }
        self.kind.parse(words, old)
    }

    /// Its value as `CONFIG GET` shows it.
    pub fn get(&self, config: &Config) -> Vec<u8> {
        self.kind.show(&self.read(config))
    }

    /// Its value as it follows the name in the lines of a configuration file.
    pub fn lines(&self, config: &Config) -> Vec<Vec<u8>> {
        match self.read(config) {
            Raw::Rules(rules) if !rules.is_empty() => rules.shown(),
            raw => vec![self.kind.show(&raw)],
        }
    }

    /// Sets it to `words`, the arguments after its name in a configuration file, or adds them to its value if its values
    /// accumulate. On an error, nothing changes.
    pub fn set(&self, config: &mut Config, words: &[&[u8]]) -> Result<(), String> {
        let raw = self.parse(words, &self.read(config))?;
        self.write(config, raw)
    }

    /// Sets it from one value, in which several words are separated by spaces, as `CONFIG SET` does.
    pub fn set_from_value(&self, config: &mut Config, value: &[u8]) -> Result<(), String> {
        if self.kind.accumulates() {
            let raw = self.parse(&[value], &self.read(&Config::default()))?;
            return self.write(config, raw);
        }
        if self.kind.takes_words() && !value.is_empty() {
            let words: Vec<&[u8]> = value.split(|&b| b == b' ').collect();
            self.set(config, &words)
        } else {
            self.set(config, &[value])
        }
    }
}

impl Config {
    /// Sets a directive by name from one value, in which several words are separated by spaces, as `CONFIG SET` does.
    ///
    /// # Errors
    /// The reason in Redis's words; the configuration is unchanged.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let unknown = || format!("no such directive{}", did_you_mean(nearest(name.as_bytes())));
        let (directive, _) = Directive::find(name.as_bytes()).ok_or_else(unknown)?;
        directive.set_from_value(self, value)
    }

    /// The pairs of `save`: seconds, and the number of changes.
    pub fn save_points(&self) -> impl Iterator<Item = (u64, u64)> {
        self.save.chunks_exact(2).filter_map(|pair| Some((pair[0].parse().ok()?, pair[1].parse().ok()?)))
    }

    /// Maximum size of a hash in its compact form.
    pub(crate) fn hash_limits(&self) -> Limits {
        Limits {
            entries: usize::try_from(self.hash_max_listpack_entries).unwrap_or(usize::MAX),
            value: usize::try_from(self.hash_max_listpack_value).unwrap_or(usize::MAX),
        }
    }

    /// Maximum size of a list in its compact form, and of one of its nodes.
    pub(crate) fn list_limits(&self) -> list::Limits {
        list::Limits::new(self.list_max_listpack_size)
    }

    /// Maximum size of a sorted set in its compact form.
    pub(crate) fn zset_limits(&self) -> zset::Limits {
        zset::Limits {
            entries: usize::try_from(self.zset_max_listpack_entries).unwrap_or(usize::MAX),
            value: usize::try_from(self.zset_max_listpack_value).unwrap_or(usize::MAX),
        }
    }

    /// Maximum size of a set in its compact forms.
    pub(crate) fn set_limits(&self) -> crate::store::values::set::Limits {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        crate::store::values::set::Limits {
            ints: size(self.set_max_intset_entries),
            entries: size(self.set_max_listpack_entries),
            value: size(self.set_max_listpack_value),
        }
    }

    /// Maximum size of a stream's block.
    pub(crate) fn stream_limits(&self) -> BlockLimits {
        BlockLimits {
            bytes: usize::try_from(self.stream_node_max_bytes).unwrap_or(usize::MAX),
            entries: usize::try_from(self.stream_node_max_entries).unwrap_or(usize::MAX),
        }
    }

    /// The value of a directive as `CONFIG GET` shows it.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        Directive::find(name.as_bytes()).map(|(directive, _)| directive.get(self))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_default_reads_back_as_itself_and_every_row_says_what_it_does() {
        for directive in Directive::all().iter().filter(|directive| directive.section != Section::File) {
            let mut config = Config::default();
            let shown = directive.get(&config);
            directive.set_from_value(&mut config, &shown).unwrap_or_else(|e| panic!("{}: {e}", directive.name));
            assert_eq!(directive.get(&config), shown, "{}", directive.name);
            assert!(directive.help.ends_with('.') && directive.help.len() > 10, "{}", directive.name);
            assert_eq!(directive.name, directive.name.to_ascii_lowercase());
        }
    }

    #[test]
    fn no_name_is_given_twice() {
        let mut names: Vec<&str> = Directive::all().iter().flat_map(Directive::names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn names_are_found_in_any_case_and_by_their_alias() {
        assert_eq!(Directive::find(b"MaxClients").unwrap().1, "maxclients");
        let (directive, name) = Directive::find(b"HASH-max-ziplist-entries").unwrap();
        assert_eq!((directive.name, name), ("hash-max-listpack-entries", "hash-max-ziplist-entries"));
        assert!(Directive::find(b"nosuch").is_none());
    }

    #[test]
    fn values_are_held_to_their_kind_with_the_texts_of_redis() {
        let mut config = Config::default();
        let mut refuse = |name: &str, value: &str| config.set(name, value.as_bytes()).unwrap_err();
        assert_eq!(refuse("maxclients", "abc"), "argument couldn't be parsed into an integer");
        assert_eq!(refuse("timeout", ""), "argument couldn't be parsed into an integer");
        assert_eq!(refuse("timeout", " 1"), "argument couldn't be parsed into an integer");
        assert_eq!(refuse("maxclients", "0"), "argument must be between 1 and 4294967295 inclusive");
        assert_eq!(refuse("proto-max-bulk-len", "1"), "argument must be between 1048576 and 9223372036854775807 inclusive");
        assert_eq!(refuse("maxmemory", "1zz"), "argument must be a memory value");
        assert_eq!(refuse("maxmemory", "-1"), "argument must be a memory value");
        assert_eq!(refuse("protected-mode", "maybe"), "argument must be 'yes' or 'no'");
        for path in ["a/b", "/a", r"a\b"] {
            assert_eq!(refuse("dbfilename", path), "dbfilename can't be a path, just a filename");
        }
        assert_eq!(refuse("key-load-delay", "2147483648"), "argument must be between -2147483648 and 2147483647 inclusive");
        assert_eq!(refuse("unixsocketperm", "999"), "argument couldn't be parsed as an octal number");
        assert_eq!(refuse("unixsocketperm", "7777"), "argument must be between 0 and 777 inclusive");
        assert_eq!(refuse("notify-keyspace-events", "q"), "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.");
        assert_eq!(
            refuse("loglevel", "loud"),
            "argument(s) must be one of the following: debug, verbose, notice, warning, nothing"
        );
    }

    #[test]
    fn memory_has_units_of_both_sorts() {
        let mut config = Config::default();
        for (value, bytes) in [("100", 100), ("2k", 2_000), ("2KB", 2_048), ("1m", 1_000_000), ("1Gb", 1 << 30), ("3b", 3)] {
            config.set("maxmemory", value.as_bytes()).unwrap();
            assert_eq!(config.maxmemory, bytes, "{value}");
        }
    }

    #[test]
    fn output_limits_change_only_the_classes_they_name() {
        let mut config = Config::default();
        let shown = |config: &Config| String::from_utf8(config.get("client-output-buffer-limit").unwrap()).unwrap();
        assert_eq!(shown(&config), "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60");
        config.set("client-output-buffer-limit", b"normal 1gb 2 3 pubsub 1 2 4").unwrap();
        assert_eq!(shown(&config), "normal 1073741824 2 3 slave 268435456 67108864 60 pubsub 1 2 4");
        let before = shown(&config);
        for (value, refusal) in [
            ("foo 1 2 3", "Invalid client class specified in buffer limit configuration."),
            ("normal 1 2", "Wrong number of arguments in buffer limit configuration."),
            ("normal 9 9 9 pubsub 1 2 x", "Error in hard, soft or soft_seconds setting in buffer limit configuration."),
        ] {
            assert_eq!(config.set("client-output-buffer-limit", value.as_bytes()).unwrap_err(), refusal);
        }
        assert_eq!(shown(&config), before);
    }
}
