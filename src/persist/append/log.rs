//! The log of changes that is written to the file: gathers the units of a turn in one batch.
//!
//! ```text
//!   engine ── record, commit ─▶ AppendLog ◀─ take_batch ── server, once a turn
//!                                 batch: #PC · whole units │ the unit in progress
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use crate::base::time::Now;
use crate::keyspace::change::{Change, ChangeLog};
use crate::persist::append::batch::{START, seal};
use crate::persist::append::clock::BootClock;
use crate::persist::append::encode::{Encoder, put_select};
use crate::persist::append::request::put_request;

/// Maximum number of bytes for which a batch has room before it has any.
const CAPACITY_MAX: usize = 64 << 10;

/// The gathered batch, shared by the engine, which records, and the server, which takes batches.
#[derive(Clone, Debug)]
pub struct AppendLog(Rc<RefCell<Gathered>>);

#[derive(Debug)]
struct Gathered {
    encoder: Encoder,
    /// The batch without its last line, and behind its whole units the one in progress.
    bytes: Vec<u8>,
    /// Where the unit in progress begins.
    unit: usize,
    /// Number of its requests.
    requests: usize,
    /// The database that was selected before it.
    selected_before: Option<u32>,
    /// The boot, and its clock at the origin of the engine's monotonic clock, in milliseconds.
    boot: ([u8; 16], i64),
}

impl AppendLog {
    /// An empty log at the beginning of a file.
    pub fn new(now: Now, boot: BootClock) -> Self {
        let gathered = Gathered {
            encoder: Encoder::default(),
            bytes: START.to_vec(),
            unit: START.len(),
            requests: 0,
            selected_before: None,
            boot: (boot.id, 0),
        };
        let log = AppendLog(Rc::new(RefCell::new(gathered)));
        log.set_boot_clock(now, boot);
        log
    }

    /// Sets the time of the boot clock at `now`. The two clocks move apart when the machine is suspended, so this belongs into
    /// each turn.
    pub fn set_boot_clock(&self, now: Now, boot: BootClock) {
        let origin_ms = i128::from(boot.now_ms) - i128::from(now.mono_ms());
        self.0.borrow_mut().boot = (boot.id, origin_ms as i64);
    }

    /// Takes the whole units since the last call as a batch; empty if there are none. A unit in progress remains.
    pub fn take_batch(&self) -> Vec<u8> {
        let gathered = &mut *self.0.borrow_mut();
        if gathered.unit == START.len() {
            return Vec::new();
        }
        let mut rest = Vec::with_capacity(gathered.bytes.len().min(CAPACITY_MAX));
        rest.extend_from_slice(START);
        rest.extend_from_slice(&gathered.bytes[gathered.unit..]);
        let mut batch = std::mem::replace(&mut gathered.bytes, rest);
        batch.truncate(gathered.unit);
        gathered.unit = START.len();
        seal(&mut batch);
        batch
    }

    /// Must be called when another file begins: the next batch is its first one. All batches before must have been taken.
    pub fn begin_file(&self) {
        let gathered = &mut *self.0.borrow_mut();
        debug_assert_eq!(gathered.unit, START.len(), "all batches of the last file were taken");
        match gathered.selected_before {
            // The beginning of the unit in progress is of this database.
            Some(db) if gathered.requests > 0 => {
                let mut select = Vec::new();
                put_select(&mut select, db);
                gathered.bytes.splice(gathered.unit..gathered.unit, select);
            }
            _ if gathered.requests > 0 => {}
            _ => {
                gathered.encoder.set_selected(None);
                gathered.selected_before = None;
            }
        }
    }
}

impl ChangeLog for AppendLog {
    fn record(&mut self, change: &Change<'_>) {
        let Gathered { encoder, bytes, unit, requests, boot: (id, origin_ms), .. } = &mut *self.0.borrow_mut();
        let boot = BootClock { id: *id, now_ms: change.now.mono_ms().saturating_add_signed(*origin_ms) };
        let before = *requests;
        *requests += encoder.encode(bytes, change, boot);
        if before <= 1 && *requests > 1 {
            let mut multi = Vec::new();
            put_request(&mut multi, &[b"MULTI"]);
            bytes.splice(*unit..*unit, multi);
        }
    }

    fn commit(&mut self) {
        let Gathered { encoder, bytes, unit, requests, selected_before, .. } = &mut *self.0.borrow_mut();
        if *requests > 1 {
            put_request(bytes, &[b"EXEC"]);
        }
        (*unit, *requests, *selected_before) = (bytes.len(), 0, encoder.selected());
    }
}
