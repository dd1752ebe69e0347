//! The threads of a simulated process: the writer of its log, the receiver of a copy, and those that make files. Each takes its time.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::{Copied, Message, Receiver, Taken};
use crate::driver::file::BaseOrder;
use crate::driver::flaw::Flaw;
use crate::driver::switch::{self, Target, Writers};
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::log_writer::{Order, Report, Step};
use crate::persist::append::manifest::File;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::disk::Planted;
use crate::torture::sim::machine::{Machine, Writer, make_base};

/// Why a server without files makes none.
pub const NO_DISK: &str = "this server has no disk";

/// The folder of a log: for as long as a copy of this exists, it is locked.
pub type LockedFolder = Arc<()>;

/// The threads of a process.
pub struct Threads {
    /// Who has the log written, if there is one.
    pub writers: Writers<SimWriter, LockedFolder>,
    copy: Option<Copy>,
    /// What is being made of files or of a copy, and when it is done.
    making: Vec<(u64, Making)>,
    /// Whether what they make takes long or fails, so that more of it meets.
    pub hurries: bool,
    /// The times of the disk, and what its operator does.
    pub random: Random,
}

impl Threads {
    /// No thread.
    pub fn new(seed: u64) -> Threads {
        let random = Random::new(seed, streams::DISK, 0);
        Threads { writers: Writers::default(), copy: None, making: Vec::new(), hurries: false, random }
    }

    /// The process ends.
    pub fn end(&mut self) {
        (self.writers, self.copy) = (Writers::default(), None);
        self.making.clear();
    }

    /// Whether something fails now: a disk is full, or a thread cannot be started.
    pub fn fails(&mut self) -> bool {
        self.hurries && self.random.percent(10)
    }

    /// Begins to receive a copy.
    ///
    /// # Errors
    /// It cannot be received.
    pub fn begin_copy(&mut self, target: Target<LockedFolder>, copy: (Config, Moment, Arc<CopyProgress>)) -> Result<(), String> {
        fail_if!(self.fails(), "no thread can be started".to_owned());
        let (config, moment, progress) = copy;
        if let Target::File(..) = target {
            self.writers.begin(SimWriter::default());
        }
        let receiver = Some(Receiver::new(config, moment, Arc::clone(&progress)));
        self.copy = Some(Copy { target, receiver, progress, coming: VecDeque::new(), next_us: 0, keys: 0 });
        Ok(())
    }

    /// A message is on its way to the receiver of the copy. The server has so many keys now.
    pub fn send_to_copy(&mut self, at_us: u64, message: Message, keys: usize) {
        if let Some(copy) = &mut self.copy {
            copy.keys = keys;
            copy.next_us = copy.next_us.max(at_us);
            copy.coming.push_back(message);
        }
    }

    /// The copy was given up.
    pub fn forget_copy(&mut self) {
        self.copy = None;
    }

    /// Receives what is there by now of the copy. Returns whether the driver is called for that.
    ///
    /// # Panics
    /// A copy that is whole has not the keys that the server had when it ended.
    fn receive(&mut self, at_us: u64) -> bool {
        let mut calls = false;
        while let Some(mut copy) = self.copy.take() {
            let message = if copy.next_us <= at_us { copy.coming.pop_front() } else { None };
            let Some(message) = message else {
                self.copy = Some(copy);
                break;
            };
            let Some(receiver) = copy.receiver.take() else { break };
            match receiver.receive(message) {
                Taken::More(receiver, wakes) => {
                    calls |= wakes;
                    copy.receiver = Some(receiver);
                    copy.next_us = at_us + if self.hurries { self.random.between(100, 20_000) } else { 0 };
                    self.copy = Some(copy);
                }
                Taken::Whole(copied) => {
                    if let Ok((engine, _)) = &copied {
                        assert_eq!(engine.keyspace().len(), copy.keys, "the copy has other keys than the server had");
                    }
                    self.make(at_us, Making::OfCopy(copy.target, copied, copy.progress));
                }
                Taken::GivenUp => {}
            }
        }
        calls
    }

    /// Begins to make a new base.
    pub fn make_base(&mut self, at: (u64, Moment), order: BaseOrder) {
        let folder = self.writers.current().and_then(|writer| writer.folder.clone());
        let abandoned = Box::new(self.writers.base_abandoned());
        let base = Base { order, moment: at.1, abandoned, _folder: folder };
        self.make(at.0, Making::Base(Box::new(base)));
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

    /// Whether the writer of the log has reported something.
    pub fn has_reports(&self) -> bool {
        let writer = self.writers.current().and_then(|writer| writer.writer.as_ref());
        writer.is_some_and(|writer| writer.around().has_reports())
    }

    /// Takes what threads have done by now.
    pub fn take_done(&mut self, at_us: u64, machine: Option<&Machine>) -> Option<Done> {
        let writer = self.writers.current().and_then(|writer| writer.writer.as_ref());
        if let Some(report) = writer.and_then(|writer| writer.around().take_report()) {
            return Some(Done::Report(report));
        }
        if self.receive(at_us) {
            return Some(Done::Calls);
        }
        let done = self.making.iter().position(|(done_us, _)| *done_us <= at_us)?;
        let (_, making) = self.making.remove(done);
        let full = self.fails().then(|| "the disk is full".to_owned());
        Some(match making {
            Making::Base(base) => {
                let Base { order, moment, abandoned, .. } = *base;
                let number = order.number;
                let machine = machine.ok_or_else(|| NO_DISK.to_owned());
                let made = || make_base(&machine?.disk, order, moment, || !abandoned());
                Done::Base(number, full.map_or_else(made, Err))
            }
            // Nothing is made of a copy that was given up.
            Making::OfCopy(_, _, progress) if progress.is_abandoned() => Done::Calls,
            Making::OfCopy(target, copied, _) => {
                let copied = full.map_or(copied, Err);
                match target {
                    Target::Snapshot(number) => Done::Snapshot(number, copied.map(|_| 0)),
                    Target::File(folder, beginning) => Done::File(copied.and_then(|copied| {
                        let writer = machine.ok_or(NO_DISK)?.begin_file(at_us, copied, beginning)?;
                        Ok((Box::new(writer), folder))
                    })),
                }
            }
        })
    }

    /// Lets the thread of the writer work, if it has something to do. Returns the time after which [`Threads::synced`] must be called,
    /// if it waits for that.
    pub fn work(&mut self, at_us: u64, planted: Planted) -> Option<u64> {
        let hurries = self.hurries;
        let of = self.writers.current_mut()?;
        let goes_on = match of.rests {
            Rests::Not => true,
            Rests::Orders(until_us) => !of.orders.is_empty() || until_us.is_some_and(|until_us| until_us <= at_us),
            Rests::Syncs(_) | Rests::Ended => false,
        };
        let writer = of.writer.as_mut().filter(|_| goes_on)?;
        writer.around().set_time(at_us);
        let until_us = match writer.take_turn(of.orders.drain(..)) {
            Step::Sync => {
                // A disk mostly takes a moment, and sometimes much longer.
                let longest_us = match planted {
                    // A slow disk shows it sooner.
                    Planted::OfDriver(Flaw::AcknowledgeEarly | Flaw::SettlesAhead) => 2_000_000,
                    _ if hurries && self.random.percent(1) => 3_000_000,
                    _ if self.random.percent(5) => 50_000,
                    _ => 2_000,
                };
                let until_us = at_us + self.random.between(200, longest_us);
                of.rests = Rests::Syncs(until_us);
                Some(until_us)
            }
            Step::Wait(wait) => {
                let until_us = wait.map(|wait| at_us + wait.as_micros() as u64 + 1);
                of.rests = Rests::Orders(until_us);
                until_us
            }
            Step::End => {
                of.rests = Rests::Ended;
                None
            }
        };
        until_us.map(|until_us| until_us - at_us)
    }

    /// A time is over that [`Threads::work`] has returned.
    pub fn synced(&mut self, at_us: u64) {
        if let Some(of) = self.writers.current_mut()
            && matches!(of.rests, Rests::Syncs(until_us) if until_us <= at_us)
        {
            of.sync(at_us);
        }
    }
}

/// The thread of a log.
#[derive(Default)]
pub struct SimWriter {
    /// What was ordered and the thread has not taken.
    orders: VecDeque<Order>,
    /// The writer, once there is one, and the folder of its files.
    writer: Option<Box<Writer>>,
    folder: Option<LockedFolder>,
    rests: Rests,
}

/// What the thread of a log waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rests {
    /// Nothing.
    #[default]
    Not,
    /// Orders, or this time.
    Orders(Option<u64>),
    /// A sync that ends at this time.
    Syncs(u64),
    /// It has ended.
    Ended,
}

impl SimWriter {
    /// The thread begins.
    pub fn begin(&mut self, (writer, folder): (Box<Writer>, LockedFolder)) {
        (self.writer, self.folder) = (Some(writer), Some(folder));
    }

    /// The sync on its way ends.
    fn sync(&mut self, at_us: u64) {
        let Some(writer) = &mut self.writer else { return };
        writer.around().set_time(at_us);
        self.rests = if writer.go_on_by_sync() { Rests::Not } else { Rests::Ended };
    }
}

impl switch::Writer for SimWriter {
    fn order(&mut self, order: Order) {
        self.orders.push_back(order);
    }

    /// However long that takes.
    fn join(&mut self) {
        while let Some(writer) = self.writer.as_mut().filter(|_| self.rests != Rests::Ended) {
            match self.rests {
                Rests::Syncs(until_us) => self.sync(until_us),
                _ => {
                    self.rests = match writer.take_turn(self.orders.drain(..)) {
                        Step::Sync => Rests::Syncs(writer.around().time_us()),
                        // It has failed, or was not told to end.
                        Step::Wait(_) | Step::End => Rests::Ended,
                    }
                }
            }
        }
    }
}

/// A copy of the keyspace that is received.
struct Copy {
    target: Target<LockedFolder>,
    receiver: Option<Box<Receiver>>,
    progress: Arc<CopyProgress>,
    /// Messages on the way, and when the next one comes.
    coming: VecDeque<Message>,
    next_us: u64,
    /// Number of keys of the server when the last message was sent.
    keys: usize,
}

/// A new base.
struct Base {
    order: BaseOrder,
    moment: Moment,
    abandoned: Box<dyn Fn() -> bool>,
    _folder: Option<LockedFolder>,
}

/// What a thread makes.
enum Making {
    Base(Box<Base>),
    /// What a copy is for.
    OfCopy(Target<LockedFolder>, Copied, Arc<CopyProgress>),
}

/// What a thread has done.
pub enum Done {
    /// The writer of the log has reported this.
    Report(Report),
    /// A new base for the file of this number.
    Base(u64, Result<(File, u64), String>),
    /// The snapshot of this number.
    Snapshot(u64, Result<u64, String>),
    /// The file that is switched on.
    File(Result<(Box<Writer>, LockedFolder), String>),
    /// A thread calls the driver.
    Calls,
}
