//! Configuration directives: what can be configured, to which values, and what the values are now.
//!
//! [`table`] has one row a directive. `CONFIG GET` and `SET`, the program's flags, its configuration file and `CONFIG REWRITE` all
//! work from that row; code that acts on a directive reads the typed field of [`Config`]. Names, defaults and refusals are Redis's
//! where Redis has the directive; where Portcullis does not do what a directive asks for, it has the one value that is true.

pub mod kind;
pub mod rules;
pub mod table;

pub use kind::{Kind, OutputLimit, Raw};
pub use table::{Config, IGNORED, SCRIPT_MEMORY};

use crate::store::values::hash::Limits;
use crate::store::values::list::Cuts;
use crate::store::values::stream::BlockLimits;
use crate::store::values::zset;

/// Where a directive is listed in `portcullis serve --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Sockets and addresses.
    Network,
    /// Passwords and who may connect.
    Security,
    /// Bounds on clients and memory.
    Limits,
    /// What commands do.
    Behaviour,
    /// Logs and files.
    Logging,
    /// Accepted because clients ask for them; they have one value, or only say how values are encoded.
    Compatibility,
}

/// One row of the table.
pub struct Directive {
    /// Its name.
    pub name: &'static str,
    /// Older name that still works.
    pub alias: Option<&'static str>,
    /// What its values look like.
    pub kind: Kind,
    /// Whether it can be set only at the start.
    pub fixed: bool,
    /// Where `--help` lists it.
    pub section: Section,
    /// One line of what it does, units included.
    pub help: &'static str,
    pub(crate) read: fn(&Config) -> Raw,
    pub(crate) write: fn(&mut Config, Raw) -> bool,
}

impl Directive {
    /// The directive of this name, in any case, and the name (its own or its alias) in lower case.
    pub fn find(name: &[u8]) -> Option<(&'static Directive, &'static str)> {
        table::DIRECTIVES.iter().find_map(|directive| {
            [Some(directive.name), directive.alias]
                .into_iter()
                .flatten()
                .find(|known| known.as_bytes().eq_ignore_ascii_case(name))
                .map(|known| (directive, known))
        })
    }

    /// All of them, in the order of the table.
    pub fn all() -> &'static [Directive] {
        table::DIRECTIVES
    }

    /// Its value as `CONFIG GET` shows it.
    pub fn get(&self, config: &Config) -> Vec<u8> {
        self.kind.show(&(self.read)(config))
    }

    /// Its value as the lines of a configuration file have it behind its name.
    pub fn lines(&self, config: &Config) -> Vec<Vec<u8>> {
        match (self.read)(config) {
            Raw::Rules(rules) if !rules.is_empty() => rules.shown(),
            raw => vec![self.kind.show(&raw)],
        }
    }

    /// Sets it to `words`, the arguments behind its name in a configuration file, or adds them to its value where that adds up. A
    /// refusal changes nothing and says why.
    pub fn set(&self, config: &mut Config, words: &[&[u8]]) -> Result<(), String> {
        let raw = self.kind.parse(words, &(self.read)(config))?;
        if (self.write)(config, raw) { Ok(()) } else { Err("value out of range".to_owned()) }
    }

    /// Sets it to one value in which several words are separated by spaces, as `CONFIG SET` takes it.
    pub fn set_from_value(&self, config: &mut Config, value: &[u8]) -> Result<(), String> {
        if self.kind.adds_up() {
            let raw = self.kind.parse(&[value], &(self.read)(&Config::default()))?;
            return if (self.write)(config, raw) { Ok(()) } else { Err("value out of range".to_owned()) };
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
    /// Sets a directive by name to one value, in which several words are separated by spaces, as `CONFIG SET` does.
    ///
    /// # Errors
    /// Why it does not take the value, in Redis's words; the configuration is as before.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let (directive, _) = Directive::find(name.as_bytes()).ok_or("no such directive")?;
        directive.set_from_value(self, value)
    }

    /// How far a hash may grow as one buffer.
    pub(crate) fn hash_limits(&self) -> Limits {
        Limits {
            entries: usize::try_from(self.hash_max_listpack_entries).unwrap_or(usize::MAX),
            value: usize::try_from(self.hash_max_listpack_value).unwrap_or(usize::MAX),
        }
    }

    /// How far a list may grow as one buffer, and one of its nodes.
    pub(crate) fn list_cuts(&self) -> Cuts {
        Cuts::new(self.list_max_listpack_size)
    }

    /// How far a sorted set may grow as one buffer.
    pub(crate) fn zset_limits(&self) -> zset::Limits {
        zset::Limits {
            entries: usize::try_from(self.zset_max_listpack_entries).unwrap_or(usize::MAX),
            value: usize::try_from(self.zset_max_listpack_value).unwrap_or(usize::MAX),
        }
    }

    /// How far a set may grow in its compact forms.
    pub(crate) fn set_limits(&self) -> crate::store::values::set::Limits {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        crate::store::values::set::Limits {
            ints: size(self.set_max_intset_entries),
            entries: size(self.set_max_listpack_entries),
            value: size(self.set_max_listpack_value),
        }
    }

    /// Where a block of a stream ends.
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
        for directive in Directive::all() {
            let mut config = Config::default();
            let shown = directive.get(&config);
            directive.set_from_value(&mut config, &shown).unwrap_or_else(|e| panic!("{}: {e}", directive.name));
            assert_eq!(directive.get(&config), shown, "{}", directive.name);
            assert!(directive.help.ends_with('.') && directive.help.len() > 10, "{}", directive.name);
            assert_eq!(directive.name, directive.name.to_ascii_lowercase());
        }
    }

    #[test]
    fn no_name_is_given_twice_and_none_is_both_known_and_ignored() {
        let mut names: Vec<&str> =
            Directive::all().iter().flat_map(|d| [Some(d.name), d.alias]).flatten().chain(IGNORED.iter().copied()).collect();
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
