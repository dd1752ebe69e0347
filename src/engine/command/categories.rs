//! The ACL categories of a command: those that its row names, and those that follow from its group and flags.

use crate::engine::command::{Categories, Command, Flags, Group};

impl Command {
    /// The categories of a command: those of its row, of its group and of its flags. A container has its group's category only if
    /// its row says so, because it does nothing by itself; so has a command of `@lockadmin`.
    pub fn acl_categories(&self) -> Categories {
        let mut all = self.categories;
        // Those who may take locks may not end locks of others.
        if self.subcommands.is_empty() && !all.contains(Categories::LOCKADMIN) {
            all |= of_group(self.group);
        }
        // `+@all -@admin -@dangerous` is what administrators give to services.
        if all.contains(Categories::LOCKADMIN) {
            all |= Categories::DANGEROUS;
        }
        let by_flag = [
            (Flags::WRITE, Categories::WRITE),
            (Flags::ADMIN, Categories::ADMIN | Categories::DANGEROUS),
            (Flags::PUBSUB, Categories::PUBSUB),
            (Flags::FAST, Categories::FAST),
            (Flags::BLOCKING, Categories::BLOCKING),
        ];
        for (flag, categories) in by_flag {
            if self.flags.contains(flag) {
                all |= categories;
            }
        }
        // A read-only script does not count as a read: its effects depend on the commands that it calls.
        if self.flags.contains(Flags::READONLY) && !all.contains(Categories::SCRIPTING) {
            all |= Categories::READ;
        }
        if !all.contains(Categories::FAST) {
            all |= Categories::SLOW;
        }
        all
    }
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
