//! Requests of a command in all its forms, generated from the syntax of its row, for tests that apply to all commands.
//!
//! Each choice and each optional part is taken alone and in pairs. Repeated parts occur once, or all of them twice.

use std::collections::BTreeSet;

use crate::commands::reference::syntax::{Arg, Kind, Type, parse};
use crate::engine::command::Command;

/// One argument of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A word, such as the command's name or an option.
    Word(String),
    /// A key.
    Key,
    /// A value, with its name in the syntax.
    Value(&'static str),
    /// The number of arguments that follow: keys, or values of this name.
    Count(Option<&'static str>),
}

/// One form of a request.
#[derive(Clone, Debug, Default)]
pub struct Form {
    /// Its arguments.
    pub slots: Vec<Slot>,
    /// The choices in this form. The forms of a command together contain every choice.
    pub picks: BTreeSet<String>,
}

impl Form {
    /// Appends another form.
    fn then(&self, next: &Form) -> Form {
        let mut form = self.clone();
        form.slots.extend(next.slots.iter().cloned());
        form.picks.extend(next.picks.iter().cloned());
        form
    }

    /// The positions of its keys.
    pub fn keys(&self) -> Vec<usize> {
        self.slots.iter().enumerate().filter(|(_, slot)| **slot == Slot::Key).map(|(at, _)| at).collect()
    }

    /// The request with these keys, in order. `value` returns a value for a name.
    pub fn request(&self, mut keys: impl Iterator<Item = Vec<u8>>, value: impl Fn(&str) -> Vec<u8>) -> Vec<Vec<u8>> {
        let number_of = |from: usize, wanted: &Slot| {
            let following = self.slots[from..].iter().take_while(|slot| !matches!(slot, Slot::Word(_)));
            following.filter(|slot| *slot == wanted).count()
        };
        let argument = |(at, slot): (usize, &Slot)| match slot {
            Slot::Word(word) => word.clone().into_bytes(),
            Slot::Key => keys.next().unwrap_or_default(),
            Slot::Value(name) => value(name),
            Slot::Count(None) => number_of(at, &Slot::Key).to_string().into_bytes(),
            Slot::Count(Some(of)) => number_of(at, &Slot::Value(of)).to_string().into_bytes(),
        };
        self.slots.iter().enumerate().map(argument).collect()
    }
}

/// All forms of a command. `words` is its name, after the container's name for a subcommand. Fails if the syntax is invalid or
/// contradicts the row.
pub fn forms(words: &[&str], command: &'static Command) -> Result<Vec<Form>, String> {
    let args = parse(command.syntax).map_err(|error| format!("{}: the syntax is wrong: {error}", command.name))?;
    let head = Form { slots: words.iter().map(|word| Slot::Word((*word).to_owned())).collect(), picks: BTreeSet::new() };
    let mut all: Vec<Form> = Vec::new();
    for times in [1, 2] {
        for form in sequence(&args, times, "") {
            let form = head.then(&form);
            if command.takes(form.slots.len()) && !all.iter().any(|known| known.slots == form.slots) {
                all.push(form);
            }
        }
    }
    if all.is_empty() {
        return Err(format!("{}: no form of '{}' has a number of arguments that it takes", command.name, command.syntax));
    }
    let keyed = all.iter().any(|form| !form.keys().is_empty());
    if keyed != command.has_keys() {
        return Err(format!("{}: keys in the syntax '{}' are none in the row, or the reverse", command.name, command.syntax));
    }
    Ok(all)
}

/// Forms with up to `most` options in every order, each any number of times. An option is a part that begins with a word, or that
/// may be missing. Options that a request needs follow the others if they do not occur among them.
pub fn orders(words: &[&str], command: &'static Command, most: usize) -> Result<Vec<Form>, String> {
    let args = parse(command.syntax).map_err(|error| format!("{}: the syntax is wrong: {error}", command.name))?;
    let head = Form { slots: words.iter().map(|word| Slot::Word((*word).to_owned())).collect(), picks: BTreeSet::new() };
    let first = args.iter().position(is_option).unwrap_or(args.len());
    let (before, after) = args.split_at(first);
    let options: Vec<&Arg<'static>> = after.iter().filter(|arg| is_option(arg)).collect();
    let tail: Vec<Arg<'static>> = after.iter().filter(|arg| !is_option(arg)).cloned().collect();
    let mut all = Vec::new();
    for times in [1, 2] {
        let heads: Vec<Form> = sequence(before, times, "").iter().map(|form| head.then(form)).collect();
        let tail = sequence(&tail, times, "").swap_remove(0);
        let each =
            |(at, arg): (usize, &&Arg<'static>)| one(arg, times, "").into_iter().map(move |form| (at, form)).collect::<Vec<_>>();
        let choices: Vec<(usize, Form)> =
            options.iter().enumerate().flat_map(each).filter(|(_, form)| !form.slots.is_empty()).collect();
        let mut chosen: Vec<Vec<usize>> = vec![Vec::new()];
        let mut from = 0;
        // The second time, only what is repeated differs.
        for _ in 0..if times == 1 { most } else { most.min(2) } {
            let end = chosen.len();
            for at in from..end {
                let longer = (0..choices.len()).map(|choice| chosen[at].iter().copied().chain([choice]).collect());
                let longer: Vec<Vec<usize>> = longer.collect();
                chosen.extend(longer);
            }
            from = end;
        }
        for chosen in &chosen {
            let missing = options
                .iter()
                .enumerate()
                .filter(|(at, arg)| !arg.optional && !chosen.iter().any(|&choice| choices[choice].0 == *at));
            let needed: Vec<Form> = missing.map(|(_, arg)| one(arg, times, "").swap_remove(0)).collect();
            let parts = || chosen.iter().map(|&choice| &choices[choice].1).chain(&needed).chain([&tail]);
            // Whatever precedes the options varies only where there are few of them.
            for head in &heads[..if chosen.len() < 2 { heads.len() } else { 1 }] {
                let form = parts().fold(head.clone(), |form, part| form.then(part));
                if command.takes(form.slots.len()) {
                    all.push(form);
                }
            }
        }
    }
    Ok(all)
}

/// Whether a part may be at another place than the syntax shows it at.
fn is_option(arg: &Arg<'_>) -> bool {
    let begins_with_word = |arg: &Arg<'_>| arg.token.is_some() && arg.kind != Kind::PureToken;
    arg.optional || begins_with_word(arg) || arg.children().iter().any(begins_with_word)
}

/// The forms of a sequence of arguments: the plain one, those with one part that is not plain, and those with two.
fn sequence(args: &[Arg<'static>], times: usize, path: &str) -> Vec<Form> {
    let parts: Vec<Vec<Form>> = args.iter().enumerate().map(|(at, arg)| one(arg, times, &format!("{path}/{at}"))).collect();
    let with = |chosen: &dyn Fn(usize) -> usize| {
        parts.iter().enumerate().fold(Form::default(), |form, (at, forms)| form.then(&forms[chosen(at)]))
    };
    let mut all = vec![with(&|_| 0)];
    for (a, forms) in parts.iter().enumerate() {
        for i in 1..forms.len() {
            all.push(with(&|at| if at == a { i } else { 0 }));
            for (b, others) in parts.iter().enumerate().skip(a + 1) {
                for j in 1..others.len() {
                    all.push(with(&|at| [(a, i), (b, j)].into_iter().find(|(part, _)| *part == at).map_or(0, |(_, form)| form)));
                }
            }
        }
    }
    all
}

/// The forms of one argument, the plainest first: omitted if it is optional.
fn one(arg: &Arg<'static>, times: usize, path: &str) -> Vec<Form> {
    let word = |word: &str| Form { slots: vec![Slot::Word(word.to_owned())], picks: BTreeSet::new() };
    let inner: Vec<Form> = match &arg.kind {
        Kind::PureToken => vec![Form::default()],
        Kind::Value(kind) => vec![Form { slots: vec![slot(arg, *kind)], picks: BTreeSet::new() }],
        Kind::Block(args) => sequence(args, times, path),
        Kind::OneOf(choices) => {
            let picked = |(at, choice): (usize, &Arg<'static>)| {
                let path = format!("{path}|{at}");
                let mut forms = one(choice, times, &path);
                forms.iter_mut().for_each(|form| _ = form.picks.insert(format!("{path} {}", choice.name)));
                forms
            };
            choices.iter().enumerate().flat_map(picked).collect()
        }
    };
    let mut forms = Vec::new();
    for form in inner {
        let token = arg.token.map_or_else(Form::default, word);
        let mut whole = token.then(&form);
        for _ in 1..if arg.multiple { times } else { 1 } {
            whole = if arg.multiple_token { whole.then(&token).then(&form) } else { whole.then(&form) };
        }
        if arg.optional {
            whole.picks.insert(format!("{path} {}", arg.name));
        }
        forms.push(whole);
    }
    if arg.optional {
        forms.insert(0, Form::default());
    }
    forms
}

fn slot(arg: &Arg<'static>, kind: Type) -> Slot {
    let std::borrow::Cow::Borrowed(name) = arg.name else { return Slot::Word(arg.name.to_string()) };
    match (name, kind) {
        (_, Type::Key) => Slot::Key,
        ("numkeys" | "numlocks", _) => Slot::Count(None),
        ("numfields", _) => Slot::Count(Some("field")),
        _ => Slot::Value(name),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::command::Keys;

    fn all(command: &'static Command) -> Vec<String> {
        let shown = |form: Form| {
            let keys = (1..).map(|n| format!("k{n}").into_bytes());
            let words = form.request(keys, |name| name.as_bytes().to_vec());
            String::from_utf8(words.join(&b" "[..])).unwrap()
        };
        forms(&["x"], command).unwrap().into_iter().map(shown).collect()
    }

    #[test]
    fn each_option_comes_alone_and_with_each_other_one() {
        static SET: Command = Command { arity: -3, keys: Keys::ONE, syntax: "key value [NX | XX] [GET]", ..Command::DEFAULT };
        let expected =
            ["x k1 value", "x k1 value NX", "x k1 value NX GET", "x k1 value XX", "x k1 value XX GET", "x k1 value GET"];
        assert_eq!(all(&SET), expected);
        static UNION: Command = Command {
            arity: -4,
            keys: Keys::ONE,
            syntax: "destination numkeys key [key ...] [WEIGHTS weight [weight ...]]",
            ..Command::DEFAULT
        };
        let expected = ["x k1 1 k2", "x k1 1 k2 WEIGHTS weight", "x k1 2 k2 k3", "x k1 2 k2 k3 WEIGHTS weight weight"];
        assert_eq!(all(&UNION), expected);
    }

    #[test]
    fn a_syntax_that_does_not_go_with_its_row_is_an_error() {
        static SHORT: Command = Command { arity: 5, keys: Keys::ONE, syntax: "key value", ..Command::DEFAULT };
        assert!(forms(&["x"], &SHORT).is_err());
        static KEYLESS: Command = Command { arity: 3, syntax: "key value", ..Command::DEFAULT };
        assert!(forms(&["x"], &KEYLESS).is_err());
        static WRONG: Command = Command { arity: 3, keys: Keys::ONE, syntax: "key [value", ..Command::DEFAULT };
        assert!(forms(&["x"], &WRONG).is_err());
    }
}
