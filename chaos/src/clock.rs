//! A wall clock of the process's own, which can be set while it runs: libfaketime, preloaded, reading its offset from a
//! file. The monotonic clock is left alone, as it is when a machine's clock is set.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use jiff::SignedDuration;

/// Where Debian keeps the library, below the folder of the architecture.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The switch.
#[derive(Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Finds the library, and sets the clock right.
    pub(crate) fn find(folder: &Path) -> Option<Self> {
        let clock = Self { library: library()?, file: folder.join("clock") };
        clock.set(SignedDuration::ZERO).ok()?;
        Some(clock)
    }

    /// What makes a process look at the file, for each look at the clock.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let env = [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        env.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// Sets it so far ahead, or back.
    pub(crate) fn set(&self, offset: SignedDuration) -> anyhow::Result<()> {
        // By renaming: the process may look at any moment.
        let aside = self.file.with_extension("next");
        std::fs::write(&aside, format!("{:+}\n", offset.as_secs())).context("write the clock's offset")?;
        std::fs::rename(&aside, &self.file).context("set the clock")
    }
}

fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
    folders.map(|folder| folder.path().join(LIBRARY)).find(|path| path.exists())
}
