//! Writes what follows from every event log of the tests: `cargo run -p caju-autocache --example bless_events`.

use std::path::Path;

use caju_autocache::describe_replay;
use caju_types::{Error, Result};

fn main() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/events");
    let failed = |e: std::io::Error| Error::unavailable(format!("{}: {e}", folder.display()));
    for file in std::fs::read_dir(&folder).map_err(failed)? {
        let path = file.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == "jsonl") {
            let log = std::fs::read_to_string(&path).map_err(failed)?;
            let actions = describe_replay(&log).map_err(|e| e.context(path.display().to_string()))?;
            std::fs::write(path.with_extension("actions"), actions).map_err(failed)?;
        }
    }
    Ok(())
}
