//! `caju bench journal`: what a commit of the dispatcher's journal costs in each database, and whether it survives kills.

mod kills;
mod speed;

use std::path::{Path, PathBuf};

use caju_dispatcher::journal::JournalKind;
use caju_dispatcher::state::{SplitRecord, Update};
use caju_runtime::blocking;
use caju_types::{Error, Result, TaskId};

use crate::cli::JournalArgs;

/// Splits in a group of updates: about what a worker leases at once.
const SPLITS: u64 = 8;

/// Measures, or writes until it is killed.
///
/// # Errors
/// A folder that cannot be written; `DataLoss` if a journal lost what was durable.
pub(super) async fn run(args: &JournalArgs) -> Result<()> {
    let args = args.clone();
    blocking("measuring journals", move || measure(&args)).await?
}

fn measure(args: &JournalArgs) -> Result<()> {
    let kinds: Vec<JournalKind> = args.journal.iter().map(|database| (*database).into()).collect();
    if let Some(folder) = &args.append {
        let kind = kinds.first().ok_or_else(|| Error::invalid("--journal: name a database"))?;
        return kills::append(*kind, folder);
    }
    let scratch = Scratch::new(&args.dir)?;
    if args.rounds > 0 {
        speed::measure(&scratch, &kinds, args.rounds, args.commits)?;
    }
    if args.kills > 0 {
        kills::measure(&scratch, &kinds, args.kills, args.seed)?;
    }
    Ok(())
}

/// A folder that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path) -> Result<Self> {
        let folder = dir.join(format!("caju-bench-journal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| at(&folder, &e))?;
        Ok(Self(folder))
    }

    /// A folder in it that is not there.
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let folder = self.0.join(name);
        match std::fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at(&folder, &e)),
            _ => Ok(folder),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn at(path: &Path, e: &std::io::Error) -> Error {
    Error::unavailable(format!("{}: {e}", path.display()))
}

/// The group with a number: a lease of some splits, about 1.5 KiB of JSON.
fn group(number: u64) -> Vec<Update> {
    let record = |i: u64| {
        let index = number * SPLITS + i;
        let split = format!(
            "{{\"url\":\"s3://bucket/train/part-{index:06}.parquet\",\"version\":\"{number:032x}\",\"range\":\
             {{\"row_groups\":[{i},{}]}},\"key\":\"{index:032x}\"}}",
            i + 1
        );
        SplitRecord { index, split: split.into(), group: None, after: None, whole: None }
    };
    let fresh = (0..SPLITS).map(record).collect();
    vec![Update::Leased {
        task: TaskId(1),
        request_no: number,
        fresh,
        requeued: Vec::new(),
        end: false,
        asks_for_lagging: false,
    }]
}

/// The number of a group of [`group`].
fn number_of(updates: &[Update]) -> Option<u64> {
    match updates {
        [Update::Leased { request_no, .. }] => Some(*request_no),
        _ => None,
    }
}
