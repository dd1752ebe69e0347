//! The measurement: clients run a workload on each target, in slices that take turns.
//!
//! - [`workload`]: a lock algorithm, an algorithm that is no lock, or a plain command;
//! - [`clients`]: the clients of one target and their slices;
//! - [`critical_section`]: checks mutual exclusion, and times hand-offs;
//! - [`expiry`]: how late a waiter is granted a lock whose holder is gone;
//! - [`counting_world`]: counts the commands that algorithms send.

pub mod clients;
pub mod counting_world;
pub mod critical_section;
pub mod expiry;
pub mod workload;

use indicatif::{ProgressBar, ProgressStyle};

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;
use crate::bench::run::clients::ClientGroup;
use crate::bench::servers::target::{self, Target};

/// Measures every workload on every target. The outcomes of a workload are adjacent, in the order of the targets.
///
/// # Errors
/// The reason why a server cannot be started or reached, in words for people.
pub async fn measure(plan: &Plan) -> Result<Vec<Outcome>, String> {
    let several = plan.workloads.iter().any(|workload| workload.needs_several_servers());
    let mut targets = Vec::new();
    for server in &plan.servers {
        targets.push(Target::start(server, several).await?);
    }
    target::number_equal_names(&mut targets);
    let bar = progress(plan, targets.len());
    let mut outcomes = Vec::new();
    for workload in &plan.workloads {
        let mut groups = Vec::new();
        for target in &targets {
            groups.push(ClientGroup::connect(plan, workload, target).await?);
        }
        for round in 0..plan.slices {
            for turn in 0..groups.len() {
                // The order is reversed in every other round.
                let index = if round % 2 == 0 { turn } else { groups.len() - 1 - turn };
                let group = &mut groups[index];
                bar.set_message(format!("{} on {}", workload.name(), group.outcome.target));
                group.run_slice(plan).await?;
                bar.inc(1);
            }
        }
        for mut group in groups {
            expiry::measure(plan, &mut group).await;
            bar.inc(1);
            outcomes.push(group.finish());
        }
    }
    bar.finish_and_clear();
    for target in &targets {
        target.delete_leftovers(&plan.prefix).await;
    }
    Ok(outcomes)
}

/// A progress bar. It shows only on a terminal.
fn progress(plan: &Plan, targets: usize) -> ProgressBar {
    let steps = plan.workloads.len() * targets * (plan.slices + 1);
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}  ({eta} left)") {
        bar.set_style(style);
    }
    bar
}
