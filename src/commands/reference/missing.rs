//! What Redis 7.4 has and we have not, and why: the other half of the page that is made of the command table.

/// Names, by the reason for which they are here.
pub type Reasons = &'static [(&'static str, &'static [&'static str])];

/// Commands and subcommands that are not there. Each is answered with Redis's `ERR unknown command` or `unknown subcommand`, by which
/// libraries tell what they can use.
pub const COMMANDS: Reasons =
    &[("A cluster here is one node: there is none to hand a key over to.", &["migrate", "restore-asking"])];

/// Options of commands that are there, written `command OPTION`, by the reason for which they are not.
pub const OPTIONS: Reasons = &[
    (
        "Nothing is written to disk, and there is no log to be read back.",
        &["debug AOF-FLUSH-SLEEP", "debug LOADAOF", "debug RELOAD"],
    ),
    (
        "There is no replication, and no bus of a cluster.",
        &["debug CLUSTERLINK", "debug DROP-CLUSTER-PACKET-FILTER", "debug REPLICATE"],
    ),
    (
        "It shows or sets what is Redis's own: its tables, encodings, allocator and buffers.",
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
        "It ends or harms the process, which is for its keeper to do.",
        &["debug ASSERT", "debug CRASH-AND-RECOVER", "debug LEAK", "debug OOM", "debug PANIC", "debug RESTART", "debug SEGFAULT"],
    ),
    ("There is no periodic job: what it does is done at its time.", &["debug PAUSE-CRON"]),
    ("Checksums of payloads are always looked at.", &["debug SET-SKIP-CHECKSUM-VALIDATION"]),
    ("Tests of this crate do it.", &["debug STRINGMATCH-TEST"]),
    ("Other commands do it.", &["debug CONFIG-REWRITE-FORCE-ALL", "debug POPULATE"]),
];
