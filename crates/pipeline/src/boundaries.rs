//! The boundaries of `bucket_by_length`: given, or learnt from the lengths of the first rows.

use std::fmt;

use caju_types::{Error, Result};

use crate::def::{DatasetDef, SourceDef, StageDef, StageOp};
use crate::place::join;

/// The boundaries of the classes of a `bucket_by_length`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boundaries {
    /// The exclusive upper bounds of all classes but the last, ascending.
    Given(Vec<i64>),
    /// They are learnt before the first epoch. A definition with such boundaries does not run:
    /// [`DatasetDef::with_boundaries`] gives the one that does.
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
    /// The index of the stage in [`DatasetDef::stages`].
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
fn place(stage: usize) -> String {
    format!("steps[{stage}].bucket_by_length")
}

impl DatasetDef {
    /// The first stage whose boundaries are to be learnt: its index, and from what they are learnt.
    pub fn unlearnt(&self) -> Option<(usize, Quantiles)> {
        self.ops().enumerate().find_map(|(i, op)| match op {
            StageOp::BucketByLength { boundaries: Boundaries::Learnt(of), .. } => Some((i, *of)),
            _ => None,
        })
    }

    /// The place of [`DatasetDef::unlearnt`] in messages.
    pub fn unlearnt_place(&self) -> Option<String> {
        self.unlearnt().map(|(stage, _)| place(stage))
    }

    /// The definition that runs: each stage has the boundaries that were learnt for it.
    ///
    /// # Errors
    /// `InvalidArgument` naming the stage if it does not learn boundaries, if these are none that it could learn, or if a stage
    /// is left out.
    pub fn with_boundaries(&self, learnt: &[LearntBoundaries]) -> Result<Self> {
        let mut def = self.clone();
        for of_stage in learnt {
            def.learn(of_stage)?;
        }
        match def.unlearnt_place() {
            Some(place) => Err(Error::invalid(format!("{place}: its boundaries were not learnt"))),
            None => Ok(def),
        }
    }

    /// Replaces the quantiles of one stage by what was learnt.
    ///
    /// # Errors
    /// As [`DatasetDef::with_boundaries`].
    pub fn learn(&mut self, learnt: &LearntBoundaries) -> Result<()> {
        let at = join(&place(learnt.stage), "boundaries");
        let op = self.stages.get_mut(learnt.stage).map(|s| &mut s.op);
        let Some(StageOp::BucketByLength { boundaries, batch_sizes, .. }) = op else {
            return Err(Error::invalid(format!("{at}: the stage learns no boundaries")));
        };
        let Boundaries::Learnt(of) = *boundaries else {
            return Err(Error::invalid(format!("{at}: the stage has boundaries already")));
        };
        let found = &learnt.boundaries;
        let rising = found.first().is_some_and(|&b| b >= 1) && found.windows(2).all(|w| w[0] < w[1]);
        if !rising || found.len() as u64 >= of.classes.max(2) {
            return Err(Error::invalid(format!("{at}: {found:?} are no boundaries of {of}")));
        }
        let size = batch_sizes.first().copied().unwrap_or(1);
        *batch_sizes = vec![size; found.len() + 1];
        *boundaries = Boundaries::Given(found.clone());
        Ok(())
    }

    /// The dataset whose rows are the lengths from which the boundaries of stage `stage` are learnt, in the column `length`.
    /// Its rows are those that reach the stage, in the order of files, splits and rows. Stages above that only order or repeat
    /// rows, and shards that depend on the worker, are replaced by hints: the other stages keep their places in messages.
    pub fn lengths(&self, stage: usize) -> Option<Self> {
        let StageOp::BucketByLength { length, .. } = &self.stages.get(stage)?.op else { return None };
        let mut def = self.clone();
        def.stages.truncate(stage);
        for (i, above) in def.stages.iter_mut().enumerate() {
            if is_left_out(&above.op) {
                above.op = StageOp::Autocache { name: format!("left-out-{i}") };
            }
        }
        def.stages.push(StageDef { op: StageOp::Map(vec![("length".to_owned(), length.clone())]) });
        if let SourceDef::Files(files) = &mut def.source {
            files.shard = files.shard.filter(|shard| shard.num_shards.is_some());
        }
        def.options.deterministic = true;
        def.options.reorder = None;
        Some(def)
    }
}

/// Whether a stage changes no length and no set of rows that all workers have.
fn is_left_out(op: &StageOp) -> bool {
    matches!(
        op,
        StageOp::Autocache { .. }
            | StageOp::Shuffle { .. }
            | StageOp::Repeat(_)
            | StageOp::Prefetch(_)
            | StageOp::Shard { num_shards: None, .. }
    )
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

    fn def(steps: &str) -> DatasetDef {
        DatasetDef::from_yaml(&format!("{{ source: {{ range: 9 }}, steps: [{steps}] }}"), None).unwrap()
    }

    #[test]
    fn a_definition_with_learnt_boundaries_equals_one_with_given_boundaries() {
        let learns =
            def("shuffle: 5, bucket_by_length: { length: id, boundaries: { quantiles: 4 }, batch_sizes: 3 }");
        let given = def("shuffle: 5, bucket_by_length: { length: id, boundaries: [2, 7], batch_sizes: 3 }");
        assert_eq!(learns.unlearnt(), Some((1, Quantiles { classes: 4, rows: DEFAULT_LEARNING_ROWS })));
        let learnt = |stage, boundaries| LearntBoundaries { stage, boundaries, rows: 9 };
        assert_eq!(learns.with_boundaries(&[learnt(1, vec![2, 7])]).unwrap(), given);
        for (learnt, want) in [
            (vec![], "steps[1].bucket_by_length: its boundaries were not learnt"),
            (
                vec![learnt(0, vec![2])],
                "steps[0].bucket_by_length.boundaries: the stage learns no boundaries",
            ),
            (
                vec![learnt(7, vec![2])],
                "steps[7].bucket_by_length.boundaries: the stage learns no boundaries",
            ),
            (vec![learnt(1, vec![2]), learnt(1, vec![2])], "the stage has boundaries already"),
            (vec![learnt(1, vec![])], "[] are no boundaries of 4 quantiles of 4096 rows"),
            (vec![learnt(1, vec![0, 2])], "[0, 2] are no boundaries"),
            (vec![learnt(1, vec![2, 2])], "[2, 2] are no boundaries"),
            (vec![learnt(1, vec![1, 2, 3, 4])], "[1, 2, 3, 4] are no boundaries"),
        ] {
            let e = learns.with_boundaries(&learnt).unwrap_err().to_string();
            assert!(e.contains(want), "{e}");
        }
    }

    #[test]
    fn lengths_are_those_of_the_rows_above_the_stage_in_their_order() {
        let learns = def(
            "autocache: a, shuffle: 5, filter: \"id > 2\", repeat, prefetch: 2, take: 3, shard: { num_shards: HINT, index: HINT }, \
             bucket_by_length: { length: id + 1, boundaries: { quantiles: 4 }, batch_sizes: 3 }, take: 1",
        );
        let lengths = learns.lengths(7).unwrap();
        let names: Vec<_> = lengths.stages.iter().map(|s| s.op.name()).collect();
        let hint = "autocache";
        assert_eq!(names, [hint, hint, "filter", hint, hint, "take", hint, "map"]);
        assert!(lengths.options.deterministic);
        crate::validate(&lengths).unwrap();
        assert!(learns.lengths(0).is_none());
    }
}
