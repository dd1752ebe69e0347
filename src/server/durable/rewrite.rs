//! Bases of the append-only file, on a disk of the system or on a simulated one. A new base is made beside the server: a second engine on a
//! thread of its own loads the old base and the closed increments, and writes what it then has. The executor does nothing for it, and there
//! is no fork. The first base of a file that is switched on is made of a copy.

use crate::driver::file::BaseOrder;
use crate::driver::replay::Purpose;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::files::{Files, Head};
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::{DiskError, append_all};
use crate::persist::resume::Last;
use crate::server::durable::folder::LogFolder;
use crate::server::durable::load::load_from;
use crate::server::durable::snapshot::{Kind, SYNC_EVERY, UNWANTED, write_to};

/// A base until it is whole.
pub const TEMPORARY: &str = "temp-rewriteaof.rdb";

/// Makes a durable base. Returns the file and its length in bytes. The manifest does not
/// name it yet. `moment` is the time at the start, at which the files are read and the base is written: leases are as long in it as in the
/// files.
///
/// # Errors
/// In words: more requests of the files are refused than when the server loaded them, or the disk's. The folder is then as it was.
pub fn make_base<F: LogFolder>(
    folder: &mut F,
    name: &[u8],
    BaseOrder { files: mut manifest, config, refused_max, .. }: BaseOrder,
    moment: Moment,
    goes_on: impl Fn() -> bool,
) -> Result<(File, u64), String> {
    manifest.increments.pop();
    let checksum = config.rdbchecksum;
    let mut engine = Engine::new(Config { maxmemory: 0, ..config }, 0, moment.now, crate::commands::table());
    let base = manifest.next_base(name, true);
    let path = folder.path().to_owned();
    load_from(&mut engine, moment, &path, |name| folder.source(name), manifest, (Purpose::Base, refused_max))?;
    let len = put_base(folder, &engine, moment, &base, checksum, goes_on)?;
    Ok((base, len))
}

/// Makes the first base of a file of a copy, and begins its first increment.
///
/// # Errors
/// In words.
pub fn begin_files<F: LogFolder>(
    mut folder: F,
    name: &[u8],
    manifest: Manifest,
    (engine, moment): (Box<Engine>, Moment),
    checksum: bool,
    head: &Head,
) -> Result<Files<F>, String> {
    let Some(base) = &manifest.base else { return Err("the manifest names no base".to_owned()) };
    let len = put_base(&mut folder, &engine, moment, base, checksum, || true)?;
    drop(engine);
    Files::begin(folder, name, manifest, Last::Missing, len, head).map_err(|error| error.to_string())
}

/// Writes a base, and makes it durable under its name. Returns its length in bytes.
fn put_base<F: LogFolder>(
    folder: &mut F,
    engine: &Engine,
    moment: Moment,
    base: &File,
    checksum: bool,
    goes_on: impl Fn() -> bool,
) -> Result<u64, String> {
    let path = folder.path().join(TEMPORARY);
    let describe = |error: DiskError| format!("Can't write {}: {error}", path.display());
    let mut put = || {
        let mut file = folder.create(TEMPORARY.as_bytes()).map_err(describe)?;
        let mut unsynced = 0;
        let len = write_to(engine, moment, Kind { checksum, is_base: true }, |chunk| {
            fail_if!(!goes_on(), UNWANTED.to_owned());
            append_all(folder, &mut file, chunk).map_err(describe)?;
            unsynced += chunk.len();
            if unsynced >= SYNC_EVERY {
                folder.sync(&mut file).map_err(describe)?;
                unsynced = 0;
            }
            Ok(())
        })?;
        folder.sync(&mut file).map_err(describe)?;
        fail_if!(!goes_on(), UNWANTED.to_owned());
        folder.rename(TEMPORARY.as_bytes(), &base.name).and_then(|()| folder.sync_folder()).map_err(describe)?;
        Ok(len)
    };
    let put = put();
    if put.is_err() {
        // Nothing reads it.
        let _ = folder.remove(TEMPORARY.as_bytes());
    }
    put
}
