//! What a reader's user took, in a file that outlives the reader.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A line of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// An element was taken.
    Element {
        /// The epoch.
        epoch: u64,
        /// Its rows, as text, without their lists. None: it repeats an element of another consumer.
        rows: Vec<String>,
        /// Its lists, where the rows have such.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lists: Option<Lists>,
    },
    /// An epoch ended, with the dispatcher's final report.
    End {
        /// The epoch.
        epoch: u64,
        /// Rows that no reader has.
        rows_missing: u64,
        /// Rows that lost readers took.
        rows_lost: u64,
        /// Whether the dispatcher does not know which rows lost readers took.
        is_unknown: bool,
        /// Elements that no consumer got, so that all have equally many.
        surplus_elements: u64,
    },
}

/// The lists of an element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lists {
    /// The classes of its rows.
    pub classes: BTreeSet<usize>,
    /// The lengths of its lists, with what pads them.
    pub lengths: BTreeSet<u64>,
    /// The items of all lists.
    pub items: u64,
}

/// A ledger for writing. A written line survives even if the process is killed right afterwards.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    bytes: u64,
}

impl Ledger {
    /// Continues behind the first `bytes` of a ledger, and removes the remainder.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
        file.set_len(bytes)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file, bytes })
    }

    /// Bytes that were written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a line.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let line = format!("{}\n", serde_json::to_string(entry)?);
        self.bytes += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }
}

/// The entries of a ledger; none if there is no file yet. A line without an end was not finished: what it says was not
/// acknowledged.
pub(super) fn read(path: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
