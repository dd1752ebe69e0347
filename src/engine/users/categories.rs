//! The names of the ACL categories.

use crate::engine::command::flags::Categories;

/// All categories by name, in the order of replies.
pub const CATEGORIES: [(&str, Categories); 23] = [
    ("keyspace", Categories::KEYSPACE),
    ("read", Categories::READ),
    ("write", Categories::WRITE),
    ("set", Categories::SET),
    ("sortedset", Categories::SORTEDSET),
    ("list", Categories::LIST),
    ("hash", Categories::HASH),
    ("string", Categories::STRING),
    ("bitmap", Categories::BITMAP),
    ("hyperloglog", Categories::HYPERLOGLOG),
    ("geo", Categories::GEO),
    ("stream", Categories::STREAM),
    ("pubsub", Categories::PUBSUB),
    ("admin", Categories::ADMIN),
    ("fast", Categories::FAST),
    ("slow", Categories::SLOW),
    ("blocking", Categories::BLOCKING),
    ("dangerous", Categories::DANGEROUS),
    ("connection", Categories::CONNECTION),
    ("transaction", Categories::TRANSACTION),
    ("scripting", Categories::SCRIPTING),
    ("lock", Categories::LOCK),
    ("lockadmin", Categories::LOCKADMIN),
];

/// The category with this name, case-insensitive, without its `@`.
pub fn category(name: &[u8]) -> Option<Categories> {
    CATEGORIES.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)).map(|(_, category)| *category)
}

/// The names of a set of categories, without their `@`.
pub fn names(categories: Categories) -> impl Iterator<Item = &'static str> {
    CATEGORIES.iter().filter(move |(_, category)| categories.contains(*category)).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::command::{Command, Flags, Group};

    fn of(flags: Flags, group: Group, categories: Categories) -> Vec<&'static str> {
        names(Command { flags, group, categories, ..Command::DEFAULT }.acl_categories()).collect()
    }

    #[test]
    fn categories_follow_from_group_and_flags() {
        assert_eq!(of(Flags::READONLY | Flags::FAST, Group::String, Categories::empty()), ["read", "string", "fast"]);
        assert_eq!(of(Flags::ADMIN, Group::Server, Categories::empty()), ["admin", "slow", "dangerous"]);
        assert_eq!(of(Flags::READONLY, Group::Scripting, Categories::empty()), ["slow", "scripting"]);
        assert_eq!(of(Flags::WRITE, Group::Generic, Categories::KEYSPACE), ["keyspace", "write", "slow"]);
        assert_eq!(of(Flags::WRITE | Flags::FAST, Group::Lock, Categories::empty()), ["write", "fast", "lock"]);
        assert_eq!(of(Flags::WRITE, Group::Lock, Categories::LOCKADMIN), ["write", "slow", "dangerous", "lockadmin"]);
    }

    #[test]
    fn a_name_finds_its_category_and_back() {
        for (name, bit) in CATEGORIES {
            assert_eq!(category(name.to_uppercase().as_bytes()), Some(bit));
            assert_eq!(names(bit).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(category(b"@read"), None);
    }
}
