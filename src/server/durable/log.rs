//! What the shell does with the log: hands batches to the thread, takes its reports, and makes new bases.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::driver::round::Adapter;
use crate::persist::append::clock::Moment;
use crate::persist::append::log_writer::{Order, Report};
use crate::persist::append::manifest::Manifest;
use crate::server::durable::boottime;
use crate::server::durable::copy::{ENGINE_STACK, be_nice};
use crate::server::durable::folder::Folder;
use crate::server::durable::rewrite::make_base;
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Hands the reports of the log's thread to the executor.
pub(super) fn reporter(control: Control<Shell>) -> impl Fn(Report) + Send + 'static {
    move |report: Report| {
        control.send(Box::new(move |shell: &mut Shell| {
            shell.take_report(report);
            // The next batch is handed over there, before the replies are written: the disk does not wait for those.
            shell.after_closure();
        }));
    }
}

impl Shell {
    /// Makes a base of these files but the last, beside the executor.
    pub(in crate::server) fn spawn_rewrite(&mut self, number: u64, manifest: Manifest) {
        let moment = Moment { boot: boottime::now(), now: self.clock.now() };
        let config = self.driver.engine.config().clone();
        let (Some(control), Some(file)) = (self.control.clone(), self.background.writers.current()) else { return };
        let (abandoned, lock) = (Arc::clone(&file.rewrite_abandoned), file.lock.clone());
        let (name, path) = (config.appendfilename.clone(), file.path.clone());
        let thread = std::thread::Builder::new().name("rewrite".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            let _lock = lock;
            let goes_on = || !abandoned.load(Ordering::Relaxed);
            let folder = Folder::open(&path).map_err(|error| error.to_string());
            let made = folder.and_then(|mut folder| make_base(&mut folder, name.as_bytes(), manifest, moment, config, goes_on));
            control.send(Box::new(move |shell: &mut Shell| {
                shell.drive(|driver, at| driver.base_made(at, number, made));
                shell.after_closure();
            }));
        });
        if let Err(error) = spawned {
            let reason = format!("cannot start a thread: {error}");
            self.drive(|driver, at| driver.base_made(at, number, Err(reason)));
        }
    }

    /// Ends the log: what was recorded is written and synced, or handed to the nodes.
    pub(in crate::server) fn close_log(&mut self) {
        self.hand_on_all();
        self.background.writers.order(Order::Close);
        self.background.writers.current_mut().into_iter().for_each(|file| file.join());
    }
}
