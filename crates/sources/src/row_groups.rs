//! Splits of files that are written in groups of rows: the row groups of Parquet, the record batches of Arrow IPC.

use std::ops::Range;

use caju_types::{Error, Result};

use crate::files::file_split;
use crate::split::{FileRef, Split, SplitRange};

/// The size of a group in the file, in bytes, and its number of rows.
pub(crate) type GroupSize = (u64, u64);

/// Packs consecutive groups into splits of about `split_bytes`.
///
/// # Errors
/// `DataLoss` for more groups than a file can have.
pub(crate) fn pack(file: &FileRef, groups: &[GroupSize], split_bytes: u64) -> Result<Vec<Split>> {
    let number = |n: usize| {
        u32::try_from(n).map_err(|_| Error::data_loss(format!("{}: it has {n} groups of rows", file.url)))
    };
    let mut splits = Vec::new();
    let mut first = 0;
    while first < groups.len() {
        let (mut bytes, mut rows, mut end) = (0, 0, first);
        while end < groups.len() && (end == first || bytes + groups[end].0 / 2 < split_bytes) {
            bytes += groups[end].0;
            rows += groups[end].1;
            end += 1;
        }
        let range = if end - first == groups.len() {
            SplitRange::Whole
        } else {
            SplitRange::RowGroups { first: number(first)?, count: number(end - first)? }
        };
        // Groups without rows at the end of a file are in no split.
        if rows > 0 || end < groups.len() {
            splits.push(file_split(file, range, Some(rows)));
        }
        first = end;
    }
    Ok(splits)
}

/// The groups of a split, of a file with the given number of them.
///
/// # Errors
/// `Internal` for a split of another kind, and for one of another file.
pub(crate) fn groups_of(range: &SplitRange, groups: usize, url: &str) -> Result<Range<usize>> {
    let range = match range {
        SplitRange::Whole => 0..groups,
        SplitRange::RowGroups { first, count } => {
            let first = *first as usize;
            first..first.saturating_add(*count as usize)
        }
        _ => return Err(Error::internal(format!("{url}: not a split of groups of rows"))),
    };
    if range.end > groups {
        return Err(Error::internal(format!("{url}: has no group of rows {}", range.end - 1)));
    }
    Ok(range)
}
