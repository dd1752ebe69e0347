//! Cluster mode with a single node: the slots of keys, and the check that a request stays within one slot.
//!
//! Clients of a cluster send each request to the node with its slot. Here this node has all slots, so keys never move; but a
//! request across slots is refused as in every cluster, so that what works here works there.

use crate::base::error::{Error, Result};
use crate::engine::Engine;
use crate::engine::command::Command;

/// Number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The CRC-16 (XMODEM) table, one entry per byte value.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The slot of a key: of the part between its first `{` and the next `}`, if that is not empty, or else of the whole key.
pub fn key_slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&b| b == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, &byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]);
    crc % SLOTS
}

/// The slot of a request's keys or shard channels; `None` if it has none, or if they cannot be determined.
pub fn request_slot(command: &Command, args: &[&[u8]]) -> Result<Option<u16>> {
    let same = |slot: Option<u16>, key: &[u8]| match slot {
        Some(slot) if slot != key_slot(key) => Err(Error::CROSS_SLOT),
        _ => Ok(Some(key_slot(key))),
    };
    if let Some(slot_args) = command.slot_args {
        return slot_args(args).into_iter().try_fold(None, |slot, at| same(slot, args[at]));
    }
    let keys = command.key_positions(args).unwrap_or_default();
    keys.iter().try_fold(None, |slot, key| same(slot, args[key.position]))
}

impl Engine {
    /// Whether the server is a node of a cluster, the only one.
    #[inline]
    pub fn in_cluster(&self) -> bool {
        self.config.cluster_enabled
    }

    /// The slot that a script must stay in from its start: that of its transaction, or else of its declared keys.
    #[cold]
    pub(crate) fn slot_of_script(&self, command: &Command, args: &[&[u8]]) -> Option<u16> {
        self.running.exec_slot.or_else(|| request_slot(command, args).ok().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_every_cluster_gives_them() {
        for (key, slot) in [
            ("", 0),
            ("a", 15_495),
            ("foo", 12_182),
            ("bar", 5061),
            ("123456789", 12_739),
            ("{user1000}.following", 3443),
            ("{user1000}.followers", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
        ] {
            assert_eq!(key_slot(key.as_bytes()), slot, "{key}");
        }
    }
}
