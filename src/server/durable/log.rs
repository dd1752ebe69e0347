//! New bases of the append-only file, which are made beside the server.

use crate::driver::file::BaseOrder;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::server::durable::copy::{ENGINE_STACK, be_nice, caught};
use crate::server::durable::folder::Folder;
use crate::server::durable::rewrite::make_base;
use crate::server::shell::Shell;

impl Shell {
    /// Makes a base of these files but the last, beside the executor.
    ///
    /// # Errors
    /// In words: there can be no thread.
    pub(in crate::server) fn spawn_rewrite(&mut self, order: BaseOrder) -> Result<(), String> {
        let moment = self.moment();
        let control = self.control.clone().ok_or("the server has no event loop")?;
        let abandoned = self.background.writers.base_abandoned();
        let file = self.background.writers.current().ok_or("it was switched off")?;
        let lock = file.lock.clone();
        let (name, path, number) = (order.config.appendfilename.clone(), file.path.clone(), order.number);
        let thread = std::thread::Builder::new().name("rewrite".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            let _lock = lock;
            let goes_on = || !abandoned();
            let made = caught(|| {
                let mut folder = Folder::open(&path).map_err(|error| error.to_string())?;
                make_base(&mut folder, name.as_bytes(), order, moment, goes_on)
            });
            control.send(Box::new(move |shell: &mut Shell| shell.base_made(number, made)));
        });
        spawned.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
    }
}
