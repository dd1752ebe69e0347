//! ACL categories: which of them a command belongs to.

use crate::engine::command::{Categories, Command, Flags, Group};

/// All categories by name, in the order of replies.
pub const CATEGORIES: [(&str, Categories); 22] = [
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
];

/// The category with this name, case-insensitive, without its `@`.
pub fn category(name: &[u8]) -> Option<Categories> {
    CATEGORIES.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)).map(|(_, category)| *category)
}

/// The names of a set of categories, without their `@`.
pub fn names(categories: Categories) -> impl Iterator<Item = &'static str> {
    CATEGORIES.iter().filter(move |(_, category)| categories.contains(*category)).map(|(name, _)| *name)
}

/// The categories of a command: those of its row, of its group and of its flags. A container has its group's category only if its
/// row says so, because it does nothing by itself.
pub fn categories_of(command: &Command) -> Categories {
    let mut all = command.categories;
    if command.subcommands.is_empty() {
        all |= of_group(command.group);
    }
    let by_flag = [
        (Flags::WRITE, Categories::WRITE),
        (Flags::ADMIN, Categories::ADMIN | Categories::DANGEROUS),
        (Flags::PUBSUB, Categories::PUBSUB),
        (Flags::FAST, Categories::FAST),
        (Flags::BLOCKING, Categories::BLOCKING),
    ];
    for (flag, categories) in by_flag {
        if command.flags.contains(flag) {
            all |= categories;
        }
    }
    // A read-only script does not count as a read: its effects depend on the commands that it calls.
    if command.flags.contains(Flags::READONLY) && !all.contains(Categories::SCRIPTING) {
        all |= Categories::READ;
    }
    if !all.contains(Categories::FAST) {
        all |= Categories::SLOW;
    }
    all
}

fn of_group(group: Group) -> Categories {
    match group {
        Group::String => Categories::STRING,
        Group::Hash => Categories::HASH,
        Group::List => Categories::LIST,
        Group::Set => Categories::SET,
        Group::SortedSet => Categories::SORTEDSET,
        Group::Stream => Categories::STREAM,
        Group::Bitmap => Categories::BITMAP,
        Group::Hyperloglog => Categories::HYPERLOGLOG,
        Group::Geo => Categories::GEO,
        Group::Transactions => Categories::TRANSACTION,
        Group::Connection => Categories::CONNECTION,
        Group::Scripting => Categories::SCRIPTING,
        Group::Lock => Categories::LOCK,
        Group::Generic | Group::PubSub | Group::Server | Group::Cluster => Categories::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flags: Flags, group: Group, categories: Categories) -> Vec<&'static str> {
        names(categories_of(&Command { flags, group, categories, ..Command::DEFAULT })).collect()
    }

    #[test]
    fn categories_follow_from_group_and_flags() {
        assert_eq!(of(Flags::READONLY | Flags::FAST, Group::String, Categories::empty()), ["read", "string", "fast"]);
        assert_eq!(of(Flags::ADMIN, Group::Server, Categories::empty()), ["admin", "slow", "dangerous"]);
        assert_eq!(of(Flags::READONLY, Group::Scripting, Categories::empty()), ["slow", "scripting"]);
        assert_eq!(of(Flags::WRITE, Group::Generic, Categories::KEYSPACE), ["keyspace", "write", "slow"]);
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
