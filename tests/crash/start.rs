//! A start from the files of a machine, at once.

use portcullis::driver::pace::Pace;
use portcullis::driver::replay::Purpose;
use portcullis::driver::{Driver, Present};
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::persist::append::clock::Moment;
use portcullis::server::durable::load::slices::Load;
use portcullis::server::durable::load::{Files, read_manifest};
use portcullis::server::durable::start::begin_increment;
use portcullis::torture::sim::disk::Planted;
use portcullis::torture::sim::machine::{Machine, ProcessClock, Writer, writer};

/// `appendfilename`.
pub const NAME: &[u8] = b"appendonly.aof";

type Loading = Load<std::io::Cursor<Vec<u8>>>;

fn begin_loading(
    machine: &mut Machine,
    at_us: u64,
    config: Config,
    seed: u64,
) -> Result<(Driver, ProcessClock, Loading), String> {
    let clock = machine.begin_process(at_us);
    let moment = Moment { boot: machine.boot_clock(at_us), now: clock.now(at_us) };
    let mut driver = Driver::new(Engine::new(config, seed, moment.now, portcullis::commands::table()));
    if let Planted::OfDriver(flaw) = machine.disk.planted {
        driver.plant(flaw);
    }
    let mut disk = machine.disk.clone();
    let manifest = read_manifest(&mut disk, NAME)?.unwrap_or_default();
    let truncates = driver.engine.config().aof_load_truncated;
    let files = Files::of_manifest(&mut disk, manifest, Purpose::Start { truncates })?;
    let loading = Load::begin(&mut driver, moment, files);
    Ok((driver, clock, loading))
}

/// Loads the files into an engine, as a start does, and writes nothing.
pub fn load(machine: &mut Machine, at_us: u64, config: Config, seed: u64) -> Result<(Engine, ProcessClock), String> {
    let (mut driver, clock, mut loading) = begin_loading(machine, at_us, config, seed)?;
    while !loading.load_some(&mut driver, &mut Pace::unlimited())? {}
    loading.end(&mut driver, clock.now(at_us))?;
    Ok((driver.engine, clock))
}

/// Starts a server.
pub fn start(machine: &mut Machine, at_us: u64, config: Config, seed: u64) -> Result<(Driver, ProcessClock, Writer), String> {
    let (mut driver, clock, mut loading) = begin_loading(machine, at_us, config, seed)?;
    while !loading.load_some(&mut driver, &mut Pace::unlimited())? {}
    let at = Present { now: clock.now(at_us), ns: at_us * 1_000, frozen: false };
    let moment = Moment { boot: machine.boot_clock(at_us), now: at.now };
    let (loaded, _) = loading.end(&mut driver, at.now)?;
    let begins = begin_increment(&mut driver, moment, machine.disk.clone(), NAME, loaded);
    let (log, files, syncs, progress) = begins.map_err(|error| error.to_string())?;
    driver.resume_file(at, log, files.manifest().increments.len());
    driver.log_as_configured(at);
    Ok((driver, clock, writer(&machine.disk, files, syncs, progress, at_us)))
}
