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

/// What is known to be violated by an algorithm when these go wrong; `None` where nothing is known of it.
pub fn of(label: &str, faults: &[Fault]) -> Option<Vec<Property>> {
    let all = all();
    let mut violated = Vec::new();
    let wanted = |known: &&Known| known.label == label && known.fault.is_none_or(|fault| faults.contains(&fault));
    let lines: Vec<&Known> = all.iter().filter(wanted).collect();
    if lines.len() != faults.len() + 1 {
        return None;
    }
    for known in lines {
        violated.extend(known.violated.iter().map(|(property, _)| *property));
    }
    violated.sort_unstable();
    violated.dedup();
    Some(violated)
}
