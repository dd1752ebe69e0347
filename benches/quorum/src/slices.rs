//! Slices of systems that take turns, and their medians as rows.

use std::io::Result;

use portcullis::bench::report::comparison::{Bar, Cell, Row, Unit};
use portcullis::bench::report::statistics::median;

use crate::cluster::Cluster;
use crate::plan::Plan;
use crate::systems::{Client, System};

/// A system that takes part: its cluster, or why it did not start.
pub struct Entrant {
    pub system: System,
    pub cluster: Result<Cluster>,
}

impl Entrant {
    pub async fn start(plan: &Plan, system: System) -> Entrant {
        let cluster = Cluster::start(plan, system).await;
        if let Err(error) = &cluster {
            plan.say(&format!("{} does not start: {error}", system.title()));
        }
        Entrant { system, cluster }
    }

    /// The name and version.
    pub async fn version(&self) -> String {
        match &self.cluster {
            Ok(cluster) => cluster.version().await,
            Err(_) => format!("{} (does not start)", self.system.title()),
        }
    }

    /// Connects clients to the leader.
    pub async fn clients(&self, count: usize) -> Result<Vec<Client>> {
        let cluster = self.cluster.as_ref().map_err(again)?;
        let leader = [cluster.addrs()[cluster.ready().await?]];
        let mut clients = Vec::new();
        for number in 0..count {
            clients.push(Client::connect(self.system, &leader, format!("client-{number}")).await?);
        }
        Ok(clients)
    }
}

/// An error once more.
pub fn again(error: &std::io::Error) -> std::io::Error {
    std::io::Error::other(error.to_string())
}

/// A figure of each system: its name, its parameter, its unit and its goal.
pub struct Figure {
    pub what: String,
    pub at: String,
    pub unit: Unit,
    pub bar: Option<Bar<System>>,
}

/// The figures of a slice, one for each row, or none where the system does not have it.
pub type Slice = Vec<Option<f64>>;

/// A row for each figure, with the medians of the slices.
pub fn rows(figures: Vec<Figure>, systems: &[(System, Result<Vec<Slice>>)]) -> Vec<Row<System>> {
    let row = |(number, figure): (usize, Figure)| {
        let mut row = Row::new(figure.what, figure.at, figure.unit).bar(figure.bar);
        for (system, slices) in systems {
            let cell = match slices {
                Err(error) => Cell::Failed(error.to_string()),
                Ok(slices) => {
                    let all: Vec<f64> = slices.iter().filter_map(|slice| slice[number]).collect();
                    if all.is_empty() { Cell::Unsupported } else { Cell::Value(median(&all)) }
                }
            };
            row.cells.push((*system, cell));
        }
        row
    };
    figures.into_iter().enumerate().map(row).collect()
}
