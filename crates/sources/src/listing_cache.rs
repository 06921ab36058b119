//! The splits of an earlier listing of the same source.
//!
//! A file at an unchanged version need not be opened to be listed again. Reading the footers of ten thousand Parquet
//! files takes a minute of a store's time, and an epoch whose rows are all stored should not touch its source at all.

use std::collections::HashMap;
use std::sync::Arc;

use crate::split::{FileRef, Split};

/// The splits per file version of an earlier listing.
#[derive(Debug, Clone, Default)]
pub struct ListingCache {
    splits: Arc<HashMap<FileRef, Vec<Split>>>,
    first: Option<FileRef>,
}

impl ListingCache {
    /// Caches a whole listing of a source, given in its order. The cache is empty if a split is not simply a piece of a file:
    /// splits of combined or repeated datasets, and splits whose rows stages chose, do not say how a file is cut.
    pub fn from_listing(listing: Vec<Split>) -> Self {
        let mut splits: HashMap<FileRef, Vec<Split>> = HashMap::new();
        let mut first = None;
        for split in listing {
            let of_all_rows = split.trim.is_none() && split.stride.is_none();
            let plain = split.child.is_empty() && split.repetition == 0 && of_all_rows;
            let Some(file) = split.file.clone().filter(|_| plain) else { return Self::default() };
            first.get_or_insert_with(|| file.clone());
            splits.entry(file).or_default().push(split);
        }
        Self { splits: Arc::new(splits), first }
    }

    /// The splits of a file at this version.
    pub(crate) fn splits_of(&self, file: &FileRef) -> Option<Vec<Split>> {
        self.splits.get(file).cloned()
    }

    /// Whether this file, at this version, was the first of the listing. The types of all columns come from the first file.
    pub(crate) fn starts_with(&self, file: &FileRef) -> bool {
        self.first.as_ref() == Some(file)
    }
}
