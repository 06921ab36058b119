//! Which files sample data is made of: the note that lies beside them, and the names that follow from it.
//!
//! Whatever deletes goes by these names alone: a file of any other name, or in any other place, is not ours.

use caju_types::Error;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::photo::CLASSES;
use super::{Format, Plan};

/// The note's name. It is there before any data, and says when all of it is.
pub(super) const MARKER: &str = "_caju_gen.json";

/// What a folder holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Marker {
    kind: String,
    count: u64,
    seed: u64,
    formats: Vec<String>,
    /// Files per format; not noted by the first version.
    #[serde(default)]
    shards: Option<u64>,
    /// Whether the data is there to its end; the first version wrote no others.
    #[serde(default = "yes")]
    pub(super) complete: bool,
}

fn yes() -> bool {
    true
}

impl Marker {
    pub(super) fn of(plan: &Plan, complete: bool) -> Self {
        Self {
            kind: plan.kind.name().into(),
            count: plan.count,
            seed: plan.seed,
            formats: plan.formats.iter().map(|f| f.name().to_string()).collect(),
            shards: Some(plan.shards()),
            complete,
        }
    }

    pub(super) fn bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec_pretty(self).map_err(|e| Error::internal(e.to_string()))
    }

    /// Whether it tells of exactly this data, however it is cut, to its end.
    pub(super) fn is_all_of(&self, plan: &Plan) -> bool {
        let wanted = Self::of(plan, true);
        self.complete
            && (&self.kind, self.count, self.seed, &self.formats)
                == (&wanted.kind, wanted.count, wanted.seed, &wanted.formats)
    }

    /// The names that it stands for; none if it names a format that is not known.
    pub(super) fn layout(&self) -> Option<Layout> {
        let formats: Option<Vec<Format>> = self.formats.iter().map(|f| format_named(f)).collect();
        Some(Layout { formats: formats?, count: self.count, shards: self.shards })
    }
}

fn format_named(name: &str) -> Option<Format> {
    Format::value_variants().iter().copied().find(|f| f.name() == name)
}

/// The names of one data set's files, relative to its folder; the note is not among them.
#[derive(Debug)]
pub(super) struct Layout {
    formats: Vec<Format>,
    count: u64,
    /// Any number if absent.
    shards: Option<u64>,
}

impl Layout {
    pub(super) fn of(plan: &Plan) -> Self {
        Self { formats: plan.formats.clone(), count: plan.count, shards: Some(plan.shards()) }
    }

    /// Whether a file of this name, relative to the folder, can be of this data set.
    pub(super) fn holds(&self, name: &str) -> bool {
        match self.below_format(name) {
            Some((Format::Files, rest)) => image(rest).is_some_and(|id| id < self.count),
            Some((format, rest)) => {
                shard(rest, format).is_some_and(|(_, of)| self.shards.is_none_or(|shards| shards == of))
            }
            None => false,
        }
    }

    /// Whether this folder, relative to the data set's own, is one that it puts files into.
    pub(super) fn has_folder(&self, folder: &str) -> bool {
        if self.formats.len() > 1 && !folder.contains('/') {
            return format_named(folder).is_some_and(|f| self.formats.contains(&f));
        }
        matches!(self.below_format(folder), Some((Format::Files, class)) if is_class(class))
    }

    fn below_format<'n>(&self, name: &'n str) -> Option<(Format, &'n str)> {
        if let [one] = self.formats.as_slice() {
            return Some((*one, name));
        }
        let (folder, rest) = name.split_once('/')?;
        format_named(folder).filter(|f| self.formats.contains(f)).map(|f| (f, rest))
    }
}

/// Whether a name, relative to a folder of sample data, is one that the local file system gives to an upload of ours
/// that is not done: `part-00000-of-00004.parquet#1`. Stores do not list such files.
pub(super) fn is_staging(name: &str) -> bool {
    let Some((file, number)) = name.rsplit_once('#') else { return false };
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    if file == MARKER {
        return true;
    }
    let rest = match file.split_once('/') {
        Some((folder, rest)) if format_named(folder).is_some() => rest,
        _ => file,
    };
    image(rest).is_some() || Format::value_variants().iter().any(|f| shard(rest, *f).is_some())
}

/// `part-00002-of-00004.parquet`, as (2, 4).
fn shard(name: &str, format: Format) -> Option<(u64, u64)> {
    if format == Format::Files {
        return None;
    }
    let stem = name.strip_suffix(format.extension())?.strip_suffix('.')?;
    let (i, of) = stem.strip_prefix("part-")?.split_once("-of-")?;
    let (i, of) = (number(i, 5)?, number(of, 5)?);
    (i < of).then_some((i, of))
}

/// `c042/000017.jpg`, as 17.
fn image(name: &str) -> Option<u64> {
    let (class, file) = name.split_once('/')?;
    number(file.strip_suffix(".jpg")?, 6).filter(|_| is_class(class))
}

/// `c042`.
pub(super) fn is_class(folder: &str) -> bool {
    folder.strip_prefix('c').and_then(|c| number(c, 3)).is_some_and(|c| c < CLASSES)
}

/// A number exactly as it is written into names.
fn number(text: &str, width: usize) -> Option<u64> {
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
        assert!(one.holds("part-00003-of-00004.parquet"));
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
            assert!(!one.holds(other), "{other}");
        }
        let files = layout(&[Format::Files]);
        assert!(files.holds("c042/000019.jpg") && files.has_folder("c042"));
        for other in
            ["c042/000020.jpg", "c042/7.jpg", "c1/000007.jpg", "c100/000007.jpg", "x/c042/000007.jpg"]
        {
            assert!(!files.holds(other), "{other}");
        }
        let both = layout(&[Format::Files, Format::Csv]);
        assert!(both.holds("files/c042/000019.jpg") && both.holds("csv/part-00000-of-00004.csv"));
        assert!(both.has_folder("files") && both.has_folder("csv") && both.has_folder("files/c042"));
        assert!(!both.holds("part-00000-of-00004.csv") && !both.holds("c042/000019.jpg"));
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
