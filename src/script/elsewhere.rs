//! Commands that Redis has and that no script may call there. Where there is no row for them, scripts are still told that they are not
//! allowed, and not that they are unknown: scripts ask, and libraries know the text.

/// A command, or a container's subcommand, and its arity as rows have it.
const NOT_FROM_SCRIPTS: &[(&str, i32)] = &[
    ("bgrewriteaof", 1),
    ("client|caching", 3),
    ("client|getredir", 2),
    ("client|tracking", -3),
    ("client|trackinginfo", 2),
    ("cluster|reset", -2),
    ("failover", -1),
    ("latency|doctor", 2),
    ("latency|graph", 3),
    ("latency|histogram", -2),
    ("latency|history", 3),
    ("latency|latest", 2),
    ("latency|reset", -2),
    ("module|list", 2),
    ("module|load", -3),
    ("module|loadex", -3),
    ("module|unload", 3),
    ("psync", -3),
    ("replconf", -1),
    ("replicaof", 3),
    ("slaveof", 3),
    ("sync", 1),
];

/// What a call of such a command comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// It is none of them.
    Unknown,
    /// It has too few arguments, or too many.
    Arity,
    /// No script may call it.
    NotAllowed,
}

/// Looks a request up that has no row.
pub(super) fn look_up(args: &[&[u8]]) -> Elsewhere {
    let mut found = Elsewhere::Unknown;
    for &(name, arity) in NOT_FROM_SCRIPTS {
        let (name, sub) = name.split_once('|').map_or((name, None), |(container, sub)| (container, Some(sub)));
        if !args[0].eq_ignore_ascii_case(name.as_bytes()) {
            continue;
        }
        match (sub, args.get(1)) {
            // A container alone wants a subcommand.
            (Some(_), None) => return Elsewhere::Arity,
            (Some(sub), Some(given)) if !given.eq_ignore_ascii_case(sub.as_bytes()) => continue,
            _ => {}
        }
        let count = args.len() as i32;
        let fits = if arity < 0 { count >= -arity } else { count == arity };
        found = if fits { Elsewhere::NotAllowed } else { Elsewhere::Arity };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_their_arguments_counted() {
        for (words, found) in [
            ("SYNC", Elsewhere::NotAllowed),
            ("sync x", Elsewhere::Arity),
            ("psync", Elsewhere::Arity),
            ("psync a b", Elsewhere::NotAllowed),
            ("module", Elsewhere::Arity),
            ("module List", Elsewhere::NotAllowed),
            ("module list x", Elsewhere::Arity),
            ("module nosuch", Elsewhere::Unknown),
            ("syn", Elsewhere::Unknown),
        ] {
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            assert_eq!(look_up(&args), found, "{words}");
        }
    }
}
