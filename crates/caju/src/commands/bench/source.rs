//! A source of many splits without much data: files of short lines, each of which is a split. A split is described by a file, a
//! range and a key, as splits of real sources are.

use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use caju_types::{Error, Result};
use serde_json::json;

/// Bytes of a line.
const LINE_BYTES: usize = 64;
/// Lines of a file: the splits of a file are listed together.
const FILE_LINES: u64 = 4096;

/// The files, in a folder of its own that is removed in the end.
pub(super) struct LineSource {
    folder: PathBuf,
}

impl LineSource {
    /// Writes files below `dir` that have the given number of lines in all.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be written.
    pub(super) fn write(dir: &Path, name: &str, splits: u64) -> Result<Self> {
        let dir = std::path::absolute(dir).map_err(|e| at(dir, &e))?;
        let source = Self { folder: dir.join(format!("caju-bench-{name}-{}", std::process::id())) };
        std::fs::create_dir_all(&source.folder).map_err(|e| at(&source.folder, &e))?;
        let files = splits.div_ceil(FILE_LINES);
        for file in 0..files {
            let path = source.folder.join(format!("train-{file:05}-of-{files:05}.jsonl"));
            write_lines(&path, file * FILE_LINES..splits.min((file + 1) * FILE_LINES))?;
        }
        Ok(source)
    }

    /// The folder, for what else a benchmark writes.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The definition of a dataset that reads it.
    pub(super) fn definition(&self) -> String {
        let source = json!({ "json": { "path": self.folder.join("*.jsonl").display().to_string(), "split": LINE_BYTES } });
        json!({ "name": "bench", "source": source, "steps": [] }).to_string()
    }
}

/// Writes a file of the lines with these numbers.
fn write_lines(path: &Path, ids: Range<u64>) -> Result<()> {
    let file = std::fs::File::create(path).map_err(|e| at(path, &e))?;
    let mut out = std::io::BufWriter::new(file);
    for id in ids {
        let mut line = format!("{{\"id\":{id},\"text\":\"");
        // Quotation mark, brace and line break end the line.
        line.extend(std::iter::repeat_n('x', LINE_BYTES.saturating_sub(line.len() + 3)));
        line.push_str("\"}\n");
        out.write_all(line.as_bytes()).map_err(|e| at(path, &e))?;
    }
    out.flush().map_err(|e| at(path, &e))
}

impl Drop for LineSource {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn at(path: &Path, e: &std::io::Error) -> Error {
    Error::unavailable(format!("{}: {e}", path.display()))
}
