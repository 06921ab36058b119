//! `caju read --state FILE`: the state of a reader, from which the next reader continues.

use std::path::Path;

use caju_client::{Client, ReaderState};
use caju_pipeline::DatasetDef;
use caju_proto::mode_name;
use caju_types::{Error, Result};

use crate::cli::EpochArgs;
use crate::input_file;
use crate::report::{check_writable, write_whole};

/// The largest file, in bytes: a state of the most pieces of rows that a reader may have acknowledged in part takes less.
const MAX_BYTES: u64 = 256 << 20;

/// A file with the state of a reader.
#[derive(Debug)]
pub(crate) struct StateFile<'a> {
    path: &'a Path,
    /// The state that the file had.
    found: Option<ReaderState>,
}

impl<'a> StateFile<'a> {
    /// Reads the file. `must_exist`: a file that is not there is an error.
    ///
    /// # Errors
    /// `NotFound`, `InvalidArgument` for a file that is no state, and a place where no state can be written.
    pub(crate) fn open(path: &'a Path, must_exist: bool) -> Result<Self> {
        let context = |e: Error| e.context(format!("--state {}", path.display()));
        let found = match input_file::read_text(path, MAX_BYTES) {
            Ok(text) => Some(ReaderState::from_json(&text).map_err(context)?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => None,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::not_found(format!(
                    "--state {}: there is no state to continue from; leave out --resume to begin the epoch",
                    path.display()
                )));
            }
            Err(e) => return Err(context(input_file::error(&e))),
        };
        // What is read without a state that can be written could not be continued.
        check_writable(path, "--state")?;
        Ok(Self { path, found })
    }

    /// The epoch that comes first: that of the state, or the next one if the state is of its end.
    pub(crate) fn first_epoch(&self) -> u64 {
        self.found.as_ref().map_or(0, |s| s.epoch.saturating_add(u64::from(s.exhausted)))
    }

    /// Whether a state of an epoch's end is of what is read. No reader is opened with such a state, so no reader refuses it.
    /// The dispatcher names the dataset.
    ///
    /// # Errors
    /// `InvalidArgument` that says what differs.
    pub(crate) async fn check(&self, client: &Client, def: &DatasetDef, args: &EpochArgs) -> Result<()> {
        let Some(found) = self.found.as_ref().filter(|s| s.exhausted) else { return Ok(()) };
        // The fingerprint of what runs is not known before boundaries are learnt.
        if def.unlearnt().is_none() {
            self.check_dataset(&client.register(def, "").await?.fingerprint)?;
        }
        if let Some(seed) = args.seed.or(def.options.seed).filter(|seed| *seed != found.seed) {
            return Err(self.of_another("seed", &found.seed.to_string(), &seed.to_string()));
        }
        let mode = mode_name(args.processing_mode.to_proto());
        if found.mode != mode {
            return Err(self.of_another("processing mode", &found.mode, mode));
        }
        Ok(())
    }

    /// Whether a state of an epoch's end is of the dataset with this fingerprint.
    ///
    /// # Errors
    /// `InvalidArgument` with both fingerprints.
    pub(crate) fn check_dataset(&self, here: &str) -> Result<()> {
        match self.found.as_ref().filter(|s| s.exhausted && s.fingerprint != here) {
            Some(found) => Err(self.of_another("dataset", &found.fingerprint, here)),
            None => Ok(()),
        }
    }

    fn of_another(&self, what: &str, theirs: &str, ours: &str) -> Error {
        Error::invalid(format!(
            "--state {}: it is the state of another {what} ({theirs}, and this reader reads {ours}); give the file of this \
             reader, or another path",
            self.path.display()
        ))
    }

    /// The states from which a reader of an epoch continues.
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
