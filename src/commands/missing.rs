//! What Redis 7.4 has and we have not, and why: the other half of the page that is made of the command table.

/// Commands and subcommands, by the reason for which they are not there. Each is answered with Redis's `ERR unknown command` or
/// `unknown subcommand`, by which libraries tell what they can use.
pub const COMMANDS: &[(&str, &[&str])] = &[
    (
        "A cluster here is one node that holds all slots: there is nothing to assign, to meet or to hand over.",
        &[
            "cluster|addslots",
            "cluster|addslotsrange",
            "cluster|bumpepoch",
            "cluster|count-failure-reports",
            "cluster|delslots",
            "cluster|delslotsrange",
            "cluster|failover",
            "cluster|flushslots",
            "cluster|forget",
            "cluster|meet",
            "cluster|replicate",
            "cluster|reset",
            "cluster|saveconfig",
            "cluster|set-config-epoch",
            "cluster|setslot",
            "migrate",
            "restore-asking",
        ],
    ),
    ("There is no replication.", &["failover", "psync", "replconf", "sync"]),
    (
        "There are no loadable modules.",
        &["module", "module|help", "module|list", "module|load", "module|loadex", "module|unload"],
    ),
];

/// Options of commands that are there, written `command OPTION`, by the reason for which they are not.
pub const OPTIONS: &[(&str, &[&str])] = &[];
