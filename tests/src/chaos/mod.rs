//! Rounds of faults against real processes: workers, dispatcher and readers are killed and stopped, and their connections
//! cut, in the middle of epochs whose rows are known.
//!
//! Everything in a round is drawn from its seed, see `plan.rs`; only the timing of the processes is not. A round fails if a
//! row is missing or comes twice, if an epoch does not end, if a process logs a warning or an error that the round did
//! not announce, or if one does not end in order afterwards.
//!
//! Each reader writes the rows of an element to a file before it asks for the next element, which acknowledges the first one.
//! So the rows of a reader that is killed are known, too, and epochs are compared row by row (`verify.rs`). The other readers
//! accept its death (`LostReaders::Allow`). In some rounds readers save their states from time to time, are killed, and
//! continue from them; in some they are consumers that get equally many elements, or that read in rounds; in some they are
//! trainers that share their rows. Readers also sleep for longer than the client timeout (`readers.rs`), and in some of all of
//! these the dispatcher loses its state folder.

mod checkpoints;
mod dataset;
mod faults;
mod lab;
pub mod ledger;
mod logs;
mod plan;
pub mod proxy;
mod random;
pub mod reader;
mod readers;
mod verify;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::pipeline::Pipeline;
use dataset::Dataset;
use lab::Lab;
use plan::Plan;

/// What every round needs: the sources, and caches that hold their rows.
#[derive(Debug)]
pub struct Fixture {
    folder: TempDir,
}

impl Fixture {
    /// Writes the sources, and stores the rows once.
    pub fn new() -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap() };
        Dataset::write_sources(fixture.sources());
        for dataset in Dataset::ALL {
            let pipeline = Pipeline::new(&dataset.definition(fixture.sources(), 0));
            let cache = fixture.cache(dataset).display().to_string();
            pipeline.run(&["--cache", &cache, "--policy", "hint:stored"]).expect_code(0);
        }
        fixture
    }

    fn sources(&self) -> &Path {
        self.folder.path()
    }

    /// A cache with all rows of a dataset.
    fn cache(&self, dataset: Dataset) -> PathBuf {
        self.folder.path().join(format!("cache-of-{dataset:?}"))
    }
}

impl Default for Fixture {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies the files of a folder and of those below it.
fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Runs the round of a seed; what happened, in one line.
///
/// # Errors
/// What was wrong, with the logs of all processes.
pub fn run(seed: u64, fixture: &Fixture) -> Result<String, String> {
    let plan = Plan::of(seed);
    let mut lab = Lab::start(plan.clone(), fixture);
    let outcome = catch_unwind(AssertUnwindSafe(|| lab.run()));
    let problem = match outcome {
        Ok(Ok(summary)) => return Ok(summary),
        Ok(Err(problem)) => problem,
        Err(panic) => match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(text), _) => text.clone(),
            (_, Some(text)) => (*text).to_string(),
            _ => "a panic without a text".to_string(),
        },
    };
    Err(format!(
        "{problem}\n{plan}\n{}\nreplay: cargo run -p caju-tests --example chaos -- --seed {seed} --rounds 1",
        lab.logs()
    ))
}
