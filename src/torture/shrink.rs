//! The shortest schedule that still shows a violation: less time, fewer clients, fewer faults, fewer wishes. Each candidate is run again.

use std::time::Instant;

use crate::torture::check::{self, Property, Rules, Violation};
use crate::torture::history::{History, What};
use crate::torture::plan::{Harm, Plan, Planned, When};
use crate::torture::sim::{self, Simulated};

/// A plan, what happened in it, and what was wrong with that.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The plan.
    pub plan: Plan,
    /// What happened.
    pub history: History,
    /// What was wrong.
    pub violation: Violation,
    /// How many plans were tried.
    pub tried: u32,
}

/// Runs a plan; gives what happened if the property was violated in it.
pub fn show(plan: &Plan, algorithm: &Simulated, rules: &Rules, property: Property) -> Option<Shown> {
    let history = sim::run(plan, algorithm);
    let (_, finding) = check::judge(&history, rules).swap_remove(property as usize);
    let violation = finding.violations.into_iter().next()?;
    Some(Shown { plan: plan.clone(), history, violation, tried: 1 })
}

/// How much may be spent on a shorter schedule.
pub struct Effort<'a> {
    /// Runs at most.
    pub runs: u32,
    /// Until when at most: what has been found by then is what there is. `None` for as long as it takes.
    pub until: Option<Instant>,
    /// Is told after each run how many there were, and of the shortest plan so far.
    pub progress: &'a mut dyn FnMut(u32, &Plan),
}

struct Shrinker<'a, 'e> {
    algorithm: &'a Simulated,
    rules: &'a Rules,
    property: Property,
    best: Shown,
    tried: u32,
    effort: Effort<'e>,
}

impl Shrinker<'_, '_> {
    /// Tries a smaller plan; whether it shows the violation, too, and is the best now.
    fn accept(&mut self, plan: Plan) -> bool {
        if self.is_spent() {
            return false;
        }
        self.tried += 1;
        let shown = show(&plan, self.algorithm, self.rules, self.property);
        let accepted = shown.is_some();
        if let Some(shown) = shown {
            self.best = shown;
        }
        (self.effort.progress)(self.tried, &self.best.plan);
        accepted
    }

    fn is_spent(&self) -> bool {
        self.tried >= self.effort.runs || self.effort.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Takes away as much of a list as it can, in pieces that become smaller.
    fn thin<T: Clone>(&mut self, of: impl Fn(&Plan) -> Vec<T>, with: impl Fn(&mut Plan, Vec<T>)) {
        let mut size = of(&self.best.plan).len();
        while size > 0 && !self.is_spent() {
            let mut at = 0;
            while at < of(&self.best.plan).len() && !self.is_spent() {
                let mut items = of(&self.best.plan);
                items.drain(at..(at + size).min(items.len()));
                let mut plan = self.best.plan.clone();
                with(&mut plan, items);
                if !self.accept(plan) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    /// Nothing is wanted and nothing goes wrong after the violation.
    fn cut_end(&mut self) {
        let mut plan = self.best.plan.clone();
        let last_us = self.best.violation.at_us;
        for wishes in &mut plan.clients {
            wishes.retain(|wish| wish.at_us <= last_us);
        }
        plan.faults.retain(|fault| !matches!(fault.when, When::At(at_us) if at_us > last_us));
        self.accept(plan);
    }

    fn thin_clients(&mut self) {
        for client in 0..self.best.plan.clients.len() {
            if self.best.plan.clients[client].is_empty() {
                continue;
            }
            let mut plan = self.best.plan.clone();
            plan.clients[client].clear();
            plan.faults.retain(|fault| fault.harm.client() != Some(client as u32));
            self.accept(plan);
        }
    }

    /// Makes wishes shorter: one step, without renewal.
    fn simplify(&mut self) {
        for client in 0..self.best.plan.clients.len() {
            for at in 0..self.best.plan.clients[client].len() {
                let wish = &self.best.plan.clients[client][at];
                let mut wished = wish.clone();
                wished.steps_us.truncate(1);
                wished.renews = false;
                if wished != *wish {
                    let mut plan = self.best.plan.clone();
                    plan.clients[client][at] = wished;
                    self.accept(plan);
                }
            }
        }
    }

    /// Has all that is left begin as early as it can.
    fn cut_begin(&mut self) {
        let plan = &self.best.plan;
        let of_faults = plan.faults.iter().filter_map(|fault| match fault.when {
            // What is so from the beginning stays so.
            When::At(0) | When::Sent { .. } => None,
            When::At(at_us) => Some(at_us),
        });
        let first_us = plan.clients.iter().flatten().map(|wish| wish.at_us).chain(of_faults).min().unwrap_or(0);
        let by_us = first_us.saturating_sub(1_000);
        let mut plan = plan.clone();
        plan.clients.iter_mut().flatten().for_each(|wish| wish.at_us -= by_us);
        for fault in &mut plan.faults {
            if let Planned { when: When::At(at_us @ 1..), .. } = fault {
                *at_us -= by_us;
            }
        }
        plan.end_us = plan.end_us.saturating_sub(by_us);
        if by_us > 0 {
            self.accept(plan);
        }
    }

    /// What came late, as others came before it, or after so many commands, comes at the time at which it came: then the others may go.
    fn pin(&mut self) {
        let mut plan = self.best.plan.clone();
        for event in &self.best.history.events {
            if let What::Acquire { wish, .. } = event.what {
                plan.clients[event.client as usize][wish as usize].at_us = event.at_us;
            }
        }
        self.accept(plan);
        for index in 0..self.best.plan.faults.len() {
            let fault = self.best.plan.faults[index];
            if matches!(fault.when, When::At(_)) {
                continue;
            }
            let came = self.best.history.events.iter().find(|event| is_of(&event.what, event.client, &fault.harm));
            if let Some(at_us) = came.map(|event| event.at_us) {
                let mut plan = self.best.plan.clone();
                plan.faults[index].when = When::At(at_us);
                self.accept(plan);
            }
        }
    }
}

/// Whether this is what a fault looks like in a history.
fn is_of(what: &What, client: u32, harm: &Harm) -> bool {
    match (what, harm) {
        (What::Pause { for_us }, Harm::Pause { client: whose, for_us: long_us }) => client == *whose && for_us == long_us,
        (What::Crash { machine }, Harm::Crash { client: whose, machine: whole, .. }) => client == *whose && machine == whole,
        (What::Down { server, lost }, Harm::Down { server: which, lost: many, .. }) => server == which && lost == many,
        (What::Loss { server, for_us }, Harm::Loss { client: whose, server: which, for_us: long_us, .. }) => {
            client == *whose && server == which && for_us == long_us
        }
        _ => false,
    }
}

/// Shrinks an episode that shows a violation, with so much effort; `None` where it shows none.
pub fn shrink(plan: &Plan, algorithm: &Simulated, rules: &Rules, property: Property, effort: Effort<'_>) -> Option<Shown> {
    let best = show(plan, algorithm, rules, property)?;
    let mut shrinker = Shrinker { algorithm, rules, property, best, tried: 1, effort };
    if shrinker.is_spent() {
        return Some(shrinker.best);
    }
    shrinker.cut_end();
    shrinker.pin();
    shrinker.thin_clients();
    loop {
        let size = |shrinker: &Shrinker<'_, '_>| (shrinker.best.plan.wishes(), shrinker.best.plan.faults.len());
        let before = size(&shrinker);
        shrinker.thin(|plan| plan.faults.clone(), |plan, faults| plan.faults = faults);
        for client in 0..plan.clients.len() {
            shrinker.thin(move |plan| plan.clients[client].clone(), move |plan, wishes| plan.clients[client] = wishes);
        }
        shrinker.cut_end();
        if size(&shrinker) == before || shrinker.is_spent() {
            break;
        }
    }
    shrinker.simplify();
    shrinker.cut_begin();
    let tried = shrinker.tried;
    Some(Shown { tried, ..shrinker.best })
}
