//! Evaluation of bound expressions, and finding the row at which an evaluation fails.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::datatypes::{Fields, SchemaRef};
use arrow::error::ArrowError;
use caju_runtime::{budget, catch_out_of_range, interrupt};
use caju_types::{Error, ErrorKind, format_bytes};
use datafusion_common::DataFusionError;
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::infallible::is_infallible;
use crate::kernel::Fault;

/// The expressions of one stage, bound to its input schema. They are immutable: any number of threads may evaluate them
/// concurrently.
#[derive(Debug, Clone)]
pub struct BoundExprs {
    fields: Fields,
    columns: Vec<usize>,
    /// For each expression the columns that its text names.
    named: Arc<[Vec<usize>]>,
    random: bool,
    /// The most bytes that one evaluation may request.
    chunk_bytes: u64,
    /// The most steps that one evaluation may take.
    chunk_steps: u64,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    input: SchemaRef,
    /// The columns read, and the key if the expressions are random.
    narrow: SchemaRef,
    /// The columns of `narrow`, and the common subexpressions.
    wide: SchemaRef,
    common: Vec<Arc<dyn PhysicalExpr>>,
    outputs: Vec<Computed>,
    /// Bytes per row of values of wide fixed-size types.
    row_bytes: u64,
}

/// One bound expression.
#[derive(Debug)]
pub(crate) struct Computed {
    /// Its name in errors: the column; empty for a predicate.
    pub(crate) label: String,
    pub(crate) expr: Arc<dyn PhysicalExpr>,
}

/// The error of [`BoundExprs::evaluate`].
#[derive(Debug, Clone)]
pub struct RowError {
    /// The row of the batch at which it fails, if the error belongs to one row.
    pub row: Option<usize>,
    /// The error. It names the column and the function. The caller knows the stage and the row's provenance.
    pub error: Error,
}

impl std::fmt::Display for RowError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.row {
            Some(row) => write!(f, "row {row} of the batch: {}", self.error),
            None => write!(f, "{}", self.error),
        }
    }
}

impl std::error::Error for RowError {}

impl From<Error> for RowError {
    fn from(error: Error) -> Self {
        Self { row: None, error }
    }
}

impl BoundExprs {
    #[expect(clippy::too_many_arguments, reason = "the fields of a struct, made in one place")]
    pub(crate) fn new(
        fields: Fields,
        columns: Vec<usize>,
        named: Vec<Vec<usize>>,
        random: bool,
        input: SchemaRef,
        narrow: SchemaRef,
        wide: SchemaRef,
        common: Vec<Arc<dyn PhysicalExpr>>,
        outputs: Vec<Computed>,
        row_bytes: u64,
    ) -> Self {
        let inner = Arc::new(Inner { input, narrow, wide, common, outputs, row_bytes });
        let (chunk_bytes, chunk_steps) = (budget::DEFAULT_BYTES, budget::DEFAULT_STEPS);
        Self { fields, columns, named: named.into(), random, chunk_bytes, chunk_steps, inner }
    }

    /// Sets the most bytes that one evaluation may request, and the most steps that it may take.
    pub(crate) fn within(self, chunk_bytes: u64, chunk_steps: u64) -> Self {
        Self { chunk_bytes, chunk_steps, ..self }
    }

    /// The computed columns with their extension types, in the order of the expressions.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Whether the values depend on the keys given to [`Self::evaluate`].
    pub fn is_random(&self) -> bool {
        self.random
    }

    /// The input columns that are read, or that the texts of the expressions name, as sorted indices into the bound schema. The
    /// same expressions may be bound to a schema without the other columns: they compute the same values.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// For each expression: the input column that it passes on as it is, as an index into the bound schema; none if it computes
    /// something.
    pub fn passed(&self) -> Vec<Option<usize>> {
        let passed = |computed: &Computed| {
            let column = computed.expr.downcast_ref::<Column>()?;
            self.columns.get(column.index()).copied()
        };
        self.inner.outputs.iter().map(passed).collect()
    }

    /// The input columns of expressions that compute something, as sorted indices into the bound schema: those of
    /// [`Self::columns`] that are not only passed on.
    pub fn computed_from(&self) -> Vec<usize> {
        let passes = |(column, named): (Option<usize>, &Vec<usize>)| column.is_some_and(|c| named[..] == [c]);
        let exprs = self.passed().into_iter().zip(self.named.iter());
        let used: BTreeSet<usize> =
            exprs.filter(|e| !passes(*e)).flat_map(|(_, named)| named.iter().copied()).collect();
        used.into_iter().collect()
    }

    /// The input columns that are read only as the values of `hash_bucket`, as sorted indices into the bound schema. Of a column
    /// with a dictionary each distinct value is hashed once.
    pub fn only_hashed(&self) -> Vec<usize> {
        let (mut hashed, mut others) = (BTreeSet::new(), BTreeSet::new());
        let outputs = self.inner.outputs.iter().map(|o| &o.expr);
        for expr in self.inner.common.iter().chain(outputs) {
            sort_reads(expr, false, &mut hashed, &mut others);
        }
        // Further columns are keys and common subexpressions.
        let of_input = |i: &usize| self.columns.get(*i).copied();
        hashed.difference(&others).filter_map(of_input).collect()
    }

    /// Whether no row can make an evaluation fail, whatever the values of its columns. False where that is not known.
    pub fn is_infallible(&self) -> bool {
        let common = self.inner.common.iter().map(|e| (e, &self.inner.narrow));
        let outputs = self.inner.outputs.iter().map(|o| (&o.expr, &self.inner.wide));
        common.chain(outputs).all(|(e, schema)| is_infallible(e, schema))
    }

    /// Computes the columns for the rows of `batch`, which has the bound schema. `keys` has one word per row, mixed from
    /// (seed, epoch, repetition, stage, split key, ordinal). It is needed only if [`Self::is_random`].
    ///
    /// # Errors
    /// The error names a row if it belongs to one. `DataLoss` and `InvalidArgument` for data that the expressions cannot
    /// process, and for a row that alone needs more memory than
    /// [`Limits::chunk_bytes`](crate::limits::Limits::chunk_bytes). `FailedPrecondition` for a row whose time was measured and
    /// is too long: it is the same on no two machines, so such a row is not skipped. `ResourceExhausted`, without a row, if all rows together
    /// need more or do not fit one batch: evaluate fewer rows at a time. `Internal` if `batch` or `keys` are invalid.
    pub fn evaluate(
        &self,
        batch: &RecordBatch,
        keys: Option<&UInt64Array>,
    ) -> Result<Vec<ArrayRef>, RowError> {
        let narrow = self.narrow(batch, keys)?;
        self.run(&narrow).map_err(|fault| self.locate(&narrow, fault))
    }

    /// Evaluates within the memory budget.
    fn run(&self, narrow: &RecordBatch) -> Result<Vec<ArrayRef>, Fault> {
        budget::scope_with(self.chunk_bytes, self.chunk_steps, || {
            let rows = narrow.num_rows() as u64;
            if self.inner.row_bytes > 0 && rows > 0 {
                let what = format_args!("{rows} rows of {}", format_bytes(self.inner.row_bytes));
                budget::reserve(self.inner.row_bytes.saturating_mul(rows), what)?;
            }
            catch_out_of_range(|| self.compute(narrow)).unwrap_or_else(|text| Err(out_of_range(&text)))
        })
    }

    /// The columns read, and the keys.
    fn narrow(&self, batch: &RecordBatch, keys: Option<&UInt64Array>) -> Result<RecordBatch, Error> {
        let (have, want) = (batch.num_columns(), self.inner.input.fields().len());
        if have != want {
            return Err(Error::internal(format!("expressions bound to {want} columns got {have}")));
        }
        let mut columns: Vec<ArrayRef> = self.columns.iter().map(|i| Arc::clone(batch.column(*i))).collect();
        if self.random {
            match keys {
                Some(keys) => columns.push(Arc::new(keys.clone())),
                None => return Err(Error::internal("random expressions were evaluated without keys")),
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.inner.narrow), columns, &options)
            .map_err(|e| Error::internal(format!("a batch does not have the bound schema: {e}")))
    }

    fn compute(&self, narrow: &RecordBatch) -> Result<Vec<ArrayRef>, Fault> {
        let rows = narrow.num_rows();
        let value = |e: &Arc<dyn PhysicalExpr>, batch: &RecordBatch| {
            interrupt::check().map_err(Fault::from)?;
            e.evaluate(batch)?.into_array(rows)
        };
        let outputs = &self.inner.outputs;
        let wide = if self.inner.common.is_empty() {
            narrow.clone()
        } else {
            let mut columns = narrow.columns().to_vec();
            for e in &self.inner.common {
                columns.push(value(e, narrow).map_err(|e| fault(&e, ""))?);
            }
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            RecordBatch::try_new_with_options(Arc::clone(&self.inner.wide), columns, &options)
                .map_err(|e| Error::internal(format!("a common subexpression is not of its type: {e}")))?
        };
        outputs.iter().map(|o| value(&o.expr, &wide).map_err(|e| fault(&e, &o.label))).collect()
    }

    /// Finds a row at which the expressions fail. A kernel names a row of its input arrays. These are not always those of
    /// the batch: a branch of `case` sees only the rows that take it. DataFusion's functions name no row. So the named row is
    /// evaluated alone first. If it does not fail, the batch is bisected.
    fn locate(&self, batch: &RecordBatch, first: Fault) -> RowError {
        let unknown = |error| RowError { row: None, error };
        match (first.error.kind(), batch.num_rows()) {
            // Splitting the batch does not help: this row alone needs too much.
            (ErrorKind::ResourceExhausted, 1) => {
                return RowError { row: Some(0), error: Error::invalid(first.error.message()) };
            }
            (TOO_SLOW, 1) => return RowError { row: Some(0), error: first.error },
            (TOO_SLOW, _) => return unknown(Error::exhausted(first.error.message())),
            _ => {}
        }
        if !first.error.is_data_error() || batch.num_rows() == 0 {
            return unknown(first.error);
        }
        if batch.num_rows() == 1 {
            return RowError { row: Some(0), error: first.error };
        }
        if let Some(row) = first.row.filter(|row| *row < batch.num_rows())
            && let Err(f) = self.run(&batch.slice(row, 1))
        {
            return RowError { row: Some(row), error: f.error };
        }
        let (mut start, mut end, mut error) = (0, batch.num_rows(), first.error);
        while end - start > 1 {
            let middle = start + (end - start) / 2;
            if let Err(f) = self.run(&batch.slice(start, middle - start)) {
                (end, error) = (middle, f.error);
            } else if let Err(f) = self.run(&batch.slice(middle, end - middle)) {
                (start, error) = (middle, f.error);
            } else {
                // No row fails alone, for example when only all rows together are too large.
                return unknown(error);
            }
        }
        RowError { row: Some(start), error }
    }
}

/// Finds the columns that an expression reads directly below `hash_bucket`, and the others.
fn sort_reads(
    expr: &Arc<dyn PhysicalExpr>,
    is_hashed: bool,
    hashed: &mut BTreeSet<usize>,
    others: &mut BTreeSet<usize>,
) {
    if let Some(column) = expr.downcast_ref::<Column>() {
        let reads = if is_hashed { hashed } else { others };
        reads.insert(column.index());
        return;
    }
    let is_hash = expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(|f| f.fun().name() == "hash_bucket");
    expr.children().into_iter().for_each(|child| sort_reads(child, is_hash, hashed, others));
}

/// The kind of the error of a call whose measured time is too long.
pub(crate) const TOO_SLOW: ErrorKind = ErrorKind::FailedPrecondition;

/// The error of a function of a library for which a value is out of range: it belongs to a row.
fn out_of_range(text: &str) -> Fault {
    Error::invalid(format!("a value is outside of what the function computes: {text}")).into()
}

/// Converts an error of DataFusion's evaluation.
fn fault(e: &DataFusionError, label: &str) -> Fault {
    let named = |error: Error| if label.is_empty() { error } else { error.context(label) };
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(cause) = source {
        if let Some(f) = cause.downcast_ref::<Fault>() {
            return Fault { row: f.row, error: named(f.error.clone()) };
        }
        source = cause.source();
    }
    let kind = match e.find_root() {
        DataFusionError::Internal(_) => ErrorKind::Internal,
        DataFusionError::ResourcesExhausted(_) => ErrorKind::ResourceExhausted,
        DataFusionError::ArrowError(e, _) => match **e {
            ArrowError::MemoryError(_) | ArrowError::OffsetOverflowError(_) => ErrorKind::ResourceExhausted,
            _ => ErrorKind::InvalidArgument,
        },
        _ => ErrorKind::InvalidArgument,
    };
    let text = match e.find_root() {
        DataFusionError::Execution(m) | DataFusionError::Plan(m) | DataFusionError::Internal(m) => m.clone(),
        DataFusionError::ArrowError(e, _) => e.to_string(),
        other => other.strip_backtrace(),
    };
    Fault { row: None, error: named(Error::new(kind, explained(text))) }
}

/// The text of an error, with the other reason that it may have.
fn explained(text: String) -> String {
    if text.ends_with("Timestamp out of range") {
        return format!(
            "{text}, or a local time that its time zone skips or has twice, where clocks are changed; add the interval to the \
             time in UTC, which `arrow_cast(t, 'Timestamp(Microsecond, Some(\"UTC\"))')` is"
        );
    }
    text
}
