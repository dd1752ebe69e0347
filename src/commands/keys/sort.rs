//! `SORT`: sorts the elements of a list, a set or a sorted set as numbers or as text, by their own values or by those of other
//! keys.
//!
//! ```text
//!   load the elements ─▶ get weights (BY) ─▶ sort the part that LIMIT selects ─▶ look up the results (GET) ─▶ reply or STORE
//! ```
//! With patterns, a short request can look up long keys and return long values many times. A `Budget` limits the number of
//! bytes.

use std::cmp::Ordering;
use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::base::number::parse_score;
use crate::engine::cluster::key_slot;
use crate::engine::command::keys::{Begin, Find, KeyAt, KeyPositions, KeySpec, KeyUse};
use crate::engine::command::options::{self, integer, words};
use crate::engine::command::{Access, Categories, Command, Flags, Group, Keys, row, rows};
use crate::engine::context::{Caller, Context};
use crate::keyspace::change::Event;
use crate::keyspace::databases::Db;
use crate::store::entry::ValueRef;
use crate::store::values::list::Digits;
use crate::store::values::value::Value;

/// Maximum bytes of keys that patterns look up and of values that they find. Less in tests, which copy that much.
const LOOKUP_BYTES_MAX: usize = if cfg!(test) { 1 << 24 } else { 1 << 30 };
/// Maximum number of values that several patterns return.
const VALUES_MAX: usize = 10_000_000;
/// A number as text is shorter than this, in bytes.
const NUMBER_TEXT_MAX: usize = 5 * 1024;

const PATTERNS_NOTE: &str = "The keys that BY and GET refer to depend on the sorted elements.";

const SORT: Command = Command {
    group: Group::Generic,
    categories: Categories::SET.union(Categories::SORTEDSET).union(Categories::LIST).union(Categories::DANGEROUS),
    complexity: "O(N+M*log(M)) for N elements, of which M are returned; O(N) without sorting",
    ..Command::DEFAULT
};

/// The options of `SORT`.
const OPTIONS: options::Options = &[(STORE, 1), ("ASC", 0), ("DESC", 0), ("ALPHA", 0), ("LIMIT", 2), ("GET", 1), ("BY", 1)];
/// Those of `SORT_RO`.
const OPTIONS_RO: options::Options = OPTIONS.split_at(1).1;
const STORE: &str = "STORE";

/// The sorted key.
const SORTED: KeySpec = KeySpec {
    access: Access::Read,
    uses: KeyUse::ACCESS,
    begin: Begin::Index(1),
    find: Find::Range { last: 0, step: 1, limit: 0 },
};
/// The keys that patterns refer to.
const REFERRED: KeySpec = KeySpec { begin: Begin::Nowhere, ..SORTED };
const STORED: KeySpec = KeySpec { access: Access::Overwrite, uses: KeyUse::UPDATE, begin: Begin::Option, ..SORTED };

/// The sorted key and the destination, of which the last one counts.
fn find_keys(args: &[&[u8]]) -> Option<KeyPositions> {
    let store = words(args, 2, OPTIONS).filter(|word| word.name == STORE).last();
    (args.len() > 1).then(|| std::iter::once(KeyAt::read(1)).chain(store.map(|word| word.destination())).collect())
}

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("sort", |cx, args| sort(cx, args, false),
        "key [BY by-pattern:pattern] [LIMIT offset count] [GET get-pattern:pattern [GET get-pattern:pattern ...]] [ASC | DESC] \
                 [ALPHA] [STORE destination]",
        "Sorts the elements of a list, a set or a sorted set. Returns or stores them, or the values of keys derived from them.";
        flags: Flags::WRITE.union(Flags::DENYOOM), keys: Keys::Parsed { shown: &[SORTED, REFERRED, STORED], find: find_keys },
        key_notes: &["", PATTERNS_NOTE, "STORE may be at any position after the key."], ..SORT),
    row!("sort_ro", |cx, args| sort(cx, args, true),
        "key [BY by-pattern:pattern] [LIMIT offset count] [GET get-pattern:pattern [GET get-pattern:pattern ...]] [ASC | DESC] \
                 [ALPHA]",
        "Sorts the elements of a list, a set or a sorted set. Returns them, or the values of keys derived from them.";
        flags: Flags::READONLY, keys: Keys::Parsed {
            shown: &[SORTED, REFERRED],
            find: |args| (args.len() > 1).then(|| [KeyAt::read(1)].into_iter().collect()),
        }, key_notes: &["", PATTERNS_NOTE], since: "7.0.0", ..SORT),
]);

/// What a pattern refers to, for a given element.
#[derive(Clone, Copy)]
enum Pattern<'a> {
    /// `#`: the element itself.
    Element,
    /// Nothing: the pattern has no `*`.
    Nothing,
    /// A key: the parts before and after the element, and a field if the key is a hash.
    Key { before: &'a [u8], after: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    /// Parses a pattern. Like Redis, it searches for `*` and `->` only up to the first NUL.
    fn parse(text: &'a [u8]) -> Pattern<'a> {
        let searched = text.split(|&b| b == 0).next().unwrap_or_default();
        if searched == b"#" {
            return Pattern::Element;
        }
        let Some(star) = searched.iter().position(|&b| b == b'*') else { return Pattern::Nothing };
        let (before, after) = (&text[..star], &text[star + 1..]);
        let arrow = searched[star + 1..].windows(2).position(|two| two == b"->");
        match arrow.filter(|&at| star + 1 + at + 2 < searched.len()) {
            Some(at) => Pattern::Key { before, after: &after[..at], field: Some(&after[at + 2..]) },
            None => Pattern::Key { before, after, field: None },
        }
    }
}

/// The hash slot of all keys that a pattern can refer to; `None` if they can be in several slots. As in Redis, the pattern is
/// read as one of `KEYS`, and a pattern that refers to no key has the slot of its text.
fn pattern_slot(pattern: &[u8]) -> Option<u16> {
    let tag = pattern.iter().position(|&b| b == b'{').and_then(|open| {
        let len = pattern[open + 1..].iter().position(|&b| b == b'}')?;
        (len > 0).then_some(open + 1..open + 1 + len)
    });
    let hashed = &pattern[..tag.map_or(pattern.len(), |tag| tag.end)];
    let wild = hashed.iter().any(|b| b"*?[\\".contains(b));
    (!wild).then(|| key_slot(pattern))
}

/// The number of bytes that a request may still look up.
struct Budget(usize);

impl Budget {
    fn take(&mut self, bytes: usize) -> Result {
        self.0 = self.0.checked_sub(bytes).ok_or(Error::SORT_TOO_MUCH)?;
        Ok(())
    }
}

/// The options of a request.
struct Options<'a> {
    by: Option<Pattern<'a>>,
    /// BY has a pattern without `*`: the elements are not sorted.
    unsorted: bool,
    limit: Option<(i64, i64)>,
    get: Vec<Pattern<'a>>,
    descending: bool,
    alpha: bool,
    store: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(cx: &Context<'_>, args: &[&'a [u8]], read_only: bool) -> Result<Options<'a>> {
        let mut options =
            Options { by: None, unsorted: false, limit: None, get: Vec::new(), descending: false, alpha: false, store: None };
        let every_key = cx.engine.permits_reading_every_key(cx.session, cx.command, args);
        let slot = cx.engine.in_cluster().then(|| key_slot(args[1]));
        let elsewhere = |pattern: &[u8]| slot.is_some() && pattern_slot(pattern) != slot;
        for word in words(args, 2, if read_only { OPTIONS_RO } else { OPTIONS }) {
            match (word.name, word.args) {
                ("ASC" | "DESC", _) => options.descending = word.name == "DESC",
                ("ALPHA", _) => options.alpha = true,
                ("LIMIT", [offset, count]) => options.limit = Some((integer(offset)?, integer(count)?)),
                (STORE, [key]) => options.store = Some(key),
                ("BY", [text]) => {
                    let pattern = Pattern::parse(text);
                    if !matches!(pattern, Pattern::Key { .. }) {
                        options.unsorted = true;
                    } else if elsewhere(text) {
                        return Err(Error::SORT_BY_ELSEWHERE);
                    } else if !every_key {
                        return Err(Error::SORT_BY_DENIED);
                    }
                    options.by = Some(pattern);
                }
                ("GET", [pattern]) => {
                    fail_if!(elsewhere(pattern), Error::SORT_GET_ELSEWHERE);
                    fail_if!(!every_key, Error::SORT_GET_DENIED);
                    options.get.push(Pattern::parse(pattern));
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }

    /// The selected elements, given the number of all elements.
    fn range(&self, len: usize) -> Range<usize> {
        let Some((offset, count)) = self.limit else { return 0..len };
        let start = usize::try_from(offset.max(0)).unwrap_or(usize::MAX).min(len);
        let count = if count < 0 { len } else { usize::try_from(count).unwrap_or(usize::MAX) };
        start..start.saturating_add(count).min(len)
    }
}

/// Strings in one buffer. A string may be missing.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    spans: Vec<Option<(usize, usize)>>,
}

impl Strings {
    fn push(&mut self, string: &[u8]) {
        self.spans.push(Some((self.bytes.len(), self.bytes.len() + string.len())));
        self.bytes.extend_from_slice(string);
    }

    fn push_missing(&mut self) {
        self.spans.push(None);
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        self.spans[index].map(|(start, end)| &self.bytes[start..end])
    }

    fn len(&self) -> usize {
        self.spans.len()
    }
}

/// The elements of a key, and whether they are sorted already.
struct Loaded {
    elements: Strings,
    /// The selected elements; all of them if only the selected ones were loaded.
    range: Range<usize>,
    sorted: bool,
}

/// Loads the elements. If they are not to be sorted, loads only the selected ones.
fn load(cx: &mut Context<'_>, key: &[u8], options: &mut Options<'_>) -> Result<Loaded> {
    let stable = options.store.is_some() || cx.caller == Caller::Script;
    let mut db = cx.db();
    let mut elements = Strings::default();
    let mut digits = Digits::new();
    // As Redis does before it sorts.
    db.make_zset_large(key);
    let value = db.read(key).map(|entry| entry.value());
    let len = match value {
        None => 0,
        Some(ValueRef::Boxed(Value::List(list))) => list.len(),
        Some(ValueRef::Boxed(Value::Set(set))) => {
            if options.unsorted && stable {
                // A result that is stored or comes from a script must not depend on the order of a hash table.
                (options.unsorted, options.alpha, options.by) = (false, true, None);
            }
            set.len()
        }
        Some(ValueRef::Boxed(Value::ZSet(zset))) => zset.len(),
        Some(_) => return Err(Error::WRONG_TYPE),
    };
    let range = options.range(len);
    let part = if options.unsorted { range.clone() } else { 0..len };
    let backward = options.unsorted && options.descending;
    match value {
        Some(ValueRef::Boxed(Value::List(list))) => {
            let from = if backward { list.iter_back_from(len.wrapping_sub(part.start + 1)) } else { list.iter_from(part.start) };
            from.take(part.len()).for_each(|element| elements.push(element.text(&mut digits)));
        }
        Some(ValueRef::Boxed(Value::Set(set))) => {
            set.iter().skip(part.start).take(part.len()).for_each(|member| elements.push(member.text(&mut digits)));
        }
        Some(ValueRef::Boxed(Value::ZSet(zset))) => {
            let ranks = if backward { len - part.end..len - part.start } else { part.clone() };
            zset.items(ranks, backward).for_each(|item| elements.push(item.member));
        }
        _ => {}
    }
    if options.unsorted {
        return Ok(Loaded { range: 0..elements.len(), elements, sorted: true });
    }
    Ok(Loaded { elements, range, sorted: false })
}

/// Looks up what a pattern refers to and passes it to `found`: a string, or the value of a field of a hash.
fn look_up<T>(
    db: &mut Db<'_>,
    pattern: Pattern<'_>,
    element: &[u8],
    buffer: &mut Vec<u8>,
    budget: &mut Budget,
    found: impl FnOnce(Option<&[u8]>, &mut Budget) -> Result<T>,
) -> Result<T> {
    let (before, after, field) = match pattern {
        Pattern::Element => return found(Some(element), budget),
        Pattern::Nothing => return found(None, budget),
        Pattern::Key { before, after, field } => (before, after, field),
    };
    budget.take(before.len() + element.len() + after.len() + field.map_or(0, <[u8]>::len))?;
    buffer.clear();
    for part in [before, element, after] {
        buffer.extend_from_slice(part);
    }
    match field {
        None => found(db.read(buffer).and_then(|entry| entry.bytes()), budget),
        Some(name) => {
            let hash = db.hash(buffer).ok().flatten();
            found(hash.and_then(|hash| hash.get(name)).map(|field| field.value), budget)
        }
    }
}

/// Parses a number like C's `strtod`, up to the first NUL: leading whitespace is skipped, and an empty text is 0.
fn weight(text: &[u8]) -> Option<f64> {
    let text = text[..text.len().min(NUMBER_TEXT_MAX)].split(|&b| b == 0).next().unwrap_or_default();
    match text.len() {
        0 => return Some(0.0),
        NUMBER_TEXT_MAX.. => return None,
        _ => {}
    }
    let blanks = text.iter().take_while(|b| b.is_ascii_whitespace() || **b == 0x0b).count();
    // A subnormal number is out of range, too.
    parse_score(&text[blanks..]).filter(|number| !number.is_subnormal())
}

/// The indexes of the elements in sorted order. Outside of the selected range, the order is undefined.
fn order(cx: &mut Context<'_>, options: &Options<'_>, loaded: &Loaded, budget: &mut Budget) -> Result<Vec<usize>> {
    let elements = &loaded.elements;
    let element = |index: usize| elements.get(index).unwrap_or_default();
    let directed = |order: Ordering| if options.descending { order.reverse() } else { order };
    let mut rows: Vec<usize> = (0..elements.len()).collect();
    let mut db = cx.db();
    let mut buffer = Vec::new();
    if !options.alpha {
        let mut weights = Vec::with_capacity(rows.len());
        let mut all_numbers = true;
        for index in 0..elements.len() {
            let pattern = options.by.unwrap_or(Pattern::Element);
            let number = look_up(&mut db, pattern, element(index), &mut buffer, budget, |value, budget| {
                budget.take(if options.by.is_some() { value.map_or(0, |text| text.len().min(NUMBER_TEXT_MAX)) } else { 0 })?;
                Ok(value.map_or(Some(0.0), weight))
            })?;
            all_numbers &= number.is_some();
            weights.push(number.unwrap_or(0.0));
        }
        fail_if!(!all_numbers, Error::SORT_NOT_DOUBLE);
        // Elements with equal weights are ordered by their text, so that the result does not depend on their storage order.
        let compare = |&a: &usize, &b: &usize| {
            let weights = weights[a].partial_cmp(&weights[b]).unwrap_or(Ordering::Equal);
            directed(weights.then_with(|| element(a).cmp(element(b)))).then(a.cmp(&b))
        };
        sort_part(&mut rows, loaded.range.clone(), compare);
    } else if let Some(pattern) = options.by {
        let mut texts = Strings::default();
        for index in 0..elements.len() {
            look_up(&mut db, pattern, element(index), &mut buffer, budget, |value, budget| {
                budget.take(value.map_or(0, <[u8]>::len))?;
                match value {
                    Some(text) => texts.push(text),
                    None => texts.push_missing(),
                }
                Ok(())
            })?;
        }
        sort_part(&mut rows, loaded.range.clone(), |&a, &b| directed(texts.get(a).cmp(&texts.get(b))).then(a.cmp(&b)));
    } else {
        sort_part(&mut rows, loaded.range.clone(), |&a, &b| directed(element(a).cmp(element(b))).then(a.cmp(&b)));
    }
    Ok(rows)
}

/// Sorts only the rows that belong into the range.
fn sort_part(rows: &mut [usize], range: Range<usize>, compare: impl Fn(&usize, &usize) -> Ordering) {
    if range.is_empty() {
        return;
    }
    let mut part = rows;
    if range.end < part.len() {
        part.select_nth_unstable_by(range.end - 1, &compare);
        part = &mut part[..range.end];
    }
    if range.start > 0 {
        part.select_nth_unstable_by(range.start, &compare);
        part = &mut part[range.start..];
    }
    part.sort_unstable_by(&compare);
}

fn sort(cx: &mut Context<'_>, args: &[&[u8]], read_only: bool) -> Result {
    let mut options = Options::parse(cx, args, read_only)?;
    let loaded = load(cx, args[1], &mut options)?;
    let mut budget = Budget(LOOKUP_BYTES_MAX);
    let rows = if loaded.sorted { (0..loaded.elements.len()).collect() } else { order(cx, &options, &loaded, &mut budget)? };
    let rows = &rows[loaded.range.clone()];
    let elements = &loaded.elements;
    if matches!(options.get[..], [] | [Pattern::Element]) {
        let given = rows.iter().map(|&index| elements.get(index));
        return reply_or_store(cx, &options, given);
    }
    fail_if!(options.get.len() > 1 && rows.len().saturating_mul(options.get.len()) > VALUES_MAX, Error::SORT_TOO_MUCH);
    let mut values = Strings::default();
    let (mut db, mut buffer) = (cx.db(), Vec::new());
    for &index in rows {
        for pattern in &options.get {
            look_up(&mut db, *pattern, elements.get(index).unwrap_or_default(), &mut buffer, &mut budget, |value, budget| {
                budget.take(value.map_or(0, <[u8]>::len))?;
                match value {
                    Some(value) => values.push(value),
                    None => values.push_missing(),
                }
                Ok(())
            })?;
        }
    }
    reply_or_store(cx, &options, (0..values.len()).map(|index| values.get(index)))
}

/// Replies with values, or stores them and replies with their number.
fn reply_or_store<'v>(
    cx: &mut Context<'_>,
    options: &Options<'_>,
    values: impl ExactSizeIterator<Item = Option<&'v [u8]>>,
) -> Result {
    let Some(key) = options.store else {
        cx.reply.array(values.len());
        for value in values {
            if let Some(value) = value { cx.reply.bulk(value) } else { cx.reply.null() }
        }
        return Ok(());
    };
    let values: Vec<&[u8]> = values.map(Option::unwrap_or_default).collect();
    let now = cx.now;
    cx.engine.check_room(now, values.iter().map(|value| value.len()).sum())?;
    let mut db = cx.db();
    let before = db.keyspace.changes.count;
    db.store_list(key, &values, Event::SORTSTORE)?;
    if !values.is_empty() {
        db.keyspace.changes.count_as(before, values.len() as u64);
    }
    cx.reply.integer(values.len() as i64);
    Ok(())
}

#[cfg(test)]
#[path = "sort_tests.rs"]
mod tests;
