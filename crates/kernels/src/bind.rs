//! Binding: expressions and a schema in, something that can be evaluated out.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use caju_pipeline::{DatasetDef, StageOp, content_name};
use caju_runtime::{IsolatedThreads, budget};
use caju_types::{Error, Fingerprint, Result, did_you_mean, hash128};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, ScalarValue, SchemaError};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{Expr, ExprSchemable, ScalarUDF};
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::tokenizer::Location;

use crate::common::{self, Shared};
use crate::eval::{BoundExprs, Computed};
use crate::guard::{BIND_BYTES, check_widths, wide_bytes};
use crate::sql::{self, Builtins, KEY_COLUMN, Planner, Rewrite};
use crate::udf::{Fault, KernelUdf, checked_rest, with_constant};

/// What a process refuses to exceed, whatever a definition or the data say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most pixels of an image that `decode_image` accepts; a call may say less, not more.
    pub max_pixels: u64,
    /// The most memory that a stage may ask for while it works on one chunk of rows, in bytes. A chunk that needs more
    /// is cut; a row that does is an error.
    pub chunk_bytes: u64,
    /// The largest record that a source reads, in bytes.
    pub max_record_bytes: u64,
    /// How long binding a definition may take, the wait for others included.
    pub bind_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pixels: caju_image::DEFAULT_MAX_PIXELS,
            chunk_bytes: budget::DEFAULT_BYTES,
            max_record_bytes: DEFAULT_MAX_RECORD_BYTES,
            bind_timeout: DEFAULT_BIND_TIMEOUT,
        }
    }
}

/// Well above images, sounds and documents; sixteen readers hold one each, or two.
const DEFAULT_MAX_RECORD_BYTES: u64 = 256 << 20;

/// Ten times what the largest definitions that people write take on a busy machine.
const DEFAULT_BIND_TIMEOUT: Duration = Duration::from_secs(10);

/// Definitions that are bound at the same time: one that takes long does not hold up the next, and more would take the
/// cores of the work at hand.
const BOUND_AT_ONCE: usize = 2;

/// The functions that expressions may call: DataFusion's immutable scalar functions and our kernels.
/// Cheap to clone.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{AsArray, Int32Array, RecordBatch};
/// use arrow::datatypes::Float64Type;
/// use caju_kernels::{Limits, Registry};
///
/// let x = Arc::new(Int32Array::from(vec![Some(0), None, Some(1)])) as _;
/// let batch = RecordBatch::try_from_iter([("x", x)]).unwrap();
/// let registry = Registry::new(Limits::default());
/// let bound = registry.bind("steps[0].map", &[("y".into(), "ln(x + 1)".into())], &batch.schema())?;
/// let y = bound.evaluate(&batch, None).unwrap();
/// let y = y[0].as_primitive::<Float64Type>();
/// assert_eq!(y.iter().collect::<Vec<_>>(), [Some(0.0), None, Some(2f64.ln())]);
///
/// let e = registry.bind("steps[0].map", &[("y".into(), "lnn(x)".into())], &batch.schema()).unwrap_err();
/// assert_eq!(e.to_string(), "steps[0].map.y: unknown function `lnn` at column 1; did you mean `ln`?");
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
    python: Option<caju_functions::Pool>,
    /// Whether functions in Python are of others than whoever runs this process.
    of_others: bool,
}

struct Inner {
    builtins: Builtins,
    limits: Limits,
    threads: IsolatedThreads,
    /// Whether nested image operations become one function, and some calls of DataFusion's functions ours;
    /// off in tests only, to compare.
    fuse: bool,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

/// Goes through the functions in Python that a definition has, in their order.
fn payloads(def: &DatasetDef, each: &mut impl FnMut(&[u8])) {
    def.source.children().iter().for_each(|child| payloads(child, each));
    for stage in &def.stages {
        if let StageOp::Python(f) = &stage.op {
            each(&f.payload);
        }
    }
}

impl Registry {
    /// All functions, with these limits.
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, true)
    }

    fn with(limits: Limits, fuse: bool) -> Self {
        let threads = IsolatedThreads::new("bind", BOUND_AT_ONCE, limits.bind_timeout, sql::STACK_BYTES);
        Self {
            inner: Arc::new(Inner { builtins: Builtins::new(), limits, threads, fuse }),
            python: None,
            of_others: false,
        }
    }

    /// What the process refuses to exceed.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Runs work that reads or binds what somebody sent, on a thread of its own: two at a time, within
    /// [`Limits::bind_timeout`]. Async code that calls other functions of this type does it in here. `what` names the
    /// work in errors.
    ///
    /// # Errors
    /// Those of `work`, and `DeadlineExceeded`.
    pub async fn run_isolated<T, F>(&self, what: impl std::fmt::Display, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        self.inner.threads.run(what, work).await
    }

    /// The same functions, and those that users have written in Python, which run in this pool.
    #[must_use]
    pub fn with_python(mut self, pool: caju_functions::Pool) -> Self {
        self.python = Some(pool);
        self
    }

    /// The same, where the functions are of whoever reaches this process: what rows of theirs are stored under covers the
    /// functions as they were sent, whatever their definitions say.
    #[must_use]
    pub fn with_python_of_others(self, pool: caju_functions::Pool) -> Self {
        Self { of_others: true, ..self.with_python(pool) }
    }

    /// Whether functions in Python are of others than whoever runs this process.
    pub(crate) fn runs_for_others(&self) -> bool {
        self.of_others
    }

    /// Where functions in Python run; none if they are not allowed here.
    pub fn python(&self) -> Option<&caju_functions::Pool> {
        self.python.as_ref()
    }

    /// The same functions, with processes of their own for what a definition has in Python: those of another definition
    /// never run in them.
    #[must_use]
    pub fn for_definition(&self, def: &DatasetDef) -> Self {
        let definition = self.payloads(def).map_or(0, |named| named.0);
        let python = self.python.as_ref().map(|pool| pool.for_definition(definition));
        Self { inner: Arc::clone(&self.inner), python, of_others: self.of_others }
    }

    /// The name of a definition's functions in Python, as they were sent; none if it has none.
    pub fn payloads(&self, def: &DatasetDef) -> Option<Fingerprint> {
        let mut named = Vec::new();
        payloads(def, &mut |payload| named.extend_from_slice(content_name(payload).as_bytes()));
        (!named.is_empty()).then(|| Fingerprint(hash128(&named)))
    }

    /// The same functions, each as it is written.
    #[cfg(test)]
    pub(crate) fn without_fusion(limits: Limits) -> Self {
        Self::with(limits, false)
    }

    /// Binds one stage's expressions against its input schema. `place` is like `steps[3].map`; errors name
    /// place, output column, and the position in the text.
    ///
    /// # Errors
    /// `InvalidArgument` for expressions that do not parse, name unknown columns, functions or arguments,
    /// or do not fit the types of the columns.
    pub fn bind(&self, place: &str, exprs: &[(String, String)], input: &SchemaRef) -> Result<BoundExprs> {
        let names: Vec<_> = exprs
            .iter()
            .map(|(name, sql)| (name.as_str(), sql.as_str(), format!("{place}.{name}")))
            .collect();
        for (i, (name, ..)) in names.iter().enumerate() {
            if names[..i].iter().any(|(n, ..)| n == name) {
                return Err(Error::invalid(format!("{place}: the column `{name}` is computed twice")));
            }
        }
        self.bind_all(place, &names, input)
    }

    /// Binds a predicate: one boolean column. A row whose predicate is null does not pass.
    ///
    /// # Errors
    /// As [`Self::bind`]; and if the expression is not boolean.
    pub fn bind_predicate(&self, place: &str, sql: &str, input: &SchemaRef) -> Result<BoundExprs> {
        let bound = self.bind_all(place, &[("", sql, place.to_owned())], input)?;
        match bound.fields()[0].data_type() {
            DataType::Boolean => Ok(bound),
            other => {
                Err(Error::invalid(format!("{place}: `{sql}` is {other}, and a condition must be boolean")))
            }
        }
    }

    fn bind_all(&self, place: &str, exprs: &[(&str, &str, String)], input: &SchemaRef) -> Result<BoundExprs> {
        // Whatever is evaluated on the way is small, or is left for the rows.
        sql::roomy(|| budget::scope(BIND_BYTES, || self.bind_here(place, exprs, input)))
    }

    fn bind_here(
        &self,
        place: &str,
        exprs: &[(&str, &str, String)],
        input: &SchemaRef,
    ) -> Result<BoundExprs> {
        let schema = with_key(input).map_err(|e| e.context(place))?;
        let mut planned = Vec::with_capacity(exprs.len());
        let mut calls = Vec::new();
        let mut random = false;
        for (name, sql, place) in exprs {
            let tree =
                self.rewrite(name, sql, input, &mut calls, &mut random).map_err(|e| e.context(place))?;
            let planner = Planner { builtins: &self.inner.builtins, calls: &calls };
            let plan = planner.plan(tree.clone(), &schema).and_then(|e| {
                let e = if self.inner.fuse { null_as(e, &schema)? } else { e };
                let e = planner.coerce(e, &schema)?;
                planner.simplify(if self.inner.fuse { fast(e, &schema)? } else { e }, &schema)
            });
            planned.push(plan.map_err(|e| wrong(&e, sql, input).context(place))?);
        }
        let shared = common::share(planned).map_err(|e| Error::internal(e.to_string()).context(place))?;
        physical(place, exprs, shared, input, random, self.inner.limits.chunk_bytes)
    }

    /// Parses one expression and takes our calls out of it.
    fn rewrite(
        &self,
        name: &str,
        text: &str,
        input: &SchemaRef,
        calls: &mut Vec<Arc<ScalarUDF>>,
        random: &mut bool,
    ) -> Result<ast::Expr> {
        let mut tree = sql::parse(text)?;
        let columns: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
        let rewrite = Rewrite {
            builtins: &self.inner.builtins,
            limits: &self.inner.limits,
            columns: Some(&columns),
            output: name,
            first_call: calls.len(),
            fuse: self.inner.fuse,
        };
        let found = rewrite.run(&mut tree)?;
        *random |= found.random;
        calls.extend(found.kernels.into_iter().map(|k| Arc::new(ScalarUDF::new_from_impl(k))));
        Ok(tree)
    }

    /// What an expression calls, without a schema.
    pub(crate) fn inspect(&self, text: &str) -> Result<(ast::Expr, sql::Rewritten)> {
        sql::roomy(|| budget::scope(BIND_BYTES, || self.inspect_here(text)))
    }

    fn inspect_here(&self, text: &str) -> Result<(ast::Expr, sql::Rewritten)> {
        let tree = sql::parse(text)?;
        let mut rewritten = tree.clone();
        let rewrite = Rewrite {
            builtins: &self.inner.builtins,
            limits: &self.inner.limits,
            columns: None,
            output: "",
            first_call: 0,
            fuse: self.inner.fuse,
        };
        let found = rewrite.run(&mut rewritten)?;
        Ok((tree, found))
    }
}

/// The input with the key column at its end.
fn with_key(input: &Schema) -> Result<Arc<DFSchema>> {
    if input.fields().iter().any(|f| f.name() == KEY_COLUMN) {
        return Err(Error::invalid(format!("the column name `{KEY_COLUMN}` is reserved; rename the column")));
    }
    let mut fields: Vec<_> = input.fields().iter().map(Arc::clone).collect();
    fields.push(Arc::new(Field::new(KEY_COLUMN, DataType::UInt64, false)));
    let schema = DFSchema::try_from(Schema::new(fields));
    schema
        .map(Arc::new)
        .map_err(|e| Error::invalid(format!("the input has no usable schema: {}", e.strip_backtrace())))
}

/// `hash_bucket(coalesce(x, 'c'), n)` hashes x itself, null as 'c': no column of strings is copied.
fn null_as(expr: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    expr.transform_up(|e| {
        let Expr::ScalarFunction(call) = &e else { return Ok(Transformed::no(e)) };
        Ok(match absorb_coalesce(call, schema) {
            Some(call) => Transformed::yes(Expr::ScalarFunction(call)),
            None => Transformed::no(e),
        })
    })
    .data()
}

/// Calls of DataFusion's functions as those of ours that compute the same in one pass.
fn fast(expr: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    expr.transform_up(|e| {
        let Expr::ScalarFunction(call) = &e else { return Ok(Transformed::no(e)) };
        Ok(match with_constant(call, schema) {
            Some(ours) => Transformed::yes(ours),
            None => Transformed::no(e),
        })
    })
    .data()
}

fn absorb_coalesce(call: &ScalarFunction, schema: &DFSchema) -> Option<ScalarFunction> {
    let kernel = call.func.inner().downcast_ref::<KernelUdf>()?;
    let Expr::ScalarFunction(coalesce) = call.args.first()? else { return None };
    let [value, Expr::Literal(standin, _)] = &coalesce.args[..] else { return None };
    if coalesce.func.name() != "coalesce" || standin.is_null() {
        return None;
    }
    let column = value.get_type(schema).ok()?;
    let column = if let DataType::Dictionary(_, v) = &column { v } else { &column };
    let text = |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    // Where coalesce would cast the column, it has to stay. (Integers hash by their value, whatever
    // their width, so that widening them changes nothing; but u64 and i64 meet in no integer.)
    let same = match standin {
        ScalarValue::Int64(_) => column.is_integer() && *column != DataType::UInt64,
        other => text(&other.data_type()) && text(column),
    };
    let kernel = kernel.with_null_as(standin).filter(|_| same)?;
    let args = [std::slice::from_ref(value), &call.args[1..]].concat();
    Some(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(kernel)), args))
}

/// From shared logical expressions to what is evaluated.
fn physical(
    place: &str,
    exprs: &[(&str, &str, String)],
    shared: Shared,
    input: &SchemaRef,
    random: bool,
    chunk_bytes: u64,
) -> Result<BoundExprs> {
    let mut read: Vec<usize> = Vec::new();
    let mut keyed = false;
    for column in shared.common.iter().map(|(e, _)| e).chain(&shared.exprs).flat_map(Expr::column_refs) {
        match input.index_of(&column.name) {
            Ok(i) => read.push(i),
            Err(_) => keyed |= column.name == KEY_COLUMN,
        }
    }
    read.sort_unstable();
    read.dedup();
    let random = random && keyed;

    let mut fields: Vec<_> = read.iter().map(|i| Arc::clone(&input.fields()[*i])).collect();
    if random {
        fields.push(Arc::new(Field::new(KEY_COLUMN, DataType::UInt64, false)));
    }
    let failed = |sql: &str, e: &DataFusionError| wrong(e, sql, input);
    let narrow = Arc::new(Schema::new(fields.clone()));
    let mut common = Vec::new();
    for (expr, alias) in &shared.common {
        let (e, field) =
            compile(expr, &narrow, alias, chunk_bytes).map_err(|e| failed("", &e).context(place))?;
        fields.push(Arc::new(field));
        common.push(e);
    }
    let wide = Arc::new(Schema::new(fields));
    let mut row_bytes = common.iter().fold(0u64, |a, e| a.saturating_add(wide_bytes(e, &narrow)));
    let mut outputs = Vec::new();
    let mut out_fields = Vec::new();
    for (expr, (name, sql, place)) in shared.exprs.iter().zip(exprs) {
        let (e, field) =
            compile(expr, &wide, name, chunk_bytes).map_err(|e| failed(sql, &e).context(place))?;
        out_fields.push(Arc::new(field));
        row_bytes = row_bytes.saturating_add(wide_bytes(&e, &wide));
        let label = if name.is_empty() { String::new() } else { format!("column `{name}`") };
        outputs.push(Computed { label, expr: e });
    }
    Ok(BoundExprs::new(
        Fields::from(out_fields),
        read,
        random,
        Arc::clone(input),
        narrow,
        wide,
        common,
        outputs,
        row_bytes,
    )
    .within(chunk_bytes))
}

fn compile(
    expr: &Expr,
    schema: &SchemaRef,
    name: &str,
    chunk_bytes: u64,
) -> Result<(Arc<dyn PhysicalExpr>, Field), DataFusionError> {
    let df = DFSchema::try_from(Arc::clone(schema))?;
    let e = checked_rest(create_physical_expr(expr, &df, &ExecutionProps::new(), &Default::default())?)?;
    check_widths(&e, schema, chunk_bytes)?;
    let field = e.return_field(schema)?;
    Ok((e, field.as_ref().clone().with_name(name)))
}

/// A planning error in our words.
fn wrong(e: &DataFusionError, sql: &str, input: &Schema) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(cause) = source {
        if let Some(fault) = cause.downcast_ref::<Fault>() {
            return fault.error.clone();
        }
        if let Some(SchemaError::FieldNotFound { field, .. }) = cause.downcast_ref::<SchemaError>() {
            return unknown_column(&field.flat_name(), &field.name, sql, input);
        }
        source = cause.source();
    }
    let message = match e.find_root() {
        DataFusionError::Plan(m) | DataFusionError::NotImplemented(m) | DataFusionError::Execution(m) => {
            m.clone()
        }
        DataFusionError::SchemaError(e, _) => e.to_string(),
        DataFusionError::ArrowError(e, _) => e.to_string(),
        other => other.strip_backtrace(),
    };
    let message = message.split("\n\nbacktrace:").next().unwrap_or_default().trim_end();
    // DataFusion lists candidate signatures on lines of their own.
    let lines = message.lines().map(|l| l.trim().trim_end_matches(['.', ';'])).filter(|l| !l.is_empty());
    Error::invalid(format!("`{}`: {}", short(sql), lines.collect::<Vec<_>>().join("; ")))
}

fn short(sql: &str) -> String {
    let one_line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(120) {
        Some((at, _)) => format!("{}...", &one_line[..at]),
        None => one_line,
    }
}

fn unknown_column(full: &str, name: &str, sql: &str, input: &Schema) -> Error {
    const SHOWN: usize = 12;
    let names: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
    let full = full.replace('"', "");
    let near = did_you_mean(&full, &names);
    // `image/encoded` without quotes is a division, and `a.b` a field of `a`.
    let part_of =
        |n: &&str| n.replace(['/', '-'], ".") == full || n.split(['/', '-', '.']).any(|part| part == full);
    let hint = match names.iter().copied().find(part_of) {
        Some(n) => format!("; for the column `{n}` write \"{n}\" in double quotes"),
        None => near,
    };
    let mut list = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        list.push_str(&format!(", ... ({} in all)", names.len()));
    }
    let place =
        sql::parse(sql).ok().and_then(|tree| find_column(&tree, name)).map(sql::at).unwrap_or_default();
    let there = if names.is_empty() { "there are none".to_owned() } else { format!("columns: {list}") };
    Error::invalid(format!("unknown column `{full}`{place}{hint} ({there})"))
}

/// Where a column is first named.
fn find_column(tree: &ast::Expr, name: &str) -> Option<Location> {
    let mut found = None;
    let _ = ast::visit_expressions(tree, |e| {
        let ids: &[ast::Ident] = match e {
            ast::Expr::Identifier(id) => std::slice::from_ref(id),
            ast::Expr::CompoundIdentifier(ids) => ids,
            _ => &[],
        };
        match ids.iter().find(|id| id.value == name) {
            Some(_) => {
                found = ids.first().map(|id| id.span.start);
                std::ops::ControlFlow::Break(())
            }
            None => std::ops::ControlFlow::Continue(()),
        }
    });
    found
}
