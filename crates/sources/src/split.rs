//! Splits: the pieces of a source, their files, versions and keys.

use caju_types::{SplitKey, hash128};
use serde::{Deserialize, Serialize};

/// A piece of the source below the file: the unit of distribution, of caching and of recovery.
///
/// Its boundaries depend only on the file and the split size, never on the cluster, so that every process
/// finds the same splits under the same keys. Splits travel between processes as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Which child of nested combinators (`concatenate`, `sample`) it belongs to, outermost first; empty at
    /// the root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child: Vec<u32>,
    /// Which repetition of the source inside the epoch; set by the engine for `repeat`, 0 from a source.
    #[serde(default)]
    pub repetition: u32,
    /// Hash of (file URL, file version, range), see [`KeyHasher`].
    pub key: SplitKey,
    /// The file it is a piece of; none for sources without files, and for splits of several files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileRef>,
    /// Which piece.
    pub range: SplitRange,
    /// The number of source rows, where it is known without reading the data; before `trim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Only these source rows: `(skip, take)`. [`Source::read`](crate::Source::read) honours it; the first
    /// row it then returns has ordinal `skip`. The key does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<(u64, u64)>,
    /// Only some of these rows: those of one shard. The engine honours it; a source reads all rows. The key does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<Stride>,
}

/// Every n-th row of a split, by the rows' ordinals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stride {
    /// The remainder of the ordinals of these rows, divided by `step`.
    pub first: u64,
    /// The number of shards; at least 1.
    pub step: u64,
}

impl Stride {
    /// The rows of shard `index` of `step`, in a split whose row with ordinal 0 is row `offset` of the dataset.
    pub fn of(step: u64, index: u64, offset: u64) -> Self {
        let step = step.max(1);
        Self { first: (index % step + step - offset % step) % step, step }
    }

    /// Whether the row with this ordinal is one of them.
    pub fn has(&self, ordinal: u64) -> bool {
        ordinal % self.step.max(1) == self.first
    }
}

impl Split {
    /// The number of source rows after `trim`, where it is known.
    pub fn trimmed_rows(&self) -> Option<u64> {
        match (self.rows, self.trim) {
            (Some(n), Some((skip, take))) => Some(n.saturating_sub(skip).min(take)),
            (rows, None) => rows,
            (None, Some(_)) => None,
        }
    }

    /// A name for messages: the file and the piece of it.
    pub fn describe(&self) -> String {
        let file = match (&self.file, &self.range) {
            (Some(f), _) => f.url.as_str(),
            (None, SplitRange::Files(files)) => files.first().map_or("no files", |f| f.url.as_str()),
            (None, _) => "source",
        };
        match &self.range {
            SplitRange::Whole => file.to_string(),
            SplitRange::Bytes { start, end } => format!("{file} bytes {start}..{end}"),
            SplitRange::RowGroups { first, count } => format!("{file} row groups {first}..{}", first + count),
            SplitRange::Rows { start, end } => format!("{file} rows {start}..{end}"),
            SplitRange::Files(files) => format!("{} files from {file}", files.len()),
            SplitRange::Zipped(_) => "zipped rows".to_string(),
        }
    }
}

/// Which piece of a file (or of a source without files) a split is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitRange {
    /// All of it.
    // Journals and listings that were written on 26 and 27 November 2026 have the second name.
    #[serde(alias = "split_set_digest")]
    Whole,
    /// The records that *start* in this nominal byte range; it need not lie on record boundaries.
    Bytes {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Consecutive row groups (Parquet) or record batches (Arrow IPC).
    RowGroups {
        /// The first.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Consecutive rows.
    Rows {
        /// The first row.
        start: u64,
        /// One past the last row.
        end: u64,
    },
    /// Several whole files, one row each.
    Files(Vec<FileRef>),
    /// Aligned rows of the children of `zip`: for each child the pieces that make up exactly `rows` rows.
    Zipped(Vec<Vec<Split>>),
}

impl SplitRange {
    /// The range of bytes; none for other ranges.
    pub(crate) fn bytes(&self) -> Option<(u64, u64)> {
        match self {
            SplitRange::Bytes { start, end } => Some((*start, *end)),
            _ => None,
        }
    }
}

/// A file at one version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileRef {
    /// Its canonical URL (`file:///...`, `s3://bucket/key`, ...).
    pub url: String,
    /// The version that was listed; reads of any other version fail.
    pub version: FileVersion,
}

/// Identifies a version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct FileVersion {
    /// Size in bytes.
    pub size: u64,
    /// The store's e-tag (none for local files).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Time of the last change of the content, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime_ns: Option<i64>,
    /// Time of the last change of the inode, in nanoseconds since 1970 (local files).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctime_ns: Option<i64>,
    /// xxh3-128 of the content in hexadecimal, under `version: content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
}

impl FileVersion {
    /// The hash of the content, if only the content shows a change: the listing has neither an e-tag nor a time to which reads
    /// could be bound.
    pub(crate) fn sole_content_hash(&self) -> Option<&str> {
        self.content_hash.as_deref().filter(|_| self.etag.is_none() && self.mtime_ns.is_none())
    }
}

/// Builds split keys from a canonical encoding, the same in every process and for ever.
///
/// The encoding, hashed with xxh3-128, starts with the ASCII text `caju.split/v1`. Every item that follows
/// is a tag byte, then a little-endian `u64` length and the bytes of a text, or a little-endian 64-bit
/// number. Tags: `k` kind of source (text), `u` URL (text), `e` e-tag (text), `h` content hash (text),
/// `s` size, `m` mtime, `c` ctime (numbers), `b` start and end of bytes (two numbers), `g` first and count
/// of row groups (two numbers), `r` start and end of rows (two numbers), `n` any other number, `d` another
/// key (16 bytes, little-endian). With a content hash the version is hash and size alone; with an e-tag
/// e-tag and size; else size, mtime and ctime.
#[derive(Debug)]
pub struct KeyHasher {
    bytes: Vec<u8>,
}

impl KeyHasher {
    /// Starts the key of a piece of the given kind of source, such as `file` or `range`.
    pub fn new(kind: &str) -> Self {
        let mut h = Self { bytes: b"caju.split/v1".to_vec() };
        h.text(b'k', kind);
        h
    }

    fn text(&mut self, tag: u8, text: &str) {
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, tag: u8, n: u64) {
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&n.to_le_bytes());
    }

    /// Adds a number that is none of the others.
    #[must_use]
    pub fn value(mut self, n: i64) -> Self {
        self.number(b'n', n.cast_unsigned());
        self
    }

    /// Adds another key.
    #[must_use]
    pub fn key(mut self, key: SplitKey) -> Self {
        self.bytes.push(b'd');
        self.bytes.extend_from_slice(&key.0.to_le_bytes());
        self
    }

    /// Adds a file and its version.
    #[must_use]
    pub fn file(mut self, file: &FileRef) -> Self {
        self.text(b'u', &file.url);
        let v = &file.version;
        self.number(b's', v.size);
        if let Some(hash) = &v.content_hash {
            self.text(b'h', hash);
        } else if let Some(etag) = &v.etag {
            self.text(b'e', etag);
        } else {
            self.number(b'm', v.mtime_ns.unwrap_or(0).cast_unsigned());
            self.number(b'c', v.ctime_ns.unwrap_or(0).cast_unsigned());
        }
        self
    }

    /// Adds a range.
    #[must_use]
    pub fn range(mut self, range: &SplitRange) -> Self {
        let two = |h: &mut Self, tag, a: u64, b: u64| {
            h.number(tag, a);
            h.bytes.extend_from_slice(&b.to_le_bytes());
        };
        match range {
            SplitRange::Whole => {}
            SplitRange::Bytes { start, end } => two(&mut self, b'b', *start, *end),
            SplitRange::RowGroups { first, count } => two(&mut self, b'g', (*first).into(), (*count).into()),
            SplitRange::Rows { start, end } => two(&mut self, b'r', *start, *end),
            SplitRange::Files(files) => {
                self.number(b'n', files.len() as u64);
                return files.iter().fold(self, |h, f| h.file(f));
            }
            SplitRange::Zipped(children) => {
                for pieces in children {
                    self.number(b'n', pieces.len() as u64);
                    for p in pieces {
                        self = self.key(p.key);
                        let (skip, take) = p.trim.unwrap_or((0, u64::MAX));
                        two(&mut self, b'r', skip, take);
                    }
                }
            }
        }
        self
    }

    /// The key.
    pub fn finish(self) -> SplitKey {
        SplitKey(hash128(&self.bytes))
    }
}

/// The key of a piece of a file, or of several files.
pub fn split_key(file: Option<&FileRef>, range: &SplitRange) -> SplitKey {
    let h = KeyHasher::new(if file.is_some() { "file" } else { "files" });
    match file {
        Some(f) => h.file(f).range(range).finish(),
        None => h.range(range).finish(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(etag: Option<&str>, mtime: i64) -> FileRef {
        FileRef {
            url: "s3://b/k".into(),
            version: FileVersion {
                size: 10,
                etag: etag.map(Into::into),
                mtime_ns: Some(mtime),
                ..Default::default()
            },
        }
    }

    #[test]
    fn keys_are_pinned_and_tell_versions_apart() {
        let whole = |f: &FileRef| split_key(Some(f), &SplitRange::Whole);
        assert_eq!(whole(&file(Some("a"), 1)), whole(&file(Some("a"), 2)), "the e-tag is enough");
        assert_ne!(whole(&file(Some("a"), 1)), whole(&file(Some("b"), 1)));
        assert_ne!(whole(&file(None, 1)), whole(&file(None, 2)));
        let mut hashed = file(Some("a"), 1);
        hashed.version.content_hash = Some("00".into());
        let mut touched = hashed.clone();
        touched.version.etag = Some("z".into());
        assert_eq!(whole(&hashed), whole(&touched), "the content decides");
        let f = file(Some("a"), 1);
        assert_ne!(
            split_key(Some(&f), &SplitRange::Bytes { start: 0, end: 5 }),
            split_key(Some(&f), &SplitRange::Rows { start: 0, end: 5 })
        );
    }

    #[test]
    fn a_stride_goes_on_across_splits() {
        // Splits of 7, 3 and 10 rows: shard 3 of 5 has rows 3, 8, 13 and 18 of all.
        let (mut offset, mut found) = (0, Vec::new());
        for rows in [7, 3, 10] {
            let stride = Stride::of(5, 3, offset);
            found.extend((0..rows).filter(|o| stride.has(*o)).map(|o| offset + o));
            offset += rows;
        }
        assert_eq!(found, [3, 8, 13, 18]);
    }

    /// Journals and listings have these texts.
    #[test]
    fn ranges_are_stored_under_their_first_names() {
        let stored = [
            (SplitRange::Whole, r#""whole""#),
            (SplitRange::Bytes { start: 1, end: 9 }, r#"{"bytes":{"start":1,"end":9}}"#),
            (SplitRange::RowGroups { first: 1, count: 2 }, r#"{"row_groups":{"first":1,"count":2}}"#),
            (SplitRange::Rows { start: 1, end: 9 }, r#"{"rows":{"start":1,"end":9}}"#),
            (
                SplitRange::Files(vec![file(None, 5)]),
                r#"{"files":[{"url":"s3://b/k","version":{"size":10,"mtime_ns":5}}]}"#,
            ),
            (SplitRange::Zipped(vec![vec![]]), r#"{"zipped":[[]]}"#),
        ];
        for (range, text) in stored {
            assert_eq!(serde_json::to_string(&range).unwrap(), text);
            assert_eq!(serde_json::from_str::<SplitRange>(text).unwrap(), range);
        }
        let of_two_days = serde_json::from_str::<SplitRange>(r#""split_set_digest""#).unwrap();
        assert_eq!(of_two_days, SplitRange::Whole);
    }

    #[test]
    fn splits_survive_json() {
        let split = Split {
            child: vec![1],
            repetition: 0,
            key: SplitKey(3),
            file: Some(file(None, 5)),
            range: SplitRange::Bytes { start: 1, end: 9 },
            rows: None,
            trim: Some((1, 2)),
            stride: Some(Stride { first: 1, step: 5 }),
        };
        let text = serde_json::to_string(&split).unwrap();
        assert_eq!(serde_json::from_str::<Split>(&text).unwrap(), split);
        assert_eq!(split.describe(), "s3://b/k bytes 1..9");
    }
}
