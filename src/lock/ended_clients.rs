//! The last connections that have acquired locks and ended: a lock may outlive its holder's connection, and an administrator wants
//! to know whose it was.

use std::collections::{BTreeMap, VecDeque};

use crate::base::kept::{Memory, block};

/// Maximum number of connections that are remembered.
const CLIENTS_MAX: usize = 10_000;
/// Bytes of a connection besides its texts. Nodes of the map are half full, as connections come in the order of their numbers.
const PLACE: usize = 2 * size_of::<(u64, KnownClient)>() + size_of::<u64>();

/// What is known of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownClient {
    /// Its name (`CLIENT SETNAME`); empty for none.
    pub name: Box<[u8]>,
    /// Its address.
    pub addr: Box<str>,
    /// Its user, at present or at its end.
    pub user: Box<[u8]>,
    /// When it ended, in monotonic milliseconds; `None` while it is connected, and where nothing is known of it.
    pub ended_ms: Option<u64>,
}

impl KnownClient {
    fn text_bytes(&self) -> usize {
        [self.name.len(), self.addr.len(), self.user.len()].into_iter().map(block).sum()
    }
}

/// The last connections that have acquired locks and ended, by client number.
#[derive(Debug, Default)]
pub struct EndedClients {
    by_id: BTreeMap<u64, KnownClient>,
    /// Their numbers, in the order in which they ended.
    order: VecDeque<u64>,
    text_bytes: usize,
}

impl EndedClients {
    /// Remembers a connection that ends. Forgets the one that ended first if there are too many.
    pub fn add(&mut self, id: u64, client: KnownClient) {
        if self.order.len() >= CLIENTS_MAX {
            self.forget_oldest();
        }
        self.text_bytes += client.text_bytes();
        self.by_id.insert(id, client);
        self.order.push_back(id);
    }

    /// What is known of a connection that has ended.
    pub fn get(&self, id: u64) -> Option<&KnownClient> {
        self.by_id.get(&id)
    }

    /// The numbers of the connections, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.by_id.keys().copied()
    }

    /// The connection whose number ends in these 32 bits, with its number; the latest if there are several.
    pub fn latest(&self, number: u32) -> Option<(u64, &KnownClient)> {
        self.by_id.iter().rev().find(|(id, _)| **id as u32 == number).map(|(id, client)| (*id, client))
    }

    /// Moves the times when the clock was set back or forth.
    pub fn move_marks(&mut self, by_ms: i64) {
        for ended_ms in self.by_id.values_mut().filter_map(|client| client.ended_ms.as_mut()) {
            *ended_ms = ended_ms.saturating_add_signed(by_ms);
        }
    }
}

impl Memory for EndedClients {
    fn bytes(&self) -> usize {
        self.order.len() * PLACE + self.text_bytes
    }

    fn oldest_ms(&self) -> Option<u64> {
        self.order.front().and_then(|id| self.by_id.get(id)).and_then(|client| client.ended_ms)
    }

    fn forget_oldest(&mut self) {
        let oldest = self.order.pop_front().and_then(|oldest| self.by_id.remove(&oldest));
        self.text_bytes -= oldest.map_or(0, |client| client.text_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn the_last_connections_are_remembered() {
        let mut ended = EndedClients::default();
        for id in 1..=CLIENTS_MAX as u64 + 3 {
            ended.add(id, KnownClient { name: b"name".as_slice().into(), ended_ms: Some(id), ..KnownClient::default() });
        }
        assert_eq!((ended.by_id.len(), ended.order.len()), (CLIENTS_MAX, CLIENTS_MAX));
        assert!(!ended.by_id.contains_key(&3) && ended.by_id.contains_key(&4));
        ended.move_marks(-2);
        assert_eq!(ended.by_id[&4].ended_ms, Some(2));
        assert_eq!((ended.bytes(), ended.oldest_ms()), (CLIENTS_MAX * (PLACE + block(4)), Some(2)));
        (0..=CLIENTS_MAX).for_each(|_| ended.forget_oldest());
        assert_eq!((ended.bytes(), ended.oldest_ms()), (0, None));
    }
}
