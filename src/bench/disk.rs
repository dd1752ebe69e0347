//! The disk below a bench: what an append and its flush take there, without any server.

use std::io::{Result, Write};
use std::time::Instant;

use crate::bench::report::statistics::quantile;
use crate::files;

/// Appends of a measurement.
const APPENDS: usize = 100;

/// The disk's own time for an append of 4 KiB and `fdatasync`, from all measurements of a run.
#[derive(Debug, Default)]
pub struct Disk {
    us: Vec<i64>,
}

impl Disk {
    /// Measures 100 appends to a new file in the folder for temporary files.
    ///
    /// # Errors
    /// Those of the file.
    pub fn measure(&mut self) -> Result<()> {
        // Its name begins as those of servers' folders do, so that it is removed after a signal, too.
        let folder = files::temporary_folder(&format!("portcullis-bench-{}-disk", std::process::id()))?;
        let mut file = files::create_private(&folder.join("appended"))?;
        let mut append = || {
            let began = Instant::now();
            file.write_all(&[b'x'; 4096])?;
            file.sync_data()?;
            Ok(began.elapsed().as_micros() as i64)
        };
        let took: Result<Vec<i64>> = (0..APPENDS).map(|_| append()).collect();
        std::fs::remove_dir_all(&folder)?;
        self.us.extend(took?);
        Ok(())
    }

    /// A quantile (0 to 1), in microseconds. `None` before the first measurement.
    pub fn quantile(&self, part: f64) -> Option<i64> {
        let mut us = self.us.clone();
        us.sort_unstable();
        quantile(&us, part)
    }

    /// The figures in words. `None` before the first measurement.
    pub fn note(&self) -> Option<String> {
        let (p50, p99) = (self.quantile(0.5)?, self.quantile(0.99)?);
        Some(format!(
            "the disk itself, in the same run: an append of 4 KiB and fdatasync takes {p50} µs (p50) and {p99} µs (p99), so {} in a second",
            1_000_000 / p50.max(1)
        ))
    }
}
