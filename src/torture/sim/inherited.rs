//! What a durable server may find when it starts for the first time: the append-only file of a Redis that ran there before. It has much
//! that this server refuses, and loads all the same. Some of them have a command of a module, with which this server does not start.

use crate::client::Command;
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::{Disk, Result, append_all};
use crate::persist::resume::manifest_name;
use crate::torture::sim::durable::config;

/// Number of increments: so many that the first start joins them.
const INCREMENTS: i64 = 9;
/// Numbers of requests in the last increment and of libraries in the base that are refused: more than are named.
const REFUSED_REQUESTS: usize = 12;
const REFUSED_LIBRARIES: usize = 101;
/// Of so many files, one has a command that this server does not have.
const FOREIGN_EVERY: u64 = 4;

/// Puts the files on a disk, which is empty. They follow from the seed.
///
/// # Errors
/// The disk's.
pub fn inherit<D: Disk>(disk: &mut D, seed: u64) -> Result {
    let name = config().appendfilename.into_bytes();
    let base = Manifest::default().next_base(&name, true);
    let mut manifest = Manifest { base: Some(base.clone()), ..Manifest::default() };
    put(disk, &base.name, &libraries())?;
    for seq in 1..=INCREMENTS {
        let increment: File = manifest.next_increment(&name);
        let key = format!("redis:{seq}");
        let mut requests = vec![Command::new("SELECT").arg(0), Command::new("SET").arg(key.as_str()).arg(seq)];
        if seq == INCREMENTS {
            requests.extend((0..REFUSED_REQUESTS).map(|_| Command::new("LPUSH").arg(key.as_str()).arg(seq)));
            // Old versions record scripts. The reply of this one is not kept.
            requests.push(Command::new("EVAL").arg("return string.rep('x', 5000)").arg(0));
            requests.extend(seed.is_multiple_of(FOREIGN_EVERY).then(|| Command::new("FT.CREATE").arg("index")));
        }
        put(disk, &increment.name, &requests.iter().flat_map(Command::wire).copied().collect::<Vec<u8>>())?;
        manifest.increments.push(increment);
    }
    put(disk, &manifest_name(&name), &manifest.write())?;
    disk.sync_folder()
}

/// An RDB of libraries that cannot be loaded.
fn libraries() -> Vec<u8> {
    [b"REDIS0011".to_vec(), b"\xf5\x05wrong".repeat(REFUSED_LIBRARIES), b"\xff\0\0\0\0\0\0\0\0".to_vec()].concat()
}

fn put<D: Disk>(disk: &mut D, name: &[u8], bytes: &[u8]) -> Result {
    let mut file = disk.create(name)?;
    append_all(disk, &mut file, bytes)?;
    disk.sync(&mut file)
}
