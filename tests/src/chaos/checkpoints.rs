//! The states that readers of a round save, each in a file of its own.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An epoch, and the number of its elements that the reader had taken; `u64::MAX`: all of them.
pub(super) type Step = (u64, u64);

/// A state of a reader, and what its user had taken by then.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// The state.
    pub(super) state: String,
    /// The length of the ledger.
    pub(super) ledger_bytes: u64,
}

/// The states of one reader.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checkpoints {
    folder: PathBuf,
    reader: usize,
}

impl Checkpoints {
    /// Those of a reader, in a folder.
    pub(super) fn new(folder: &Path, reader: usize) -> Self {
        Self { folder: folder.to_path_buf(), reader }
    }

    /// Saves a state. A reader that is killed leaves whole states.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn write(&self, (epoch, elements): Step, checkpoint: &Checkpoint) -> io::Result<()> {
        let path = self.folder.join(format!("{}{epoch}-{elements}", self.prefix()));
        let unfinished = self.folder.join(format!("unfinished-{}", self.reader));
        std::fs::write(&unfinished, serde_json::to_string(checkpoint)?)?;
        std::fs::rename(unfinished, path)
    }

    /// The file of each step.
    pub(super) fn all(&self) -> BTreeMap<Step, PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().map_while(Result::ok);
        let step_of = |name: &str| -> Option<Step> {
            let (epoch, elements) = name.strip_prefix(&self.prefix())?.split_once('-')?;
            Some((epoch.parse().ok()?, elements.parse().ok()?))
        };
        let found = entries.map(|e| e.path());
        found.filter_map(|path| Some((step_of(path.file_name()?.to_str()?)?, path))).collect()
    }

    /// Goes back to a step: later states are removed. The file of that step.
    pub(super) fn go_back(&self, step: Step) -> Option<PathBuf> {
        let mut all = self.all();
        all.iter().filter(|(s, _)| **s > step).for_each(|(_, path)| std::fs::remove_file(path).unwrap());
        all.remove(&step)
    }

    fn prefix(&self) -> String {
        format!("state-{}-", self.reader)
    }
}

/// The last step of which all readers have a state.
pub(super) fn last_common(readers: &[Checkpoints]) -> Option<Step> {
    let all: Vec<_> = readers.iter().map(Checkpoints::all).collect();
    let (first, others) = all.split_first()?;
    first.keys().rev().find(|step| others.iter().all(|of| of.contains_key(step))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_go_back_to_the_last_step_of_which_all_have_a_state() {
        let folder = tempfile::tempdir().unwrap();
        let readers = [1, 2].map(|reader| Checkpoints::new(folder.path(), reader));
        let save = |reader: usize, step| {
            readers[reader].write(step, &Checkpoint { state: String::new(), ledger_bytes: 0 }).unwrap();
        };
        save(0, (0, 10));
        assert_eq!(last_common(&readers), None);
        [(0, 20), (0, u64::MAX), (1, 10)].into_iter().for_each(|step| save(0, step));
        [(0, 10), (0, 20), (0, 30)].into_iter().for_each(|step| save(1, step));
        assert_eq!(last_common(&readers), Some((0, 20)));
        for reader in &readers {
            assert!(reader.go_back((0, 20)).unwrap().exists());
            assert_eq!(reader.all().into_keys().collect::<Vec<_>>(), [(0, 10), (0, 20)]);
        }
    }
}
