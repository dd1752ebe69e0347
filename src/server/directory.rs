//! The directory of live connections, for threads other than the executor's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

#[cfg(not(loom))]
use dashmap::DashMap;

use crate::driver::connections::queue::Traffic;
#[cfg(loom)]
use models::DashMap;

/// One connection as the rest of the process sees it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The client's address; `None` over a unix socket.
    pub addr: Option<SocketAddr>,
    /// Its file descriptor.
    pub fd: RawFd,
    /// Unix time of the connect, in seconds. Stored in 32 bits, so clamped to 1970..2106.
    pub connected_at: i64,
    /// Bytes read, as of at most a second ago.
    pub bytes_in: u64,
    /// Bytes written, as of at most a second ago.
    pub bytes_out: u64,
}

/// An [`Entry`] in fewer bytes: there may be tens of thousands of connections.
#[derive(Clone, Copy, Debug)]
struct PackedEntry {
    bytes_in: u64,
    bytes_out: u64,
    connected_at: u32,
    fd: RawFd,
    /// The address of version 4. One of version 6 is in `Directory::v6`: few connections have one, and it is four times as
    /// long.
    ip: Ipv4Addr,
    port: u16,
    from: From,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Unix,
    V4,
    V6,
}

impl PackedEntry {
    fn new(entry: Entry) -> PackedEntry {
        let (ip, from) = match entry.addr.map(|addr| addr.ip()) {
            None => (Ipv4Addr::UNSPECIFIED, From::Unix),
            Some(IpAddr::V4(ip)) => (ip, From::V4),
            Some(IpAddr::V6(_)) => (Ipv4Addr::UNSPECIFIED, From::V6),
        };
        PackedEntry {
            bytes_in: entry.bytes_in,
            bytes_out: entry.bytes_out,
            ip,
            connected_at: u32::try_from(entry.connected_at).unwrap_or(if entry.connected_at < 0 { 0 } else { u32::MAX }),
            fd: entry.fd,
            port: entry.addr.map_or(0, |addr| addr.port()),
            from,
        }
    }

    fn entry(self, v6: impl FnOnce() -> Option<Ipv6Addr>) -> Entry {
        let addr = match self.from {
            From::Unix => None,
            From::V4 => Some(SocketAddr::from((self.ip, self.port))),
            From::V6 => v6().map(|ip| SocketAddr::from((ip, self.port))),
        };
        let (bytes_in, bytes_out) = (self.bytes_in, self.bytes_out);
        Entry { addr, fd: self.fd, connected_at: i64::from(self.connected_at), bytes_in, bytes_out }
    }
}

/// Live connections by client id.
#[derive(Debug)]
pub struct Directory {
    entries: Map<PackedEntry>,
    /// Addresses of the connections over IP version 6.
    v6: Map<Ipv6Addr>,
}

type Map<T> = DashMap<u64, T, foldhash::fast::FixedState>;

/// There is one writer, so few shards are enough, and each costs memory.
fn map<T: Copy>() -> Map<T> {
    DashMap::with_capacity_and_hasher_and_shard_amount(0, Default::default(), 4)
}

impl Default for Directory {
    fn default() -> Self {
        Directory { entries: map(), v6: map() }
    }
}

impl Directory {
    /// Number of live connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no live connections.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All live connections, sorted by client id.
    pub fn snapshot(&self) -> Vec<(u64, Entry)> {
        let v6 = |id: u64| self.v6.get(&id).map(|ip| *ip);
        let mut all: Vec<_> = self.entries.iter().map(|kept| (*kept.key(), kept.value().entry(|| v6(*kept.key())))).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    pub(super) fn insert(&self, id: u64, entry: Entry) {
        if let Some(IpAddr::V6(ip)) = entry.addr.map(|addr| addr.ip()) {
            self.v6.insert(id, ip);
        }
        self.entries.insert(id, PackedEntry::new(entry));
    }

    pub(super) fn remove(&self, id: u64) {
        if self.entries.remove(&id).is_some_and(|(_, kept)| kept.from == From::V6) {
            self.v6.remove(&id);
        }
    }

    pub(super) fn traffic(&self, of: Traffic) {
        if let Some(mut entry) = self.entries.get_mut(&of.client) {
            (entry.bytes_in, entry.bytes_out) = (of.received, of.written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_told() {
        let directory = Directory::default();
        let addrs = [None, Some("10.1.2.3:6379"), Some("[2001:db8::7]:1"), Some("[::ffff:10.0.0.1]:9"), Some("[::1]:65535")];
        for (id, addr) in (1..).zip(addrs) {
            let addr = addr.map(|addr| addr.parse().expect("an address"));
            directory.insert(id, Entry { addr, fd: 7, connected_at: 1_800_000_000, bytes_in: 0, bytes_out: 0 });
            directory.traffic(Traffic { client: id, received: 5, written: u64::MAX });
            let (_, entry) = directory.snapshot().pop().expect("one entry");
            assert_eq!((entry.addr, entry.fd, entry.connected_at), (addr, 7, 1_800_000_000));
            assert_eq!((entry.bytes_in, entry.bytes_out), (5, u64::MAX));
            directory.remove(id);
        }
        assert!(directory.is_empty() && directory.v6.is_empty());
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use std::collections::HashMap;
    use std::fmt;
    use std::marker::PhantomData;
    use std::ops::{Deref, DerefMut};
    use std::rc::Rc;

    use loom::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
    use loom::thread;

    use super::*;

    /// Stands in for the map of the same name, which loom cannot watch: one shard, with a lock that loom watches.
    pub struct DashMap<K, V, S>(RwLock<HashMap<K, V>>, PhantomData<S>);

    pub struct Ref<'a, K, V> {
        key: K,
        value: V,
        _shard: Rc<RwLockReadGuard<'a, HashMap<K, V>>>,
    }

    pub struct RefMut<'a, K, V> {
        key: K,
        shard: RwLockWriteGuard<'a, HashMap<K, V>>,
    }

    impl<V: Copy, S> DashMap<u64, V, S> {
        pub fn with_capacity_and_hasher_and_shard_amount(_: usize, _: S, _: usize) -> Self {
            DashMap(RwLock::new(HashMap::new()), PhantomData)
        }

        pub fn len(&self) -> usize {
            self.0.read().unwrap().len()
        }

        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        pub fn get(&self, key: &u64) -> Option<Ref<'_, u64, V>> {
            self.iter().find(|entry| entry.key() == key)
        }

        pub fn get_mut(&self, key: &u64) -> Option<RefMut<'_, u64, V>> {
            let shard = self.0.write().unwrap();
            shard.contains_key(key).then_some(RefMut { key: *key, shard })
        }

        pub fn iter(&self) -> impl Iterator<Item = Ref<'_, u64, V>> {
            let shard = Rc::new(self.0.read().unwrap());
            let all: Vec<(u64, V)> = shard.iter().map(|(&key, &value)| (key, value)).collect();
            all.into_iter().map(move |(key, value)| Ref { key, value, _shard: Rc::clone(&shard) })
        }

        pub fn insert(&self, key: u64, value: V) -> Option<V> {
            self.0.write().unwrap().insert(key, value)
        }

        pub fn remove(&self, key: &u64) -> Option<(u64, V)> {
            self.0.write().unwrap().remove_entry(key)
        }
    }

    impl<K, V, S> fmt::Debug for DashMap<K, V, S> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("DashMap")
        }
    }

    impl<K, V> Ref<'_, K, V> {
        pub fn key(&self) -> &K {
            &self.key
        }

        pub fn value(&self) -> &V {
            &self.value
        }
    }

    impl<K, V> Deref for Ref<'_, K, V> {
        type Target = V;

        fn deref(&self) -> &V {
            &self.value
        }
    }

    impl<V> Deref for RefMut<'_, u64, V> {
        type Target = V;

        fn deref(&self) -> &V {
            &self.shard[&self.key]
        }
    }

    impl<V> DerefMut for RefMut<'_, u64, V> {
        fn deref_mut(&mut self) -> &mut V {
            self.shard.get_mut(&self.key).expect("it was there when the shard was locked")
        }
    }

    #[test]
    fn whoever_is_seen_has_an_address_while_connections_come_and_go() {
        loom::model(|| {
            let directory = Arc::new(Directory::default());
            let theirs = Arc::clone(&directory);
            let executor = thread::spawn(move || {
                let addr = Some(SocketAddr::from((Ipv6Addr::LOCALHOST, 1)));
                theirs.insert(1, Entry { addr, fd: 7, connected_at: 0, bytes_in: 0, bytes_out: 0 });
                theirs.traffic(Traffic { client: 1, received: 5, written: 6 });
                theirs.remove(1);
            });
            for (id, entry) in directory.snapshot() {
                assert_eq!((id, entry.addr.map(|addr| addr.port())), (1, Some(1)));
                assert!(matches!((entry.bytes_in, entry.bytes_out), (0, 0) | (5, 6)), "half of the traffic");
            }
            executor.join().unwrap();
            assert!(directory.is_empty() && directory.v6.is_empty());
        });
    }
}
