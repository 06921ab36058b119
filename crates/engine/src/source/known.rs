//! Files whose splits are known from an earlier listing of the same source: unchanged, they need not be opened to be
//! listed again. Footers of ten thousand Parquet files are a minute of a store's time, and an epoch whose rows are all
//! stored should not touch its source at all.

use std::collections::HashMap;
use std::sync::Arc;

use super::{FileRef, Split};

/// The splits of files as they were.
#[derive(Debug, Clone, Default)]
pub struct KnownFiles {
    splits: Arc<HashMap<FileRef, Vec<Split>>>,
    first: Option<FileRef>,
}

impl KnownFiles {
    /// The files of a listing, in its order. Splits that are not simply pieces of files (of combined or repeated
    /// datasets, or cut to some rows) say nothing about the files.
    pub fn of(listing: Vec<Split>) -> Self {
        let mut splits: HashMap<FileRef, Vec<Split>> = HashMap::new();
        let mut first = None;
        for split in listing {
            let plain = split.child.is_empty() && split.repetition == 0 && split.trim.is_none();
            let Some(file) = split.file.clone().filter(|_| plain) else { return Self::default() };
            first.get_or_insert_with(|| file.clone());
            splits.entry(file).or_default().push(split);
        }
        Self { splits: Arc::new(splits), first }
    }

    /// How a file of this version was cut.
    pub(super) fn cut(&self, file: &FileRef) -> Option<Vec<Split>> {
        self.splits.get(file).cloned()
    }

    /// Whether the listing began with this file, from which the types of all were taken.
    pub(super) fn begins_with(&self, file: &FileRef) -> bool {
        self.first.as_ref() == Some(file)
    }
}
