//! The JSON records of a root, and the seal that shows whether a record is whole.

use std::collections::BTreeSet;

use caju_types::{Error, Fingerprint, Result, SplitKey, format_bytes, hash128};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::layout::Generation;
use caju_autocache::Encoding;

/// A kind of record, each in an object of its own.
pub(crate) trait Record {
    /// The kind's name in messages.
    const NAME: &'static str;
    /// The most bytes of one object. A larger object is damaged, and is refused before it is read: anybody may have written
    /// it, and a sparse file of any length takes no disk space. A larger record is not written.
    const MAX_BYTES: u64;
}

/// One block of a part's file. A block is checked as a whole before anything in it is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "(u64, String)", try_from = "(u64, String)")]
pub struct Block {
    /// Its length in bytes. Blocks follow one another without gaps.
    pub bytes: u64,
    /// xxh3-64 of its bytes.
    pub checksum: u64,
}

impl From<Block> for (u64, String) {
    fn from(b: Block) -> Self {
        (b.bytes, format!("{:016x}", b.checksum))
    }
}

impl TryFrom<(u64, String)> for Block {
    type Error = String;

    fn try_from((bytes, checksum): (u64, String)) -> Result<Self, String> {
        let checksum = u64::from_str_radix(&checksum, 16).map_err(|e| format!("`{checksum}`: {e}"))?;
        Ok(Self { bytes, checksum })
    }
}

/// A committed part: all that is needed to find it, to read it, and to check that it is whole.
///
/// It travels as JSON: in commit records, in manifests, and to workers in their leases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartMeta {
    /// The prefix whose output it is.
    pub fingerprint: Fingerprint,
    /// The split whose output it is.
    pub split: SplitKey,
    /// Its path below `ROOT/v1`.
    pub path: String,
    /// The unique name of the attempt that wrote it.
    pub attempt: String,
    /// The number of this commit of the split. The highest number wins.
    pub generation: u32,
    /// The process that wrote it.
    pub writer: String,
    /// Format and compression.
    pub encoding: Encoding,
    /// Rows in it.
    pub rows: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// xxh3-128 of the file, in hexadecimal digits.
    pub checksum: String,
    /// The blocks of the file, in order.
    pub blocks: Vec<Block>,
    /// The rows of each chunk (a record batch of an Arrow file, a row group of a Parquet file), if the writer was asked
    /// for chunks; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<u64>,
    /// The [`schema_hash`](crate::schema_hash) of its rows.
    pub schema_hash: String,
    /// Rows that `on_error: skip` left out.
    #[serde(default)]
    pub skipped: u64,
    /// Bytes of the source that were read for it.
    #[serde(default)]
    pub source_bytes: u64,
    /// CPU time of computing it, in microseconds. Reading the part saves this time.
    #[serde(default)]
    pub compute_cpu_us: u64,
    /// When it was committed, in milliseconds since 1970 by its writer's clock. Only for display.
    #[serde(default)]
    pub created_unix_ms: u64,
}

impl PartMeta {
    /// CPU time of computing it, in seconds.
    pub fn compute_cpu_s(&self) -> f64 {
        self.compute_cpu_us as f64 / 1e6
    }
}

/// Seconds as whole microseconds; 0 for a number that is no duration.
pub(crate) fn microseconds(seconds: f64) -> u64 {
    let duration = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A time as whole milliseconds.
pub(crate) fn milliseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What the caller of a writer knows of a part once its last row is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PartFacts {
    /// Rows that were written. The writer counts them, too: a difference is an error.
    pub rows: u64,
    /// Rows that `on_error: skip` left out.
    pub skipped: u64,
    /// Bytes of the source that were read.
    pub source_bytes: u64,
    /// CPU time of computing the rows, in seconds.
    pub compute_cpu_s: f64,
}

/// The content of a commit record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Commit {
    /// The split has a part.
    Part(PartMeta),
    /// The split's part was found bad. The split has no part until the next generation.
    Void { split: SplitKey, generation: Generation, attempt: String, why: String },
}

impl Commit {
    pub(crate) fn generation(&self) -> Generation {
        match self {
            Commit::Part(m) => m.generation,
            Commit::Void { generation, .. } => *generation,
        }
    }

    pub(crate) fn split(&self) -> SplitKey {
        match self {
            Commit::Part(m) => m.split,
            Commit::Void { split, .. } => *split,
        }
    }
}

impl Record for Commit {
    const NAME: &'static str = "a commit record";
    /// A block takes 31 bytes, and a chunk at most 21. So a part of 2 TiB fits, in blocks of 2 MiB and chunks of 4 MiB.
    const MAX_BYTES: u64 = 64 << 20;
}

/// The content of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) writer: String,
    pub(crate) attempt: String,
}

impl Record for Claim {
    const NAME: &'static str = "a claim";
    /// It has two names, and one is part of an object's name. Stores allow about 1 KiB for that.
    const MAX_BYTES: u64 = 64 << 10;
}

/// The most jobs that a usage record names; further ones are not recorded.
const MAX_JOBS: usize = 1000;

/// The content of an object in `uses/`: what one process, or several that have ended, read from a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UsageRecord {
    #[serde(default)]
    pub(crate) jobs: BTreeSet<String>,
    #[serde(default)]
    pub(crate) rows: u64,
    #[serde(default)]
    pub(crate) saved_cpu_s: f64,
    /// The objects in the same folder that this one sums up. They no longer count where they still exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) folds: Vec<String>,
}

impl UsageRecord {
    /// Adds the name of a job, unless it is empty.
    pub(crate) fn add_job(&mut self, job: &str) {
        if !job.is_empty() && self.jobs.len() < MAX_JOBS {
            self.jobs.insert(job.to_string());
        }
    }

    /// Adds what another record counts.
    pub(crate) fn add(&mut self, other: &Self) {
        let free = MAX_JOBS.saturating_sub(self.jobs.len());
        self.jobs.extend(other.jobs.iter().take(free).cloned());
        self.rows += other.rows;
        self.saved_cpu_s += other.saved_cpu_s;
    }
}

impl Record for UsageRecord {
    const NAME: &'static str = "a usage record";
    /// With [`MAX_JOBS`] jobs this leaves 8 KiB for each name, and as much for the names of the summed objects.
    const MAX_BYTES: u64 = 16 << 20;
}

/// The text before the checksum of a sealed record.
const HEAD: &str = "{\"seal\":\"";
/// The digits of the checksum: 128 bits in hexadecimal.
const DIGITS: usize = 32;

/// Writes a record as JSON. Its first member, `seal`, is the xxh3-128 of the text after it.
///
/// # Errors
/// `ResourceExhausted` for a record that is too large to be read again.
pub(crate) fn seal<T: Serialize + Record>(record: &T) -> Result<Vec<u8>> {
    let sealed = with_seal(record)?;
    let bytes = sealed.len() as u64;
    if bytes > T::MAX_BYTES {
        return Err(Error::exhausted(format!(
            "{} of {} is not written: at most {} are read again",
            T::NAME,
            format_bytes(bytes),
            format_bytes(T::MAX_BYTES)
        )));
    }
    Ok(sealed)
}

/// The bytes that a value takes as a sealed record, or about that as a member of one.
pub(crate) fn sealed_bytes<T: Serialize>(value: &T) -> Result<u64> {
    Ok(with_seal(value)?.len() as u64)
}

fn with_seal<T: Serialize>(record: &T) -> Result<Vec<u8>> {
    let body = serde_json::to_string(record).map_err(|e| Error::internal(format!("a record: {e}")))?;
    let rest = body.strip_prefix('{').ok_or_else(|| Error::internal("a record is no JSON object"))?;
    Ok(format!("{HEAD}{:032x}\",{rest}", hash128(rest.as_bytes())).into_bytes())
}

/// Reads a sealed record. The error says what is wrong with it.
pub(crate) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
    let digits = text.strip_prefix(HEAD).and_then(|t| t.get(..DIGITS)).ok_or("it has no seal")?;
    let rest = text.get(HEAD.len() + DIGITS..).and_then(|t| t.strip_prefix("\",")).ok_or("it is cut")?;
    if u128::from_str_radix(digits, 16).ok() != Some(hash128(rest.as_bytes())) {
        return Err("its seal does not match".into());
    }
    serde_json::from_str(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_record_is_detected() {
        let claim = Claim { writer: "w".into(), attempt: "a".into() };
        let sealed = seal(&claim).unwrap();
        assert_eq!(unseal::<Claim>(&sealed).unwrap(), claim);
        serde_json::from_slice::<serde_json::Value>(&sealed).unwrap();
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 4;
            assert!(unseal::<Claim>(&bad).is_err(), "byte {at}");
            assert!(unseal::<Claim>(&sealed[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_record_that_would_not_be_read_is_not_written() {
        let claim = |bytes: usize| Claim { writer: "w".into(), attempt: "a".repeat(bytes) };
        let least = seal(&claim(0)).unwrap().len();
        let most = usize::try_from(Claim::MAX_BYTES).unwrap() - least;
        assert_eq!(seal(&claim(most)).unwrap().len() as u64, Claim::MAX_BYTES);
        let e = seal(&claim(most + 1)).unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::ResourceExhausted, "{e}");
    }
}
