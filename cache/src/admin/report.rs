//! The reports of `caju cache`, as data and as text.

use std::fmt;

use caju_types::{Fingerprint, SplitKey, format_bytes, format_count, format_duration};
use serde::{Deserialize, Serialize};

use crate::manifest::SnapshotDescription;
use crate::record::PartMeta;
use caju_autocache::Encoding;

/// One snapshot in `cache ls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its prefix.
    pub fingerprint: Fingerprint,
    /// The pipeline that first wrote it.
    pub name: String,
    /// The stages of the prefix in one line.
    pub prefix: String,
    /// The encodings of its parts.
    pub encodings: Vec<Encoding>,
    /// Rows of all committed parts.
    pub rows: u64,
    /// Bytes of all committed parts.
    pub bytes: u64,
    /// Bytes of all objects of the snapshot.
    pub stored_bytes: u64,
    /// Splits that have a part.
    pub splits: u64,
    /// Splits of the source, if known. Where several sources share the snapshot: the largest number.
    pub splits_total: Option<u64>,
    /// Rows that `on_error: skip` left out.
    pub skipped: u64,
    /// Bytes of the source that computing the parts read.
    #[serde(default)]
    pub source_bytes: u64,
    /// CPU time that computing the parts took, in seconds.
    pub compute_cpu_s: f64,
    /// When it was last read or written, in seconds since 1970 by the store's clock.
    pub last_use_unix_s: Option<f64>,
    /// The jobs that read it.
    pub jobs: Vec<String>,
    /// Rows that were read from it.
    pub rows_read: u64,
    /// CPU time that reading it has saved, in seconds.
    pub saved_cpu_s: f64,
    /// Whether it is kept from eviction.
    pub pinned: bool,
}

impl SnapshotInfo {
    /// `k of n`, or `k` alone where the source's number of splits is unknown or smaller than `k`. It is smaller where there
    /// are parts of other sources, or of older versions of its files.
    pub fn splits_text(&self) -> String {
        match self.splits_total.filter(|total| *total >= self.splits) {
            Some(total) => format!("{} of {total}", self.splits),
            None => self.splits.to_string(),
        }
    }
}

impl fmt::Display for SnapshotInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.fingerprint.to_string();
        write!(f, "{}  {}", &digits[..12], if self.name.is_empty() { "-" } else { &self.name })?;
        if self.pinned {
            write!(f, "  (pinned)")?;
        }
        if !self.prefix.is_empty() {
            write!(f, "\n  prefix      {}", self.prefix)?;
        }
        let encodings: Vec<_> = self.encodings.iter().map(ToString::to_string).collect();
        write!(
            f,
            "\n  rows        {} in {} ({})",
            format_count(self.rows),
            format_bytes(self.bytes),
            if encodings.is_empty() { "no parts".to_string() } else { encodings.join(", ") }
        )?;
        write!(f, "\n  splits      {}", self.splits_text())?;
        if self.skipped > 0 {
            write!(f, "\n  skipped     {} rows", format_count(self.skipped))?;
        }
        if !self.jobs.is_empty() {
            write!(f, "\n  jobs        {}", self.jobs.join(", "))?;
        }
        let saved = std::time::Duration::try_from_secs_f64(self.saved_cpu_s).unwrap_or_default();
        write!(f, "\n  saved       {} of CPU time", format_duration(saved))
    }
}

/// One part in `cache inspect`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartLine {
    /// Its split.
    pub split: SplitKey,
    /// Its path below `ROOT/v1`.
    pub path: String,
    /// Format and compression.
    pub encoding: Encoding,
    /// Rows.
    pub rows: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// xxh3-128 of the file.
    pub checksum: String,
    /// Rows that `on_error: skip` left out.
    pub skipped: u64,
    /// Bytes of the source that were read for it.
    #[serde(default)]
    pub source_bytes: u64,
    /// The process that wrote it.
    pub writer: String,
    /// Which commit of the split it is.
    pub generation: u32,
    /// When, in milliseconds since 1970 by the writer's clock.
    pub created_unix_ms: u64,
}

impl PartLine {
    pub(crate) fn of(meta: &PartMeta) -> Self {
        Self {
            split: meta.split,
            path: meta.path.clone(),
            encoding: meta.encoding,
            rows: meta.rows,
            bytes: meta.bytes,
            checksum: meta.checksum.clone(),
            skipped: meta.skipped,
            source_bytes: meta.source_bytes,
            writer: meta.writer.clone(),
            generation: meta.generation,
            created_unix_ms: meta.created_unix_ms,
        }
    }
}

/// What `cache inspect` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// The entry of `cache ls`.
    pub info: SnapshotInfo,
    /// The description in its manifest.
    pub description: SnapshotDescription,
    /// Its committed parts, by split key.
    pub parts: Vec<PartLine>,
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.info)?;
        for part in &self.parts {
            write!(
                f,
                "\n  {}  {} rows  {}  {}  by {}",
                part.path,
                format_count(part.rows),
                format_bytes(part.bytes),
                part.encoding,
                part.writer
            )?;
        }
        Ok(())
    }
}

/// The size of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The number of snapshots.
    pub snapshots: u64,
    /// The number of objects.
    pub objects: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// The budget, if there is one.
    pub budget_bytes: Option<u64>,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} snapshots, {}", self.snapshots, format_bytes(self.bytes))?;
        match self.budget_bytes {
            Some(budget) => write!(f, " of {}", format_bytes(budget)),
            None => Ok(()),
        }
    }
}

/// One damaged object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// Its snapshot.
    pub fingerprint: Fingerprint,
    /// Its split, if it belongs to one.
    pub split: Option<SplitKey>,
    /// The path of the object below `ROOT/v1`.
    pub object: String,
    /// What is wrong with it.
    pub why: String,
}

/// What `cache verify` found. Damage is exit code 4.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Snapshots that were checked.
    pub snapshots: u64,
    /// Parts that were read to their ends.
    pub parts: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their rows.
    pub rows: u64,
    /// The damaged objects.
    pub damaged: Vec<Damage>,
    /// The objects that a repair deleted because of the damage.
    #[serde(default)]
    pub dropped: Vec<Dropped>,
}

impl VerifyReport {
    /// Whether no damage was found.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for damage in &self.damaged {
            writeln!(f, "damaged: {}: {}", damage.object, damage.why)?;
        }
        for dropped in &self.dropped {
            writeln!(f, "dropped: {}, {}", dropped.object, format_bytes(dropped.bytes))?;
        }
        write!(
            f,
            "{} parts of {} snapshots checked ({}): {} damaged",
            self.parts,
            self.snapshots,
            format_bytes(self.bytes),
            self.damaged.len()
        )
    }
}

/// An object that a repair deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The path of the object below `ROOT/v1`.
    pub object: String,
    /// Its bytes.
    pub bytes: u64,
}
