//! The rules: where two correct servers may give different replies, with the reason of each. Replies that no rule covers must be
//! equal byte for byte.

use std::collections::BTreeSet;

use crate::common::wire::Frame;
use crate::generate::{Call, upper};
use crate::rules_of_administration;

/// A call with the different replies of both servers.
pub struct Case<'a> {
    /// The call.
    pub call: &'a Call,
    /// The command's name in upper case.
    pub name: &'a str,
    /// The reference's reply to the call just before, if that was a probe for this one.
    pub probe: Option<&'a Frame>,
    /// The reference's reply.
    pub reference: &'a Frame,
    /// The subject's reply.
    pub subject: &'a Frame,
    /// The reference's version, `(major, minor)`.
    pub version: (u32, u32),
}

impl Case<'_> {
    /// An argument in upper case; empty if there is none.
    pub fn arg(&self, at: usize) -> String {
        self.call.get(at).map(|arg| upper(arg)).unwrap_or_default()
    }
}

/// The reason why the servers may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Two runs of the same server differ.
    Inherent(&'static str),
    /// Versions of Redis differ.
    Version(&'static str),
}

/// A rule: where it applies, and what must be equal there.
pub struct Rule {
    /// The name in the summary.
    pub name: &'static str,
    /// The reason.
    pub why: Why,
    /// Whether the rule applies to the case and its replies are equal by the rule.
    pub equal: fn(&Case) -> bool,
}

/// The rule for groups of calls whose replies differ only in the positions of messages.
pub const DELIVERIES: &str = "order of deliveries";

/// The rule for invalidations of the same keys in other groups.
pub const INVALIDATIONS: &str = "groups of invalidations";

/// All rules.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().chain(rules_of_administration::RULES)
}

/// The rules about data, connections and the server's state.
const RULES: &[Rule] = &[
    Rule {
        name: "order of keys",
        why: Why::Inherent("KEYS and a whole SCAN go through a table whose order depends on a random hash seed"),
        equal: |case| match case.name {
            "KEYS" => same_elements(case.reference, case.subject, 1),
            "SCAN" => same_page(case, 1),
            _ => false,
        },
    },
    Rule {
        name: "order of fields",
        why: Why::Inherent("a hash that is kept in a table has no order; one with field deadlines is kept in the order of these"),
        equal: |case| {
            let unordered =
                matches!(case.probe, Some(Frame::Bulk(encoding)) if encoding == b"hashtable" || encoding == b"listpackex");
            let values = !case.call.iter().any(|arg| upper(arg) == "NOVALUES");
            unordered
                && match case.name {
                    "HKEYS" | "HVALS" => same_elements(case.reference, case.subject, 1),
                    "HGETALL" => same_elements(case.reference, case.subject, 2),
                    "HSCAN" => same_page(case, if values { 2 } else { 1 }),
                    _ => false,
                }
        },
    },
    Rule {
        name: "order of members",
        why: Why::Inherent("ZSCAN of a sorted set that is kept in a table goes through it in the order of a random hash seed"),
        equal: |case| {
            let (reference, subject) = (shortest_doubles(case.reference), shortest_doubles(case.subject));
            let written_alike = Case { reference: &reference, subject: &subject, ..*case };
            case.name == "ZSCAN"
                && matches!(case.probe, Some(Frame::Bulk(encoding)) if encoding == b"skiplist")
                && same_page(if case.version < (7, 4) { &written_alike } else { case }, 2)
        },
    },
    Rule {
        name: "members that are not sorted",
        why: Why::Inherent(
            "SORT BY what is no pattern gives the members of a set in the order of a table with a random hash seed",
        ),
        equal: |case| {
            let unsorted = case.call.iter().any(|arg| upper(arg) == "BY") && is_status(case.probe, "set");
            let part = case.call.iter().any(|arg| upper(arg) == "LIMIT" || upper(arg) == "GET");
            let equal = |a: &Frame, b: &Frame| same_elements(a, b, 1) || part && same_shape(a, b);
            matches!(case.name, "SORT" | "SORT_RO") && unsorted && equal(case.reference, case.subject)
        },
    },
    Rule {
        name: "texts up to their first NUL",
        why: Why::Inherent("SORT ALPHA compares as strcoll does, up to the first NUL; what is equal so far comes in any order"),
        equal: |case| {
            let cut = |frame: &Frame| match frame {
                Frame::Bulk(text) => text.split(|&b| b == 0).next().unwrap_or_default().to_vec(),
                other => format!("{other:?}").into_bytes(),
            };
            let list = |frame: &Frame| Some(frame.elements()?.iter().map(cut).collect::<Vec<_>>());
            let ambiguous = || {
                let Some(elements) = case.probe.and_then(Frame::elements) else { return false };
                elements.windows(2).any(|two| two[0] != two[1] && cut(&two[0]) == cut(&two[1]))
            };
            matches!(case.name, "SORT" | "SORT_RO")
                && case.call.iter().any(|arg| upper(arg) == "ALPHA")
                && case.reference.elements().is_some()
                && (list(case.reference) == list(case.subject) || (ambiguous() && same_arrays(case.reference, case.subject)))
        },
    },
    Rule {
        name: "numbers that are sorted",
        why: Why::Version(
            "SORT reads numbers with strtod up to 7.4, and fails as well where an earlier command left ERANGE in errno; from 8.0 on +5, \
             0x10 and blanks before a number are refused, but 1e999 is one",
        ),
        equal: |case| {
            let refused = |frame: &Frame| frame.is_error("ERR One or more scores can't be converted into double");
            let given = |frame: &Frame| frame.elements().is_some();
            matches!(case.name, "SORT" | "SORT_RO")
                && (refused(case.reference) && given(case.subject)
                    || case.version >= (7, 4) && given(case.reference) && refused(case.subject))
        },
    },
    Rule {
        name: "ranges of members with different scores",
        why: Why::Inherent(
            "what BYLEX finds where scores differ is left open: Redis goes down the random levels of its skip list; small sets are compared",
        ),
        equal: |case| {
            let by_lex = case.name.ends_with("BYLEX") || case.name == "ZLEXCOUNT" || case.name == "ZRANGE";
            let success = |frame: &Frame| frame.elements().is_some() || frame.integer().is_some();
            by_lex
                && matches!(case.probe, Some(Frame::Bulk(encoding)) if encoding == b"skiplist")
                && success(case.reference)
                && success(case.subject)
        },
    },
    Rule {
        name: "doubles",
        why: Why::Version("7.0 writes a double with 17 digits, 7.2 and later with as few as read back the same"),
        equal: |case| {
            let scored = ["Z", "BZ", "EVAL", "FCALL"].iter().any(|start| case.name.starts_with(start));
            case.version < (7, 4) && scored && same_doubles(case.reference, case.subject)
        },
    },
    Rule {
        name: "coordinates",
        why: Why::Version("7.0 writes a coordinate as a long double with 17 digits behind the point, later versions as a double"),
        equal: |case| case.version < (7, 4) && case.name.starts_with("GEO") && nearly_same_doubles(case.reference, case.subject),
    },
    Rule {
        name: "members equally near",
        why: Why::Inherent(
            "which of the members at one distance COUNT leaves is left open: Redis sorts by halves that it looks at no more",
        ),
        equal: |case| {
            let distances = |frame: &Frame| -> Option<Vec<Frame>> {
                Some(
                    frame
                        .elements()?
                        .iter()
                        .map(|found| found.elements().map_or(Frame::NilBulk, |found| found[1].clone()))
                        .collect(),
                )
            };
            let has = |word: &str| case.call.iter().any(|arg| upper(arg) == word);
            // Without distances in the reply, only the last element may differ: several may have the same distance.
            let but_the_last = |frame: &Frame| frame.elements().and_then(<[Frame]>::split_last).map(|(_, rest)| rest.to_vec());
            let left =
                !has("WITHDIST") && but_the_last(case.reference).is_some_and(|rest| Some(rest) == but_the_last(case.subject));
            if case.name.starts_with("GEO") && has("COUNT") && left {
                return true;
            }
            case.name.starts_with("GEO")
                && case.call.iter().any(|arg| upper(arg) == "COUNT")
                && case.call.iter().any(|arg| upper(arg) == "WITHDIST")
                && same_shape(case.reference, case.subject)
                && distances(case.reference) == distances(case.subject)
        },
    },
    Rule {
        name: "negative offsets",
        why: Why::Version(
            "LIMIT with a negative offset gives nothing, except of a skip list from 7.4 on, which then counts from the other end",
        ),
        equal: |case| {
            let negative = |at: &Vec<u8>| at.len() > 1 && at.starts_with(b"-");
            let limited = case.call.windows(2).any(|pair| upper(&pair[0]) == "LIMIT" && negative(&pair[1]));
            case.version >= (7, 4)
                && case.name.starts_with('Z')
                && limited
                && case.subject.elements().is_some_and(<[Frame]>::is_empty)
        },
    },
    Rule {
        name: "order of a set's members",
        why: Why::Inherent(
            "a set that is kept in a table has no order, nor has what is computed from one or gathered in one; before 7.2 all but small \
             sets of integers are, and a set of integers may be one elsewhere and none here",
        ),
        equal: |case| {
            let Some(Frame::Bulk(form)) = case.probe else { return false };
            let gathered = matches!(case.name, "SUNION" | "SDIFF" | "SPOP");
            // Integers are in a hash table too, once there are too many of them for an intset.
            let shuffled = || !matches!(case.reference.elements(), Some(e) if e.is_sorted_by_key(|n| n.text().and_then(number)));
            let unordered = form == b"hashtable" || case.version < (7, 4) || (gathered && (form == b"listpack" || shuffled()));
            unordered
                && match case.name {
                    "SMEMBERS" | "SINTER" | "SUNION" | "SDIFF" | "SPOP" => same_elements(case.reference, case.subject, 1),
                    "SSCAN" => same_page(case, 1),
                    _ => false,
                }
        },
    },
    Rule {
        name: "times of consumers",
        why: Why::Inherent(
            "XINFO and XPENDING show when consumers asked and entries were given, and how many nodes the tree of a stream has",
        ),
        equal: |case| {
            matches!(case.name, "XINFO" | "XPENDING") && case.version >= (7, 4) && near_but(case.reference, case.subject)
        },
    },
    Rule {
        name: "an odd number of streams",
        why: Why::Version("XREAD and XREADGROUP say it with other words in 7.0"),
        equal: |case| {
            let unbalanced = |frame: &Frame| frame.is_error("ERR Unbalanced");
            case.version < (7, 4) && unbalanced(case.reference) && unbalanced(case.subject)
        },
    },
    Rule {
        name: "groups of 7.0",
        why: Why::Version(
            "7.0 counts otherwise how far a group has read, and knows nothing of when a consumer was active; names and pending entries are compared",
        ),
        equal: |case| {
            case.version < (7, 4)
                && matches!(case.name, "XINFO" | "XPENDING")
                && without_progress(case.reference) == without_progress(case.subject)
        },
    },
    Rule {
        name: "order of directives",
        why: Why::Inherent(
            "CONFIG GET with several names or a pattern lists what it found in the order of a table with a random hash seed",
        ),
        equal: |case| case.name == "CONFIG" && case.arg(1) == "GET" && same_elements(case.reference, case.subject, 2),
    },
    Rule {
        name: "page of a scan",
        why: Why::Inherent(
            "what one page of SCAN and its kin holds, and its cursor, depend on the layout of the table; full scans are compared",
        ),
        equal: |case| {
            matches!(case.name, "SCAN" | "HSCAN" | "SSCAN" | "ZSCAN")
                && [case.reference, case.subject]
                    .iter()
                    .all(|frame| matches!(frame.elements(), Some([Frame::Bulk(_), Frame::Aggregate(b'*', _)])))
                && (case.arg(if case.name == "SCAN" { 1 } else { 2 }) != "0"
                    || [case.reference, case.subject]
                        .iter()
                        .any(|frame| !matches!(frame.elements(), Some([Frame::Bulk(cursor), _]) if cursor == b"0")))
        },
    },
    Rule {
        name: "remaining time",
        why: Why::Inherent(
            "the servers run the command at slightly different moments; a deadline may be off by as much, at most 20 s",
        ),
        equal: |case| {
            let tolerance = match case.name {
                "TTL" | "EXPIRETIME" | "HTTL" | "HEXPIRETIME" => 20,
                "PTTL" | "PEXPIRETIME" | "HPTTL" | "HPEXPIRETIME" => 20_000,
                _ => return false,
            };
            near(case.reference, case.subject, tolerance)
        },
    },
    Rule {
        name: "idle time",
        why: Why::Inherent("seconds since the key was looked at, by a clock that ticks differently"),
        equal: |case| {
            // All keys share the object of a small number. Its access time belongs to none of them: it may be the server's
            // uptime, or hours.
            let shared = |frame: &Frame| frame.integer().is_some_and(|idle| idle > 3600);
            case.name == "OBJECT"
                && case.arg(1) == "IDLETIME"
                && (near(case.reference, case.subject, 600) || (shared(case.reference) && case.subject.integer().is_some()))
        },
    },
    Rule {
        name: "reference count",
        why: Why::Inherent(
            "how many keys share the object of a small number, and whether the requests of a transaction hold what they have stored, is a \
             matter of Redis's memory; here all share it, after COPY too, and none holds it",
        ),
        equal: |case| {
            let counts = case.reference.integer().zip(case.subject.integer());
            case.name == "OBJECT" && case.arg(1) == "REFCOUNT" && matches!(counts, Some((1, 2_147_483_647) | (2, 1)))
        },
    },
    Rule {
        name: "random choice",
        why: Why::Inherent(
            "which key, field or member is drawn is random; it must be one that is there, and as many as the other server gave",
        ),
        equal: |case| {
            let Some(known) = case.probe.and_then(Frame::elements) else { return false };
            match case.name {
                "RANDOMKEY" => known.contains(case.reference) && known.contains(case.subject),
                "HRANDFIELD" | "SRANDMEMBER" => same_shape(case.reference, case.subject) && drawn_from(case.subject, known),
                "ZRANDMEMBER" => {
                    let known: Vec<Frame> =
                        known.iter().flat_map(|item| item.elements().unwrap_or(std::slice::from_ref(item))).cloned().collect();
                    same_shape(case.reference, case.subject) && drawn_from(case.subject, &known)
                }
                _ => false,
            }
        },
    },
    Rule {
        name: DELIVERIES,
        why: Why::Inherent(
            "a message that matches several patterns of one client comes once for each, in the order of a table; one that a RESP3 client \
             publishes to itself comes before the reply to PUBLISH on 7.0, after it from 7.2 on",
        ),
        equal: |_| false,
    },
    Rule {
        name: INVALIDATIONS,
        why: Why::Inherent(
            "with BCAST a redis-server tells once of all keys that were changed in one turn of its loop, in the order of a tree",
        ),
        equal: |_| false,
    },
    Rule {
        name: "clock",
        why: Why::Inherent("TIME is asked at two moments"),
        equal: |case| {
            let seconds = |frame: &Frame| match frame.elements() {
                Some([Frame::Bulk(seconds), Frame::Bulk(micros)]) if micros.len() <= 6 => number(seconds),
                _ => None,
            };
            let (a, b) = (seconds(case.reference), seconds(case.subject));
            case.name == "TIME" && matches!((a, b), (Some(a), Some(b)) if a.abs_diff(b) <= 20)
        },
    },
    Rule {
        name: "client ids",
        why: Why::Inherent("ids of connections count from the server's start"),
        equal: |case| {
            case.name == "CLIENT" && case.arg(1) == "ID" && case.reference.integer().is_some() && case.subject.integer().is_some()
        },
    },
    Rule {
        name: "what CLIENT INFO and CLIENT LIST show",
        why: Why::Inherent(
            "ids, addresses, ages, buffer sizes; the fields name, db, sub, psub, multi, cmd, user, redir must be equal",
        ),
        equal: |case| {
            let fields = |frame: &Frame| -> Option<Vec<String>> {
                let mut text = String::from_utf8_lossy(frame.text()?).into_owned();
                // A client that just left may still be listed, so only the line of the asking client is compared.
                let own = |line: &&str| line.contains(" flags=x") || line.contains(" cmd=client|list ");
                if let Some(line) = text.lines().find(own) {
                    text = line.to_owned();
                }
                let stable = ["name", "db", "sub", "psub", "multi", "cmd", "user", "redir"];
                let mut kept: Vec<String> = text.split_whitespace().map(str::to_string).collect();
                kept.retain(|field| field.split_once('=').is_some_and(|(name, _)| stable.contains(&name)));
                Some(kept)
            };
            let same_type = std::mem::discriminant(case.reference) == std::mem::discriminant(case.subject);
            case.name == "CLIENT"
                && same_type
                && matches!(case.arg(1).as_str(), "INFO" | "LIST")
                && fields(case.reference).is_some_and(|f| !f.is_empty())
                && fields(case.reference) == fields(case.subject)
        },
    },
    Rule {
        name: "HELLO: version and id",
        why: Why::Inherent("HELLO tells the server's version and the connection's id"),
        equal: |case| {
            let (Some(a), Some(b)) = (case.reference.elements(), case.subject.elements()) else { return false };
            case.name == "HELLO"
                && same_shape(case.reference, case.subject)
                && a.chunks(2)
                    .zip(b.chunks(2))
                    .all(|(a, b)| a == b || (a.first() == b.first() && matches!(a[0].text(), Some(b"version" | b"id"))))
        },
    },
    Rule {
        name: "HELP",
        why: Why::Version("HELP lists the subcommands that a server has, in its own words"),
        equal: |case| {
            let lines = |frame: &Frame| frame.elements().is_some_and(|e| e.iter().all(|line| matches!(line, Frame::Simple(_))));
            case.arg(1) == "HELP" && lines(case.reference) && lines(case.subject)
        },
    },
    Rule {
        name: "COMMAND COUNT",
        why: Why::Version("every version has a different number of commands"),
        equal: |case| {
            case.name == "COMMAND"
                && case.arg(1) == "COUNT"
                && case.reference.integer().is_some()
                && case.subject.integer().is_some()
        },
    },
    Rule {
        name: "end of a range before the string",
        why: Why::Version("GETRANGE of a range that ends before the first byte: 7.0 gives that byte, 7.4 and later nothing"),
        equal: |case| {
            matches!(case.name, "GETRANGE" | "SUBSTR")
                && case.version < (7, 4)
                && case.arg(3).starts_with('-')
                && matches!((case.reference, case.subject), (Frame::Bulk(one), Frame::Bulk(none)) if one.len() == 1 && none.is_empty())
        },
    },
    Rule {
        name: "the rank without an opposite",
        why: Why::Version("LPOS RANK -2^63: 7.0 takes it, later versions refuse it"),
        equal: |case| {
            // A script may call LPOS.
            case.call.iter().any(|arg| upper(arg) == "LPOS")
                && case.version < (7, 4)
                && case.call.iter().any(|arg| arg == b"-9223372036854775808")
                && case.subject.is_error("ERR value is out of range, value must between")
        },
    },
    Rule {
        name: "registers beyond the last",
        why: Why::Version(
            "a HyperLogLog with more registers than there are is corrupt in the security releases of 2025, and before these where it \
             is looked at alone",
        ),
        equal: |case| matches!(case.name, "PFCOUNT" | "PFMERGE") && case.version >= (7, 4) && case.subject.is_error("INVALIDOBJ"),
    },
    Rule {
        name: "encoding of short lists",
        why: Why::Version("7.0 keeps every list as a quicklist; from 7.2 on a short one is a listpack"),
        equal: |case| {
            let is = |frame: &Frame, encoding: &str| matches!(frame, Frame::Bulk(text) if text == encoding.as_bytes());
            case.call.iter().any(|arg| upper(arg).contains("ENCODING"))
                && case.version < (7, 4)
                && is(case.reference, "quicklist")
                && is(case.subject, "listpack")
        },
    },
    Rule {
        name: "forms of sets",
        why: Why::Version("7.0 knows no listpack for sets, and foresees nothing from the number of members to add"),
        equal: |case| {
            let form = |frame: &Frame| matches!(frame, Frame::Bulk(text) if [&b"intset"[..], b"listpack", b"hashtable"].contains(&&text[..]));
            (case.call.iter().any(|arg| upper(arg).contains("ENCODING")))
                && case.version < (7, 4)
                && form(case.reference)
                && form(case.subject)
        },
    },
    Rule {
        name: "use of a destination",
        why: Why::Version("7.0 has it that SINTERSTORE reads its destination"),
        equal: |case| {
            case.name == "COMMAND"
                && case.arg(1) == "GETKEYSANDFLAGS"
                && case.arg(2) == "SINTERSTORE"
                && case.version < (7, 4)
                && same_shape(case.reference, case.subject)
        },
    },
    Rule {
        name: "commands that tell of a value",
        why: Why::Version(
            "XCLAIM and XAUTOCLAIM show entries, and comparisons tell of a value: here that takes the permission to read, in no \
             version of Redis so far",
        ),
        equal: |case| {
            let asked = match (case.name, case.arg(1).as_str()) {
                ("COMMAND", "GETKEYSANDFLAGS" | "INFO") => 2,
                ("ACL", "DRYRUN") => 3,
                _ => return false,
            };
            let tells = |arg: &Vec<u8>| ["XCLAIM", "XAUTOCLAIM", "DELEX"].contains(&upper(arg).as_str());
            let compares = |arg: &Vec<u8>| ["IFEQ", "IFNE", "IFDEQ", "IFDNE"].contains(&upper(arg).as_str());
            case.call.iter().skip(asked).any(|arg| tells(arg) || compares(arg))
        },
    },
    Rule {
        name: "keys that options decide",
        why: Why::Version(
            "up to 7.2.15 and 7.4.10, STREAMS, STORE and STOREDIST are found where they are no options, the first one counts, and \
             so do all of several destinations: users may reach keys that are not theirs",
        ),
        equal: |case| {
            let asked = match (case.name, case.arg(1).as_str()) {
                ("COMMAND", "GETKEYS" | "GETKEYSANDFLAGS") => 2,
                ("ACL", "DRYRUN") => 3,
                _ => return false,
            };
            let count =
                |words: &[&str]| case.call.iter().skip(asked + 1).filter(|arg| words.contains(&upper(arg).as_str())).count();
            let words: Vec<String> = case.call.iter().skip(asked + 1).map(|arg| upper(arg)).collect();
            let streams = words.iter().position(|word| word == "STREAMS").unwrap_or(0);
            let is_argument =
                words[streams.saturating_sub(2)..streams].iter().any(|word| ["BLOCK", "COUNT", "GROUP"].contains(&&**word));
            match case.arg(asked).as_str() {
                "XREAD" | "XREADGROUP" => {
                    count(&["STREAMS"]) != 1 || is_argument || (words.len() - streams).is_multiple_of(2) || streams < 3
                }
                "GEORADIUS" | "GEORADIUSBYMEMBER" => count(&["STORE", "STOREDIST"]) > 0,
                "SORT" => count(&["STORE"]) > 0,
                _ => false,
            }
        },
    },
    Rule {
        name: "ranges of bits",
        why: Why::Version(
            "BITCOUNT and BITPOS: 7.0 looks at the key before it reads its other arguments, later versions after that",
        ),
        equal: |case| {
            let wrong = ["ERR syntax error", "ERR value is not an integer"].iter().any(|text| case.subject.is_error(text));
            let key_seen = case.reference.integer().is_some() || case.reference.is_error("WRONGTYPE");
            matches!(case.name, "BITCOUNT" | "BITPOS") && case.version < (7, 4) && wrong && key_seen
        },
    },
    Rule {
        name: "cursors that are no number",
        why: Why::Version(
            "7.0 reads a cursor with strtoul, so that -1 is one, and looks at the key first; 7.4 and later refuse what is no number",
        ),
        equal: |case| {
            let cursor = case.arg(if case.name == "SCAN" { 1 } else { 2 });
            let known = |frame: &Frame| {
                frame.elements().is_some_and(|e| e.len() == 2) || matches!(frame, Frame::Error(_) | Frame::NilBulk)
            };
            matches!(case.name, "SCAN" | "HSCAN" | "SSCAN" | "ZSCAN")
                && case.version < (7, 4)
                && (cursor.is_empty() || !cursor.bytes().all(|b| b.is_ascii_digit()))
                && known(case.reference)
                && known(case.subject)
        },
    },
    Rule {
        name: "unknown types",
        why: Why::Version("SCAN TYPE with a type that does not exist: nothing is found on 7.0, an error on 8"),
        equal: |case| case.name == "SCAN" && case.version < (7, 4) && case.subject.is_error("ERR unknown type name"),
    },
    Rule {
        name: "COMMAND INFO: notes",
        why: Why::Inherent("some key positions carry a note, in our own words; which of them do is compared"),
        equal: |case| {
            case.name == "COMMAND"
                && case.arg(1) == "INFO"
                && case.version >= (7, 4)
                && without_words(case.reference) == without_words(case.subject)
        },
    },
    Rule {
        name: "COMMAND INFO: tips",
        why: Why::Version(
            "tips for proxies were added and taken back between versions; names, arity, flags, keys and categories are compared",
        ),
        equal: |case| {
            let described = |frame: &Frame| -> Option<Vec<Vec<Frame>>> {
                frame
                    .elements()?
                    .iter()
                    .map(|row| Some(row.elements().unwrap_or(&[]).iter().take(7).cloned().collect()))
                    .collect()
            };
            case.name == "COMMAND"
                && case.arg(1) == "INFO"
                && case.version < (7, 4)
                && described(case.reference) == described(case.subject)
        },
    },
];

/// Without the text of notes.
pub fn without_words(frame: &Frame) -> Frame {
    let Frame::Aggregate(kind, elements) = frame else { return frame.clone() };
    let mut elements: Vec<Frame> = elements.iter().map(without_words).collect();
    if let [Frame::Bulk(key), Frame::Bulk(words), ..] = &mut elements[..]
        && key == b"notes"
    {
        words.clear();
    }
    Frame::Aggregate(*kind, elements)
}

/// Equal except for times, which must be close, and for the number of nodes.
fn near_but(a: &Frame, b: &Frame) -> bool {
    let (Some(left), Some(right)) = (a.elements(), b.elements()) else { return a == b || near(a, b, 20_000) };
    let nodes = |at: usize| at > 0 && matches!(&left[at - 1], Frame::Bulk(name) if name == b"radix-tree-nodes");
    left.len() == right.len() && left.iter().zip(right).enumerate().all(|(at, (a, b))| nodes(at) || near_but(a, b))
}

/// Without times and without figures that 7.0 counts differently or not at all.
fn without_progress(frame: &Frame) -> Frame {
    const LEFT_OUT: [&[u8]; 8] = [
        b"entries-read",
        b"lag",
        b"seen-time",
        b"active-time",
        b"idle",
        b"inactive",
        b"radix-tree-nodes",
        b"recorded-first-entry-id",
    ];
    let Frame::Aggregate(kind, elements) = frame else {
        let time = frame.integer().is_some_and(|n| n > 1_000_000_000_000);
        return if time { Frame::Null } else { frame.clone() };
    };
    let mut kept = Vec::new();
    let mut rest = elements.iter();
    while let Some(element) = rest.next() {
        match element {
            Frame::Bulk(name) if LEFT_OUT.contains(&&name[..]) => drop(rest.next()),
            element => kept.push(without_progress(element)),
        }
    }
    Frame::Aggregate(*kind, kept)
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Equal as numbers, or two times that differ by at most `tolerance`. Arrays are compared by element.
pub fn near(a: &Frame, b: &Frame, tolerance: u64) -> bool {
    match (a.integer(), b.integer()) {
        (Some(a), Some(b)) => a == b || (a >= 0 && b >= 0 && a.abs_diff(b) <= tolerance),
        _ => match (a.elements(), b.elements()) {
            (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| near(a, b, tolerance)),
            _ => a == b,
        },
    }
}

/// The replies of a group, and separately its deliveries. Deliveries of one message to several patterns are sorted.
pub fn deliveries_apart(frames: &[Frame]) -> (Vec<&Frame>, Vec<String>) {
    let kind = |frame: &Frame| frame.elements().and_then(|e| e.first()).and_then(Frame::text).unwrap_or_default().to_vec();
    let (messages, replies): (Vec<&Frame>, Vec<&Frame>) =
        frames.iter().partition(|frame| matches!(&kind(frame)[..], b"message" | b"pmessage" | b"smessage"));
    let mut deliveries: Vec<(bool, String)> = messages.iter().map(|m| (kind(m) == b"pmessage", format!("{m:?}"))).collect();
    for run in deliveries.chunk_by_mut(|a, b| a.0 && b.0) {
        run.sort_unstable();
    }
    (replies, deliveries.into_iter().map(|(_, message)| message).collect())
}

/// The keys in invalidation pushes, each once. `None` if one of the pushes is something else.
pub fn invalidated(pushes: &[Frame]) -> Option<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for push in pushes {
        match push.elements()? {
            [Frame::Bulk(kind), told] if kind == b"invalidate" => match told.elements() {
                Some(told) => keys.extend(told.iter().map(|key| format!("{key:?}"))),
                None => drop(keys.insert("all".into())),
            },
            _ => return None,
        }
    }
    Some(keys)
}

/// Equal as unordered collections of groups of `size` elements.
pub fn same_elements(a: &Frame, b: &Frame, size: usize) -> bool {
    match (a, b) {
        (Frame::Aggregate(kind, a), Frame::Aggregate(other, b)) if kind == other && a.len() == b.len() => {
            let sorted = |elements: &[Frame]| {
                let mut groups: Vec<String> = elements.chunks(size).map(|group| format!("{group:?}")).collect();
                groups.sort_unstable();
                groups
            };
            sorted(a) == sorted(b)
        }
        _ => false,
    }
}

/// A cursor of 0 and the same elements.
fn same_page(case: &Case, size: usize) -> bool {
    match (case.reference.elements(), case.subject.elements()) {
        (Some([cursor, a]), Some([other, b])) => cursor == other && same_elements(a, b, size),
        _ => false,
    }
}

/// Equal except for the text of numbers.
pub fn same_doubles(a: &Frame, b: &Frame) -> bool {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<f64>().ok();
    match (a, b) {
        (Frame::Aggregate(kind, a), Frame::Aggregate(other, b)) => {
            kind == other && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_doubles(a, b))
        }
        (Frame::Bulk(x), Frame::Bulk(y)) | (Frame::Double(x), Frame::Double(y)) => {
            x == y || matches!((number(x), number(y)), (Some(x), Some(y)) if x == y)
        }
        _ => a == b,
    }
}

/// Every number in its shortest text. Zero loses its sign, which 7.0 keeps for fewer sorted sets.
fn shortest_doubles(frame: &Frame) -> Frame {
    match frame {
        Frame::Aggregate(kind, elements) => Frame::Aggregate(*kind, elements.iter().map(shortest_doubles).collect()),
        Frame::Bulk(text) => match std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok()) {
            Some(number) => Frame::Bulk((number + 0.0).to_string().into_bytes()),
            None => frame.clone(),
        },
        frame => frame.clone(),
    }
}

/// Equal except for the last digits of numbers.
fn nearly_same_doubles(a: &Frame, b: &Frame) -> bool {
    let number = |frame: &Frame| match frame {
        Frame::Bulk(text) | Frame::Double(text) => std::str::from_utf8(text).ok()?.parse::<f64>().ok(),
        _ => None,
    };
    match (a.elements(), b.elements()) {
        (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| nearly_same_doubles(a, b)),
        _ => a == b || matches!((number(a), number(b)), (Some(a), Some(b)) if (a - b).abs() <= 1e-13),
    }
}

/// Equal types and lengths.
pub fn same_shape(a: &Frame, b: &Frame) -> bool {
    match (a, b) {
        (Frame::Aggregate(kind, a), Frame::Aggregate(other, b)) => {
            kind == other && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_shape(a, b))
        }
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

/// Arrays of equal length.
fn same_arrays(a: &Frame, b: &Frame) -> bool {
    matches!((a.elements(), b.elements()), (Some(a), Some(b)) if a.len() == b.len())
}

fn is_status(frame: Option<&Frame>, text: &str) -> bool {
    matches!(frame, Some(Frame::Simple(status)) if status == text.as_bytes())
}

/// Whether every leaf is one of the known elements.
fn drawn_from(frame: &Frame, known: &[Frame]) -> bool {
    match frame.elements() {
        Some(elements) => elements.iter().all(|element| drawn_from(element, known)),
        None => known.iter().any(|known| same_doubles(known, frame)),
    }
}
