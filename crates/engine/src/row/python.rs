//! Functions of users, run by the pool of Python processes.

use std::sync::Arc;

use arrow::compute::{cast, take_record_batch};
use arrow_array::{Array, RecordBatch, RecordBatchOptions, UInt32Array, UInt64Array};
use arrow_schema::{Field, SchemaRef};
use caju_functions::{Function, Kind, Pool};
use caju_kernels::{Registry, RowError};
use caju_pipeline::{PythonFunction, PythonKind};
use caju_types::{Error, Result, did_you_mean};

use super::Kept;
use crate::wire::schema_from_ipc;

/// A function, bound to the pool that runs it.
pub(crate) struct PythonStage {
    pool: Pool,
    function: Arc<Function>,
    random: bool,
    schema: SchemaRef,
}

impl PythonStage {
    /// # Errors
    /// `PermissionDenied` where functions in Python may not run, `DataLoss` for a schema that is none.
    pub(crate) fn bind(f: &PythonFunction, registry: &Registry, input: &SchemaRef) -> Result<Self> {
        let Some(pool) = registry.python() else {
            return Err(Error::permission_denied(format!(
                "`{}` is a function in Python, and this server runs none; start dispatcher and workers with \
                 --allow-python PYTHON, or write it as an expression",
                f.name
            )));
        };
        let kind = match f.kind {
            PythonKind::Map => Kind::Map,
            PythonKind::Filter => Kind::Filter,
            PythonKind::FlatMap => Kind::FlatMap,
        };
        let made = schema_from_ipc(&f.schema)?;
        let schema = made.unwrap_or_else(|| Arc::clone(input));
        let function =
            Function { name: f.name.clone(), payload: f.payload.to_vec(), kind, batched: f.batched };
        Ok(Self { pool: pool.clone(), function: Arc::new(function), random: f.random, schema })
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    pub(crate) fn is_random(&self) -> bool {
        self.random
    }

    /// Whether rows may be dropped or repeated.
    pub(crate) fn renumbers(&self) -> bool {
        self.function.kind != Kind::Map
    }

    /// Runs it over a batch; `keys` seed the generators of rows.
    pub(crate) fn run(
        &self,
        batch: &RecordBatch,
        keys: Option<&UInt64Array>,
    ) -> Result<(RecordBatch, Kept), RowError> {
        if batch.num_rows() == 0 {
            return Ok((RecordBatch::new_empty(self.schema()), Kept::All));
        }
        let seeds = keys.map(|k| k.values().as_ref());
        let output = self
            .pool
            .call(&self.function, batch, seeds)
            .map_err(|e| RowError { row: e.row, error: e.error })?;
        let whole = |error| RowError { row: None, error };
        let rows = output.rows.map(UInt32Array::from);
        match (self.function.kind, rows) {
            (Kind::Map, _) => Ok((self.fit(&output.batch).map_err(whole)?, Kept::All)),
            (Kind::Filter, Some(rows)) => {
                let kept =
                    take_record_batch(batch, &rows).map_err(|e| whole(Error::internal(e.to_string())))?;
                Ok((kept, Kept::Rows(rows)))
            }
            (Kind::FlatMap, Some(rows)) if rows.is_empty() => {
                Ok((RecordBatch::new_empty(self.schema()), Kept::Rows(rows)))
            }
            (Kind::FlatMap, Some(rows)) => Ok((self.fit(&output.batch).map_err(whole)?, Kept::Rows(rows))),
            (_, None) => Err(whole(Error::internal("a function said not which rows it kept"))),
        }
    }

    /// The columns as the definition promises them: in order, and of the types that it names.
    fn fit(&self, made: &RecordBatch) -> Result<RecordBatch> {
        let found = made.schema();
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            let Some(column) = made.column_by_name(field.name()) else {
                let known: Vec<&str> = found.fields().iter().map(|f| f.name().as_str()).collect();
                return Err(Error::invalid(format!(
                    "function `{}` made no column `{}`{}; it made: {}",
                    self.function.name,
                    field.name(),
                    did_you_mean(field.name(), &known),
                    known.join(", ")
                )));
            };
            let made_as = found.field_with_name(field.name()).ok();
            if let (Some(made), Some(promised)) = (made_as.and_then(shape), shape(field))
                && made != promised
            {
                return Err(self.misfit(field, column, made_as));
            }
            let fitting = match column.data_type() == field.data_type() {
                true => Arc::clone(column),
                false => cast(column, field.data_type()).map_err(|_| self.misfit(field, column, made_as))?,
            };
            if fitting.null_count() > column.null_count() {
                return Err(self.misfit(field, column, made_as));
            }
            columns.push(fitting);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(made.num_rows()));
        RecordBatch::try_new_with_options(self.schema(), columns, &options)
            .map_err(|e| Error::invalid(format!("function `{}`: {e}", self.function.name)))
    }

    fn misfit(&self, promised: &Field, column: &dyn Array, made_as: Option<&Field>) -> Error {
        let of = |field: Option<&Field>| field.and_then(shape).map(|s| format!(" {s}")).unwrap_or_default();
        Error::invalid(format!(
            "function `{}` made `{}` of type {}{}, where `schema=` or its first row promised {}{}; give all rows one \
             type and one shape",
            self.function.name,
            promised.name(),
            column.data_type(),
            of(made_as),
            promised.data_type(),
            of(Some(promised)),
        ))
    }
}

/// The shape of a tensor, as its field tells it.
fn shape(field: &Field) -> Option<serde_json::Value> {
    let told = field.metadata().get("ARROW:extension:metadata")?;
    serde_json::from_str::<serde_json::Value>(told).ok()?.get("shape").cloned()
}
