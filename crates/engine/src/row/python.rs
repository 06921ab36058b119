//! Users' functions, run by the pool of Python processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::compute::take_record_batch;
use arrow_array::{RecordBatch, RecordBatchOptions, UInt32Array, UInt64Array};
use arrow_schema::{Field, SchemaRef};
use caju_functions::{Caller, Function, Kind, Output, Pool};
use caju_kernels::{Registry, RowError};
use caju_pipeline::{PythonFunction, PythonKind};
use caju_types::{Error, Result, did_you_mean};
use caju_wire::schema_from_ipc;

use super::cast::{CastError, cast_column};
use super::{Made, RowReclaimer, RowSelection};
use crate::hidden::without_hidden_values;
use crate::typename::type_name;

/// A call that may give rows back.
struct Call<'a, 'b> {
    stage: &'a PythonStage,
    input: &'a RecordBatch,
    reclaimer: Option<&'a mut (dyn RowReclaimer + 'b)>,
    /// Why rows that were given back cannot be used.
    failed: Option<RowError>,
}

impl Caller for Call<'_, '_> {
    fn takes_back(&self) -> bool {
        self.reclaimer.is_some()
    }

    fn working(&mut self) {
        if let Some(reclaimer) = &mut self.reclaimer {
            reclaimer.working();
        }
    }

    fn given_back(&mut self, ready: Option<Output>, from: usize, took: Duration) {
        let made = ready.map(|output| self.stage.made(self.input, output)).transpose();
        let made = made.unwrap_or_else(|e| {
            self.failed = Some(e);
            None
        });
        if let Some(reclaimer) = &mut self.reclaimer {
            reclaimer.take_back(made, from, took);
        }
    }
}

/// A function, bound to the pool that runs it.
pub(crate) struct PythonStage {
    pool: Pool,
    function: Arc<Function>,
    random: bool,
    schema: SchemaRef,
    /// The input columns that it gets; none: all.
    reads: Option<Vec<usize>>,
    keeps: Vec<String>,
    /// The columns of `keeps` in the input and in the output.
    kept: Vec<(usize, usize)>,
}

impl PythonStage {
    /// # Errors
    /// `PermissionDenied` if this process runs no Python functions, `DataLoss` if the schema cannot be read.
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
        let function = Function {
            name: f.name.clone(),
            payload: f.payload.to_vec(),
            kind,
            batched: f.batched,
            timeout: f.timeout,
        };
        let column = |name: &String| {
            input.index_of(name).map_err(|_| {
                let known: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
                let near = did_you_mean(name, &known);
                Error::invalid(format!("unknown column `{name}`{near}; the row has: {}", known.join(", ")))
            })
        };
        let reads = f.reads.as_ref().map(|names| names.iter().map(column).collect()).transpose()?;
        let kept = f
            .keeps
            .iter()
            .map(|name| {
                let i = column(name)?;
                let same = |o: &usize| {
                    let (before, after) = (input.field(i), schema.field(*o));
                    before.data_type() == after.data_type() && before.metadata() == after.metadata()
                };
                let Ok(o) = schema.index_of(name) else {
                    return Err(Error::invalid(format!("`keeps`: `{}` makes no column `{name}`", f.name)));
                };
                if !same(&o) {
                    let (before, after) = (input.field(i).data_type(), schema.field(o).data_type());
                    return Err(Error::invalid(format!(
                        "`keeps`: `{}` makes `{name}` another column: it is {before} before and {after} after; \
                         take it out of `keeps`, or cast it before the function",
                        f.name
                    )));
                }
                Ok((i, o))
            })
            .collect::<Result<_>>()?;
        let (random, keeps) = (f.random, f.keeps.clone());
        Ok(Self { pool: pool.clone(), function: Arc::new(function), random, schema, reads, keeps, kept })
    }

    /// The input columns that it gets; none: all.
    pub(crate) fn reads(&self) -> Option<&[usize]> {
        self.reads.as_deref()
    }

    /// The columns that it passes on as they are.
    pub(crate) fn keeps(&self) -> &[String] {
        &self.keeps
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    pub(crate) fn is_random(&self) -> bool {
        self.random
    }

    /// Whether rows may be dropped or repeated.
    pub(crate) fn changes_ordinals(&self) -> bool {
        self.function.kind != Kind::Map
    }

    /// Whether rows may be repeated.
    pub(crate) fn repeats_rows(&self) -> bool {
        self.function.kind == Kind::FlatMap
    }

    /// Whether it takes a batch at once.
    pub(crate) fn is_batched(&self) -> bool {
        self.function.batched
    }

    /// Runs it over a batch; `keys` seed the generators of rows. If it is slow, `reclaimer` gets rows back.
    pub(crate) fn run(
        &self,
        batch: &RecordBatch,
        keys: Option<&UInt64Array>,
        mut reclaimer: Option<&mut dyn RowReclaimer>,
    ) -> Result<Made, RowError> {
        if batch.num_rows() == 0 {
            return Ok(Made {
                batch: RecordBatch::new_empty(self.schema()),
                kept: RowSelection::All,
                ran: 0..0,
            });
        }
        let seeds = keys.map(|k| k.values().as_ref());
        if let Some(reclaimer) = &mut reclaimer {
            reclaimer.waiting();
        }
        let began = Instant::now();
        let given = match &self.reads {
            Some(reads) => {
                batch.project(reads).map_err(|e| RowError::from(Error::internal(e.to_string())))?
            }
            None => batch.clone(),
        };
        let mut call = Call { stage: self, input: batch, reclaimer, failed: None };
        let output = self
            .pool
            .call(&self.function, &given, seeds, &mut call)
            .map_err(|e| RowError { row: e.row, error: e.error })?;
        if let Some(e) = call.failed {
            return Err(e);
        }
        if let Some(reclaimer) = call.reclaimer {
            reclaimer.idled(began.elapsed().saturating_sub(output.took));
            reclaimer.working();
        }
        self.made(batch, output)
    }

    /// What the function made of some rows of a batch.
    fn made(&self, input: &RecordBatch, output: Output) -> Result<Made, RowError> {
        let whole = |error| RowError { row: None, error };
        let rows = output.rows.map(UInt32Array::from);
        let ran = output.ran;
        let (batch, kept) = match (self.function.kind, rows) {
            (Kind::Map, _) if ran.is_empty() => (RecordBatch::new_empty(self.schema()), RowSelection::All),
            (Kind::Map, _) => (self.cast(&output.batch, ran.start, None)?, RowSelection::All),
            (Kind::Filter, Some(rows)) => {
                let kept =
                    take_record_batch(input, &rows).map_err(|e| whole(Error::internal(e.to_string())))?;
                (kept, RowSelection::Rows(rows))
            }
            (Kind::FlatMap, Some(rows)) if rows.is_empty() => {
                (RecordBatch::new_empty(self.schema()), RowSelection::Rows(rows))
            }
            (Kind::FlatMap, Some(rows)) => {
                (self.cast(&output.batch, ran.start, Some(&rows))?, RowSelection::Rows(rows))
            }
            (_, None) => {
                return Err(whole(Error::internal("a function did not report which rows it kept")));
            }
        };
        let batch = without_hidden_values(batch).map_err(whole)?;
        self.check_kept(input, &batch, ran.start, &kept)?;
        Ok(Made { batch, kept, ran })
    }

    /// Checks that the columns of `keeps` are those of the input. `first` is the first input row.
    fn check_kept(
        &self,
        input: &RecordBatch,
        made: &RecordBatch,
        first: usize,
        rows: &RowSelection,
    ) -> Result<(), RowError> {
        for &(i, o) in &self.kept {
            let before = match rows {
                RowSelection::Rows(rows) => arrow::compute::take(input.column(i), rows, None)
                    .map_err(|e| RowError::from(Error::internal(e.to_string())))?,
                _ => input.column(i).slice(first, made.num_rows()),
            };
            let after = made.column(o);
            if &before == after {
                continue;
            }
            let row = (0..after.len()).find(|&r| before.slice(r, 1) != after.slice(r, 1));
            let row = match (rows, row) {
                (RowSelection::Rows(rows), Some(r)) => usize::try_from(rows.value(r)).ok(),
                (_, row) => row.map(|r| first + r),
            };
            let (function, column) = (&self.function.name, input.schema_ref().field(i).name());
            let error = Error::invalid(format!(
                "function `{function}` changes column `{column}`, and `keeps` says that it does not; take it out of `keeps`"
            ));
            return Err(RowError { row, error });
        }
        Ok(())
    }

    /// The columns in the order and of the types of the stage's schema. `first` is the first input row; `rows`: the input row of
    /// each output row, if these differ.
    fn cast(
        &self,
        made: &RecordBatch,
        first: usize,
        rows: Option<&UInt32Array>,
    ) -> Result<RecordBatch, RowError> {
        let whole = |error| RowError { row: None, error };
        let found = made.schema();
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            let (Some(column), Ok(made_as)) =
                (made.column_by_name(field.name()), found.field_with_name(field.name()))
            else {
                return Err(whole(self.lacks("no column", field.name(), "it made", &found)));
            };
            columns.push(cast_column(column, made_as, field).map_err(|e| {
                let row = match rows {
                    Some(rows) => rows.values().get(e.row).and_then(|r| usize::try_from(*r).ok()),
                    None => Some(first + e.row),
                };
                RowError { row, error: self.cast_error(field, made_as, &e) }
            })?);
        }
        if let Some(extra) = found.fields().iter().find(|f| self.schema.field_with_name(f.name()).is_err()) {
            return Err(whole(self.lacks(
                "a column",
                extra.name(),
                "`schema=` or its first rows promised",
                &self.schema,
            )));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(made.num_rows()));
        RecordBatch::try_new_with_options(self.schema(), columns, &options)
            .map_err(|e| whole(Error::invalid(format!("function `{}`: {e}", self.function.name))))
    }

    fn lacks(&self, what: &str, column: &str, then: &str, schema: &SchemaRef) -> Error {
        let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        Error::invalid(format!(
            "function `{}` made {what} `{column}`{}; {then}: {}",
            self.function.name,
            did_you_mean(column, &known),
            known.join(", ")
        ))
    }

    fn cast_error(&self, promised: &Field, made_as: &Field, error: &CastError) -> Error {
        let (name, made) = (promised.name(), type_name(made_as));
        let way_out = match error.instead.as_deref() {
            Some(kind @ "float64") => {
                format!(
                    "say `schema={{\"{name}\": \"{kind}\"}}`, or return float(...) (or int(...)) for every row"
                )
            }
            Some(kind) => {
                format!("say `schema={{\"{name}\": \"{kind}\"}}`, or give all rows one type and one shape")
            }
            None => "give all rows one type and one shape".to_string(),
        };
        Error::invalid(format!(
            "function `{}` made column `{name}` of type {made}, where `schema=` or its first rows promised {}: {} has no \
             place there, and nothing is cut off; {way_out}",
            self.function.name,
            type_name(promised),
            error.why,
        ))
    }
}
