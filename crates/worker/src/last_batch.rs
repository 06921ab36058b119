//! The short batch at the end of a task, where nobody merges it with those of other tasks.

use caju_pipeline::{DatasetDef, StageOp};
use caju_types::Result;
use caju_wire::{Chunk, Padding, pad_batch};

/// What becomes of the rows that fill no batch of a task, for readers of Arrow Flight: each of their streams is of one task.
#[derive(Debug, Default)]
pub(crate) struct LastBatch {
    is_dropped: bool,
    padding: Option<Padding>,
}

impl LastBatch {
    /// As the last stage of a definition that makes batches says.
    pub(crate) fn of(def: &DatasetDef) -> Self {
        match def.stages.iter().rev().map(|s| &s.op).find(|op| op.makes_batches()) {
            Some(StageOp::Batch { drop_remainder, .. }) => {
                Self { is_dropped: *drop_remainder, padding: None }
            }
            Some(StageOp::PaddedBatch { drop_remainder, lengths, values, .. }) => Self {
                is_dropped: *drop_remainder,
                padding: Some(Padding { lengths: lengths.clone(), values: values.clone() }),
            },
            _ => Self::default(),
        }
    }

    /// A chunk of the task as it is delivered; none if it is dropped.
    ///
    /// # Errors
    /// Those of padding.
    pub(crate) fn delivered(&self, chunk: Chunk) -> Result<Option<Chunk>> {
        match &self.padding {
            _ if !chunk.remainder => Ok(Some(chunk)),
            _ if self.is_dropped => Ok(None),
            Some(padding) => pad_batch(&chunk, padding).map(Some),
            None => Ok(Some(chunk)),
        }
    }
}
