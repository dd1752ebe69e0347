//! Commands and options of Redis 7.4 that Portcullis does not have, and why. COMMANDS.md lists them after the command table.

/// Names, grouped by the reason why they are missing.
pub type Reasons = &'static [(&'static str, &'static [&'static str])];

/// Missing commands and subcommands. They are answered with Redis's `ERR unknown command` or `unknown subcommand`, from which
/// libraries learn what the server supports.
pub const COMMANDS: Reasons =
    &[("The cluster is one node: there is no other node to move keys to.", &["migrate", "restore-asking"])];

/// Missing options of existing commands, written `command OPTION`.
pub const OPTIONS: Reasons = &[
    ("The thread of the append-only file is not slowed down.", &["debug AOF-FLUSH-SLEEP"]),
    (
        "There is no replication and no cluster bus.",
        &["debug CLUSTERLINK", "debug DROP-CLUSTER-PACKET-FILTER", "debug REPLICATE"],
    ),
    (
        "It concerns internals of Redis: its tables, encodings, allocator and buffers.",
        &[
            "debug CLIENT-EVICTION",
            "debug HTSTATS",
            "debug HTSTATS-KEY",
            "debug LISTPACK",
            "debug MALLCTL",
            "debug MALLCTL-STR",
            "debug QUICKLIST",
            "debug REPLYBUFFER",
            "debug SCRIPT",
            "debug SDSLEN",
            "debug STRUCTSIZE",
        ],
    ),
    (
        "It ends or harms the process, which is up to the operator.",
        &["debug ASSERT", "debug CRASH-AND-RECOVER", "debug LEAK", "debug OOM", "debug PANIC", "debug RESTART", "debug SEGFAULT"],
    ),
    ("There is no periodic job: all work is done when it is due.", &["debug PAUSE-CRON"]),
    ("Checksums of payloads are always verified.", &["debug SET-SKIP-CHECKSUM-VALIDATION"]),
    ("The tests of this crate cover it.", &["debug STRINGMATCH-TEST"]),
    ("Other commands do the same.", &["debug CONFIG-REWRITE-FORCE-ALL", "debug POPULATE"]),
];
