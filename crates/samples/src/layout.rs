//! The names of the files of a set of sample data, and the marker file next to them.
//!
//! Deletion goes by these names alone. A file with any other name, or in any other place, is never removed.

use caju_types::Error;
use serde::{Deserialize, Serialize};

use crate::photo::CLASSES;
use crate::{Format, SampleSet};

/// The name of the marker file. It is written before any data, and again when all data is complete.
pub(crate) const MARKER: &str = "_caju_gen.json";

/// The content of the marker file: which sample data its folder contains.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Marker {
    kind: String,
    count: u64,
    seed: u64,
    formats: Vec<String>,
    /// Files per format. The first version did not record them.
    #[serde(default)]
    shards: Option<u64>,
    /// Whether all data is written. The first version wrote the marker only then.
    #[serde(default = "yes")]
    pub(crate) complete: bool,
}

fn yes() -> bool {
    true
}

impl Marker {
    pub(crate) fn of(set: &SampleSet, complete: bool) -> Self {
        Self {
            kind: set.kind.name().into(),
            count: set.count,
            seed: set.seed,
            formats: set.formats.iter().map(|f| f.name().to_string()).collect(),
            shards: Some(set.shards()),
            complete,
        }
    }

    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec_pretty(self).map_err(|e| Error::internal(e.to_string()))
    }

    /// Whether the folder contains exactly these rows, completely. The number of files may differ.
    pub(crate) fn is_all_of(&self, set: &SampleSet) -> bool {
        let wanted = Self::of(set, true);
        self.complete
            && (&self.kind, self.count, self.seed, &self.formats)
                == (&wanted.kind, wanted.count, wanted.seed, &wanted.formats)
    }

    /// The file names that it describes. None if it names an unknown format.
    pub(crate) fn layout(&self) -> Option<Layout> {
        let formats: Option<Vec<Format>> = self.formats.iter().map(|f| Format::named(f)).collect();
        Some(Layout { formats: formats?, count: self.count, shards: self.shards })
    }
}

/// The file names of one set, relative to its folder, without the marker file.
#[derive(Debug)]
pub(crate) struct Layout {
    formats: Vec<Format>,
    count: u64,
    /// Unknown if absent, so that any number is accepted.
    shards: Option<u64>,
}

impl Layout {
    pub(crate) fn of(set: &SampleSet) -> Self {
        Self { formats: set.formats.clone(), count: set.count, shards: Some(set.shards()) }
    }

    /// Whether a file with this name, relative to the folder, can belong to this set.
    pub(crate) fn contains(&self, name: &str) -> bool {
        match self.below_format(name) {
            Some((Format::Files, below)) => image_name(below).is_some_and(|id| id < self.count),
            Some((format, below)) => {
                shard_name(below, format).is_some_and(|(_, of)| self.shards.is_none_or(|shards| shards == of))
            }
            None => false,
        }
    }

    /// Whether the set puts files into this folder, relative to its own.
    pub(crate) fn has_folder(&self, folder: &str) -> bool {
        if self.formats.len() > 1 && !folder.contains('/') {
            return Format::named(folder).is_some_and(|f| self.formats.contains(&f));
        }
        matches!(self.below_format(folder), Some((Format::Files, class)) if is_class_folder(class))
    }

    fn below_format<'n>(&self, name: &'n str) -> Option<(Format, &'n str)> {
        if let [one] = self.formats.as_slice() {
            return Some((*one, name));
        }
        let (folder, below) = name.split_once('/')?;
        Format::named(folder).filter(|f| self.formats.contains(f)).map(|f| (f, below))
    }
}

/// Whether a name, relative to a folder of sample data, is one that the local file system gives to an unfinished upload
/// of ours: `part-00000-of-00004.parquet#1`. Object stores do not list such files.
pub(crate) fn is_staging(name: &str) -> bool {
    let Some((file, number)) = name.rsplit_once('#') else { return false };
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    if file == MARKER {
        return true;
    }
    let below = match file.split_once('/') {
        Some((folder, below)) if Format::named(folder).is_some() => below,
        _ => file,
    };
    image_name(below).is_some() || Format::ALL.iter().any(|f| shard_name(below, *f).is_some())
}

/// Reads `part-00002-of-00004.parquet` as (2, 4).
fn shard_name(name: &str, format: Format) -> Option<(u64, u64)> {
    if format == Format::Files {
        return None;
    }
    let stem = name.strip_suffix(format.extension())?.strip_suffix('.')?;
    let (i, of) = stem.strip_prefix("part-")?.split_once("-of-")?;
    let (i, of) = (padded_number(i, 5)?, padded_number(of, 5)?);
    (i < of).then_some((i, of))
}

/// Reads `c042/000017.jpg` as 17.
fn image_name(name: &str) -> Option<u64> {
    let (class, file) = name.split_once('/')?;
    padded_number(file.strip_suffix(".jpg")?, 6).filter(|_| is_class_folder(class))
}

/// Whether a folder is named like `c042`.
pub(crate) fn is_class_folder(folder: &str) -> bool {
    folder.strip_prefix('c').and_then(|c| padded_number(c, 3)).is_some_and(|c| c < CLASSES)
}

/// A number that is written with exactly these leading zeros.
fn padded_number(text: &str, width: usize) -> Option<u64> {
    text.parse().ok().filter(|n: &u64| format!("{n:0width$}") == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(formats: &[Format]) -> Layout {
        Layout { formats: formats.to_vec(), count: 20, shards: Some(4) }
    }

    #[test]
    fn exactly_the_names_that_are_written() {
        let one = layout(&[Format::Parquet]);
        assert!(one.contains("part-00003-of-00004.parquet"));
        for other in [
            "part-00004-of-00004.parquet",
            "part-00000-of-00005.parquet",
            "part-0-of-4.parquet",
            "part-+0003-of-00004.parquet",
            "part-00003-of-00004.docx",
            "part-00003-of-00004.parquet.bak",
            "parquet/part-00003-of-00004.parquet",
            "c001/000007.jpg",
            "mine/part-00003-of-00004.parquet",
            MARKER,
        ] {
            assert!(!one.contains(other), "{other}");
        }
        let files = layout(&[Format::Files]);
        assert!(files.contains("c042/000019.jpg") && files.has_folder("c042"));
        for other in
            ["c042/000020.jpg", "c042/7.jpg", "c1/000007.jpg", "c100/000007.jpg", "x/c042/000007.jpg"]
        {
            assert!(!files.contains(other), "{other}");
        }
        let both = layout(&[Format::Files, Format::Csv]);
        assert!(both.contains("files/c042/000019.jpg") && both.contains("csv/part-00000-of-00004.csv"));
        assert!(both.has_folder("files") && both.has_folder("csv") && both.has_folder("files/c042"));
        assert!(!both.contains("part-00000-of-00004.csv") && !both.contains("c042/000019.jpg"));
        assert!(!both.has_folder("parquet") && !both.has_folder("c042") && !both.has_folder("mine"));
    }

    #[test]
    fn staging_files_are_known_by_their_whole_name() {
        for ours in [
            "part-00000-of-00004.parquet#1",
            "parquet/part-00000-of-00004.parquet#12",
            "files/c001/000007.jpg#1",
            "c001/000007.jpg#1",
            "_caju_gen.json#1",
        ] {
            assert!(is_staging(ours), "{ours}");
        }
        for other in
            ["part-00000-of-00004.parquet", "part-00000-of-00004.docx#1", "notes#1", "part-0-of-1.csv#1"]
        {
            assert!(!is_staging(other), "{other}");
        }
    }
}
