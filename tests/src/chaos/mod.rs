//! Rounds of faults against real processes: workers, dispatcher and readers are killed and stopped, and their connections
//! cut, in the middle of epochs whose rows are known.
//!
//! Everything in a round is drawn from its seed, see `plan.rs`; only the timing of the processes is not. A round fails if a
//! row is missing or comes twice, if an epoch does not end, if a process logs a warning or an error that the round did
//! not announce, or if one does not end in order afterwards.
//!
//! In some rounds the reader is stopped and goes on from its state, in others the readers are consumers that get equally many
//! elements, and in some of all of these the dispatcher loses its state folder.
//!
//! A reader that is killed takes rows with it. The other readers accept that (`--lost-readers allow`), and the round
//! checks that their rows and those that the lost reader took are all rows.

mod lab;
mod logs;
mod plan;
pub mod proxy;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::pipeline::Pipeline;
use lab::Lab;
use plan::{Plan, ROWS};

/// What every round needs: the checksum of the known rows, and a cache that holds them.
#[derive(Debug)]
pub struct Fixture {
    checksum: u128,
    cache: TempDir,
}

impl Fixture {
    /// Computes and stores the rows once.
    pub fn new() -> Self {
        let cache = tempfile::tempdir().unwrap();
        let p = Pipeline::new(&definition(0));
        let url = cache.path().display().to_string();
        let report = p.report(&["--cache", &url, "--policy", "hint:stored"]);
        Self { checksum: checksum(&report.checksums()[0]), cache }
    }
}

impl Default for Fixture {
    fn default() -> Self {
        Self::new()
    }
}

/// A range whose rows can be stored, and take so long behind that.
fn definition(row_us: u64) -> Value {
    let mut steps = vec![json!({ "with_columns": { "x": "id * 3 + 1" } }), json!({ "autocache": "stored" })];
    if row_us > 0 {
        steps.push(json!({ "sleep": { "per_row": format!("{row_us}us") } }));
    }
    steps.push(json!({ "batch": 50 }));
    json!({ "source": { "range": ROWS }, "steps": steps })
}

fn checksum(hex: &str) -> u128 {
    u128::from_str_radix(hex, 16).unwrap()
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
    let outcome = catch_unwind(AssertUnwindSafe(|| lab.run(fixture)));
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
