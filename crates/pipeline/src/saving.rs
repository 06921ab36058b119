//! The form of a definition that a save computes: the rows, without stages that only order or group them.

use caju_types::{Error, Result};

use crate::boundaries::Boundaries;
use crate::def::{DatasetDef, SourceDef, StageDef, StageOp};
use crate::reorder::Reorder;

/// The name of the hint at which a save stores rows.
pub const SAVE_HINT: &str = "save";

/// A definition in the form in which it is saved.
///
/// A save is a set of rows, which readers order and group themselves. So stages that only change the order or the groups of
/// rows are left out: `shuffle`, `batch` and `unbatch`, `prefetch`, and `padded_batch` or `bucket_by_length` at the end.
/// `repeat(n)` is left out, too: rows are stored once and read n times.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedForm {
    /// The stages that compute the rows, a hint named [`SAVE_HINT`], and a filter that no row passes. Reading an epoch of it
    /// stores every row and delivers none.
    pub def: DatasetDef,
    /// How often each row is read.
    pub copies: u64,
    /// The names of the stages that were left out, for messages.
    pub left_out: Vec<&'static str>,
}

impl SavedForm {
    /// The form in which a definition is saved.
    ///
    /// # Errors
    /// `InvalidArgument` for an endless dataset, and for stages whose rows depend on the cut of batches.
    pub fn of(def: &DatasetDef) -> Result<Self> {
        if def.is_endless() {
            return Err(Error::invalid(
                "saving an infinite dataset is not allowed: its `repeat` never ends; give it a count, or put `repeat` \
                 after the load",
            ));
        }
        let mut form = SavedForm {
            def: DatasetDef { stages: Vec::new(), ..def.clone() },
            copies: 1,
            left_out: Vec::new(),
        };
        form.def.options.deterministic = false;
        // Factors belong to stages by their index, which changes here.
        form.def.options.reorder = def.options.reorder.as_ref().map(|_| Reorder::default());
        // These stages count elements: all stages above them have to stay.
        let counts = |op: &StageOp| matches!(op, StageOp::Take(_) | StageOp::Skip(_) | StageOp::Shard { .. });
        let counted = def.stages.iter().rposition(|s| counts(&s.op));
        let counted = counted.map_or(0, |i| i + 1);
        if counted == 0
            && let SourceDef::Sample { datasets, .. } = &def.source
            && datasets.iter().all(|dataset| dataset.repetitions() == Some(1))
        {
            // The rows are those of all datasets. Their order does not matter. `concatenate` knows no copies of a dataset.
            form.def.source = SourceDef::Concatenate(datasets.clone());
            form.left_out.push("sample");
        }
        for (i, op) in def.ops().enumerate() {
            form.stage(def, i, op, i < counted)?;
        }
        if form.def.batched_by().is_some() {
            form.push(StageOp::Unbatch);
        }
        form.push(StageOp::Autocache { name: SAVE_HINT.to_owned() });
        form.push(StageOp::Filter("false".to_owned()));
        Ok(form)
    }

    fn stage(&mut self, def: &DatasetDef, i: usize, op: &StageOp, counted: bool) -> Result<()> {
        match op {
            StageOp::Autocache { .. } => {}
            StageOp::BucketByLength { boundaries: Boundaries::Learnt(_), .. } if counted => {
                return Err(Error::invalid(format!(
                    "steps[{i}].bucket_by_length: its batches are counted below it, so a save needs their boundaries; give \
                     them as a list: `caju status` shows those that were learnt"
                )));
            }
            op if counted => self.push(op.clone()),
            StageOp::Shuffle { .. } | StageOp::Prefetch(_) | StageOp::Batch { .. } => {
                self.left_out.push(op.name());
            }
            StageOp::Unbatch if self.def.batched_by().is_none() => {}
            StageOp::PaddedBatch { .. } | StageOp::BucketByLength { .. } => {
                if let Some(below) = def.ops().skip(i + 1).find(|op| op.computes()) {
                    return Err(Error::invalid(format!(
                        "steps[{i}].{}: `{}` below it works on padded batches, and a save stores rows; save what stands \
                         above, and put the two after the load",
                        op.name(),
                        below.name()
                    )));
                }
                self.left_out.push(op.name());
            }
            StageOp::Repeat(Some(n)) => {
                self.copies = self.copies.checked_mul(*n).ok_or_else(|| {
                    Error::invalid(format!("steps[{i}].repeat: more repetitions than can be counted"))
                })?;
            }
            op => self.push(op.clone()),
        }
        Ok(())
    }

    fn push(&mut self, op: StageOp) {
        self.def.stages.push(StageDef { op });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(steps: &str) -> Result<SavedForm> {
        SavedForm::of(
            &DatasetDef::from_yaml(&format!("source: {{ range: 10 }}\nsteps: {steps}\n"), None).unwrap(),
        )
    }

    fn names(form: &SavedForm) -> Vec<&'static str> {
        form.def.stages.iter().map(|s| s.op.name()).collect()
    }

    #[test]
    fn what_only_orders_or_groups_is_left_out() {
        let form = form(
            "[{ filter: 'id > 2' }, autocache, { shuffle: 8 }, { repeat: 3 }, { batch: 2 }, { with_columns: { x: 'id + 1' } }, { repeat: 2 }, { prefetch: 2 }]",
        )
        .unwrap();
        assert_eq!(names(&form), ["filter", "with_columns", "autocache", "filter"]);
        assert_eq!((form.copies, form.left_out), (6, vec!["shuffle", "batch", "prefetch"]));
        crate::validate(&form.def).unwrap();
    }

    #[test]
    fn a_sample_stays_where_it_repeats_a_dataset() {
        let of = |steps: &str| {
            let dataset = format!("{{ source: {{ range: 9 }}, steps: {steps} }}");
            let sample = format!("{{ sample: {{ datasets: [ {dataset}, {dataset} ], weights: [1, 1] }} }}");
            SavedForm::of(&DatasetDef::from_yaml(&format!("source: {sample}\n"), None).unwrap()).unwrap()
        };
        let (plain, repeated) = (of("[]"), of("[ { repeat: 2 } ]"));
        assert!(matches!(plain.def.source, SourceDef::Concatenate(_)), "{plain:?}");
        assert!(matches!(repeated.def.source, SourceDef::Sample { .. }), "{repeated:?}");
        crate::validate(&plain.def).unwrap();
        crate::validate(&repeated.def).unwrap();
    }

    #[test]
    fn sav_12_an_endless_dataset_is_refused() {
        let e = form("[repeat]").unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::InvalidArgument);
        assert!(e.message().contains("infinite dataset"), "{e}");
    }

    #[test]
    fn counted_elements_stay_as_they_are() {
        let form = form("[{ batch: 2 }, { take: 3 }, { shuffle: 4 }]").unwrap();
        assert_eq!(names(&form), ["batch", "take", "unbatch", "autocache", "filter"]);
        crate::validate(&form.def).unwrap();
    }

    #[test]
    fn counted_batches_of_learnt_boundaries_are_refused() {
        let learns = "{ bucket_by_length: { length: id, boundaries: { quantiles: 4 }, batch_sizes: 2 } }";
        assert_eq!(form(&format!("[{learns}]")).unwrap().left_out, ["bucket_by_length"]);
        let e = form(&format!("[{learns}, {{ take: 1 }}]")).unwrap_err();
        assert!(e.message().starts_with("steps[0].bucket_by_length: its batches are counted"), "{e}");
    }

    #[test]
    fn rows_that_depend_on_their_batch_are_refused() {
        let e = form("[{ padded_batch: 2 }, { with_columns: { x: 'id' } }]").unwrap_err();
        assert!(e.message().starts_with("steps[0].padded_batch"), "{e}");
        let form = form("[{ padded_batch: 2 }, { shuffle: 2 }]").unwrap();
        assert_eq!(names(&form), ["autocache", "filter"]);
    }
}
