//! The threads of a simulated process: the writer of its log, the receiver of a copy, and those that make files. What they do is the
//! real threads' code; here is when. What they send waits in an inbox until the server takes it, between two turns.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Arc;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Message;
use crate::driver::flaw::Flaw;
use crate::driver::round::storing::Storing;
use crate::driver::round::writers::{self, FolderLock, Target, Writers};
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::log_writer::{Order, Step};
use crate::persist::append::manifest::File;
use crate::persist::disk::simulated::Injected;
use crate::server::durable;
use crate::server::durable::copy::{CopyReceiver, Made, NewCopy, Received, ToMake, copy_made};
use crate::server::durable::folder::LogFolder;
use crate::server::durable::rewrite::BaseMaker;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::disk::{Planted, SharedDisk};
use crate::torture::sim::machine::{Writer, writer};
use crate::torture::sim::server::serving::Serving;

/// What a thread has the server do.
pub type Closure = Box<dyn FnOnce(&mut Serving<'_>)>;

/// What threads and signals have sent.
#[derive(Clone, Default)]
pub struct Inbox(Rc<RefCell<VecDeque<Closure>>>);

impl Inbox {
    /// Has the server do something.
    pub fn send(&self, closure: impl FnOnce(&mut Serving<'_>) + 'static) {
        self.0.borrow_mut().push_back(Box::new(closure));
    }

    /// Takes what was sent first.
    pub fn next(&self) -> Option<Closure> {
        self.0.borrow_mut().pop_front()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// How often servers have done what only some inputs make them do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of snapshots beside the server.
    pub snapshots: u64,
    /// Number of new bases.
    pub bases: u64,
    /// Number of files that were switched on.
    pub files: u64,
    /// Number of processes that have loaded their files.
    pub loads: u64,
}

impl Done {
    fn note<F: LogFolder, L>(&mut self, made: &Made<F, L>) {
        match made {
            Made::Snapshot(_, made) => self.snapshots += u64::from(made.is_ok()),
            Made::File(made) => self.files += u64::from(made.is_ok()),
        }
    }
}

impl AddAssign for Done {
    fn add_assign(&mut self, other: Done) {
        self.snapshots += other.snapshots;
        self.bases += other.bases;
        self.files += other.files;
        self.loads += other.loads;
    }
}

/// A new base and its length in bytes, or why there is none.
type BaseMade = Result<(File, u64), String>;
/// Keeps the folder of a log locked.
pub type Lock = FolderLock<(), Box<dyn Fn()>>;
/// A folder that is locked.
pub type Opened = durable::switch::Opened<SharedDisk, Lock>;
/// The files that a writer begins with.
pub type Begun = durable::switch::Begun<SharedDisk, Lock>;

/// The threads of a process.
pub struct Threads {
    /// Who has the log written, if there is one.
    pub writers: Writers<SimWriter, Box<Opened>>,
    /// What they have sent.
    pub inbox: Inbox,
    /// Where snapshots are.
    pub disk: SharedDisk,
    copy: Option<Copy>,
    /// What is being made of files or of a copy, and when it is done.
    making: Vec<(u64, Making)>,
    /// Whether what they make takes long or fails, so that more of it meets.
    pub hurries: bool,
    /// The times of the disk, and what its operator does.
    pub random: Random,
}

impl Threads {
    /// No thread. Their files are on this disk.
    pub fn new(seed: u64, disk: SharedDisk) -> Threads {
        Threads {
            writers: Writers::default(),
            inbox: Inbox::default(),
            disk,
            copy: None,
            making: Vec::new(),
            hurries: false,
            random: Random::new(seed, streams::DISK, 0),
        }
    }

    /// The process ends.
    pub fn end(&mut self) {
        self.making.clear();
        (self.writers, self.copy) = (Writers::default(), None);
        // What was sent last says that the folder is free.
        self.inbox = Inbox::default();
    }

    /// Whether something fails now: a disk is full, or a thread cannot be started.
    pub fn fails(&mut self) -> bool {
        self.hurries && self.random.percent(10)
    }

    /// Uses the disk, which is full now and then.
    fn use_disk<T>(&mut self, act: impl FnOnce(&SharedDisk) -> T) -> T {
        let fills = self.fill();
        let done = act(&self.disk);
        self.make_room(fills);
        done
    }

    /// Fills the disk, now and then. Returns whether it has.
    pub fn fill(&mut self) -> bool {
        let fills = self.fails() && self.disk.act(|disk| disk.failing()).is_none();
        if fills {
            self.disk.act(|disk| disk.set_failing(Some(Injected::Full)));
        }
        fills
    }

    /// Makes room again, if it was filled.
    pub fn make_room(&mut self, fills: bool) {
        if fills {
            self.disk.act(|disk| disk.set_failing(None));
        }
    }

    /// Begins to receive a copy.
    ///
    /// # Errors
    /// It cannot be received.
    pub fn begin_copy(&mut self, target: Target<Box<Opened>>, copy: (Config, Moment, Arc<CopyProgress>)) -> Result<(), String> {
        let receiver = NewCopy::new(target, copy, (self.disk.clone(), 0))?;
        fail_if!(self.fails(), "no thread can be started".to_owned());
        self.copy = Some(Copy { receiver: Box::new(receiver.begin()), coming: VecDeque::new(), next_us: 0, keys: 0 });
        Ok(())
    }

    /// The copy is whole, and must have so many keys that have not expired.
    pub fn expect_keys(&mut self, keys: usize) {
        self.copy.iter_mut().for_each(|copy| copy.keys = keys);
    }

    /// A message is on its way to the receiver of the copy.
    pub fn send_to_copy(&mut self, at_us: u64, message: Message) {
        if let Some(copy) = &mut self.copy {
            copy.next_us = copy.next_us.max(at_us);
            copy.coming.push_back(message);
        }
    }

    /// The copy was given up.
    pub fn forget_copy(&mut self) {
        self.copy = None;
    }

    /// Receives what is there by now of the copy.
    ///
    /// # Panics
    /// A copy that is whole has not the keys that the server had when it ended.
    fn receive(&mut self, at_us: u64) {
        while let Some(mut copy) = self.copy.take() {
            let message = if copy.next_us <= at_us { copy.coming.pop_front() } else { None };
            let Some(message) = message else {
                self.copy = Some(copy);
                break;
            };
            match copy.receiver.receive(message, || self.inbox.send(|_| ())) {
                Received::More(receiver) => {
                    let next_us = at_us + if self.hurries { self.random.between(100, 20_000) } else { 0 };
                    self.copy = Some(Copy { receiver, next_us, ..copy });
                }
                Received::Whole(to_make) => {
                    if let Some(keys) = to_make.keys() {
                        assert_eq!(keys, copy.keys, "the copy has other keys than the server had");
                    }
                    self.make(at_us, Making::OfCopy(Box::new(to_make)));
                }
                Received::GivenUp => {}
            }
        }
    }

    /// Begins to make a new base.
    pub fn make_base(&mut self, at_us: u64, maker: BaseMaker<Rc<Lock>>) {
        self.make(at_us, Making::Base(Box::new(maker)));
    }

    fn make(&mut self, at_us: u64, making: Making) {
        let took_us = self.random.between(1_000, if self.hurries { 1_000_000 } else { 50_000 });
        self.making.push((at_us + took_us, making));
    }

    /// When they work next; `None` if all of them wait for the server.
    pub fn next_us(&self) -> Option<u64> {
        let part_us = self.copy.as_ref().filter(|copy| !copy.coming.is_empty()).map(|copy| copy.next_us);
        let writes_us = self.writers.current().and_then(SimWriter::next_us);
        self.making.iter().map(|(done_us, _)| *done_us).chain(part_us).chain(writes_us).min()
    }

    /// They do what they do by now.
    pub fn work(&mut self, at_us: u64) {
        self.receive(at_us);
        while let Some(done) = self.making.iter().position(|(done_us, _)| *done_us <= at_us) {
            let (_, making) = self.making.remove(done);
            self.end_making(making);
        }
        let Threads { hurries, random, disk, .. } = self;
        let Some(of) = self.writers.current_mut().filter(|of| of.next_us().is_some_and(|next_us| next_us <= at_us)) else {
            return;
        };
        of.go_on(at_us);
        of.until_us = match of.waits {
            Step::Sync => {
                // A disk mostly takes a moment, and sometimes much longer.
                let longest_us = match disk.planted {
                    // A slow disk shows it sooner.
                    Planted::OfDriver(Flaw::AcknowledgeEarly | Flaw::SettlesAhead) => 2_000_000,
                    _ if *hurries && random.percent(1) => 3_000_000,
                    _ if random.percent(5) => 50_000,
                    _ => 2_000,
                };
                Some(at_us + random.between(200, longest_us))
            }
            Step::Wait(wait) => wait.map(|wait| at_us + wait.as_micros() as u64 + 1),
            Step::End => None,
        };
    }

    /// A thread has made something.
    ///
    /// # Panics
    /// It has panicked.
    fn end_making(&mut self, making: Making) {
        match making {
            Making::Base(maker) => {
                let inbox = self.inbox.clone();
                let tell = |number, made: BaseMade| {
                    inbox.send(move |serving| {
                        serving.server.done.bases += u64::from(made.is_ok());
                        serving.base_made(number, made);
                    })
                };
                self.use_disk(|disk| maker.make(|| Ok(disk.clone()), tell));
            }
            Making::OfCopy(to_make) => {
                let inbox = self.inbox.clone();
                let tell = |made| {
                    if let Made::Snapshot(_, Err(reason)) | Made::File(Err(reason)) = &made {
                        assert_ne!(reason, durable::copy::PANICKED);
                    }
                    inbox.send(|serving| {
                        serving.server.done.note(&made);
                        copy_made(serving, made);
                    });
                };
                self.use_disk(|_| to_make.make(tell));
            }
        }
    }
}

/// The thread of a log.
pub struct SimWriter {
    /// What was ordered and the thread has not taken.
    orders: VecDeque<Order>,
    /// The writer, once there is one, and what keeps its folder locked.
    writer: Option<Box<Writer>>,
    lock: Option<Rc<Lock>>,
    /// What it waits for, and until when.
    waits: Step,
    until_us: Option<u64>,
    inbox: Inbox,
}

impl SimWriter {
    /// A thread that has not begun. What it reports goes to this inbox.
    pub fn new(inbox: Inbox) -> SimWriter {
        SimWriter { orders: VecDeque::new(), writer: None, lock: None, waits: Step::Wait(None), until_us: None, inbox }
    }

    /// The thread begins with these files.
    pub fn begin(&mut self, at_us: u64, disk: &SharedDisk, begun: Begun) {
        let durable::switch::Begun { files, lock, syncs, progress } = begun;
        (self.writer, self.lock) = (Some(Box::new(writer(disk, files, syncs, progress, at_us))), Some(Rc::new(lock)));
        self.until_us = Some(at_us);
    }

    /// What it waits for has come.
    fn go_on(&mut self, at_us: u64) {
        let Some(writer) = &mut self.writer else { return };
        writer.around().set_time(at_us);
        self.waits = writer.go_on(self.waits, self.orders.drain(..));
        while let Some(report) = writer.around().take_report() {
            self.inbox.send(|serving| serving.take_report(report));
        }
    }

    /// When it works next; `None` if it waits for orders.
    fn next_us(&self) -> Option<u64> {
        self.writer.as_ref()?;
        match self.waits {
            Step::Wait(_) if !self.orders.is_empty() => Some(0),
            _ => self.until_us,
        }
    }
}

impl writers::Writer for SimWriter {
    type Lock = Rc<Lock>;

    fn lock(&self) -> Option<Rc<Lock>> {
        self.lock.clone()
    }

    fn order(&mut self, order: Order) {
        self.orders.push_back(order);
    }

    /// However long that takes.
    fn join(&mut self) {
        // It was told to end, or waits for what does not come.
        while self.writer.is_some() && (self.waits == Step::Sync || (self.waits != Step::End && !self.orders.is_empty())) {
            self.go_on(self.until_us.unwrap_or_default());
        }
    }
}

/// A copy of the keyspace that is received.
struct Copy {
    receiver: Box<CopyReceiver<SharedDisk, Lock>>,
    /// Messages on the way, and when the next one comes.
    coming: VecDeque<Message>,
    next_us: u64,
    /// Number of keys that it must have.
    keys: usize,
}

/// What a thread makes.
enum Making {
    Base(Box<BaseMaker<Rc<Lock>>>),
    /// What a copy is for.
    OfCopy(Box<ToMake<SharedDisk, Lock>>),
}
