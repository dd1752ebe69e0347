//! The rules of `lock-expiry-publish`: which messages are published to which channels when a key has expired.
//!
//! A library whose waiters listen to a channel publishes there when a lock is released, but no message is published when it
//! expires. A rule closes that gap. It consists of three words: a pattern of keys, a channel and a message. Placeholders in braces
//! in the channel and the message are filled in. Sets of rules are shipped under the names of their libraries.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::glob;
use crate::base::words::quoted;
use crate::resp::request::split_words;

/// Maximum number of rules in force, including those of the shipped sets.
pub const RULES_MAX: usize = 64;
/// Maximum number of bytes in a word of a rule.
pub const WORD_MAX: usize = 1024;
/// Keys with longer names, in bytes, are not locks: no rule applies to them.
pub const NAME_MAX: usize = 4096;

/// A shipped set of rules, by the name of its library.
struct Shipped {
    name: &'static str,
    rules: &'static [[&'static str; 3]],
}

/// The shipped sets. The names of channels and messages come from the libraries' sources.
const SHIPPED: &[Shipped] = &[
    // RLock and other locks; the first waiter of a fair lock; RReadWriteLock, all of whose waiters retry; RCountDownLatch. An
    // expired semaphore has no permits to give, and an expirable permit is not a key.
    Shipped {
        name: "redisson",
        rules: &[
            ["*", "redisson_lock__channel:{hashtag}", "0"],
            ["*", "redisson_lock__channel:{hashtag}:{head:redisson_lock_queue:{hashtag}}", "0"],
            ["*", "redisson_rwlock:{hashtag}", "1"],
            ["*", "redisson_countdownlatch__channel__{{{name}}}", "0"],
        ],
    },
    // Spring Integration's RedisLockRegistry of the type PUB_SUB_LOCK, whose registry key has no colon in it.
    Shipped { name: "spring", rules: &[["*:*", "{1}-channel", "{name}"]] },
    // redis-lock-py.
    Shipped { name: "redis-lock-py", rules: &[["*", "rlock-channel:{name}", "ok"]] },
    // simple-redis-mutex for node-redis.
    Shipped {
        name: "simple-redis-mutex",
        rules: &[[
            "@simple-redis-mutex:lock-*",
            "@simple-redis-mutex:locks-releases",
            "{{ \"key\": \"{name}\", \"value\": \"\" }}",
        ]],
    },
];

/// A part of a channel or a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Literal text.
    Text(Vec<u8>),
    /// `{name}`: the key's name.
    Name,
    /// `{hashtag}`: the key's name in braces, unless it contains an opening brace.
    HashTag,
    /// `{1}` to `{9}`: the text that this `*` of the pattern matches, as short as possible; the last one takes the rest.
    Star(usize),
    /// `{head:key}`: the first element of the list at that key.
    Head(Vec<Part>),
}

/// A channel or a message with placeholders.
type Template = Vec<Part>;

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    words: [Vec<u8>; 3],
    channel: Template,
    message: Template,
}

/// One item of the directive's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Set(&'static str),
    Rule(Box<Rule>),
}

/// The value of `lock-expiry-publish`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    items: Vec<Item>,
    /// All rules, with those of the sets in place of the sets' names.
    rules: Arc<[Rule]>,
}

impl Rules {
    /// All rules in force, in the given order.
    pub fn all(&self) -> &Arc<[Rule]> {
        &self.rules
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Parses words and adds their rules to the existing ones; a single empty word clears all.
    pub fn with(&self, words: &[&[u8]]) -> Result<Rules, String> {
        let split;
        let words: Vec<&[u8]> = match words {
            [[]] => return Ok(Rules::default()),
            // The whole value in one pair of quotes.
            [word] if word.iter().any(u8::is_ascii_whitespace) => {
                split = split_words(word).map_err(|_| "unbalanced quotes")?;
                split.iter().map(Vec::as_slice).collect()
            }
            words => words.to_vec(),
        };
        let (mut items, mut rules) = (self.items.clone(), self.rules.to_vec());
        let mut rest = &words[..];
        while let [first, behind @ ..] = rest {
            if let Some(set) = SHIPPED.iter().find(|set| set.name.as_bytes().eq_ignore_ascii_case(first)) {
                for words in set.rules {
                    rules.push(Rule::new(words.map(|word| word.as_bytes().to_vec()))?);
                }
                items.push(Item::Set(set.name));
                rest = behind;
                continue;
            }
            let [pattern, channel, message, behind @ ..] = rest else {
                let first = String::from_utf8_lossy(first);
                let known: Vec<&str> = SHIPPED.iter().map(|set| set.name).collect();
                return Err(format!(
                    "'{first}' is neither a rule (a pattern, a channel and a message) nor the name of a shipped set of rules: {}",
                    known.join(", ")
                ));
            };
            let rule = Rule::new([pattern, channel, message].map(|word| word.to_vec()))?;
            items.push(Item::Rule(Box::new(rule.clone())));
            rules.push(rule);
            rest = behind;
        }
        fail_if!(rules.len() > RULES_MAX, format!("there can be at most {RULES_MAX} rules, not {}", rules.len()));
        Ok(Rules { items, rules: rules.into() })
    }

    /// The items of the value, each rule and each set's name separately, so that they parse to the same value.
    pub fn shown(&self) -> Vec<Vec<u8>> {
        let shown = |item: &Item| match item {
            Item::Set(name) => name.as_bytes().to_vec(),
            Item::Rule(rule) => rule.words.each_ref().map(|word| quoted(word)).join(" ").into_bytes(),
        };
        self.items.iter().map(shown).collect()
    }
}

impl Rule {
    fn new(words: [Vec<u8>; 3]) -> Result<Rule, String> {
        fail_if!(words.iter().any(|word| word.len() > WORD_MAX), format!("a word of a rule can have at most {WORD_MAX} bytes"));
        let [pattern, channel, message] = &words;
        let stars = glob::star_count(pattern);
        let (channel, message) = (parse(channel, stars)?, parse(message, stars)?);
        Ok(Rule { words, channel, message })
    }

    /// The channel for an expired key; `None` if the rule does not apply to it, or if a list whose first element it needs does
    /// not exist. `head` returns the first element of a list.
    pub fn channel(&self, name: &[u8], head: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        self.fill(&self.channel, name, head)
    }

    /// The message for an expired key, as [`Rule::channel`].
    pub fn message(&self, name: &[u8], head: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        self.fill(&self.message, name, head)
    }

    fn fill(&self, template: &Template, name: &[u8], mut head: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        if name.len() > NAME_MAX {
            return None;
        }
        let stars: SmallVec<[&[u8]; 4]> = glob::stars(&self.words[0], name)?.into_iter().map(|range| &name[range]).collect();
        let mut text = Vec::with_capacity(64);
        fill(template, name, &stars, &mut head, &mut text).then_some(text)
    }
}

fn fill(
    template: &[Part],
    name: &[u8],
    stars: &[&[u8]],
    head: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>,
    into: &mut Vec<u8>,
) -> bool {
    for part in template {
        match part {
            Part::Text(text) => into.extend_from_slice(text),
            Part::Name => into.extend_from_slice(name),
            Part::HashTag if name.contains(&b'{') => into.extend_from_slice(name),
            Part::HashTag => {
                into.push(b'{');
                into.extend_from_slice(name);
                into.push(b'}');
            }
            Part::Star(at) => into.extend_from_slice(stars.get(*at).copied().unwrap_or_default()),
            Part::Head(list) => {
                let mut key = Vec::with_capacity(64);
                // The name of a list cannot itself contain an element of a list.
                fill(list, name, stars, &mut |_| None, &mut key);
                let Some(element) = head(&key) else { return false };
                into.extend_from_slice(&element);
            }
        }
    }
    true
}

/// Parses a channel or a message.
fn parse(text: &[u8], stars: usize) -> Result<Template, String> {
    let (template, rest) = parse_until(text, stars, false)?;
    debug_assert!(rest.is_empty(), "it is read to its end");
    Ok(template)
}

/// Parses up to the end, or up to the brace that closes the enclosing template.
fn parse_until(mut text: &[u8], stars: usize, nested: bool) -> Result<(Template, &[u8]), String> {
    let mut parts: Template = Vec::new();
    let mut plain = Vec::new();
    loop {
        let part = match text {
            [] if nested => return Err("a brace is not closed".to_owned()),
            [] => break,
            [b'{', b'{', rest @ ..] if !nested => {
                plain.push(b'{');
                text = rest;
                continue;
            }
            [b'}', b'}', rest @ ..] if !nested => {
                plain.push(b'}');
                text = rest;
                continue;
            }
            [b'}', ..] if nested => break,
            [b'}', ..] => return Err("a closing brace has no opening one; a literal brace is doubled".to_owned()),
            [b'{', rest @ ..] => {
                if let Some(list) = rest.strip_prefix(b"head:").filter(|_| !nested) {
                    let (key, behind) = parse_until(list, stars, true)?;
                    text = &behind[1..];
                    Part::Head(key)
                } else {
                    let end = rest.iter().position(|&byte| byte == b'}').ok_or("a brace is not closed")?;
                    text = &rest[end + 1..];
                    placeholder(&rest[..end], stars)?
                }
            }
            [byte, rest @ ..] => {
                plain.push(*byte);
                text = rest;
                continue;
            }
        };
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(part);
    }
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok((parts, text))
}

fn placeholder(name: &[u8], stars: usize) -> Result<Part, String> {
    match name {
        b"name" => Ok(Part::Name),
        b"hashtag" => Ok(Part::HashTag),
        [digit @ b'1'..=b'9'] if usize::from(digit - b'0') <= stars => Ok(Part::Star(usize::from(digit - b'1'))),
        [digit @ b'1'..=b'9'] => Err(format!("{{{}}} refers to a * that the pattern does not have", char::from(*digit))),
        _ => Err(format!(
            "{{{}}} is not a placeholder: use {{name}}, {{hashtag}}, {{1}} to {{9}} or {{head:list}}; a literal brace is doubled",
            String::from_utf8_lossy(name)
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Result<Rules, String> {
        let words = split_words(text.as_bytes()).unwrap();
        Rules::default().with(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    fn filled(text: &str, name: &str) -> Vec<(String, String)> {
        let head = |list: &[u8]| (list != b"empty").then(|| [b"<", list, b">"].concat());
        let text_of = |bytes| String::from_utf8(bytes).unwrap();
        let rules = rules(text).unwrap();
        let name = name.as_bytes();
        let filled = rules.all().iter().filter_map(|rule| Some((rule.channel(name, head)?, rule.message(name, head)?)));
        filled.map(|(channel, message)| (text_of(channel), text_of(message))).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(channel, message)| ((*channel).to_owned(), (*message).to_owned())).collect()
    }

    #[test]
    fn what_is_in_braces_is_filled_in() {
        for (rule, name, expected) in [
            ("* c m", "k", ("c", "m")),
            ("* ch:{name} {name}!", "k", ("ch:k", "k!")),
            ("* ch:{hashtag} 0", "k", ("ch:{k}", "0")),
            ("* ch:{hashtag} 0", "{a}k", ("ch:{a}k", "0")),
            ("* ch:{hashtag} 0", "k}", ("ch:{k}}", "0")),
            ("* {{{name}}} {{}}", "k", ("{k}", "{}")),
            ("lock:*:* {2}/{1} 0", "lock:a:b:c", ("b:c/a", "0")),
            ("*:* {1}-channel {name}", "app:a:b", ("app-channel", "app:a:b")),
            ("l[ao]ck:* {1} 0", "lock:", ("", "0")),
            ("* q:{head:q:{hashtag}} {head:x}", "k", ("q:<q:{k}>", "<x>")),
            ("* \"a b\" \"\"", "k", ("a b", "")),
        ] {
            assert_eq!(filled(rule, name), pairs(&[expected]), "{rule}");
        }
        assert_eq!(filled("lock:* c 0", "other"), []);
        assert_eq!(filled("* {head:empty} 0", "k"), [], "of a list without elements nothing is told");
    }

    #[test]
    fn shipped_rules_are_those_of_the_libraries() {
        assert_eq!(
            filled("redisson", "order"),
            pairs(&[
                ("redisson_lock__channel:{order}", "0"),
                ("redisson_lock__channel:{order}:<redisson_lock_queue:{order}>", "0"),
                ("redisson_rwlock:{order}", "1"),
                ("redisson_countdownlatch__channel__{order}", "0"),
            ])
        );
        assert_eq!(filled("REDISSON", "{shop}order")[0].0, "redisson_lock__channel:{shop}order");
        assert_eq!(filled("spring", "shop:order:1"), pairs(&[("shop-channel", "shop:order:1")]));
        assert_eq!(filled("redis-lock-py", "a"), pairs(&[("rlock-channel:a", "ok")]));
        let released = r#"{ "key": "@simple-redis-mutex:lock-a", "value": "" }"#;
        assert_eq!(
            filled("simple-redis-mutex", "@simple-redis-mutex:lock-a"),
            pairs(&[("@simple-redis-mutex:locks-releases", released)])
        );
        assert_eq!(filled("simple-redis-mutex", "a"), []);
    }

    #[test]
    fn rules_add_up_and_read_back_as_the_same() {
        let text = r#"redisson a* "b c" "\"" spring x y "" "#;
        let all = rules(text).unwrap();
        assert_eq!(all.all().len(), 4 + 1 + 1 + 1);
        assert_eq!(all.shown(), [&b"redisson"[..], br#"a* "b c" "\"""#, b"spring", b"x y \"\""]);
        let shown = all.shown().join(&b' ');
        assert_eq!(Rules::default().with(&[&shown]).unwrap(), all, "in one pair of quotes too");
        let more = all.with(&[b"p", b"q", b"r"]).unwrap();
        assert_eq!(more.all().len(), 8);
        assert_eq!(more.with(&[b""]).unwrap(), Rules::default());
    }

    #[test]
    fn invalid_rules_are_refused_with_a_reason() {
        for (text, told) in [
            ("a", "'a' is neither a rule (a pattern, a channel and a message) nor the name of a shipped set of rules: redisson,"),
            ("a b", "'a' is neither a rule"),
            ("a b c d", "'d' is neither a rule"),
            ("a {nmae} 0", "{nmae} is not a placeholder: use {name}, {hashtag}, {1} to {9} or {head:list}"),
            ("a {name 0", "a brace is not closed"),
            ("a name} 0", "a closing brace has no opening one"),
            ("a {head:{name} 0", "a brace is not closed"),
            ("a {head:{head:x}} 0", "{head:x} is not a placeholder"),
            ("a* {2} 0", "{2} refers to a * that the pattern does not have"),
            ("a\\* {1} 0", "{1} refers to a * that the pattern does not have"),
            ("a[*] {1} 0", "{1} refers to a * that the pattern does not have"),
        ] {
            let error = rules(text).unwrap_err();
            assert!(error.starts_with(told), "{text}: {error}");
        }
        assert!(rules(&"a b c ".repeat(RULES_MAX)).is_ok());
        assert_eq!(rules(&"a b c ".repeat(RULES_MAX + 1)).unwrap_err(), "there can be at most 64 rules, not 65");
        assert_eq!(
            rules(&format!("a {} c", "x".repeat(WORD_MAX + 1))).unwrap_err(),
            "a word of a rule can have at most 1024 bytes"
        );
        assert_eq!(Rules::default().with(&[b"a 'b c"]).unwrap_err(), "unbalanced quotes");
    }
}
