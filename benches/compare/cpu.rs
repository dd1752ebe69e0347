//! CPU time of the servers per operation, by the scheduler's figures: the measure that other processes disturb least.

use std::io::{Error, Result};
use std::time::Duration;

use portcullis::bench::report::comparison::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::report::statistics::median;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::call_expecting;
use serde_json::json;

use crate::floor;
use crate::pipes::{self, Pipe};
use crate::plan::Plan;
use crate::workloads::{CHAINS, Chain, DEPTHS, SCRIPTS, Workload};

const NAME: &str = "cpu";
const CONNECTIONS: usize = 50;

/// A server with its connections.
struct DrivenServer {
    /// The kind of server. `None` for the floor.
    kind: Option<ServerKind>,
    process: Process,
    pipes: Vec<Pipe>,
    /// For each workload of the chain: nanoseconds per operation of each slice, or the reason why there is no figure.
    costs: Vec<Result<Vec<f64>>>,
}

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "server CPU per operation, 50 connections", "P");
    let is_chosen = |workload: &Workload| !workload.name.starts_with('(') && plan.wants(NAME, workload.name);
    if !CHAINS.iter().flat_map(|chain| chain.workloads).any(is_chosen) {
        return section;
    }
    let mut failed = Vec::new();
    let mut servers = Vec::new();
    for kind in plan.kinds() {
        match plan.start(kind).and_then(prepared) {
            Ok(process) => servers.push(DrivenServer::new(Some(kind), process)),
            Err(error) => failed.push((kind, Cell::Failed(error.to_string()))),
        }
    }
    let mut floor = floor::process(floor::Kind::Workloads).map(|process| DrivenServer::new(None, process));
    let mut bounds = LowerBounds::default();
    for depth in plan.depths(&DEPTHS) {
        // A depth of the command line that is not one of DEPTHS applies to all chains.
        let is_driven = |chain: &&Chain| chain.depths.contains(&depth) || !DEPTHS.contains(&depth);
        for chain in CHAINS.iter().filter(is_driven).filter(|chain| chain.workloads.iter().any(is_chosen)) {
            let names: Vec<&str> =
                chain.workloads.iter().filter(|workload| is_chosen(workload)).map(|workload| workload.name).collect();
            plan.say(&format!("{NAME}: {} at P{depth}", names.join("; ")));
            let beside = floor.as_mut().ok().filter(|_| chain.floor);
            drive_chain(plan, servers.iter_mut().chain(beside).collect(), chain, depth);
            for (number, workload) in chain.workloads.iter().enumerate().filter(|(_, workload)| is_chosen(workload)) {
                let column = DEPTHS.iter().position(|&known| known == depth);
                let bar = column.and_then(|column| workload.bars[column]).map(Bar::RatioAtLeast);
                let mut row = Row::new(workload.name, depth.to_string(), Unit::Nanoseconds).bar(bar);
                let fallback = workload.fallback.and_then(|name| chain.workloads.iter().position(|other| other.name == name));
                let cell = |server: &DrivenServer| Some((server.kind?, server.cell(number, fallback)));
                row.cells = servers.iter().filter_map(cell).chain(failed.clone()).collect();
                let beside = floor.as_ref().ok().filter(|_| chain.floor);
                bounds.record(&row, depth, beside.and_then(|floor| floor.cell(number, None).figure()));
                let slices = servers.iter().chain(beside).map(|server| server.slices(number));
                row.more = json!({ "slices": slices.collect::<serde_json::Map<_, _>>() });
                section.rows.push(row);
            }
        }
    }
    section.notes.extend(bounds.note());
    servers.iter().for_each(|server| plan.account(&server.process));
    section
}

/// Lower bounds of the workloads' costs.
#[derive(Default)]
struct LowerBounds {
    found: Vec<(String, Vec<String>)>,
}

impl LowerBounds {
    /// Records what a row's workload costs the floor, and the ratio of Redis's cost to it.
    fn record(&mut self, row: &Row, depth: usize, ns: Option<f64>) {
        let Some(ns) = ns else { return };
        let redis = row.cells.iter().find(|(kind, _)| *kind == ServerKind::Redis).and_then(|(_, cell)| cell.figure());
        let over = redis.map_or_else(String::new, |redis| format!(" ({:.2})", redis / ns));
        let text = format!("{ns:.0} ns at P{depth}{over}");
        match self.found.iter_mut().find(|(name, _)| *name == row.what) {
            Some((_, texts)) => texts.push(text),
            None => self.found.push((row.what.clone(), vec![text])),
        }
    }

    fn note(self) -> Option<String> {
        let texts: Vec<String> = self.found.iter().map(|(name, texts)| format!("{name} {}", texts.join(", "))).collect();
        let what = "lower bounds on this machine, from a loop of `epoll_wait`, `recv` and `send` that finds the end of requests and stores nothing; \
                    in parentheses redis-server's figure divided by the bound";
        (!texts.is_empty()).then(|| format!("{what}: {}", texts.join("; ")))
    }
}

/// Loads the scripts into a server.
fn prepared(process: Process) -> Result<Process> {
    for (script, sha) in SCRIPTS {
        call_expecting(process.addr(), &["SCRIPT", "LOAD", script], &format!("$40\r\n{sha}\r\n"))?;
    }
    Ok(process)
}

/// Drives all servers through the workloads of a chain, in slices that take turns.
fn drive_chain(plan: &Plan, mut servers: Vec<&mut DrivenServer>, chain: &'static Chain, depth: usize) {
    let keys: usize = match (depth, plan.quick) {
        (1, true) => 200,
        (1, false) => 600,
        (_, true) => 1_000,
        (_, false) => 3_000,
    };
    let keys = keys.div_ceil(chain.few);
    for server in &mut servers {
        // Finds out what the server cannot do before the measurement.
        server.costs = chain.workloads.iter().map(|workload| server.check_supported(workload).map(|()| Vec::new())).collect();
        let empty = if server.kind.is_none() { Ok(()) } else { call_expecting(server.process.addr(), &["FLUSHALL"], "+OK\r\n") };
        for (number, workload) in chain.workloads.iter().enumerate() {
            let tried = server.slice(workload, number, 1, 1).map(drop);
            server.fail(number, tried);
        }
        (0..chain.workloads.len())
            .for_each(|number| server.fail(number, empty.as_ref().copied().map_err(|e| Error::other(e.to_string()))));
    }
    for round in 0..plan.rounds {
        for turn in 0..servers.len() {
            let at = (round + turn) % servers.len();
            let server = &mut *servers[at];
            for (number, workload) in chain.workloads.iter().enumerate() {
                if server.costs[number].is_err() {
                    continue;
                }
                let cost = server.slice(workload, number, depth, keys);
                match (cost, &mut server.costs[number]) {
                    (Ok(cost), Ok(costs)) => costs.push(cost),
                    (cost, _) => server.fail(number, cost.map(drop)),
                }
            }
        }
    }
}

impl DrivenServer {
    fn new(kind: Option<ServerKind>, process: Process) -> DrivenServer {
        DrivenServer { kind, process, pipes: Vec::new(), costs: Vec::new() }
    }

    /// Fails if the workload needs native locks and the server has none.
    fn check_supported(&self, workload: &Workload) -> Result<()> {
        if workload.fallback.is_some() && self.kind.is_some_and(|kind| kind != ServerKind::Portcullis) {
            Err(Error::other("it has no native locks"))
        } else {
            Ok(())
        }
    }

    fn fail(&mut self, number: usize, outcome: Result<()>) {
        if let (Err(error), true) = (outcome, self.costs[number].is_ok()) {
            self.costs[number] = Err(error);
            // Replies may still be in transit.
            self.pipes.clear();
        }
    }

    fn cell(&self, number: usize, fallback: Option<usize>) -> Cell {
        match (&self.costs[number], fallback) {
            (Err(_), Some(other)) if self.kind != Some(ServerKind::Portcullis) => self.cell(other, None),
            (Ok(costs), _) if costs.is_empty() => Cell::Failed("it was not measured".to_owned()),
            (Ok(costs), _) => Cell::Value(median(costs)),
            (Err(error), _) => Cell::Failed(error.to_string()),
        }
    }

    fn slices(&self, number: usize) -> (String, serde_json::Value) {
        (self.kind.map_or("floor", ServerKind::name).to_owned(), json!(self.costs[number].as_ref().ok()))
    }

    /// Nanoseconds of CPU time that the server uses for each operation of a slice. Skips a workload that failed before.
    fn slice(&mut self, workload: &'static Workload, number: usize, depth: usize, keys: usize) -> Result<f64> {
        if self.costs[number].is_err() {
            return Ok(0.0);
        }
        while self.pipes.len() < CONNECTIONS {
            self.pipes.push(Pipe::new(self.process.addr())?);
        }
        for (connection, pipe) in self.pipes.iter_mut().enumerate() {
            let keys: Vec<String> = (0..keys).map(|i| key(connection, i)).collect();
            pipe.load(workload, &keys, depth);
        }
        let before = self.process.cpu_ns()?;
        pipes::drive(&mut self.pipes).map_err(|error| Error::new(error.kind(), format!("{}: {error}", workload.name)))?;
        // The server may still be busy for a moment after its last reply.
        std::thread::sleep(Duration::from_millis(2));
        Ok((self.process.cpu_ns()? - before) as f64 / (keys * CONNECTIONS) as f64)
    }
}

/// A key of 20 bytes.
fn key(connection: usize, i: usize) -> String {
    format!("lock:{connection:04}:{i:010}")
}
