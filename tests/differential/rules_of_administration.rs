//! The rules for commands of administration: as in [`crate::rules`].

use std::collections::BTreeSet;

use portcullis::commands;
use portcullis::engine::command::Flags;

use crate::common::wire::Frame;
use crate::generate::{has, upper};
use crate::rules::{Rule, Why, same_elements, same_shape, without_words};

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "payloads",
        why: Why::Inherent(
            "a value is dumped in the form that it is kept in; payloads are compared by restoring them on the other server",
        ),
        equal: |case| {
            let dump = case.name == "DUMP" || case.name == "FUNCTION" && case.arg(1) == "DUMP";
            dump && matches!((case.reference, case.subject), (Frame::Bulk(_), Frame::Bulk(_)))
        },
    },
    Rule {
        name: "what the slow log shows",
        why: Why::Inherent(
            "numbers, times and addresses of entries; and here the calls of a script are not logged beside the script; other calls and the \
             names of their clients are compared, but for CLIENT and SCAN, which this test calls as often as it must, and AUTH, \
             whose passwords Redis shows where there are too many",
        ),
        equal: |case| {
            let entries = |frame: &Frame| -> Option<Vec<Vec<Frame>>> {
                let entries = frame.elements()?.iter().map(|entry| entry.elements().filter(|e| e.len() == 6));
                let mut entries: Vec<&[Frame]> = entries.collect::<Option<_>>()?;
                entries.retain(|e| {
                    let named =
                        |word: &Frame, name: &str| word.text().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
                    // The slow log has the time of serving a blocked command.
                    let waits = |word: &Frame| {
                        let row = word.text().and_then(|word| commands::table().named(&[word]));
                        row.is_some_and(|row| row.flags.contains(Flags::BLOCKING))
                    };
                    // 7.0 shows the users that ACL DELUSER deletes.
                    let own = |word: &Frame| {
                        // Payloads differ: see the rule about payloads.
                        let carried = named(word, "restore") || named(word, "function");
                        waits(word)
                            || carried
                            || named(word, "client")
                            || named(word, "scan")
                            || named(word, "auth")
                            || case.version < (7, 4) && named(word, "acl")
                    };
                    // Of a blocked command Redis may show no arguments.
                    let shown = e[3].elements().is_some_and(|args| !args.is_empty());
                    shown
                        && !matches!(e[4].text(), Some(b"" | b"?:0"))
                        && !e[3].elements().and_then(<[Frame]>::first).is_some_and(own)
                });
                Some(entries.into_iter().map(|e| vec![e[3].clone(), e[5].clone()]).collect())
            };
            let (Some(a), Some(b)) = (entries(case.reference), entries(case.subject)) else { return false };
            case.name == "SLOWLOG" && case.arg(1) == "GET" && a.iter().zip(&b).all(|(a, b)| a == b)
        },
    },
    Rule {
        name: "length of the slow log",
        why: Why::Inherent(
            "here the calls of a script are not logged beside the script; nor does it show who asks how often whether others wait",
        ),
        equal: |case| {
            let lengths = case.reference.integer().zip(case.subject.integer());
            case.name == "SLOWLOG" && case.arg(1) == "LEN" && lengths.is_some()
        },
    },
    Rule {
        name: "texts for people",
        why: Why::Inherent("advice, statistics of an allocator and drawings are every server's own"),
        equal: |case| {
            let text = |frame: &Frame| matches!(frame, Frame::Bulk(_) | Frame::Verbatim(_) | Frame::Simple(_));
            let own = matches!(
                (case.name, case.arg(1).as_str()),
                ("MEMORY", "DOCTOR" | "MALLOC-STATS") | ("LATENCY", "DOCTOR") | ("LOLWUT", _) | ("DEBUG", "OBJECT")
            );
            // Without an allocator that keeps statistics, Redis replies with another type.
            own && text(case.reference)
                && text(case.subject)
                && (case.arg(1) == "MALLOC-STATS"
                    || std::mem::discriminant(case.reference) == std::mem::discriminant(case.subject))
        },
    },
    Rule {
        name: "use of memory",
        why: Why::Inherent("every server keeps its values in other structures"),
        equal: |case| {
            let some = |frame: &Frame| frame.integer().is_some_and(|bytes| bytes > 0);
            case.name == "MEMORY"
                && match case.arg(1).as_str() {
                    "USAGE" => some(case.reference) && some(case.subject),
                    "STATS" => case.reference.elements().is_some() && case.subject.elements().is_some(),
                    _ => false,
                }
        },
    },
    Rule {
        name: "histograms of latency",
        why: Why::Inherent(
            "how long calls took; and here those that scripts make are not timed one by one; which others were called is compared",
        ),
        equal: |case| {
            let names = |frame: &Frame| -> Option<BTreeSet<Vec<u8>>> {
                frame.elements()?.chunks(2).map(|pair| Some(pair[0].text()?.to_vec())).collect()
            };
            let (Some(a), Some(b)) = (names(case.reference), names(case.subject)) else { return false };
            // 7.0 refuses COMMAND GETKEYS with fewer arguments before it runs, and does not count a blocked command.
            let elsewhere = |name: &[u8]| {
                let waits = commands::table().named(&[name]).is_some_and(|row| row.flags.contains(Flags::BLOCKING));
                case.version < (7, 4) && (waits || name.starts_with(b"command|getkeys"))
            };
            // This test sends CLIENT LIST as often as needed, to see whether clients are blocked.
            let known = |name: &Vec<u8>| a.contains(name) || elsewhere(name) || name == b"client|list";
            case.name == "LATENCY" && case.arg(1) == "HISTOGRAM" && b.iter().all(known)
        },
    },
    Rule {
        name: "what INFO shows",
        why: Why::Inherent("versions, ids, times and memory; the sections and the keys of each database are compared"),
        equal: |case| {
            let shown = |frame: &Frame| -> Option<Vec<String>> {
                let text = String::from_utf8_lossy(frame.text()?).into_owned();
                // Portcullis has sections of its own.
                let kept = |line: &&str| {
                    line.starts_with("db") && line.contains(":keys=")
                        || line.starts_with("# ") && !["# Portcullis", "# Locks"].contains(line)
                };
                Some(text.lines().filter(kept).map(|line| line.split(",avg_ttl").next().unwrap_or(line).to_owned()).collect())
            };
            case.name == "INFO" && shown(case.reference).is_some() && shown(case.reference) == shown(case.subject)
        },
    },
    Rule {
        name: "times of dumps",
        why: Why::Inherent("LASTSAVE is when the server began, where nothing was dumped since"),
        equal: |case| case.name == "LASTSAVE" && case.reference.integer().is_some() && case.subject.integer().is_some(),
    },
    Rule {
        name: "dumps",
        why: Why::Inherent(
            "whether the last dump is still being made depends on time, and without appendonly Portcullis has nothing to rewrite",
        ),
        equal: |case| {
            let busy = ["ERR Background", "ERR Another child process is active"];
            let begun = |frame: &Frame| matches!(frame, Frame::Simple(_)) || busy.iter().any(|busy| frame.is_error(busy));
            let nothing =
                case.name == "BGREWRITEAOF" && case.subject.is_error("ERR Portcullis has no append-only file to rewrite");
            matches!(case.name, "SAVE" | "BGSAVE" | "BGREWRITEAOF") && begun(case.reference) && (begun(case.subject) || nothing)
        },
    },
    Rule {
        name: "order of functions",
        why: Why::Inherent("FUNCTION LIST goes through tables whose order depends on a random hash seed"),
        equal: |case| {
            case.name == "FUNCTION"
                && case.arg(1) == "LIST"
                && case.reference.elements().is_some()
                && sorted(case.reference) == sorted(case.subject)
        },
    },
    Rule {
        name: "COMMAND DOCS: words",
        why: Why::Inherent(
            "summaries, complexity and histories are told in our own words; tests/commands_table.rs compares the rest",
        ),
        equal: |case| {
            case.name == "COMMAND"
                && case.arg(1) == "DOCS"
                && case.reference.elements().is_some()
                && case.subject.elements().is_some_and(|e| e.len() == case.reference.elements().map_or(0, <[Frame]>::len))
        },
    },
    Rule {
        name: "replication offset",
        why: Why::Inherent("a redis-server counts what it would send to replicas"),
        equal: |case| {
            let role = |frame: &Frame| {
                frame.elements().is_some_and(|e| e.len() == 3 && e[0].text() == Some(b"master") && e[1].integer().is_some())
            };
            case.name == "ROLE" && role(case.reference) && role(case.subject)
        },
    },
    Rule {
        name: "names, addresses and epochs of nodes",
        why: Why::Inherent(
            "every node has its own name and port; one that was never met by another knows no address of itself, and its epoch is 0",
        ),
        equal: |case| {
            let text = |frame: &Frame| {
                let text = String::from_utf8_lossy(frame.text()?).into_owned();
                Some(match case.arg(1).as_str() {
                    "INFO" => text.lines().filter(|line| !line.contains("_epoch:")).collect::<Vec<_>>().join("\n"),
                    // The name, the address and the epoch.
                    "NODES" => {
                        let fields = text.split(' ').enumerate().filter(|(at, _)| ![0, 1, 6].contains(at));
                        fields.map(|(_, field)| field).collect::<Vec<_>>().join(" ")
                    }
                    _ => text.len().to_string(),
                })
            };
            case.name == "CLUSTER"
                && match case.arg(1).as_str() {
                    "SLOTS" | "SHARDS" => same_shape(case.reference, case.subject),
                    "INFO" | "NODES" | "MYID" | "MYSHARDID" => {
                        text(case.reference).is_some() && text(case.reference) == text(case.subject)
                    }
                    _ => false,
                }
        },
    },
    Rule {
        name: "lists of commands",
        why: Why::Version(
            "commands are listed in the order of a table with a random hash seed, and Portcullis has some that came later",
        ),
        equal: |case| {
            let names = |frame: &Frame| -> Option<BTreeSet<Vec<u8>>> {
                frame.elements()?.iter().map(|name| Some(name.text()?.to_vec())).collect()
            };
            let (Some(a), Some(b)) = (names(case.reference), names(case.subject)) else { return false };
            let later = |name: &Vec<u8>| {
                let words: Vec<&[u8]> = name.split(|&byte| byte == b'|').collect();
                // `@lock` and `@lockadmin`, our own categories for native locks.
                name == b"lock"
                    || name == b"lockadmin"
                    || commands::table().named(&words).is_some_and(|row| !has(case.version, row.since))
            };
            let lists = case.name == "ACL" && case.arg(1) == "CAT" || case.name == "COMMAND" && case.arg(1) == "LIST";
            lists && a.is_subset(&b) && b.difference(&a).all(later)
        },
    },
    Rule {
        name: "COMMAND INFO: containers and everything",
        why: Why::Inherent(
            "subcommands, and all commands where none is named, come in the order of a table with a random hash seed; rows are compared one by one",
        ),
        equal: |case| {
            let row = |frame: &Frame| -> Vec<Frame> { frame.elements().unwrap_or(&[]).iter().take(7).cloned().collect() };
            let (Some(a), Some(b)) = (case.reference.elements(), case.subject.elements()) else { return false };
            let container = |frame: &Frame| {
                frame.elements().and_then(<[Frame]>::last).and_then(Frame::elements).is_some_and(|subs| !subs.is_empty())
            };
            case.name == "COMMAND"
                && case.arg(1) == "INFO"
                && (case.call.len() == 2
                    || a.len() == b.len()
                        && a.iter()
                            .zip(b)
                            .all(|(a, b)| a == b || without_words(a) == without_words(b) || container(a) && row(a) == row(b)))
        },
    },
    Rule {
        name: "COMMAND INFO: rows that changed",
        why: Why::Version("7.2 and 7.4 let scripts call what blocks, gave ZRANK an option and COMMAND GETKEYS fewer arguments"),
        equal: |case| {
            const CHANGED: [&[u8]; 13] = [
                b"blmove",
                b"blpop",
                b"brpop",
                b"brpoplpush",
                b"bzpopmax",
                b"bzpopmin",
                b"cluster|shards",
                b"cluster|slots",
                b"command|getkeys",
                b"command|getkeysandflags",
                b"wait",
                b"zrank",
                b"zrevrank",
            ];
            let name = |row: &Frame| row.elements().and_then(<[Frame]>::first).and_then(Frame::text).map(<[u8]>::to_vec);
            let changed = |row: &Frame| name(row).is_some_and(|name| CHANGED.contains(&&name[..]));
            let row = |frame: &Frame| -> Vec<Frame> { frame.elements().unwrap_or(&[]).iter().take(7).cloned().collect() };
            let (Some(a), Some(b)) = (case.reference.elements(), case.subject.elements()) else { return false };
            case.name == "COMMAND"
                && case.arg(1) == "INFO"
                && case.version < (7, 4)
                && a.len() == b.len()
                && a.iter().zip(b).all(|(a, b)| row(a) == row(b) || changed(a) && name(a) == name(b))
        },
    },
    Rule {
        name: "debugging in a pipeline",
        why: Why::Inherent("whether SCRIPT DEBUG is refused for being in a pipeline depends on what the server has read so far"),
        equal: |case| {
            case.name == "SCRIPT"
                && case.arg(1) == "DEBUG"
                && case.reference.is_error("ERR SCRIPT DEBUG must be called outside a pipeline")
        },
    },
    Rule {
        name: "slots in scripts",
        why: Why::Version("7.0 knows one error for all keys that a script may not use in a cluster, later versions tell more"),
        equal: |case| {
            let script = ["EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO", "FCALL", "FCALL_RO"].contains(&case.name);
            let tells = |frame: &Frame, words: &str| format!("{frame:?}").contains(words.trim_matches(['[', ']']));
            script
                && case.version < (7, 4)
                && tells(case.reference, &format!("{:?}", b"Script attempted to access a non local key in a cluster node"))
                && tells(case.subject, &format!("{:?}", b"hash to the same slot"))
        },
    },
    Rule {
        name: "waiting for a stream that goes",
        why: Why::Version(
            "7.0 says in other words that a stream or its group is gone for which somebody waits, and looks at no other key than the one that \
             has something; later versions execute the whole request again",
        ),
        equal: |case| {
            let waits = matches!(case.name, "XREAD" | "XREADGROUP") && case.call.iter().any(|arg| upper(arg) == "BLOCK");
            let elements = case.reference.elements().zip(case.subject.elements());
            let more = elements.is_some_and(|(a, b)| a.len() < b.len() && a.iter().all(|given| b.contains(given)));
            waits
                && case.version < (7, 4)
                && !matches!(case.reference, Frame::Null | Frame::NilArray)
                && (case.subject.is_error("NOGROUP") || case.subject.is_error("WRONGTYPE") || more)
        },
    },
    Rule {
        name: "a destination alone",
        why: Why::Inherent(
            "of PFMERGE with one key Redis finds no key, not even to see whether a user may write there; here that is one",
        ),
        equal: |case| {
            let asked = case.name == "COMMAND" || case.name == "ACL" && case.arg(1) == "DRYRUN";
            asked && case.call.len() > 2 && upper(&case.call[case.call.len() - 2]) == "PFMERGE"
        },
    },
    Rule {
        name: "databases of a cluster",
        why: Why::Version("a cluster has one database; 7.0 shows more, though none of them can be reached"),
        equal: |case| {
            let asks =
                case.name == "CONFIG" && case.arg(1) == "GET" && case.call[2..].iter().any(|name| upper(name) == "DATABASES");
            let cut = |frame: &Frame| format!("{:?}", sorted(frame)).replace("[49, 54]", "[49]");
            asks && case.version < (7, 4) && cut(case.reference) == cut(case.subject)
        },
    },
    Rule {
        name: "the last id of a group",
        why: Why::Version("7.0 knows no + for the last id, and says so of XREADGROUP in other words"),
        equal: |case| {
            case.name == "XREADGROUP"
                && case.version < (7, 4)
                && case.reference.is_error("ERR Invalid stream ID specified")
                && case.subject.is_error("ERR The + ID is meaningless")
        },
    },
    Rule {
        name: "keys of a slot",
        why: Why::Inherent("the keys of a slot are listed in the order of a table"),
        equal: |case| case.name == "CLUSTER" && case.arg(1) == "GETKEYSINSLOT" && same_elements(case.reference, case.subject, 1),
    },
    Rule {
        name: "sanitizing in 7.0",
        why: Why::Version("7.0 does not show of users whether the payloads that they restore are looked through"),
        equal: |case| {
            let without = |frame: &Frame| {
                format!("{frame:?}")
                    .replace(&shown(b"sanitize-payload "), "")
                    .replace(&format!(", {:?}", Frame::Bulk(b"sanitize-payload".to_vec())), "")
            };
            case.name == "ACL"
                && case.version < (7, 4)
                && matches!(case.arg(1).as_str(), "LIST" | "GETUSER")
                && without(case.reference) == without(case.subject)
        },
    },
];

/// Bytes as in the debug output of a larger value.
fn shown(bytes: &[u8]) -> String {
    let listed = format!("{bytes:?}");
    format!("{}, ", listed.trim_matches(['[', ']']))
}

/// Sorts the elements of all collections.
fn sorted(frame: &Frame) -> Frame {
    match frame {
        Frame::Aggregate(kind, elements) => {
            let mut elements: Vec<Frame> = elements.iter().map(sorted).collect();
            elements.sort_by_key(|element| format!("{element:?}"));
            Frame::Aggregate(*kind, elements)
        }
        frame => frame.clone(),
    }
}
