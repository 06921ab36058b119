//! The boundaries of `bucket_by_length`: given, or learnt from the lengths of the first rows.

use std::fmt;

/// The boundaries of the classes of a `bucket_by_length`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boundaries {
    /// The exclusive upper bounds of all classes but the last, ascending.
    Given(Vec<i64>),
    /// They are learnt before the first epoch. A definition with such boundaries does not run:
    /// `DatasetDef::with_boundaries` gives the one that does.
    Learnt(Quantiles),
}

/// Boundaries that divide the first rows of a stage into classes of nearly equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantiles {
    /// The most classes.
    pub classes: u64,
    /// The number of rows whose lengths are read.
    pub rows: u64,
}

/// The rows whose lengths are read unless the definition says otherwise.
pub const DEFAULT_LEARNING_ROWS: u64 = 4096;
/// The most rows whose lengths are read: 8 MB of lengths on the worker that learns.
pub const MAX_LEARNING_ROWS: u64 = 1_000_000;
/// The most classes that are learnt. Each class holds up to a batch of rows on every worker.
pub const MAX_LEARNT_CLASSES: u64 = 1000;

/// The boundaries that were learnt for one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearntBoundaries {
    /// The index of the stage in the definition's stages.
    pub stage: usize,
    /// The boundaries, as [`Boundaries::Given`] has them.
    pub boundaries: Vec<i64>,
    /// The rows whose lengths were read.
    pub rows: u64,
}

impl Quantiles {
    /// The boundaries for these lengths, at least one and fewer than `classes`: the distinct quantiles above the shortest
    /// length. Without such a quantile it is the number above the shortest length. No lengths count as one row of length 0.
    pub fn boundaries(self, mut lengths: Vec<i64>) -> Vec<i64> {
        lengths.sort_unstable();
        let shortest = lengths.first().copied().unwrap_or(0);
        let rows = lengths.len() as u128;
        let quantile = |k: u64| usize::try_from(u128::from(k) * rows / u128::from(self.classes.max(1))).ok();
        let mut found: Vec<i64> =
            (1..self.classes).filter_map(|k| lengths.get(quantile(k)?).copied()).collect();
        found.retain(|&length| length > shortest.max(0));
        found.dedup();
        if found.is_empty() {
            found.push(shortest.saturating_add(1).max(1));
        }
        found
    }
}

/// Writes `4 quantiles of 4096 rows`.
impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} quantiles of {} rows", self.classes, self.rows)
    }
}

/// Writes `steps[1].bucket_by_length: [12, 40] of 4096 rows`.
impl fmt::Display for LearntBoundaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} of {} rows", place(self.stage), self.boundaries, self.rows)
    }
}

/// The place of a `bucket_by_length` in messages.
pub(crate) fn place(stage: usize) -> String {
    format!("steps[{stage}].bucket_by_length")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantiles(classes: u64) -> Quantiles {
        Quantiles { classes, rows: 1000 }
    }

    /// The rows of each class.
    fn sizes(boundaries: &[i64], lengths: &[i64]) -> Vec<usize> {
        let mut sizes = vec![0; boundaries.len() + 1];
        lengths.iter().for_each(|l| sizes[boundaries.partition_point(|b| b <= l)] += 1);
        sizes
    }

    proptest! {
        #[test]
        fn boundaries_are_positive_and_rise_and_are_fewer_than_classes(
            lengths in prop::collection::vec(any::<i64>(), 0..200),
            classes in 2u64..40,
        ) {
            let found = quantiles(classes).boundaries(lengths);
            prop_assert!(!found.is_empty() && (found.len() as u64) < classes);
            prop_assert!(found[0] >= 1);
            prop_assert!(found.windows(2).all(|w| w[0] < w[1]));
        }

        #[test]
        fn classes_of_distinct_lengths_differ_by_one_row(
            lengths in prop::collection::hash_set(1i64..1_000_000, 40..300),
            classes in 2u64..40,
        ) {
            let lengths: Vec<i64> = lengths.into_iter().collect();
            let found = quantiles(classes).boundaries(lengths.clone());
            prop_assert_eq!(found.len() as u64, classes - 1);
            let sizes = sizes(&found, &lengths);
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
        }

        #[test]
        fn no_class_of_the_rows_is_empty_unless_all_are_equal(
            lengths in prop::collection::vec(1i64..20, 2..200),
            classes in 2u64..40,
        ) {
            let found = quantiles(classes).boundaries(lengths.clone());
            let is_uniform = lengths.iter().all(|l| *l == lengths[0]);
            prop_assert!(is_uniform || !sizes(&found, &lengths).contains(&0), "{:?}", found);
        }
    }

    #[test]
    fn equal_quantiles_give_one_boundary() {
        assert_eq!(quantiles(4).boundaries(vec![1, 1, 1, 1, 1, 5, 9, 9]), [9]);
        assert_eq!(quantiles(4).boundaries(vec![7; 10]), [8]);
        assert_eq!(quantiles(4).boundaries(vec![]), [1]);
        assert_eq!(quantiles(4).boundaries(vec![0, 0, -3, 2]), [2]);
        assert_eq!(quantiles(2).boundaries(vec![i64::MAX; 3]), [i64::MAX]);
    }
}
