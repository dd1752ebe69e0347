//! The lanes of a timeline: one for each client, then one for each server, then those of all servers and of the guarded resource.

use crate::torture::history::{Event, EventKind, NO_CLIENT};

/// Whose lane it is. The order is that on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// A client's.
    Client(u32),
    /// A server's.
    Server(u32),
    /// That of faults which strike several servers.
    Servers,
    /// The guarded resource's.
    Resource,
}

impl Lane {
    /// The lane of an event.
    pub fn of(event: &Event) -> Lane {
        if event.client != NO_CLIENT {
            return Lane::Client(event.client);
        }
        match event.kind {
            EventKind::Down { server, .. }
            | EventKind::Up { server }
            | EventKind::PowerLoss { server, .. }
            | EventKind::Refused { server }
            | EventKind::Stall { server, .. }
            | EventKind::Wipe { server }
            | EventKind::BadDisk { server, .. }
            | EventKind::HungDisk { server, .. }
            | EventKind::HungLeader { server, .. }
            | EventKind::BitRot { server, .. }
            | EventKind::Replaced { server }
            | EventKind::DriftOfNode { server, .. }
            | EventKind::StepOfNode { server, .. }
            | EventKind::Leads { server } => Lane::Server(server),
            EventKind::Stored { .. } => Lane::Resource,
            _ => Lane::Servers,
        }
    }

    /// The name.
    pub fn name(self) -> String {
        match self {
            Lane::Client(client) => format!("client {client}"),
            Lane::Server(server) => format!("server {server}"),
            Lane::Servers => "all servers".to_owned(),
            Lane::Resource => "guarded resource".to_owned(),
        }
    }

    /// The height in pixels.
    pub fn height(self) -> f64 {
        if matches!(self, Lane::Client(_)) { 80.0 } else { 42.0 }
    }

    /// Where its faults are drawn, in pixels from its top.
    pub fn faults_y(self) -> f64 {
        if matches!(self, Lane::Client(_)) { 64.0 } else { 20.0 }
    }
}
