//! The columns of an epoch, which all tasks send.

use arrow_schema::{Schema, SchemaRef};
use caju_types::Result;
use caju_wire::check_task_columns;

use crate::target::Target;

/// The columns of the epoch of a job, as the dispatcher gave them when the reader was opened. The reader's user labels the columns
/// of all tasks with them, by position. They stay the same when the epoch is opened again.
#[derive(Debug, Clone)]
pub(crate) struct EpochColumns {
    pub(crate) job: String,
    pub(crate) schema: SchemaRef,
}

impl EpochColumns {
    /// Refuses a task that was bound to other columns.
    ///
    /// # Errors
    /// `FailedPrecondition` that names the column, the worker and the job.
    pub(crate) fn check(&self, target: &Target, task: &Schema) -> Result<()> {
        check_task_columns(&self.schema, task, (&self.job, &target.peer()))
    }

    /// Those of no job, for tests of parts that look at no column.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { job: String::new(), schema: std::sync::Arc::new(Schema::empty()) }
    }
}
