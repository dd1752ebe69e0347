//! Folders with corrupted files, through the whole path of a start: manifest, files, engine, and the next increment. Each is loaded,
//! cut or refused, in bounded memory. What was loaded is sound, and a second start, which accepts no torn end, finds as much as the
//! first has found.
//!
//! The files are ours, and those of redis-server where there is one. Requests that take memory by a number in them (`SETRANGE`,
//! `SETBIT`) are not among them: a digit that is flipped asks for up to 512 MiB, here as on Redis.

use std::path::{Path, PathBuf};

use portcullis::base::time::Now;
use portcullis::driver::replay::Purpose;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;
use portcullis::persist::append::batch::{FIRST_LINE, HEADER, Header, batch, first_line, last_line, salt_of};
use portcullis::persist::append::files::{Files, Head};
use portcullis::persist::append::log::AppendLog;
use portcullis::persist::append::read::{Reader, Step};
use portcullis::persist::append::request::put_request;
use portcullis::persist::natives::clock::{BootClock, Moment};
use portcullis::persist::resume::Last;
use portcullis::server::durable::folder::Folder;
use portcullis::server::durable::load::{LoadedFiles, load_from, read_manifest};

use crate::allocation::{bounded, peak_of};
use crate::common::random::Random;
use crate::common::servers::{Server, on_path};
use crate::common::wire::Wire;

const NAME: &str = "appendonly.aof";
/// Numbers of corrupted folders.
const FEW: u32 = 600;
const MANY: u32 = 100_000;
/// Memory bound in bytes: what is read at once, the tables of an engine, and what requests take beyond their arguments.
const ROOM: usize = 8 << 20;
/// Memory bound in bytes for each byte of the files. A compressed byte of an RDB stands for up to 88 elements of a list.
const EACH: usize = 88 * 48;
/// Threads among which they are divided.
const THREADS: u32 = 2;
const SEED: u64 = 20_261_124;
const UNIX_MS: i64 = 1_700_000_000_000;

/// The files of a folder: a base and increments.
type Contents = Vec<Vec<u8>>;

/// Requests for both servers.
const REQUESTS: &[&str] = &[
    "SET text some-text",
    "SET timed 1 PX 9999999",
    "APPEND text x",
    "RPUSH list a 1 -129 4000 70000 b",
    "LPOP list",
    "SADD set a b c",
    "SADD ints 1 2 300",
    "ZADD scores 1 a 2.5 b inf c",
    "HSET hash a 1 b 2",
    "HINCRBY hash a 5",
    "XADD stream 5-1 a 1 b 2",
    "XADD stream 5-2 a 3 b 4",
    "XGROUP CREATE stream group 0",
    "XREADGROUP GROUP group busy COUNT 1 STREAMS stream >",
    "SELECT 3",
    "PFADD counter a b c",
    "RENAME counter other",
    "SET gone 1",
    "DEL gone",
    "MULTI",
    "INCR number",
    "LPUSH list x",
    "EXEC",
    "SELECT 0",
    "PEXPIRE hash 9999999",
];
/// Requests for ours.
const NATIVES: &[&str] = &[
    "LOCK.SESSION mine GRACE 5000",
    "LOCK.ACQUIRE lock me 60000 REQUEST first",
    "LOCK.ACQUIRE bound me 60000 SESSION",
    "LOCK.ACQUIRE shared a 60000 SHARED",
    "LOCK.ACQUIRE shared b 60000 SHARED",
    "LOCK.RELEASE lock me",
    "LOCK.ACQUIRE lock other 60000",
    "SEM.ACQUIRE sem a 60000 LIMIT 5",
    "LATCH.SET latch 3",
    "LOCK.GUARD guard 17",
    "HPEXPIRE hash 99999 FIELDS 1 a",
];

fn moment() -> Moment {
    Moment { now: Now::new(1_000_000_000, UNIX_MS - 1_000_000), boot: BootClock::default() }
}

fn engine() -> Engine {
    Engine::new(Config { aof_load_truncated: true, ..Config::default() }, 7, moment().now, portcullis::commands::table())
}

/// An increment as a server of ours writes it, closed or not, and the base of the same state.
fn ours(closes: bool) -> (Vec<u8>, Vec<u8>) {
    let mut subject = crate::subject::Subject::new(UNIX_MS);
    let log = AppendLog::new(subject.now, BootClock::default(), 1);
    let salt = 0x5a17 + u64::from(closes);
    log.begin_file(salt);
    let mut file = first_line(salt);
    subject.engine.keyspace_mut().changes.log = Some(Box::new(log.clone()));
    for (number, request) in REQUESTS.iter().chain(NATIVES).enumerate() {
        let reply = subject.run(request);
        assert!(!reply.starts_with(b"-"), "{request}: {}", reply.escape_ascii());
        let synced = file.len() as u64;
        if number % 3 != 0
            && let Some(batch) = log.take_batch(synced)
        {
            file.extend(batch.bytes);
        }
    }
    if let Some(batch) = log.take_batch(file.len() as u64) {
        file.extend(batch.bytes);
    }
    if closes {
        file.extend(last_line(salt, file.len() as u64));
    }
    let library = b"#!lua name=l\nredis.register_function('f', function() return 1 end)";
    (file, subject.file(vec![library.as_slice().into()]))
}

/// The base and the increment of a redis-server.
fn theirs(program: &Path) -> Contents {
    let server = Server::redis_with(program, &["--appendonly", "yes", "--aof-timestamp-enabled", "yes"]).unwrap();
    let mut wire = Wire::connect(server.addr).unwrap();
    let mut fill = || {
        for request in REQUESTS {
            let reply = wire.call(&request.split(' ').collect::<Vec<_>>()).unwrap();
            // The second time, the group is there.
            assert!(!reply.frame.is_error("") || reply.frame.is_error("BUSYGROUP") || request.starts_with("XADD"), "{request}");
        }
    };
    fill();
    let mut of = |request: &[&str]| wire.call(request).unwrap();
    of(&["BGREWRITEAOF"]);
    let is_done = |info: &[u8]| {
        let info = String::from_utf8_lossy(info).into_owned();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    };
    while !is_done(&of(&["INFO", "persistence"]).raw) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let dir = of(&["CONFIG", "GET", "dir"]).frame.elements().unwrap()[1].text().unwrap().to_vec();
    let mut fill = || {
        for request in REQUESTS {
            wire.call(&request.split(' ').collect::<Vec<_>>()).unwrap();
        }
    };
    fill();
    let folder = Path::new(&String::from_utf8(dir).unwrap()).join("appendonlydir");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| !path.to_string_lossy().ends_with(".manifest"));
    paths.sort();
    let contents: Contents = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(contents.len() >= 2 && contents[0].starts_with(b"REDIS"), "{paths:?}");
    contents
}

/// Flips, cuts, repeats and drops bytes, and takes bytes of other files.
fn corrupt(random: &mut Random, file: &mut Vec<u8>, others: &[Contents]) {
    let below = |random: &mut Random, len: usize| random.below(len.max(1) as u64) as usize;
    let times = if random.one_in(3) { 1 + random.below(3) } else { 1 };
    for _ in 0..times {
        if file.is_empty() {
            return;
        }
        let (a, b) = (below(random, file.len()), below(random, file.len()));
        let (from, to) = (a.min(b), a.max(b));
        match random.below(7) {
            0 | 1 => file[a] ^= 1 << random.below(8),
            2 => file[a] = random.below(256) as u8,
            3 => file.truncate(a),
            4 => drop(file.drain(from..to)),
            5 => {
                let part = file[from..to].to_vec();
                file.splice(a..a, part);
            }
            _ => {
                let folder: &Contents = random.pick(others);
                let other: &Vec<u8> = random.pick(folder);
                let (c, d) = (below(random, other.len()), below(random, other.len()));
                file.splice(from..to, other[c.min(d)..c.max(d)].iter().copied());
            }
        }
    }
}

/// Corrupts the body of a batch of ours, and writes the file anew, so that all checksums are right: what is in it reaches the engine.
/// Returns false if the file is not ours.
fn corrupt_sealed(random: &mut Random, file: &mut Vec<u8>, others: &[Contents]) -> bool {
    let Some(salt) = file.get(..FIRST_LINE).and_then(|line| salt_of(line).ok()) else { return false };
    let (mut bodies, mut at) = (Vec::new(), FIRST_LINE);
    while let Some(header) = Header::parse(salt, &file[at..]) {
        let begin = at + HEADER;
        at = begin + header.bytes as usize;
        bodies.push(file[begin..at].to_vec());
    }
    let which = random.below(bodies.len() as u64) as usize;
    corrupt(random, &mut bodies[which], others);
    *file = first_line(salt);
    for body in bodies {
        file.extend(batch(salt, file.len() as u64, &body));
    }
    true
}

/// Corrupts arguments, and keeps the form of requests and all checksums: nearly all of it reaches the engine. Returns false if the
/// file has no requests.
fn corrupt_requests(random: &mut Random, file: &mut Vec<u8>) -> bool {
    let mut reader = Reader::new(file.len() as u64);
    let mut units: Vec<Vec<Vec<Vec<u8>>>> = Vec::new();
    let mut is_fed = false;
    loop {
        match reader.step() {
            Ok(Step::Unit(unit)) => {
                units.push(unit.raw().map(|(_, args)| args.iter().map(|arg| arg.to_vec()).collect()).collect());
            }
            Ok(Step::More) if !is_fed => {
                reader.feed(file);
                is_fed = true;
            }
            _ => break,
        }
    }
    if units.is_empty() {
        return false;
    }
    for _ in 0..=random.below(3) {
        let unit: &Vec<Vec<Vec<u8>>> = random.pick(&units);
        let other: Vec<Vec<u8>> = random.pick(unit).clone();
        let at = random.below(units.len() as u64) as usize;
        let request = random.below(units[at].len() as u64) as usize;
        let args = &mut units[at][request];
        let arg = random.below(args.len() as u64) as usize;
        let len = args[arg].len();
        match random.below(8) {
            0..=2 if len > 0 => args[arg][random.below(len as u64) as usize] ^= 1 << random.below(8),
            3 => args[arg] = random.pick(&other).clone(),
            4 => args[0] = other[0].clone(),
            5 if args.len() > 1 => drop(args.remove(arg)),
            6 => args.insert(arg + 1, random.pick(&other).clone()),
            _ => units.swap(at, random.below(at as u64 + 1) as usize),
        }
    }
    let salt = reader.facts().salt;
    file.clear();
    if let Some(salt) = salt {
        file.extend(first_line(salt));
    }
    for unit in units {
        let mut body = Vec::new();
        put_request(&mut body, &[b"MULTI"]);
        unit.iter().for_each(|args| put_request(&mut body, &args.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        put_request(&mut body, &[b"EXEC"]);
        match salt {
            Some(salt) => file.extend(batch(salt, file.len() as u64, &body)),
            None => file.extend(body),
        }
    }
    true
}

/// Where the folder is: in memory if the machine has such a place, as each folder syncs several times.
fn place(thread: u32) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    above.join(format!("portcullis-hostile-{}-{thread}", std::process::id()))
}

fn write(folder: &Path, contents: &Contents, random: &mut Random) -> usize {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).unwrap();
    let mut manifest = Vec::new();
    for (number, content) in contents.iter().enumerate() {
        let is_base = number == 0;
        let name = if is_base { format!("{NAME}.1.base.rdb") } else { format!("{NAME}.{number}.incr.aof") };
        let kind = if is_base { 'b' } else { 'i' };
        std::fs::write(folder.join(&name), content).unwrap();
        manifest.extend(format!("file {name} seq {} type {kind}\n", number.max(1)).into_bytes());
    }
    if random.one_in(50) {
        corrupt(random, &mut manifest, std::slice::from_ref(contents));
    }
    std::fs::write(folder.join(format!("{NAME}.manifest")), &manifest).unwrap();
    contents.iter().map(Vec::len).sum()
}

/// What is in an engine.
fn shown(engine: &mut Engine) -> Vec<Vec<u8>> {
    let session = engine.connect(moment().now, Peer::default());
    let mut shown = Vec::new();
    for db in 0..16 {
        for request in [&[&b"SELECT"[..], db.to_string().as_bytes()][..], &[b"DBSIZE"]] {
            engine.execute(moment().now, session, request);
            shown.push(std::mem::take(&mut engine.sessions_mut()[session].out).to_vec());
        }
    }
    shown
}

/// Numbers of folders.
#[derive(Debug, Default)]
struct Counts {
    loaded: u32,
    cut: u32,
    refused: u32,
    peak: usize,
}

/// Loads a folder as a start does.
fn load(engine: &mut Engine, moment: Moment, folder: &Path, name: &[u8]) -> Result<LoadedFiles, String> {
    let folder = &mut Folder::at(folder);
    let manifest = read_manifest(folder, name)?.unwrap_or_default();
    let purpose = Purpose::Start { truncates: engine.config().aof_load_truncated };
    load_from(engine, moment, folder, manifest, (purpose, u64::MAX)).map(|(_, loaded)| loaded)
}

fn start(folder: &Path, counts: &mut Counts, len: usize) {
    let name = NAME.as_bytes();
    let mut first = engine();
    let (loaded, peak) = peak_of(|| bounded(ROOM + EACH * len, || load(&mut first, moment(), folder, name)));
    counts.peak = counts.peak.max(peak);
    first.check_invariants();
    let Ok(loaded) = loaded else {
        counts.refused += 1;
        return;
    };
    let last = loaded.manifest.increments.last().and_then(|last| {
        std::fs::metadata(folder.join(String::from_utf8_lossy(&last.name).as_ref())).ok().map(|data| data.len())
    });
    let head = Head { salt: 9, line: first_line(9) };
    let is_cut = matches!(loaded.last, Last::Unclean(extent) if last.is_some_and(|len| extent.bytes < len));
    let has_increment = !loaded.manifest.increments.is_empty();
    let begun = Files::begin(Folder::open(folder).unwrap(), name, loaded.manifest, loaded.last, loaded.bytes, &head);
    match begun {
        Ok(mut files) => files.close().unwrap(),
        // An RDB that the manifest calls an increment: it is read, but no server writes on behind it.
        Err(error) if error.to_string().contains("has changed since it was read") => {
            counts.refused += 1;
            return;
        }
        Err(error) => panic!("the start fails: {error}"),
    }
    *(if is_cut { &mut counts.cut } else { &mut counts.loaded }) += 1;
    if !has_increment {
        // A base of requests may be torn, and stays.
        return;
    }
    let mut second = engine();
    second.change_config(|config| config.aof_load_truncated = false);
    if let Err(error) = load(&mut second, moment(), folder, name) {
        panic!("the second start is refused: {error}");
    }
    assert!(shown(&mut first) == shown(&mut second), "the second start finds something else");
}

#[test]
fn corrupted_folders_are_loaded_cut_or_refused() {
    let full = std::env::var_os("PORTCULLIS_FULL_SIZE").is_some_and(|value| !value.is_empty());
    let ((closed, base), (open, _)) = (ours(true), ours(false));
    let mut sources = vec![vec![base.clone(), closed, open.clone()], vec![base, open]];
    match on_path("redis-server") {
        Some(program) => sources.push(theirs(&program)),
        None => {
            let required = std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_some_and(|value| !value.is_empty());
            assert!(!required, "no redis-server on the PATH, and PORTCULLIS_REQUIRE_REDIS is set");
            println!("SKIPPED in part: no redis-server on the PATH");
        }
    }
    let number = if full { MANY } else { FEW } / THREADS;
    let spawn = |thread: u32| {
        let sources = sources.clone();
        let run = move || run(&sources, number, SEED + u64::from(thread), &place(thread));
        std::thread::Builder::new().stack_size(64 << 20).spawn(run).unwrap()
    };
    let threads: Vec<_> = (0..THREADS).map(spawn).collect();
    let mut counts = Counts::default();
    for thread in threads {
        let of = thread.join().unwrap();
        counts.loaded += of.loaded;
        counts.cut += of.cut;
        counts.refused += of.refused;
        counts.peak = counts.peak.max(of.peak);
    }
    println!("{} corrupted folders: {counts:?}", number * THREADS);
    let is_enough = |count: u32| count > number * THREADS / 50;
    assert!(is_enough(counts.loaded) && is_enough(counts.cut) && is_enough(counts.refused), "{counts:?}");
}

/// Starts from corrupted folders, one after the other.
fn run(sources: &[Contents], number: u32, seed: u64, folder: &Path) -> Counts {
    let mut random = Random::new(seed);
    let mut counts = Counts::default();
    for round in 0..number {
        let mut contents = random.pick(sources).clone();
        // The last file more often: only its end may be cut.
        let which = if random.one_in(2) { contents.len() - 1 } else { random.below(contents.len() as u64) as usize };
        let file = &mut contents[which];
        let is_done = match random.below(8) {
            0..=2 => corrupt_requests(&mut random, file),
            3 | 4 => corrupt_sealed(&mut random, file, sources),
            _ => false,
        };
        if !is_done {
            corrupt(&mut random, file, sources);
        }
        if which == 0 && random.one_in(2) && contents[0].len() > 20 {
            // As if it had been written like that: without a checksum.
            let end = contents[0].len() - 8;
            contents[0][end..].fill(0);
        }
        let len = write(folder, &contents, &mut random);
        let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| start(folder, &mut counts, len)));
        assert!(started.is_ok(), "folder {round} of seed {seed} fails; it is {}", folder.display());
    }
    std::fs::remove_dir_all(folder).unwrap();
    counts
}
