//! The faults that only nodes have, and when they occur.

use super::{Injection, PlannedFault, Settings, When, mean_interval};
use crate::torture::fault::Fault;
use crate::torture::random::Random;
use crate::torture::sim::replica::damage::Rot;

/// By how many millionths the clocks of nodes run fast or slow at most: as much as NTP slews them.
const NODES_PPM_MAX: u64 = 500;

/// Draws the faults that only nodes have.
pub(super) fn draw_faults(settings: &Settings, fault: Fault, random: &mut Random, faults: &mut Vec<PlannedFault>) {
    let (lease_us, nodes) = (settings.lease_us, settings.machines());
    let unit_us = lease_us / 10;
    if fault == Fault::Skew {
        for server in 0..nodes {
            let ppm = random.below(2 * NODES_PPM_MAX) as i64 - NODES_PPM_MAX as i64;
            faults.push(PlannedFault { when: When::At(0), injection: Injection::DriftOfNode { server, ppm } });
            let by_ms = random.below(600_000) as i64 - 300_000;
            faults.push(PlannedFault { when: When::At(0), injection: Injection::StepOfNode { server, by_ms } });
        }
    }
    let mut at_us = 0;
    loop {
        at_us += random.between(unit_us, 2 * mean_interval(fault) * unit_us);
        if at_us >= settings.episode_us {
            return;
        }
        let server = random.below(u64::from(nodes)) as u32;
        let injection = match fault {
            Fault::Skew => Injection::StepOfNode { server, by_ms: random.below(240_000) as i64 - 120_000 },
            Fault::Partition => {
                // Mostly one node, or two; in one direction, or both.
                let second = if nodes > 3 && random.percent(50) { 1 << random.below(u64::from(nodes)) } else { 0 };
                let ways = [(true, true), (true, true), (true, false), (false, true)][random.below(4) as usize];
                let apart = 1 << server | second;
                // From all others, or from one of them.
                let one = 1 << ((u64::from(server) + 1 + random.below(u64::from(nodes) - 1)) % u64::from(nodes));
                let others = if random.percent(30) { one & !apart } else { !apart };
                Injection::Partition { apart: (apart, others), ways, for_us: random.between(unit_us / 10, lease_us) }
            }
            Fault::Disorder => Injection::Disorder {
                for_us: random.between(unit_us, lease_us),
                most_us: random.between(unit_us / 100, unit_us),
                lost_percent: random.below(30),
                broken_permille: random.below(30),
            },
            Fault::Stall => Injection::Stall { server, for_us: random.between(unit_us / 10, lease_us) },
            Fault::BadDisk => {
                Injection::BadDisk { server, full: random.percent(50), for_us: random.between(unit_us / 10, lease_us / 2) }
            }
            // From what a busy disk takes to what a broken one does.
            Fault::HungDisk => {
                let longest_us = if random.percent(50) { 6 * lease_us } else { unit_us };
                Injection::HungDisk { server, for_us: random.between(unit_us / 10, longest_us) }
            }
            Fault::BitRot => Injection::BitRot {
                server,
                rot: Rot::ALL[random.below(Rot::ALL.len() as u64) as usize],
                place: random.draw(),
                power: random.percent(50),
                again_after_us: random.between(unit_us / 100, 3 * unit_us),
            },
            Fault::Members => {
                let second = if nodes > 3 && random.percent(50) { 1 << random.below(u64::from(nodes)) } else { 0 };
                let away = 1 << server | second;
                let fresh = if random.percent(50) { away } else { away & random.below(1 << nodes) as u32 };
                Injection::Members { away, fresh, for_us: random.between(unit_us / 10, lease_us) }
            }
            Fault::CutOff => Injection::CutOff { for_us: random.between(unit_us / 10, 4 * lease_us) },
            Fault::Foreign => {
                Injection::Foreign { server, place: random.draw(), again_after_us: random.between(unit_us / 2, lease_us) }
            }
            Fault::Wipe => Injection::Wipe { server, again_after_us: random.between(unit_us / 100, 3 * unit_us) },
            _ => return,
        };
        // A candidate that is cut off when it has been elected, and comes back later, shows whether its voter keeps to its vote.
        let when = match fault {
            Fault::Partition if random.percent(30) => {
                let voter = (server + 1 + random.below(u64::from(nodes) - 1) as u32) % nodes;
                When::Voted { server: voter, from_us: at_us, after_us: random.below(600) }
            }
            _ => When::At(at_us),
        };
        faults.push(PlannedFault { when, injection });
    }
}
