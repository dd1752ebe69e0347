//! What a durable server of the simulation has beside its engine: its machine, its log, and the times of its disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::time::Now;
use crate::client::Command;
use crate::driver::copy::received::{Copied, Message, Receiver, Taken};
use crate::driver::copy::{CopyOrder, CopyProgress, Use};
use crate::driver::file::Beginning;
use crate::driver::file::Phase;
use crate::driver::flaw::Flaw;
use crate::driver::pace::Pace;
use crate::driver::switch::{TakesOrders, Writers};
use crate::driver::{Driver, Present};
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::log_writer::{BatchNumber, Order, Report, Step, Syncs};
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::simulated::{Injected, SimulatedDisk};
use crate::persist::natives::clock::BootClock;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::disk::{Planted, SharedDisk};
use crate::torture::sim::machine::{Loading, Machine, ProcessClock, Writer, make_base};
use crate::torture::sim::server::serving::busy_clock;

/// Time between two slices of a load.
const LOAD_EVERY_US: u64 = 200;

/// The configuration of a durable server.
pub fn config() -> Config {
    // Files are small here, and new bases are to be made all the same.
    Config { appendonly: true, appendfsync: "always", auto_aof_rewrite_min_size: 16 << 10, ..Config::default() }
}

/// The machine of a server, and who writes its log.
pub struct Durable {
    machine: Machine,
    /// The files that are loaded, and when the next slice of them is.
    loading: Option<(u64, Loading)>,
    /// Who has the log of the process written, if there is one.
    pub(in crate::torture::sim) writers: Writers<SimWriter>,
    /// What a file that is switched on begins with.
    beginning: Option<Beginning>,
    copy: Option<Copy>,
    /// What is being made of files or of a copy, and when it is done.
    making: Vec<(u64, Making)>,
    care: Care,
    /// Whether the operator changes it often, and new bases and copies take long or fail.
    hurries: bool,
    /// Whether the disk is full.
    full: bool,
    /// Number of the process.
    pub process: u64,
    /// Whether the writer has ended, and whether a sync is on its way.
    ended: bool,
    syncs: bool,
    /// When the writer goes on by itself, if no sync is on its way.
    resumes_us: Option<u64>,
    /// The times of the disk.
    random: Random,
}

impl Durable {
    /// A machine without files, whose server does not run yet.
    pub fn new(disk: SharedDisk, seed: u64) -> Durable {
        let random = Random::new(seed, streams::DISK, 0);
        Durable {
            machine: Machine::new(disk, 0),
            loading: None,
            writers: Writers::default(),
            beginning: None,
            copy: None,
            making: Vec::new(),
            care: Care::Exact,
            hurries: false,
            full: false,
            process: 0,
            ended: false,
            syncs: false,
            resumes_us: None,
            random,
        }
    }

    /// Starts a process from the files. Returns its driver and its clocks, and whether the files were loaded. If they are
    /// refused, all of them are deleted.
    pub fn start(&mut self, at_us: u64, seed: u64) -> (Driver, ProcessClock, bool) {
        self.process += 1;
        for kept in [true, false] {
            match self.try_to_start(at_us, seed) {
                Ok((driver, clock)) => return (driver, clock, kept),
                Err(reason) => tracing::warn!(reason, "files are refused"),
            }
            self.delete_files(seed);
        }
        unreachable!("an empty disk without errors is a beginning")
    }

    /// Deletes all files, as an operator does who wants the server back at any price.
    pub fn delete_files(&mut self, seed: u64) {
        self.machine.disk.act(|disk| *disk = SimulatedDisk::new(seed));
    }

    fn try_to_start(&mut self, at_us: u64, seed: u64) -> Result<(Driver, ProcessClock), String> {
        if self.hurries {
            let config = Config { key_load_delay: [0, 0, 50, -1][self.random.below(4) as usize], ..config() };
            let (driver, clock, loading) = self.machine.begin_loading(at_us, config, seed)?;
            self.loading = Some((at_us, loading));
            return Ok((driver, clock));
        }
        let (driver, clock, writer) = self.machine.start(at_us, config(), seed)?;
        self.writers = Writers::of(SimWriter::Works(Box::new(writer)));
        Ok((driver, clock))
    }

    /// Loads a slice of the files, if one is due, and begins the log behind the last one.
    ///
    /// Returns whether that was the last one.
    ///
    /// # Errors
    /// The files are refused, in words.
    pub fn load_some(&mut self, driver: &mut Driver, at: Present, at_us: u64) -> Result<bool, String> {
        let Some((_, mut loading)) = self.loading.take_if(|(due_us, _)| *due_us <= at_us) else { return Ok(false) };
        let mut pace = Pace::slice(busy_clock);
        let done = loading.load_some(driver, &mut pace)?;
        if done {
            let writer = self.machine.end_loading(at, at_us, driver, loading)?;
            self.writers = Writers::of(SimWriter::Works(Box::new(writer)));
        } else {
            self.loading = Some((at_us + LOAD_EVERY_US + pace.owed().as_micros() as u64, loading));
        }
        Ok(done)
    }

    /// When the next slice of the files is loaded; `None` if they are loaded.
    pub fn loads_us(&self) -> Option<u64> {
        self.loading.as_ref().map(|(due_us, _)| *due_us)
    }

    /// From now on the operator changes how it stores often, and new bases and copies take long or fail, so that these meet.
    pub fn hurry(&mut self) {
        self.hurries = true;
    }

    /// The boot clock of its machine.
    pub fn boot_clock(&self, at_us: u64) -> BootClock {
        self.machine.boot_clock(at_us)
    }

    /// The process ends.
    pub fn end_process(&mut self) {
        (self.loading, self.ended, self.syncs, self.resumes_us) = (None, false, false, None);
        self.writers = Writers::default();
        (self.beginning, self.copy) = (None, None);
        self.making.clear();
        self.care = Care::Exact;
        // There is room again for the next one.
        self.fill(false);
        self.machine.disk.act(SimulatedDisk::restart_process);
    }

    /// The machine loses its power. See [`Machine::lose_power`].
    pub fn lose_power(&mut self, at_us: u64, wall_step_ms: i64) {
        self.machine.lose_power(at_us, wall_step_ms);
    }

    /// The folder of the log is opened for a file that is switched on.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_file(&mut self) -> Result<(), String> {
        if self.fails() { Err("the folder cannot be opened".to_owned()) } else { Ok(()) }
    }

    /// What the file begins with.
    pub fn begin(&mut self, beginning: Option<Beginning>) {
        self.beginning = beginning;
    }

    /// Whether something fails now: a disk is full, or a thread cannot be started.
    pub fn fails(&mut self) -> bool {
        self.hurries && self.random.percent(10)
    }

    /// Takes an order for a copy.
    ///
    /// # Errors
    /// The copy cannot be received.
    pub fn order_copy(&mut self, at_us: u64, order: CopyOrder) -> Result<(), String> {
        match order {
            CopyOrder::Begin(of, moment, progress) => {
                fail_if!(self.fails(), "no thread can be started".to_owned());
                if of == Use::FirstBase {
                    self.writers.begin(SimWriter::default());
                }
                let receiver = Some(Receiver::new(Config::default(), moment, Arc::clone(&progress)));
                self.copy = Some(Copy { of, receiver, progress, coming: VecDeque::new(), next_us: at_us });
            }
            CopyOrder::Part(part, moment) => self.send(at_us, Message::Part(part, moment)),
            CopyOrder::End(moment) => {
                self.writers.install();
                self.send(at_us, Message::End(moment));
            }
            CopyOrder::Abandon => {
                self.copy = None;
                self.writers.forget_next();
            }
        }
        Ok(())
    }

    fn send(&mut self, at_us: u64, message: Message) {
        if let Some(copy) = &mut self.copy {
            copy.coming.push_back(message);
        }
        if !self.hurries {
            self.receive(at_us);
        }
    }

    /// Receives what is there by now of the copy.
    fn receive(&mut self, at_us: u64) {
        let Some(mut copy) = self.copy.take() else { return };
        while copy.next_us <= at_us
            && let Some(message) = copy.coming.pop_front()
            && let Some(receiver) = copy.receiver.take()
        {
            match receiver.take(message) {
                Taken::More(receiver, _) => copy.receiver = Some(receiver),
                Taken::Whole(copied) => return self.make(at_us, Making::OfCopy(copy.of, copied, copy.progress)),
                Taken::GivenUp => return,
            }
            copy.next_us = at_us + if self.hurries { self.random.between(100, 20_000) } else { 0 };
        }
        self.copy = Some(copy);
    }

    /// Begins to make a new base of these files, for the file of this number.
    pub fn make_base(&mut self, at_us: u64, number: u64, files: Manifest) {
        self.make(at_us, Making::Base(number, files));
    }

    fn make(&mut self, at_us: u64, making: Making) {
        let took_us = self.random.between(1_000, if self.hurries { 1_000_000 } else { 50_000 });
        self.making.push((at_us + took_us, making));
    }

    /// When the next part of a copy comes, or what is being made is done.
    pub fn made_us(&self) -> Option<u64> {
        let part_us = self.copy.as_ref().filter(|copy| !copy.coming.is_empty()).map(|copy| copy.next_us);
        self.making.iter().map(|(done_us, _)| *done_us).chain(part_us).min()
    }

    /// Takes what was made by now.
    pub fn take_made(&mut self, now: Now, at_us: u64) -> Option<Made> {
        self.receive(at_us);
        let done = self.making.iter().position(|(done_us, _)| *done_us <= at_us)?;
        let (_, making) = self.making.remove(done);
        let full = "the disk is full".to_owned();
        Some(match making {
            Making::Base(number, _) if self.fails() => Made::Base(number, Err(full)),
            Making::Base(number, files) => {
                let moment = Moment { now, boot: self.machine.boot_clock(at_us) };
                Made::Base(number, make_base(&self.machine.disk, files, moment, Config::default()))
            }
            // Nothing is made of a copy that was given up.
            Making::OfCopy(_, _, progress) if progress.is_abandoned() => return None,
            Making::OfCopy(of, copied, _) => {
                let copied = if self.fails() { Err(full) } else { copied };
                match of {
                    Use::Snapshot(number) => Made::Snapshot(number, copied.map(drop)),
                    Use::FirstBase => Made::File(self.begin_file(at_us, copied)),
                }
            }
        })
    }

    /// Fills the disk, or makes room on it.
    fn fill(&mut self, full: bool) {
        self.full = full;
        self.machine.disk.act(|disk| disk.set_failing(full.then_some(Injected::Full)));
    }

    /// Whether there is room on the disk. Without it, an end loses what was acknowledged before it was written.
    pub fn has_room(&self) -> bool {
        !self.full
    }

    /// What the operator of the server does next.
    pub fn operate(&mut self, driver: &Driver) -> (Vec<Command>, u64) {
        if self.hurries {
            let fills = !self.full && self.random.percent(15);
            self.fill(fills);
        }
        let word = |text: &str| {
            text.split(' ').fold(None, |command: Option<Command>, word| {
                Some(command.map_or_else(|| Command::new(word), |command| command.arg(word)))
            })
        };
        let done = if self.loses_nothing(driver) {
            let change = [
                "CONFIG SET appendfsync everysec",
                "CONFIG SET appendfsync no",
                "CONFIG SET appendonly no",
                "BGREWRITEAOF",
                "BGSAVE",
            ];
            let which = self.random.below(change.len() as u64) as usize;
            if which < 3 {
                self.care = Care::None;
            }
            vec![change[which]]
        } else if self.hurries && self.random.percent(30) {
            // In the middle of a change.
            self.care = Care::None;
            let change = [
                "CONFIG SET appendonly no",
                "CONFIG SET appendfsync no",
                "CONFIG SET auto-aof-rewrite-percentage 0",
                "CONFIG SET auto-aof-rewrite-percentage 100",
                "BGREWRITEAOF",
                "BGSAVE",
                "SAVE",
            ];
            vec![change[self.random.below(change.len() as u64) as usize]]
        } else {
            self.care = Care::Returns;
            vec!["CONFIG SET appendonly yes", "CONFIG SET appendfsync always"]
        };
        let pause_us = if self.hurries { (1_000, 1_000_000) } else { (500_000, 15_000_000) };
        (done.into_iter().filter_map(word).collect(), self.random.between(pause_us.0, pause_us.1))
    }

    /// Whether nothing that was acknowledged is lost if the process ends now: the file is on, and all that was acknowledged
    /// before it was, or under another `appendfsync`, is durable.
    pub fn loses_nothing(&mut self, driver: &Driver) -> bool {
        if self.loading.is_some() && self.care == Care::Exact {
            return true;
        }
        let Some(file) = driver.file().filter(|file| file.phase == Phase::Running && file.syncs == Syncs::Always) else {
            return false;
        };
        match self.care {
            Care::Exact => {}
            Care::None => return false,
            Care::Returns => self.care = Care::From(file.log.gate.pending() - 1),
            Care::From(_) => {}
        }
        let durable = file.progress.durable.load(Ordering::Relaxed);
        if matches!(self.care, Care::From(batch) if durable >= batch) {
            self.care = Care::Exact;
        }
        self.care == Care::Exact
    }

    fn begin_file(&mut self, at_us: u64, copied: Copied) -> Result<(), String> {
        let begun = copied.and_then(|copied| {
            let beginning = self.beginning.take().ok_or("it was switched off")?;
            let writer = self.machine.begin_file(at_us, copied, beginning)?;
            self.writers.current_mut().ok_or("it was switched off")?.begin(writer);
            Ok(())
        });
        if begun.is_err() {
            self.writers = Writers::default();
        }
        begun
    }

    /// Lets go of a writer that is closed.
    pub fn close_file(&mut self) {
        self.writers.take();
        (self.ended, self.syncs, self.resumes_us) = (false, false, None);
        // The thread that makes a base has held the folder, and gives up, unless it was about to say that it is done.
        let is_done = self.hurries;
        self.making.retain(|(_, making)| is_done || !matches!(making, Making::Base(..)));
    }

    /// Lets the writer work, unless a sync is on its way. Returns the time after which [`Durable::go_on`] must be called, if it
    /// is waited for that anew.
    pub fn work(&mut self, at_us: u64) -> Option<u64> {
        let writer = self.writers.current_mut().filter(|_| !self.syncs && !self.ended)?.writer_mut()?;
        writer.around().set_time(at_us);
        match writer.go_on() {
            Step::Sync => {
                self.syncs = true;
                // A disk mostly takes a moment, and sometimes much longer.
                let longest_us = match self.machine.disk.planted {
                    // A slow disk shows it sooner.
                    Planted::OfDriver(Flaw::AcknowledgeEarly | Flaw::SettlesAhead) => 2_000_000,
                    _ if self.hurries && self.random.percent(1) => 3_000_000,
                    _ if self.random.percent(5) => 50_000,
                    _ => 2_000,
                };
                Some(self.random.between(200, longest_us))
            }
            Step::Wait(wait) => {
                let wait_us = wait?.as_micros() as u64 + 1;
                if self.resumes_us.is_some_and(|resumes_us| resumes_us <= at_us + wait_us) {
                    return None;
                }
                self.resumes_us = Some(at_us + wait_us);
                Some(wait_us)
            }
            Step::End => {
                self.ended = true;
                None
            }
        }
    }

    /// A time is over that [`Durable::work`] has returned.
    pub fn go_on(&mut self, at_us: u64) {
        let Some(writer) = self.writers.current_mut().and_then(SimWriter::writer_mut) else { return };
        writer.around().set_time(at_us);
        self.resumes_us.take_if(|resumes_us| *resumes_us <= at_us);
        if std::mem::take(&mut self.syncs) {
            self.ended |= !writer.go_on_by_sync();
        }
    }

    /// Has the writer write and sync all that it was given, however long that takes, and end.
    pub fn close(&mut self, at_us: u64) {
        self.writers.order(Order::Close);
        let Some(writer) = self.writers.current_mut().and_then(SimWriter::writer_mut) else { return };
        writer.around().set_time(at_us);
        while !self.ended && (!std::mem::take(&mut self.syncs) || writer.go_on_by_sync()) && writer.go_on() == Step::Sync {
            self.syncs = true;
        }
    }

    /// Takes what the writer has reported.
    pub fn take_reports(&self) -> Vec<Report> {
        let writer = self.writers.current().and_then(SimWriter::writer);
        writer.map(|writer| writer.around().take_reports()).unwrap_or_default()
    }
}

/// Who has a log written.
pub enum SimWriter {
    /// What was ordered before there is a writer.
    Waits(Vec<Order>),
    /// The writer works.
    Works(Box<Writer>),
}

impl Default for SimWriter {
    fn default() -> SimWriter {
        SimWriter::Waits(Vec::new())
    }
}

impl SimWriter {
    fn begin(&mut self, mut writer: Writer) {
        if let SimWriter::Waits(orders) = self {
            orders.drain(..).for_each(|order| writer.order(order));
        }
        *self = SimWriter::Works(Box::new(writer));
    }

    fn writer(&self) -> Option<&Writer> {
        if let SimWriter::Works(writer) = self { Some(writer) } else { None }
    }

    fn writer_mut(&mut self) -> Option<&mut Writer> {
        if let SimWriter::Works(writer) = self { Some(writer) } else { None }
    }
}

impl TakesOrders for SimWriter {
    fn order(&mut self, order: Order) {
        match self {
            SimWriter::Waits(orders) => orders.push(order),
            SimWriter::Works(writer) => writer.order(order),
        }
    }
}

/// A copy of the keyspace that is received.
struct Copy {
    of: Use,
    receiver: Option<Box<Receiver>>,
    progress: Arc<CopyProgress>,
    /// Messages on the way, and when the next one comes.
    coming: VecDeque<Message>,
    next_us: u64,
}

/// What is being made.
enum Making {
    /// A new base of these files, for the file of this number.
    Base(u64, Manifest),
    /// What a copy is for.
    OfCopy(Use, Copied, Arc<CopyProgress>),
}

/// What was made.
pub enum Made {
    /// A new base for the file of this number.
    Base(u64, Result<(File, u64), String>),
    /// The snapshot of this number.
    Snapshot(u64, Result<(), String>),
    /// The file that is switched on.
    File(Result<(), String>),
}

/// Whether all that is acknowledged is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// It is.
    Exact,
    /// It is not: the file is off, or is not synced with each batch.
    None,
    /// It is to be again.
    Returns,
    /// It is, once this batch is durable.
    From(BatchNumber),
}
