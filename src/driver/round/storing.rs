//! What a driver demands, carried out, and what follows when it is done: files that are opened, copied into, written and closed.

use std::sync::Arc;

use crate::driver::Demands;
use crate::driver::copy::received::Message;
use crate::driver::copy::{CopyOrder, CopyProgress, Use};
use crate::driver::file::Reported;
use crate::driver::round::Driving;
use crate::driver::round::writers::{Target, Writer};
use crate::persist::append::log_writer::{Order, Report};
use crate::persist::append::manifest::File;
use crate::persist::natives::clock::Moment;

/// What an adapter stores.
pub trait Storing: Driving {
    /// Does what the driver asks for.
    #[cold]
    fn meet(&mut self, Demands { copy, file, opens_file, ends, failed }: Demands) {
        copy.into_iter().for_each(|order| self.order_copy(order));
        file.into_iter().for_each(|order| self.writers().order(order));
        if ends {
            self.end_after_round();
        }
        failed.into_iter().for_each(|reason| self.fail(reason));
        if opens_file {
            self.open_file();
        }
    }

    /// Carries out what the driver asks for a copy.
    fn order_copy(&mut self, order: CopyOrder) {
        match order {
            CopyOrder::Begin(of, moment, progress) => {
                if let Err(reason) = self.receive_copy(of, moment, progress) {
                    self.drive(|driver, at| driver.copy_failed(at, &reason));
                }
            }
            CopyOrder::Part(part, moment) => self.send_to_copy(Message::Part(part, moment)),
            CopyOrder::End(moment) => {
                self.writers().install();
                self.send_to_copy(Message::End(moment));
            }
            CopyOrder::Abandon => {
                self.forget_copy();
                self.writers().forget_next();
            }
        }
    }

    /// Begins to receive a copy.
    ///
    /// # Errors
    /// In words.
    fn receive_copy(&mut self, of: Use, moment: Moment, progress: Arc<CopyProgress>) -> Result<(), String> {
        let target = match of {
            Use::Snapshot(number) => Target::Snapshot(number),
            Use::FirstBase => self.writers().take_coming()?,
        };
        let writer = if let Target::File(folder, _) = &target { Some(self.new_writer(folder)) } else { None };
        self.begin_copy(target, moment, progress)?;
        writer.into_iter().for_each(|writer| self.writers().begin(writer));
        Ok(())
    }

    /// Opens the folder of the append-only file, for one that is switched on. A thread of the last one may still need it; its end
    /// comes back here.
    fn open_file(&mut self) {
        if self.writers().await_folder() {
            return;
        }
        match self.open_folder() {
            Ok(folder) => {
                let boot = self.boot();
                let begins = self.drive(|driver, at| driver.file_opened(at, Self::read_boot(boot)));
                self.writers().coming = begins.map(|beginning| (folder, beginning));
            }
            Err(reason) => self.drive(|driver, at| driver.file_not_begun(at, &reason)),
        }
    }

    /// No thread of this server needs the folder of the append-only file any more.
    fn folder_freed(&mut self) {
        if self.writers().awaits_folder() && self.driver().switches_log_on() {
            self.open_file();
            self.after_closure();
        }
    }

    /// Takes a report of the writer of the file. The next batch is handed over behind it, before the replies are written, because
    /// the disk does not wait for those.
    fn take_report(&mut self, report: Report) {
        match self.drive(|driver, at| driver.take_report(at, report)) {
            None => {}
            Some(Reported::MakeBase(order)) => {
                let number = order.number;
                if let Err(reason) = self.make_base(*order) {
                    self.drive(|driver, at| driver.base_made(at, number, Err(reason)));
                }
            }
            Some(Reported::Closed) => {
                // The folder is free again only without it.
                self.writers().take().into_iter().for_each(|mut writer| writer.join());
                self.drive(|driver, at| driver.file_closed(at));
            }
        }
        self.after_closure();
    }

    /// A base was made for the file of this number: it and its length in bytes, or why there is none.
    fn base_made(&mut self, number: u64, made: Result<(File, u64), String>) {
        self.drive(|driver, at| driver.base_made(at, number, made));
        self.after_closure();
    }

    /// The snapshot of this number was made: its length in bytes, or why there is none.
    fn snapshot_made(&mut self, number: u64, made: Result<u64, String>) {
        self.drive(|driver, at| driver.snapshot_made(at, number, made));
        self.after_closure();
    }

    /// The files of an append-only file that is switched on were made, or why there are none.
    fn file_made(&mut self, made: Result<Self::Files, String>) {
        match made.and_then(|files| self.begin_to_write(files)) {
            Ok(()) => self.drive(|driver, at| driver.file_begun(at)),
            Err(reason) => {
                self.writers().take();
                self.drive(|driver, at| driver.file_not_begun(at, &reason));
            }
        }
        self.after_closure();
    }

    /// Begins to write the file that changes go to.
    ///
    /// # Errors
    /// In words.
    fn begin_to_write(&mut self, files: Self::Files) -> Result<(), String> {
        let mut writer = self.writers().take().ok_or("it was switched off")?;
        let begun = self.start_writer(&mut writer, files);
        self.writers().put_back(writer);
        begun
    }

    /// Writes a snapshot before this returns, in place of one in progress. Returns false if it failed.
    fn save_now(&mut self) -> bool {
        self.drive(|driver, _| driver.abandon_snapshot());
        let made = self.driver().may_save().and_then(|()| self.write_snapshot());
        match &made {
            Ok(()) => tracing::info!("DB saved on disk"),
            Err(reason) => tracing::error!(reason, "Error trying to save the DB"),
        }
        self.drive(|driver, at| driver.saved_at_once(at, made.is_ok()));
        made.is_ok()
    }

    /// Ends the log, at the end of the server: what was recorded is written and synced, or handed to the nodes.
    fn close_log(&mut self) {
        self.drive(|driver, _| driver.abandon_files());
        self.submit_pending(true);
        self.writers().order(Order::Close);
        self.writers().current_mut().into_iter().for_each(Writer::join);
    }
}

impl<T: Driving> Storing for T {}
