//! New bases of the append-only file, which are made beside the server.

use crate::driver::file::BaseOrder;
use crate::driver::round::storing::Storing;
use crate::server::durable::copy::{ENGINE_STACK, be_nice};
use crate::server::durable::folder::Folder;
use crate::server::durable::rewrite::BaseMaker;
use crate::server::shell::Shell;

impl Shell {
    /// Makes a base of these files but the last, on a thread of its own.
    ///
    /// # Errors
    /// In words: there can be no thread.
    pub(in crate::server) fn spawn_rewrite(&mut self, order: BaseOrder) -> Result<(), String> {
        let control = self.control.clone().ok_or("the server has no event loop")?;
        let path = self.background.writers.current().map(|file| file.path.clone()).unwrap_or_default();
        let maker = BaseMaker::new(self, order)?;
        let thread = std::thread::Builder::new().name("rewrite".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            let tell = |number, made| _ = control.send(Box::new(move |shell: &mut Shell| shell.base_made(number, made)));
            maker.make(|| Folder::open(&path), tell);
        });
        spawned.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
    }
}
