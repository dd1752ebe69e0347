//! What one can name on the command line of `portcullis torture`, and what the run checks.

use std::fmt::Write;

use crate::bench::list::algorithms;
use crate::torture::check::Property;
use crate::torture::fault::Fault;

/// The list of algorithms, faults and checks.
pub fn render() -> String {
    // An algorithm that is no lock has no grants to check.
    let mut out = algorithms(|recipe| recipe.make.is_some());
    out.push_str("`all` stands for those with a number from 1 on.\n\nFaults (--faults):\n");
    for fault in Fault::EVERY {
        let _ = writeln!(out, "      {:<12}{}{}", fault.name(), fault.meaning(), fault.only_with());
    }
    out.push_str("`all` stands for those that the servers of the run have, `none` for none.\n\nChecks of every history, and what a violation is:\n");
    for property in Property::ALL {
        let _ = writeln!(out, "      {:<12}{}", property.name(), property.meaning());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::{Live, all};

    #[test]
    fn everything_that_can_be_named_is_listed() {
        let list = render();
        let has = |name: &str| list.lines().any(|line| line.split_whitespace().take(2).any(|word| word == name));
        let locks = all::<Live>().into_iter().filter(|recipe| recipe.make.is_some());
        let algorithms = locks.map(|recipe| recipe.facts.name);
        let names = algorithms.chain(Fault::REPLICATED.map(Fault::name)).chain(["lose"]).chain(Property::ALL.map(Property::name));
        let missing: Vec<&str> = names.filter(|name| !has(name)).collect();
        assert!(missing.is_empty(), "{missing:?}: {list}");
        assert!(!has("latch"), "it is no lock");
        assert!(list.lines().all(|line| line.len() <= 160), "{list}");
    }
}
