//! Definitions whose `bucket_by_length` learns its boundaries: from which rows, and what runs then.

use caju_types::{Error, Result};

use crate::boundaries::{Boundaries, LearntBoundaries, Quantiles, place};
use crate::def::{DatasetDef, SourceDef, StageDef, StageOp};
use crate::place::join;

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
        match &mut def.source {
            SourceDef::Files(files) => {
                files.shard = files.shard.filter(|shard| shard.num_shards.is_some());
            }
            SourceDef::Sample { datasets, .. } => {
                datasets.iter_mut().for_each(|d| d.stages.retain(|s| !matches!(s.op, StageOp::Repeat(_))));
            }
            _ => {}
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
    use super::*;
    use crate::boundaries::DEFAULT_LEARNING_ROWS;

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
