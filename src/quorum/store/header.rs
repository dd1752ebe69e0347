//! The header of a segment: whose it is, where it belongs, and what the log's state was when it began.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::quorum::types::{ClusterId, LogId, NodeId, Vote};

/// Length of a header in bytes.
pub const LEN: usize = 512;
/// Where the lineage begins: five numbers before the checksum. Versions without ids wrote zeros there, and ignore what is there.
const LINEAGE: usize = LEN - 8 - 5 * 8;
/// Version of the format that this program writes, and the last one that it reads.
const VERSION: u32 = 1;
/// What every segment begins with.
const MAGIC: [u8; 8] = *b"PCQUORUM";
/// Where the state begins.
const STATE: usize = 56;
/// What the names of segments begin and end with.
const NAME: (&str, &str) = ("log-", ".segment");

/// Whose files these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The node.
    pub node: NodeId,
    /// A hash of the cluster's name, which the configuration gives. Clusters may have the same name: see [`Lineage`].
    pub cluster: u64,
}

impl Owner {
    /// A node of a cluster of this name.
    pub fn of(node: NodeId, cluster_name: &str) -> Owner {
        Owner { node, cluster: xxh3_64(cluster_name.as_bytes()) }
    }
}

/// The cluster that a log belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Its id. It is 0 until a blank node has begun or found its cluster, and in a cluster that an older version began.
    pub id: ClusterId,
    /// The cluster that this one was recovered from, or 0. [`Lineage::UNNAMED`] if that had no id.
    pub parent: ClusterId,
    /// The cluster that was recovered from this one and has taken its place, or 0. The node serves nothing any more.
    pub successor: ClusterId,
    /// The cluster is older than its id, and some of its members may not have the id yet.
    pub open: bool,
}

impl Lineage {
    /// Stands for a parent without an id. It is never drawn.
    pub const UNNAMED: ClusterId = ClusterId::MAX;

    /// A cluster that has begun with this id.
    pub fn of(id: ClusterId) -> Lineage {
        Lineage { id, ..Lineage::default() }
    }
}

/// What the log says, besides its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The last vote.
    pub vote: Option<Vote>,
    /// The last entry that is known to be committed.
    pub committed: Option<LogId>,
    /// The last entry that is not needed any more.
    pub purged: Option<LogId>,
    /// The last entry, or `purged` if there is none behind it.
    pub last: Option<LogId>,
}

/// What the header of a segment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose segment it is.
    pub owner: Owner,
    /// Number of the segment, from 1 without gaps.
    pub segment: u64,
    /// Index of the first entry that could follow.
    pub first: u64,
    /// Length in bytes of the segment before, without its seal; 0 in the first one.
    pub previous_len: u64,
    /// The state after all segments before.
    pub state: State,
    /// The cluster.
    pub lineage: Lineage,
    /// The id of the cluster in the segment before: it changes when the cluster begins and when it is recovered.
    pub previous_id: ClusterId,
}

impl Header {
    /// The header's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        let state = postcard::to_stdvec(&self.state).map_err(|error| error.to_string())?;
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(state.len() as u32).to_le_bytes());
        for number in [self.owner.node, self.owner.cluster, self.segment, self.first, self.previous_len] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&state);
        fail_if!(bytes.len() > LINEAGE, "the state is too large for a header".to_owned());
        bytes.resize(LINEAGE, 0);
        let Lineage { id, parent, successor, open } = self.lineage;
        for number in [id, parent, successor, u64::from(open), self.previous_id] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// The header that these bytes begin with. `owner` is whose it must be.
    ///
    /// # Errors
    /// In words, if there is none, or if it is damaged, of a newer format, or somebody else's.
    pub fn decode(bytes: &[u8], owner: Owner) -> Result<Header, String> {
        let Some(bytes) = bytes.get(..LEN) else {
            return Err(format!("{} bytes are too few for a header", bytes.len()));
        };
        let number = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        fail_if!(bytes[..8] != MAGIC, "it is no segment of a log, or its header is damaged".to_owned());
        let (version, len) = (number(8) as u32, (number(8) >> 32) as usize);
        if version > VERSION {
            return Err(format!(
                "it has format {version}, written by a newer version; this version reads formats up to {VERSION}"
            ));
        }
        fail_if!(number(LEN - 8) != xxh3_64(&bytes[..LEN - 8]), "its header is damaged".to_owned());
        let found = Owner { node: number(16), cluster: number(24) };
        if found.cluster != owner.cluster {
            return Err("it belongs to another cluster, whose cluster-name is not that of this node".to_owned());
        }
        fail_if!(found.node != owner.node, format!("it belongs to node {}, and this is node {}", found.node, owner.node));
        let state = bytes.get(STATE..STATE + len).and_then(|state| postcard::from_bytes(state).ok());
        let state = state.ok_or_else(|| "its header has a state that cannot be read".to_owned())?;
        let of = |at: usize| number(LINEAGE + 8 * at);
        let lineage = Lineage { id: of(0), parent: of(1), successor: of(2), open: of(3) != 0 };
        let (segment, first, previous_len) = (number(32), number(40), number(48));
        Ok(Header { owner: found, segment, first, previous_len, state, lineage, previous_id: of(4) })
    }
}

/// The name of a segment, by its number and the index of its first entry.
pub fn name(segment: u64, first: u64) -> Vec<u8> {
    format!("{}{segment:010}-{first:020}{}", NAME.0, NAME.1).into_bytes()
}

/// What the name of a segment says; `None` if it is no segment's.
pub fn parse_name(name: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(name).ok()?;
    let (segment, first) = text.strip_prefix(NAME.0)?.strip_suffix(NAME.1)?.split_once('-')?;
    Some((segment.parse().ok()?, first.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn header() -> Header {
        let vote = Some(Vote::new_committed(u64::MAX, u64::MAX));
        let last = Some(LogId::new(openraft::impls::leader_id_adv::LeaderId { term: u64::MAX, node_id: u64::MAX }, u64::MAX));
        let state = State { vote, committed: last, purged: last, last };
        let lineage = Lineage { id: 10, parent: 11, successor: 12, open: true };
        Header { owner: Owner { node: 2, cluster: 9 }, segment: 3, first: 4, previous_len: 5, state, lineage, previous_id: 13 }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = header();
        let bytes = header.encode().unwrap();
        assert_eq!(bytes.len(), LEN);
        assert_eq!(Header::decode(&bytes, header.owner).unwrap(), header);
        for at in 0..LEN {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(Header::decode(&flipped, header.owner).is_err(), "byte {at}");
        }
    }

    #[test]
    fn somebody_elses_header_is_refused() {
        let bytes = header().encode().unwrap();
        let refused = |bytes: &[u8], node, cluster| Header::decode(bytes, Owner { node, cluster }).unwrap_err();
        assert_eq!(refused(&bytes, 1, 9), "it belongs to node 2, and this is node 1");
        assert!(refused(&bytes, 2, 8).starts_with("it belongs to another cluster, whose cluster-name is"));
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert!(refused(&newer, 2, 9).starts_with("it has format 2, written by a newer version"));
        assert_eq!(refused(&bytes[..100], 2, 9), "100 bytes are too few for a header");
    }

    #[test]
    fn a_header_of_a_version_without_ids_belongs_to_no_cluster() {
        // What that version wrote: zeros behind the state.
        let mut bytes = header().encode().unwrap();
        bytes[LINEAGE..LEN - 8].fill(0);
        let checksum = xxh3_64(&bytes[..LEN - 8]);
        bytes[LEN - 8..].copy_from_slice(&checksum.to_le_bytes());
        let read = Header::decode(&bytes, header().owner).unwrap();
        assert_eq!(read, Header { lineage: Lineage::default(), previous_id: 0, ..header() });
    }

    #[test]
    fn names_of_segments_are_told_from_others() {
        assert_eq!(parse_name(&name(3, 70)), Some((3, 70)));
        assert_eq!(name(3, 70), b"log-0000000003-00000000000000000070.segment");
        for other in ["log-3.segment", "log-new", "snapshot-1.rdb"] {
            assert_eq!(parse_name(other.as_bytes()), None);
        }
    }
}
