//! Finds the keys of a request: from the row to key specifications, and from those to positions.

use smallvec::SmallVec;

use crate::base::error::Error;
use crate::engine::command::Command;
use crate::engine::command::flags::{Flags, Runs};
use crate::engine::command::keys::{Access, Begin, CountFault, Find, KeyAt, KeyPositions, KeySpec, KeyUse, Keys, counted};

/// The use that follows from the access alone, for rows without uses of their own.
const fn implied(access: Access) -> KeyUse {
    match access {
        Access::Read => KeyUse::ACCESS,
        Access::ReadWrite => KeyUse::ACCESS.union(KeyUse::UPDATE),
        Access::Overwrite => KeyUse::UPDATE,
        Access::Remove => KeyUse::DELETE,
    }
}

impl Command {
    /// Position of the first key among the arguments, as far as the row alone tells; 0 if it does not, or if there is no key.
    pub(in crate::engine) fn first_key(&self) -> usize {
        match self.keys {
            Keys::None => 0,
            Keys::Range { first, .. } => first.max(1) as usize,
            Keys::Counted { numkeys, .. } => numkeys + 1,
            Keys::Specified(specs) | Keys::Parsed { shown: specs, .. } => match specs.first().map(|spec| (spec.begin, spec.find))
            {
                Some((Begin::Index(index), Find::Range { .. })) => index,
                Some((Begin::Index(index), Find::Counted { .. })) => index + 1,
                _ => 0,
            },
        }
    }

    /// Whether the command takes keys. Arguments that are only hashed like keys do not count.
    pub fn has_keys(&self) -> bool {
        !matches!(self.keys, Keys::None) && !self.key_uses.iter().any(|(_, uses)| uses.contains(KeyUse::NOT_KEY))
    }

    /// The key specifications. If `key_uses` has several entries, each key of a range gets a specification of its own, and the
    /// last entry applies to all remaining keys.
    pub fn key_specs(&self) -> SmallVec<[KeySpec; 2]> {
        let whole = [(self.access, implied(self.access))];
        let uses = if self.key_uses.is_empty() { &whole[..] } else { self.key_uses };
        let mut specs = SmallVec::new();
        match self.keys {
            Keys::None => {}
            Keys::Specified(listed) | Keys::Parsed { shown: listed, .. } => specs.extend_from_slice(listed),
            Keys::Counted { numkeys, step } => {
                let (access, uses) = uses[0];
                specs.push(KeySpec { access, uses, begin: Begin::Index(numkeys), find: Find::Counted { step } });
            }
            Keys::Range { first, last, step } => {
                for (i, &(access, uses_of_key)) in uses.iter().enumerate() {
                    let index = first + i as i32 * step;
                    let alone = i + 1 < uses.len();
                    let last = if alone {
                        0
                    } else if last < 0 {
                        last
                    } else {
                        last - index
                    };
                    let find = Find::Range { last, step, limit: 0 };
                    specs.push(KeySpec { access, uses: uses_of_key, begin: Begin::Index(index as usize), find });
                }
            }
        }
        specs
    }

    /// Whether all keys that a request may touch are among its arguments: not for scripts, and for patterns that stand for keys.
    pub fn names_all_keys(&self) -> bool {
        let hidden = |spec: &KeySpec| matches!(spec.begin, Begin::Nowhere);
        matches!(self.runs, Runs::Nothing) && !self.key_specs().iter().any(hidden)
    }

    /// Positions of the keys of a request, in order. `args` begins with the command's name and, for a subcommand, its
    /// container's. Returns `None` if the positions cannot be determined, for example because the number of keys is malformed or
    /// too large: the command will then refuse the request itself.
    pub fn key_positions(&self, args: &[&[u8]]) -> Option<KeyPositions> {
        let mut keys = KeyPositions::new();
        if !self.has_keys() {
            return Some(keys);
        }
        if let Keys::Parsed { find, .. } = self.keys {
            return find(args);
        }
        for mut spec in self.key_specs() {
            let Begin::Index(index) = spec.begin else { return None };
            let (first, last, step) = match spec.find {
                Find::Range { last, step, .. } => {
                    let last = if last < 0 { args.len() as i64 + last as i64 } else { index as i64 + last as i64 };
                    (index, last, step)
                }
                Find::Counted { step } => {
                    let count = match counted(args, index, step as usize) {
                        Ok((keys, _)) => keys.len() / step as usize,
                        Err(CountFault::NoInteger) => {
                            spec.uses = KeyUse::UNKNOWN;
                            beginning_count(args.get(index)?).filter(|&count| count < args.len())?
                        }
                        Err(CountFault::NotPositive | CountFault::TooMany(_)) => return None,
                    };
                    let first = index + 1;
                    (first, first as i64 + (count as i64 - 1) * i64::from(step), step)
                }
            };
            if last < first as i64 && first == args.len() && !keys.is_empty() {
                // PFMERGE with only a destination: there are no sources, but the destination is a key.
                continue;
            }
            if last < first as i64 || last >= args.len() as i64 {
                return None;
            }
            let (access, uses) = refine(self, spec, args);
            let positions = (first..=last as usize).step_by(step.max(1) as usize);
            keys.extend(positions.map(|position| KeyAt { position, access, uses }));
        }
        let some = !keys.is_empty() || self.flags.contains(Flags::NO_MANDATORY_KEYS);
        some.then_some(keys)
    }

    /// As [`Command::key_positions`], for a request that was not executed, with the errors of `COMMAND GETKEYS`. For a command
    /// that can do without keys, returns an empty list if the positions cannot be determined.
    pub fn checked_key_positions(&self, args: &[&[u8]]) -> Result<KeyPositions, Error> {
        fail_if!(!self.has_keys(), Error::NO_KEY_ARGUMENTS);
        fail_if!(!self.takes(args.len()), Error::INVALID_NUMBER_OF_ARGUMENTS);
        match self.key_positions(args) {
            Some(keys) => Ok(keys),
            None if self.flags.contains(Flags::NO_MANDATORY_KEYS) => Ok(KeyPositions::new()),
            None => Err(Error::INVALID_ARGUMENTS),
        }
    }
}

/// The access and use of this request, for a command with variable use: `SET` reads only with `GET`, and `BITFIELD` may only
/// read.
fn refine(command: &Command, spec: KeySpec, args: &[&[u8]]) -> (Access, KeyUse) {
    if spec.uses.contains(KeyUse::VARIABLE) { (command.use_in)(args) } else { (spec.access, spec.uses) }
}

/// The positive number that a text begins with, which is no integer as a whole: `COMMAND GETKEYS` of Redis uses `atoi`.
fn beginning_count(text: &[u8]) -> Option<usize> {
    let start = text.iter().take_while(|b| b.is_ascii_whitespace()).count();
    let start = start + usize::from(text.get(start) == Some(&b'+'));
    let digits = text[start..].iter().take_while(|b| b.is_ascii_digit()).count();
    let count: i64 = std::str::from_utf8(&text[start..start + digits]).ok()?.parse().ok()?;
    usize::try_from(count).ok().filter(|&count| count > 0)
}

#[cfg(test)]
#[path = "touched_tests.rs"]
mod touched;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::command::keys::STORE_OF_COUNTED;

    fn positions(command: &Command, line: &str) -> Option<Vec<usize>> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        Some(command.key_positions(&args)?.iter().map(|key| key.position).collect())
    }

    #[test]
    fn ranges_reach_to_the_end_and_step() {
        let all = Command { keys: Keys::ALL, ..Command::DEFAULT };
        assert_eq!(positions(&all, "del a b c"), Some(vec![1, 2, 3]));
        let pairs = Command { keys: Keys::PAIRS, ..Command::DEFAULT };
        assert_eq!(positions(&pairs, "mset a 1 b 2"), Some(vec![1, 3]));
        let but_last = Command { keys: Keys::Range { first: 1, last: -2, step: 1 }, ..Command::DEFAULT };
        assert_eq!(positions(&but_last, "blpop a b 0"), Some(vec![1, 2]));
        assert_eq!(positions(&but_last, "blpop 0"), None);
    }

    #[test]
    fn a_count_is_believed_only_where_the_keys_are_there() {
        let eval = Command { keys: Keys::Counted { numkeys: 2, step: 1 }, arity: -3, ..Command::DEFAULT };
        assert_eq!(positions(&eval, "eval s 2 a b c"), Some(vec![3, 4]));
        for bad in ["eval s 0 a", "eval s -1 a", "eval s 4 a b c", "eval s x a", "eval s 9223372036854775807 a", "eval s"] {
            assert_eq!(positions(&eval, bad), None, "{bad}");
        }
        let pairs = Command { keys: Keys::Counted { numkeys: 1, step: 2 }, ..Command::DEFAULT };
        assert_eq!(positions(&pairs, "msetex 2 a 1 b 2"), Some(vec![2, 4]));
        assert_eq!(positions(&pairs, "msetex 9223372036854775807 a 1"), None);
    }

    #[test]
    fn two_keys_may_be_used_differently() {
        let uses = &[(Access::Read, KeyUse::ACCESS), (Access::Overwrite, KeyUse::UPDATE)];
        let copy = Command { keys: Keys::TWO, key_uses: uses, ..Command::DEFAULT };
        let specs = copy.key_specs();
        assert_eq!(
            specs.iter().map(|spec| (spec.begin, spec.find)).collect::<Vec<_>>(),
            [1, 2].map(|index| (Begin::Index(index), Find::Range { last: 0, step: 1, limit: 0 }))
        );
        let keys = copy.key_positions(&[b"copy", b"a", b"b"]).unwrap();
        assert_eq!((keys[1].position, keys[1].access), (2, Access::Overwrite));
    }

    #[test]
    fn a_destination_stands_before_counted_keys() {
        let store = Command { keys: Keys::Specified(STORE_OF_COUNTED), ..Command::DEFAULT };
        assert_eq!(positions(&store, "zunionstore d 2 a b weights 1 2"), Some(vec![1, 3, 4]));
        assert_eq!(positions(&store, "zunionstore d 3 a b"), None);
    }

    #[test]
    fn what_is_only_hashed_like_a_key_is_none() {
        let uses = &[(Access::Read, KeyUse::NOT_KEY)];
        let command = Command { arity: -1, keys: Keys::ALL, key_uses: uses, ..Command::DEFAULT };
        assert_eq!(positions(&command, "sunsubscribe"), Some(vec![]));
        assert_eq!(command.checked_key_positions(&[b"sunsubscribe", b"a"]), Err(Error::NO_KEY_ARGUMENTS));
        assert_eq!(command.key_specs().len(), 1);
    }

    #[test]
    fn errors_tell_no_keys_from_wrong_numbers() {
        let none = Command { arity: 1, ..Command::DEFAULT };
        assert_eq!(none.checked_key_positions(&[b"time"]), Err(Error::NO_KEY_ARGUMENTS));
        let one = Command { arity: 2, keys: Keys::ONE, ..Command::DEFAULT };
        assert_eq!(one.checked_key_positions(&[b"get"]), Err(Error::INVALID_NUMBER_OF_ARGUMENTS));
        let eval = Command { arity: -3, keys: Keys::Counted { numkeys: 2, step: 1 }, ..Command::DEFAULT };
        assert_eq!(eval.checked_key_positions(&[b"eval", b"s", b"0"]), Err(Error::INVALID_ARGUMENTS));
        let lax = Command { flags: Flags::NO_MANDATORY_KEYS, ..eval };
        assert_eq!(lax.checked_key_positions(&[b"eval", b"s", b"0"]), Ok(KeyPositions::new()));
    }
}
