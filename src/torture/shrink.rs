//! Finds the shortest schedule that still shows a violation, with less time, fewer clients, faults and jobs. Each candidate is
//! run again.

use std::time::Instant;

use crate::torture::check::{self, Property, Rules, Violation};
use crate::torture::history::{EventKind, History};
use crate::torture::plan::{Injection, Plan, PlannedFault, When};
use crate::torture::sim::{self, SimAlgorithm};

/// A plan that shows a violation.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The plan.
    pub plan: Plan,
    /// The history of the plan.
    pub history: History,
    /// The violation.
    pub violation: Violation,
    /// Number of plans that were tried.
    pub tried: u32,
}

/// Runs a plan. Returns its history and violation if it violates the property.
pub fn run_plan(plan: &Plan, algorithm: &SimAlgorithm, rules: &Rules, property: Property) -> Option<Counterexample> {
    let history = sim::run(plan, algorithm);
    let (_, finding) = check::judge(&history, rules).swap_remove(property as usize);
    let violation = finding.violations.into_iter().next()?;
    Some(Counterexample { plan: plan.clone(), history, violation, tried: 1 })
}

/// The limits of a search.
pub struct Budget<'a> {
    /// Maximum number of runs.
    pub runs: u32,
    /// The deadline. The search ends with the shortest plan found by then. `None` for no deadline.
    pub until: Option<Instant>,
    /// Called after each run with the number of runs and the shortest plan so far.
    pub progress: &'a mut dyn FnMut(u32, &Plan),
}

struct Shrinker<'a, 'e> {
    algorithm: &'a SimAlgorithm,
    rules: &'a Rules,
    property: Property,
    best: Counterexample,
    tried: u32,
    budget: Budget<'e>,
}

impl Shrinker<'_, '_> {
    /// Tries a smaller plan. If it shows the violation too, it becomes the best one. Returns whether it does.
    fn accept(&mut self, plan: Plan) -> bool {
        if self.is_spent() {
            return false;
        }
        self.tried += 1;
        let counterexample = run_plan(&plan, self.algorithm, self.rules, self.property);
        let accepted = counterexample.is_some();
        if let Some(counterexample) = counterexample {
            self.best = counterexample;
        }
        (self.budget.progress)(self.tried, &self.best.plan);
        accepted
    }

    fn is_spent(&self) -> bool {
        self.tried >= self.budget.runs || self.budget.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Removes as much of a list as possible, in chunks of decreasing size.
    fn remove_chunks<T: Clone>(&mut self, of: impl Fn(&Plan) -> Vec<T>, with: impl Fn(&mut Plan, Vec<T>)) {
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

    /// Removes all jobs and faults after the violation.
    fn drop_after_violation(&mut self) {
        let mut plan = self.best.plan.clone();
        let last_us = self.best.violation.at_us;
        for jobs in &mut plan.clients {
            jobs.retain(|job| job.at_us <= last_us);
        }
        plan.faults.retain(|fault| !matches!(fault.when, When::At(at_us) if at_us > last_us));
        self.accept(plan);
    }

    fn remove_clients(&mut self) {
        for client in 0..self.best.plan.clients.len() {
            if self.best.plan.clients[client].is_empty() {
                continue;
            }
            let mut plan = self.best.plan.clone();
            plan.clients[client].clear();
            plan.faults.retain(|fault| fault.injection.client() != Some(client as u32));
            self.accept(plan);
        }
    }

    /// Shortens jobs to one step without renewal.
    fn shorten_jobs(&mut self) {
        for client in 0..self.best.plan.clients.len() {
            for at in 0..self.best.plan.clients[client].len() {
                let job = &self.best.plan.clients[client][at];
                let mut simpler = job.clone();
                simpler.steps_us.truncate(1);
                simpler.renews = false;
                if simpler != *job {
                    let mut plan = self.best.plan.clone();
                    plan.clients[client][at] = simpler;
                    self.accept(plan);
                }
            }
        }
    }

    /// Moves everything as far to the beginning as possible.
    fn shift_to_start(&mut self) {
        let plan = &self.best.plan;
        let of_faults = plan.faults.iter().filter_map(|fault| match fault.when {
            // A fault that exists from the beginning stays there.
            When::At(0) | When::Sent { .. } | When::Voted { .. } => None,
            When::At(at_us) => Some(at_us),
        });
        let first_us = plan.clients.iter().flatten().map(|job| job.at_us).chain(of_faults).min().unwrap_or(0);
        let by_us = first_us.saturating_sub(1_000);
        let mut plan = plan.clone();
        plan.clients.iter_mut().flatten().for_each(|job| job.at_us -= by_us);
        for fault in &mut plan.faults {
            if let PlannedFault { when: When::At(at_us @ 1..), .. } = fault {
                *at_us -= by_us;
            }
        }
        plan.end_us = plan.end_us.saturating_sub(by_us);
        if by_us > 0 {
            self.accept(plan);
        }
    }

    /// Replaces relative times by the absolute times at which things happened: of jobs that started late because of earlier jobs,
    /// and of faults that followed a number of commands. Those earlier jobs and commands can then be removed.
    fn pin_times(&mut self) {
        let mut plan = self.best.plan.clone();
        for event in &self.best.history.events {
            if let EventKind::Acquire { job, .. } = event.kind {
                plan.clients[event.client as usize][job as usize].at_us = event.at_us;
            }
        }
        self.accept(plan);
        for index in 0..self.best.plan.faults.len() {
            let fault = self.best.plan.faults[index];
            if matches!(fault.when, When::At(_)) {
                continue;
            }
            let came = self.best.history.events.iter().find(|event| is_event_of(&event.kind, event.client, &fault.injection));
            if let Some(at_us) = came.map(|event| event.at_us) {
                let mut plan = self.best.plan.clone();
                plan.faults[index].when = When::At(at_us);
                self.accept(plan);
            }
        }
    }
}

/// Whether an event is the occurrence of a fault.
fn is_event_of(kind: &EventKind, client: u32, injection: &Injection) -> bool {
    match (kind, injection) {
        (EventKind::Pause { for_us }, Injection::Pause { client: whose, for_us: long_us }) => {
            client == *whose && for_us == long_us
        }
        (EventKind::Crash { machine }, Injection::Crash { client: whose, machine: whole, .. }) => {
            client == *whose && machine == whole
        }
        (EventKind::Down { server, lost }, Injection::Down { server: which, lost: many, .. }) => server == which && lost == many,
        (EventKind::PowerLoss { server, wall_step_ms }, Injection::PowerLoss { server: which, wall_step_ms: step_ms, .. }) => {
            server == which && wall_step_ms == step_ms
        }
        (EventKind::Wipe { server }, Injection::Wipe { server: which, .. }) => server == which,
        (EventKind::Members { away, for_us }, Injection::Members { away: which, for_us: long_us, .. }) => {
            away == which && for_us == long_us
        }
        (EventKind::Foreign { server, for_us }, Injection::Foreign { server: which, again_after_us, .. }) => {
            server == which && for_us == again_after_us
        }
        (EventKind::BitRot { server, rot }, Injection::BitRot { server: which, rot: what, .. }) => server == which && rot == what,
        (EventKind::BadDisk { server, for_us, .. }, Injection::BadDisk { server: which, for_us: long_us, .. }) => {
            server == which && for_us == long_us
        }
        (EventKind::HungDisk { server, for_us }, Injection::HungDisk { server: which, for_us: long_us }) => {
            server == which && for_us == long_us
        }
        (EventKind::Stall { server, for_us }, Injection::Stall { server: which, for_us: long_us }) => {
            server == which && for_us == long_us
        }
        (EventKind::Loss { server, for_us }, Injection::Loss { client: whose, server: which, for_us: long_us, .. }) => {
            client == *whose && server == which && for_us == long_us
        }
        _ => false,
    }
}

/// Shrinks a plan that shows a violation, within a budget. Returns `None` if the plan shows no violation.
pub fn shrink(
    plan: &Plan,
    algorithm: &SimAlgorithm,
    rules: &Rules,
    property: Property,
    budget: Budget<'_>,
) -> Option<Counterexample> {
    let best = run_plan(plan, algorithm, rules, property)?;
    let mut shrinker = Shrinker { algorithm, rules, property, best, tried: 1, budget };
    if shrinker.is_spent() {
        return Some(shrinker.best);
    }
    shrinker.drop_after_violation();
    shrinker.pin_times();
    shrinker.remove_clients();
    loop {
        let size = |shrinker: &Shrinker<'_, '_>| (shrinker.best.plan.jobs(), shrinker.best.plan.faults.len());
        let before = size(&shrinker);
        shrinker.remove_chunks(|plan| plan.faults.clone(), |plan, faults| plan.faults = faults);
        for client in 0..plan.clients.len() {
            shrinker.remove_chunks(move |plan| plan.clients[client].clone(), move |plan, jobs| plan.clients[client] = jobs);
        }
        shrinker.drop_after_violation();
        if size(&shrinker) == before || shrinker.is_spent() {
            break;
        }
    }
    shrinker.shorten_jobs();
    shrinker.shift_to_start();
    let tried = shrinker.tried;
    Some(Counterexample { tried, ..shrinker.best })
}
