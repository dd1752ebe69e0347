//! Known verdicts: which algorithm shows which violation under which fault, and the episode that shows it. The README's table is made of them,
//! and so is what `--expect-known` expects.

use crate::torture::check::Property;
use crate::torture::plan::Fault;

/// One line an algorithm and fault: the label, the fault or `none`, and `property@episode` for each property that is violated; or `holds`.
const VERDICTS: &str = include_str!("verdicts.txt");

/// What is known of an algorithm under one fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The label of the [`Subject`](crate::torture::subject::Subject).
    pub label: String,
    /// The fault; `None` where nothing goes wrong.
    pub fault: Option<Fault>,
    /// What is violated, and the first episode in which it is.
    pub violated: Vec<(Property, u64)>,
}

impl Known {
    /// As a line.
    pub fn line(&self) -> String {
        let fault = self.fault.map_or("none", Fault::name);
        let violated: Vec<String> = self.violated.iter().map(|(property, episode)| format!("{property}@{episode}")).collect();
        let violated = if violated.is_empty() { "holds".to_owned() } else { violated.join(" ") };
        format!("{} {fault} {violated}\n", self.label)
    }

    fn read(line: &str) -> Option<Known> {
        let mut words = line.split(' ');
        let (label, fault) = (words.next()?.to_owned(), words.next()?);
        let fault = Fault::ALL.into_iter().find(|known| known.name() == fault);
        let violated = words.filter_map(|word| {
            let (property, episode) = word.split_once('@')?;
            Some((Property::named(property)?, episode.parse().ok()?))
        });
        Some(Known { label, fault, violated: violated.collect() })
    }
}

/// All that is known.
pub fn all() -> Vec<Known> {
    VERDICTS.lines().filter_map(Known::read).collect()
}

/// What is known to be violated by an algorithm when these go wrong, and the first episode in which it is, where that is known of these faults
/// together; `None` where nothing is known of it.
pub fn of(label: &str, faults: &[Fault]) -> Option<Vec<(Property, Option<u64>)>> {
    let all = all();
    // What shows when nothing goes wrong shows under every fault, but those were run by themselves.
    let wanted = |known: &&Known| known.label == label && known.fault.is_none_or(|fault| faults.contains(&fault));
    let lines: Vec<&Known> = all.iter().filter(wanted).collect();
    if lines.len() != faults.len() + 1 {
        return None;
    }
    let alone = match faults {
        [] => Some(None),
        [fault] => Some(Some(*fault)),
        _ => None,
    };
    let mut violated: Vec<(Property, Option<u64>)> = Vec::new();
    for known in lines {
        let exact = alone == Some(known.fault);
        violated.extend(known.violated.iter().map(|(property, episode)| (*property, exact.then_some(*episode))));
    }
    // Of two, the one whose episode is known.
    violated.sort_unstable_by_key(|(property, episode)| (*property, episode.is_none()));
    violated.dedup_by_key(|(property, _)| *property);
    Some(violated)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back() {
        for known in all() {
            assert_eq!(Known::read(known.line().trim_end()).unwrap(), known);
        }
    }

    #[test]
    fn what_is_known_of_faults_together_is_what_is_known_of_each() {
        let (crash, both) = (of("setnx", &[Fault::Crash]).unwrap(), of("setnx", &[Fault::Crash, Fault::Pause]).unwrap());
        assert!(crash.iter().any(|(property, episode)| *property == Property::Stuck && episode.is_some()));
        assert!(both.contains(&(Property::Stuck, None)));
        assert_eq!(of("setnx", &[]).unwrap().len(), 1, "it is not fair");
        assert_eq!(of("no such", &[]), None);
    }
}
