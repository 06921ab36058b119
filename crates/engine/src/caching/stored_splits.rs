//! The splits of a part of a set: their leases, and how many rows each has by the set's record.

use caju_types::{Error, Result};

use crate::lease::LeasedSplit;

/// The most splits without rows whose numbers of rows are taken in one call.
const MAX_EMPTY_AT_ONCE: usize = 1 << 12;

/// The splits of a part, by their numbers in it.
#[derive(Debug)]
pub(super) struct StoredSplits {
    splits: Vec<StoredSplit>,
    /// Splits that have no rows by the record, and that readers do not know of.
    empty: Vec<u64>,
    /// Splits whose first row has come, with their numbers of rows.
    news: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct StoredSplit {
    lease: u64,
    /// Its number of rows by the record; none if the record does not say it, and once it is among the news.
    unsent: Option<u64>,
    /// Rows that may still come; the largest number where the record does not say it.
    left: u64,
}

impl StoredSplits {
    /// The splits of these leases, in the order of their numbers in the part.
    pub(super) fn of(leases: &[LeasedSplit]) -> Self {
        let mut ordered: Vec<(u32, u64, Option<u64>)> = leases
            .iter()
            .filter_map(|lease| lease.group.as_ref().map(|group| (group.at, lease.index, group.rows)))
            .collect();
        ordered.sort_by_key(|(at, ..)| *at);
        Self::new(ordered.into_iter().map(|(_, lease, rows)| (lease, rows)))
    }

    /// Splits by their leases, each with its number of rows.
    pub(super) fn new(splits: impl Iterator<Item = (u64, Option<u64>)>) -> Self {
        let split = |(lease, rows): (u64, Option<u64>)| StoredSplit {
            lease,
            unsent: rows,
            left: rows.unwrap_or(u64::MAX),
        };
        let splits: Vec<StoredSplit> = splits.map(split).collect();
        let is_empty = |split: &&StoredSplit| split.unsent == Some(0);
        let empty = splits.iter().filter(is_empty).map(|split| split.lease).collect();
        Self { splits, empty, news: Vec::new() }
    }

    /// The lease of a row that comes out of the part. `number`: of its split in the part.
    ///
    /// # Errors
    /// `DataLoss` for a split that the part does not cover, and for more rows of a split than the record says.
    pub(super) fn lease_of_next_row(&mut self, number: u32) -> Result<u64> {
        let Some(split) = self.splits.get_mut(number as usize) else {
            return Err(Error::data_loss("a part of a set has a row of a split that it does not cover"));
        };
        let Some(left) = split.left.checked_sub(1) else {
            return Err(Error::data_loss(format!(
                "a part of a set has more rows of split {} than the record of the set says",
                split.lease
            )));
        };
        split.left = left;
        if let Some(rows) = split.unsent.take() {
            self.news.push((split.lease, rows));
        }
        Ok(split.lease)
    }

    /// Numbers of rows that readers have to be sent: of the splits whose first row has come since the last call, and of some without
    /// rows.
    pub(super) fn take_sizes(&mut self) -> Vec<(u64, u64)> {
        let mut sizes = std::mem::take(&mut self.news);
        let from = self.empty.len().saturating_sub(MAX_EMPTY_AT_ONCE);
        sizes.extend(self.empty.drain(from..).map(|split| (split, 0)));
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_sent_once_with_the_first_row_of_its_split() {
        let mut splits =
            StoredSplits::new([(70, Some(2)), (71, None), (72, Some(1)), (73, Some(0))].into_iter());
        assert_eq!(splits.lease_of_next_row(0).unwrap(), 70);
        assert_eq!(splits.take_sizes(), [(70, 2), (73, 0)]);
        assert_eq!(splits.lease_of_next_row(1).unwrap(), 71, "the record does not say how many it has");
        assert_eq!(splits.lease_of_next_row(0).unwrap(), 70);
        assert!(splits.take_sizes().is_empty());
        assert_eq!(splits.lease_of_next_row(2).unwrap(), 72);
        assert_eq!(splits.take_sizes(), [(72, 1)]);
    }

    #[test]
    fn more_rows_than_the_record_says_are_an_error() {
        let mut splits = StoredSplits::new([(70, Some(1)), (71, Some(0))].into_iter());
        splits.lease_of_next_row(0).unwrap();
        for number in [0, 1, 2] {
            let e = splits.lease_of_next_row(number).unwrap_err();
            assert_eq!(e.kind(), caju_types::ErrorKind::DataLoss, "{e}");
        }
    }

    #[test]
    fn very_many_splits_without_rows_are_sent_bit_by_bit() {
        let all = MAX_EMPTY_AT_ONCE as u64 + 9;
        let mut splits = StoredSplits::new((0..all).map(|split| (split, Some(0))));
        assert_eq!(splits.take_sizes().len(), MAX_EMPTY_AT_ONCE);
        assert_eq!(splits.take_sizes().len(), 9);
        assert!(splits.take_sizes().is_empty());
    }
}
