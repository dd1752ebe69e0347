//! A process of a node of another cluster, at the address of a node that does not run.

use std::fs;
use std::process::Child;

use crate::cluster::processes::{self, NodeStart, Place};
use crate::engine::config::Config;
use crate::files;
use crate::quorum::store::{Options, Owner};
use crate::quorum::types::NodeId;
use crate::server::durable::folder::Folder;
use crate::torture::live::nodes::FOLDER;
use crate::torture::live::nodes::toll::Strike;
use crate::torture::sim::replica::foreign::make_foreign;

/// Below the nodes' folder: the folders of nodes of other clusters.
const ELSEWHERE: &str = "foreign";
/// What is in the log of a node that a node of the cluster has met.
const MET: &str = "can join another cluster";

/// A node of another cluster. It ends when dropped.
pub struct Foreign {
    child: Child,
    place: Place,
    node: usize,
    /// The length of its log before: those of earlier ones are in the same file.
    log_bytes: usize,
    strike: Strike,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        processes::end(&mut self.child);
        // The next one makes it anew.
        let _ = fs::remove_dir_all(self.place.dir(self.node));
    }
}

impl Foreign {
    /// Starts it from a copy of the node's files, which is then one of another cluster, as in [`make_foreign`].
    ///
    /// # Errors
    /// In words: the files cannot be copied, or it cannot be started.
    pub fn come(own: &Place, start: NodeStart<'_>, contents: u64, strike: Strike) -> Result<Foreign, String> {
        let place = Place { folder: own.folder.join(ELSEWHERE), temporary: false };
        let (from, to) = (own.dir(start.node).join(FOLDER), place.dir(start.node).join(FOLDER));
        let copied = fs::create_dir_all(&to).and_then(|()| {
            for file in fs::read_dir(&from)? {
                let file = file?;
                files::copy(&file.path(), &to.join(file.file_name()))?;
            }
            Ok(())
        });
        copied.map_err(|error| format!("{}: {error}", to.display()))?;
        let node = start.node as NodeId;
        let owner = Owner::of(node, &Config::default().cluster_name);
        let folder = Folder::open(&to).map_err(|error| format!("{}: {error}", to.display()))?;
        make_foreign(folder, Options::new(owner, None), node, contents)?;
        let log_bytes = place.text(start.node).len();
        Ok(Foreign { child: processes::spawn(&place, start)?, node: start.node, log_bytes, place, strike })
    }

    /// Ends it. Returns the fault if the other nodes have met it.
    pub fn leave(self) -> Option<Strike> {
        self.place.text(self.node).get(self.log_bytes..).is_some_and(|since| since.contains(MET)).then_some(self.strike)
    }
}
