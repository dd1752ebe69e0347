//! Bases of the append-only file, on a disk of the system or on a simulated one. A new base is made beside the server: a second engine on a
//! thread of its own loads the old base and the closed increments, and writes what it then has. The executor does nothing for it, and there
//! is no fork.

use crate::driver::file::BaseOrder;
use crate::driver::replay::Purpose;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::writers::Writer;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::manifest::File;
use crate::persist::disk::DiskError;
use crate::server::durable::copy::caught;
use crate::server::durable::folder::LogFolder;
use crate::server::durable::load::load_from;
use crate::server::durable::snapshot::{Kind, put};

/// A base until it is whole.
pub const TEMPORARY: &str = "temp-rewriteaof.rdb";

/// Makes a base beside the server, which goes on.
pub struct BaseMaker<L> {
    order: BaseOrder,
    moment: Moment,
    is_abandoned: Box<dyn Fn() -> bool + Send>,
    /// Keeps the folder locked.
    _lock: Option<L>,
}

impl<L> BaseMaker<L> {
    /// Of the file that is written.
    ///
    /// # Errors
    /// In words: there is none.
    pub fn new<A: Adapter<Writer: Writer<Lock = L>>>(adapter: &mut A, order: BaseOrder) -> Result<BaseMaker<L>, String> {
        let (moment, writers) = (adapter.moment(), adapter.writers());
        let _lock = writers.current().ok_or("it was switched off")?.lock();
        Ok(BaseMaker { order, moment, is_abandoned: Box::new(writers.base_abandoned()), _lock })
    }

    /// Makes it in the folder that `open` opens, and tells what came of that.
    pub fn make<F: LogFolder>(
        self,
        open: impl FnOnce() -> Result<F, DiskError>,
        tell: impl FnOnce(u64, Result<(File, u64), String>),
    ) {
        // The folder is locked until that is told.
        let BaseMaker { order, moment, is_abandoned, _lock } = self;
        let number = order.number;
        let made = caught(|| {
            let mut folder = open().map_err(|error| error.to_string())?;
            let name = order.config.appendfilename.clone();
            make_base(&mut folder, name.as_bytes(), order, moment, || !is_abandoned())
        });
        tell(number, made);
    }
}

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
    load_from(&mut engine, moment, folder, manifest, (Purpose::Base, refused_max))?;
    let len = put_base(folder, &engine, moment, &base, checksum, goes_on)?;
    Ok((base, len))
}

/// Writes a base, and makes it durable under its name. Returns its length in bytes.
pub(super) fn put_base<F: LogFolder>(
    folder: &mut F,
    engine: &Engine,
    moment: Moment,
    base: &File,
    checksum: bool,
    goes_on: impl Fn() -> bool,
) -> Result<u64, String> {
    let created = folder.create(TEMPORARY.as_bytes());
    let file = created.map_err(|error| format!("Can't write {}: {error}", folder.path().join(TEMPORARY).display()))?;
    let kind = Kind { checksum, is_base: true };
    put(folder, (TEMPORARY.as_bytes(), file), &base.name, (engine, moment), kind, goes_on)
}
