//! `portcullis cluster recover`: a lost majority.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::quorum::node::draw_id;
use crate::quorum::recover::{Found, Recovery};
use crate::quorum::store::{LogLoss, Owner};
use crate::server::durable::folder::Folder;
use crate::server::replicated::FOLDER;

/// What the step means, printed before it is taken.
fn warning(node: u64, found: &Found) -> String {
    let others: Vec<String> = found
        .members
        .iter()
        .filter(|(id, _)| **id != node)
        .map(|(id, (addr, votes))| format!("  node {id} at {addr}{}", if *votes { "" } else { ", without a vote" }))
        .collect();
    let forgotten = match found.forgotten {
        LogLoss::All => "It has not caught up since it joined or lost its disk: RECOVER ANOTHER NODE IF YOU CAN.\n",
        LogLoss::End => "The end of its log was cut, and it has not caught up since: recover another node if you can.\n",
        LogLoss::Nothing => "",
    };
    let committed = found.committed.map_or_else(|| "none".to_owned(), |index| index.to_string());
    format!(
        "\
Node {node} has the log up to entry {last} of term {term}; up to entry {committed} it knows that a majority has it.
{forgotten}
This makes it the only member of its cluster. It gives up:
{others}

WHAT MAY BE LOST: every write and every lock that clients were told of and that only the nodes above have. A lock may then be granted a
second time while its first holder still works, and tokens may repeat. What clients were not told of may be there.

The cluster gets a new id. The nodes above are refused if they come back: they must start with empty folders, and be added.
MAKE SURE THAT THEY DO NOT RUN: until they reach node {node}, they are a cluster that serves the same locks.
",
        last = found.last.index,
        term = found.last.leader_id.term,
        others = if others.is_empty() { "  no other node".to_owned() } else { others.join("\n") },
    )
}

/// Makes the stopped node of a folder the only member of its cluster. Without `confirmed` it only says what it would do.
///
/// # Errors
/// In words.
pub async fn recover(dir: &Path, node: u64, name: &str, confirmed: bool) -> Result<String, String> {
    let folder = dir.join(FOLDER);
    fail_if!(!folder.is_dir(), format!("{}: there is no such folder: --dir is the node's dir", folder.display()));
    let open = || Folder::open(&folder).map_err(|error| format!("{}: {error}", folder.display()));
    let owner = Owner { node, cluster: xxh3_64(name.as_bytes()) };
    let recovery = Recovery::open((open()?, open()?), &folder, owner).await?;
    eprintln!("{}", warning(node, recovery.found()));
    fail_if!(!confirmed, "nothing was changed: --yes-lose-what-was-not-replicated takes the step".to_owned());
    let id = draw_id();
    recovery.carry_out(&folder, id).await?;
    Ok(format!(
        "node {node} is the only member now, of cluster {id:016x}. Start it with the same node-id and dir, and add nodes: \
         portcullis cluster add URL NODE-ID HOST:PORT"
    ))
}
