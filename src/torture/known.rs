//! Known verdicts: which algorithm shows which violation under which faults, and the episode that shows it. The guide's table is made of them,
//! and so is what `--expect-known` expects.
//!
//! Faults are alone, in pairs, and all together. What two show together they most often show one by one; what they do not has a [`reason`].

use crate::torture::check::Property;
use crate::torture::plan::Fault;

/// A line for an algorithm and faults: the label, the faults, and `property@episode` for each property that is violated; or `holds`.
const VERDICTS: &str = include_str!("verdicts.txt");

/// A line for each reason: a property, the faults that it takes, the labels that it is about or `*`, and the reason.
const REASONS: &str = include_str!("reasons.txt");

/// What is known of an algorithm under some faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The label of the [`Subject`](crate::torture::subject::Subject).
    pub label: String,
    /// The faults, in their order; none where nothing goes wrong.
    pub faults: Vec<Fault>,
    /// What is violated, and the first episode in which it is.
    pub violated: Vec<(Property, u64)>,
}

impl Known {
    /// As a line.
    pub fn line(&self) -> String {
        let violated: Vec<String> = self.violated.iter().map(|(property, episode)| format!("{property}@{episode}")).collect();
        let violated = if violated.is_empty() { "holds".to_owned() } else { violated.join(" ") };
        format!("{} {} {violated}\n", self.label, Fault::write_list(&self.faults))
    }

    fn read(line: &str) -> Option<Known> {
        let mut words = line.split(' ');
        let (label, faults) = (words.next()?.to_owned(), Fault::read_list(words.next()?).ok()?);
        let violated = words.filter_map(|word| {
            let (property, episode) = word.split_once('@')?;
            Some((Property::named(property)?, episode.parse().ok()?))
        });
        Some(Known { label, faults, violated: violated.collect() })
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
    // What some of the faults show they show together with others, too; but those were run by themselves.
    let wanted = |known: &&Known| known.label == label && known.faults.iter().all(|fault| faults.contains(fault));
    let lines: Vec<&Known> = all.iter().filter(wanted).collect();
    if lines.iter().filter(|known| known.faults.len() <= 1).count() != faults.len() + 1 {
        return None;
    }
    let mut violated: Vec<(Property, Option<u64>)> = Vec::new();
    for known in lines {
        let exact = known.faults == faults;
        violated.extend(known.violated.iter().map(|(property, episode)| (*property, exact.then_some(*episode))));
    }
    // Of two, the one whose episode is known.
    violated.sort_unstable_by_key(|(property, episode)| (*property, episode.is_none()));
    violated.dedup_by_key(|(property, _)| *property);
    Some(violated)
}

/// Why an algorithm shows a violation under several faults together: because it does so under one of them alone, or for the reason that is
/// written down; `None` where there is none.
pub fn reason(label: &str, faults: &[Fault], property: Property) -> Option<String> {
    let shows = |known: &Known| known.violated.iter().any(|(violated, _)| *violated == property);
    let alone = |known: &Known| known.faults.len() <= 1 && known.faults.iter().all(|fault| faults.contains(fault));
    if let Some(known) = all().iter().find(|known| known.label == label && alone(known) && shows(known)) {
        return Some(format!("so it does under {} alone", Fault::write_list(&known.faults)));
    }
    REASONS.lines().find_map(|line| {
        let mut words = line.splitn(4, ' ');
        let (of, takes, labels, text) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let applies = of == property.name()
            && Fault::read_list(takes).ok()?.iter().all(|fault| faults.contains(fault))
            && (labels == "*" || labels.split(',').any(|of| of == label));
        applies.then(|| text.to_owned())
    })
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

    #[test]
    fn what_faults_show_together_has_a_reason() {
        let (mut without, mut combined) = (Vec::new(), 0);
        for known in all().into_iter().filter(|known| known.faults.len() > 1) {
            combined += 1;
            let has = |property: &Property| reason(&known.label, &known.faults, *property).is_some();
            let missing: Vec<_> =
                known.violated.iter().map(|(property, _)| *property).filter(|property| !has(property)).collect();
            if !missing.is_empty() {
                without.push(format!("{} {}: {missing:?}", known.label, Fault::write_list(&known.faults)));
            }
        }
        assert!(combined > Fault::ALL.len(), "pairs of faults, and all of them");
        assert!(without.is_empty(), "{}", without.join("\n"));
    }

    #[test]
    fn every_reason_is_one_for_something() {
        for line in REASONS.lines() {
            let mut words = line.splitn(4, ' ');
            let property = Property::named(words.next().unwrap()).unwrap();
            let (takes, labels) = (Fault::read_list(words.next().unwrap()).unwrap(), words.next().unwrap());
            let text = words.next().unwrap();
            let is_for = |known: &Known| {
                (labels == "*" || labels.split(',').any(|of| of == known.label))
                    && takes.iter().all(|fault| known.faults.contains(fault))
                    && known.violated.iter().any(|(violated, _)| *violated == property)
            };
            assert!(all().iter().any(is_for), "{line}");
            assert!(text.ends_with('.') || text.ends_with(')'), "a sentence: {line}");
        }
    }
}
