//! Known verdicts: which algorithm shows which violation under which faults, and the number of an episode that shows it. The
//! guide's table is made from them, and `--expect-known` compares a run with them.
//!
//! The verdicts cover each fault alone, each pair, and all faults together. Most violations under several faults occur under one
//! of them alone too. The others have a [`reason`].

use crate::torture::check::Property;
use crate::torture::plan::{Fault, Servers};
use crate::torture::subject::Subject;

/// One line for each algorithm and set of faults: the label, the faults, and `property@episode` for each violated property, or
/// `holds`.
const VERDICTS: &str = include_str!("verdicts.txt");

/// One line for each reason: a property, the faults that it needs, the labels that it applies to or `*`, and the reason.
const REASONS: &str = include_str!("reasons.txt");

/// The known verdict on an algorithm under a set of faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownVerdict {
    /// The label of the [`Subject`](crate::torture::subject::Subject).
    pub label: String,
    /// The faults, sorted.
    pub faults: Vec<Fault>,
    /// The violated properties, each with the first episode that shows a violation.
    pub violated: Vec<(Property, u64)>,
}

impl KnownVerdict {
    /// Formats the verdict as a line.
    pub fn line(&self) -> String {
        let violated: Vec<String> = self.violated.iter().map(|(property, episode)| format!("{property}@{episode}")).collect();
        let violated = if violated.is_empty() { "holds".to_owned() } else { violated.join(" ") };
        format!("{} {} {violated}\n", self.label, Fault::format_list(&self.faults))
    }

    fn read(line: &str) -> Option<KnownVerdict> {
        let mut words = line.split(' ');
        let label = words.next()?.to_owned();
        let faults = Fault::parse_list(words.next()?, Subject::from_label(&label).kind()).ok()?;
        let violated = words.filter_map(|word| {
            let (property, episode) = word.split_once('@')?;
            Some((Property::from_name(property)?, episode.parse().ok()?))
        });
        Some(KnownVerdict { label, faults, violated: violated.collect() })
    }
}

/// All known verdicts.
pub fn all() -> Vec<KnownVerdict> {
    VERDICTS.lines().filter_map(KnownVerdict::read).collect()
}

/// The properties that an algorithm is known to violate under these faults. Each has the first episode that shows it, if the
/// verdicts cover exactly these faults. `None` if the algorithm has no verdicts.
pub fn violations(label: &str, faults: &[Fault]) -> Option<Vec<(Property, Option<u64>)>> {
    let all = all();
    // A violation under some of the faults occurs under all of them too. Its episode is only known for the smaller set.
    let wanted = |known: &&KnownVerdict| known.label == label && known.faults.iter().all(|fault| faults.contains(fault));
    let lines: Vec<&KnownVerdict> = all.iter().filter(wanted).collect();
    if lines.iter().filter(|known| known.faults.len() <= 1).count() != faults.len() + 1 {
        return None;
    }
    let mut violated: Vec<(Property, Option<u64>)> = Vec::new();
    for known in lines {
        let exact = known.faults == faults;
        violated.extend(known.violated.iter().map(|(property, episode)| (*property, exact.then_some(*episode))));
    }
    // Of two entries for a property, the one with an episode is kept.
    violated.sort_unstable_by_key(|(property, episode)| (*property, episode.is_none()));
    violated.dedup_by_key(|(property, _)| *property);
    Some(violated)
}

/// The faults that a reason needs, of servers of any kind.
fn needed(takes: &str) -> Option<Vec<Fault>> {
    [Servers::Plain, Servers::Durable, Servers::Replicated].into_iter().find_map(|servers| Fault::parse_list(takes, servers).ok())
}

/// The reason why an algorithm shows a violation under several faults together: it shows the violation under one of them alone,
/// or `reasons.txt` has a reason. `None` if there is neither.
pub fn reason(label: &str, faults: &[Fault], property: Property) -> Option<String> {
    let shows = |known: &KnownVerdict| known.violated.iter().any(|(violated, _)| *violated == property);
    let alone = |known: &KnownVerdict| known.faults.len() <= 1 && known.faults.iter().all(|fault| faults.contains(fault));
    let all = all();
    let find = |label: &str, of_clients: bool| {
        let found = all.iter().find(|known| {
            known.label == label && alone(known) && shows(known) && !(of_clients && known.faults.contains(&Fault::Restart))
        })?;
        Some(match found.faults.as_slice() {
            [] => "it also shows without faults".to_owned(),
            faults => format!("it also shows under {} alone", Fault::format_list(faults)),
        })
    };
    let subject = Subject::from_label(label);
    // What clients and the network do, they do to servers without files too.
    let plain = || find(&Subject { durable: false, ..subject.clone() }.label(), true);
    if let Some(found) = find(label, false).or_else(|| subject.durable.then(plain).flatten()) {
        return Some(found);
    }
    REASONS.lines().find_map(|line| {
        let mut words = line.splitn(4, ' ');
        let (of, takes, labels, text) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let applies = of == property.name()
            && needed(takes)?.iter().all(|fault| faults.contains(fault))
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
            assert_eq!(KnownVerdict::read(known.line().trim_end()).unwrap(), known);
        }
    }

    #[test]
    fn the_violations_under_two_faults_include_those_under_each() {
        let (crash, both) =
            (violations("setnx", &[Fault::Crash]).unwrap(), violations("setnx", &[Fault::Crash, Fault::Pause]).unwrap());
        assert!(crash.iter().any(|(property, episode)| *property == Property::Stuck && episode.is_some()));
        assert!(both.contains(&(Property::Stuck, None)));
        assert_eq!(violations("setnx", &[]).unwrap().len(), 1, "it is not fair");
        assert_eq!(violations("no such", &[]), None);
    }

    #[test]
    fn each_violation_under_several_faults_has_a_reason() {
        let (mut without, mut combined) = (Vec::new(), 0);
        for known in all().into_iter().filter(|known| known.faults.len() > 1) {
            combined += 1;
            let has = |property: &Property| reason(&known.label, &known.faults, *property).is_some();
            let missing: Vec<_> =
                known.violated.iter().map(|(property, _)| *property).filter(|property| !has(property)).collect();
            if !missing.is_empty() {
                without.push(format!("{} {}: {missing:?}", known.label, Fault::format_list(&known.faults)));
            }
        }
        assert!(combined > Fault::ALL.len(), "pairs of faults, and all of them");
        assert!(without.is_empty(), "{}", without.join("\n"));
    }

    #[test]
    fn every_reason_explains_a_known_violation() {
        for line in REASONS.lines() {
            let mut words = line.splitn(4, ' ');
            let property = Property::from_name(words.next().unwrap()).unwrap();
            let (takes, labels) = (needed(words.next().unwrap()).unwrap(), words.next().unwrap());
            let text = words.next().unwrap();
            let is_for = |known: &KnownVerdict| {
                (labels == "*" || labels.split(',').any(|of| of == known.label))
                    && takes.iter().all(|fault| known.faults.contains(fault))
                    && known.violated.iter().any(|(violated, _)| *violated == property)
            };
            assert!(all().iter().any(is_for), "{line}");
            assert!(text.ends_with('.') || text.ends_with(')'), "a sentence: {line}");
        }
    }
}
