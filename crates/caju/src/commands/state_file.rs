//! `caju read --state FILE`: where a reader stands, so that the next one reads on.

use std::path::Path;

use caju_client::ReaderState;
use caju_types::{Error, Result};

use crate::report::write_whole;

/// A file with the state of a reader.
#[derive(Debug)]
pub(crate) struct StateFile<'a> {
    path: &'a Path,
    /// The state that was there.
    found: Option<ReaderState>,
}

impl<'a> StateFile<'a> {
    /// Reads the file. `must_exist`: a file that is not there is an error.
    ///
    /// # Errors
    /// `NotFound`, and `InvalidArgument` for a file that is no state.
    pub(crate) fn open(path: &'a Path, must_exist: bool) -> Result<Self> {
        let context = |e: Error| e.context(format!("--state {}", path.display()));
        let found = match std::fs::read_to_string(path) {
            Ok(text) => Some(ReaderState::from_json(&text).map_err(context)?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => None,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::not_found(format!(
                    "--state {}: there is no state to go on from; leave out --resume to begin the epoch",
                    path.display()
                )));
            }
            Err(e) => return Err(context(Error::unavailable(format!("the state cannot be read: {e}")))),
        };
        Ok(Self { path, found })
    }

    /// The epoch that comes first: that of the state, or the next one if the state is of its end.
    pub(crate) fn first_epoch(&self) -> u64 {
        self.found.as_ref().map_or(0, |s| s.epoch.saturating_add(u64::from(s.exhausted)))
    }

    /// The states that a reader of an epoch goes on from.
    pub(crate) fn states(&self, epoch: u64) -> Vec<ReaderState> {
        self.found.iter().filter(|s| s.epoch == epoch && !s.exhausted).cloned().collect()
    }

    /// Writes a state, completely or not at all.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn write(&self, state: &ReaderState) -> Result<()> {
        write_whole(self.path, &format!("{}\n", state.to_json()?), "--state")
    }
}
