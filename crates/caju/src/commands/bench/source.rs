//! A source of many splits without much data: a file of short lines, each of which is a split. A split is described by a file, a
//! range and a key, as splits of real sources are.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use caju_types::{Error, Result};
use serde_json::json;

/// Bytes of a line.
const LINE_BYTES: usize = 64;

/// The file, in a folder of its own that is removed in the end.
pub(super) struct LineSource {
    folder: PathBuf,
}

impl LineSource {
    /// Writes a file of so many lines below `dir`.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be written.
    pub(super) fn write(dir: &Path, name: &str, splits: u64) -> Result<Self> {
        let dir = std::path::absolute(dir).map_err(|e| at(dir, &e))?;
        let source = Self { folder: dir.join(format!("caju-bench-{name}-{}", std::process::id())) };
        std::fs::create_dir_all(&source.folder).map_err(|e| at(&source.folder, &e))?;
        let path = source.path();
        let file = std::fs::File::create(&path).map_err(|e| at(&path, &e))?;
        let mut out = std::io::BufWriter::new(file);
        for id in 0..splits {
            let mut line = format!("{{\"id\":{id},\"text\":\"");
            // Quotation mark, brace and line break end the line.
            line.extend(std::iter::repeat_n('x', LINE_BYTES.saturating_sub(line.len() + 3)));
            line.push_str("\"}\n");
            out.write_all(line.as_bytes()).map_err(|e| at(&path, &e))?;
        }
        out.flush().map_err(|e| at(&path, &e))?;
        Ok(source)
    }

    /// The folder, for what else a benchmark writes.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self) -> PathBuf {
        self.folder.join("train-00000-of-00001.jsonl")
    }

    /// The definition of a dataset that reads it.
    pub(super) fn definition(&self) -> String {
        let source = json!({ "json": { "path": self.path().display().to_string(), "split": LINE_BYTES } });
        json!({ "name": "bench", "source": source, "steps": [] }).to_string()
    }
}

impl Drop for LineSource {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn at(path: &Path, e: &std::io::Error) -> Error {
    Error::unavailable(format!("{}: {e}", path.display()))
}
