//! Binding: from expressions and a schema to something that can be evaluated.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use caju_runtime::budget;
use caju_types::{Error, Result};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, ScalarValue};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{Expr, ExprSchemable, ScalarUDF};
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion_sql::sqlparser::ast;

use crate::cse::{self, Shared};
use crate::eval::{BoundExprs, Computed};
use crate::guard::{BIND_BYTES, check_widths, wide_bytes};
use crate::kernel::KernelUdf;
use crate::limits::Limits;
use crate::plan_error::plan_error;
use crate::registry::Registry;
use crate::short_circuit::short_circuits;
use crate::sql::{self, KEY_COLUMN, Planner, Rewrite};
use crate::syntax;
use crate::udf::{checked_rest, with_constant};

impl Registry {
    /// Binds one stage's expressions against its input schema. `place` names the stage, as in `steps[3].map`. Errors name
    /// the place, the output column, and the position in the text.
    ///
    /// # Errors
    /// `InvalidArgument` for expressions that do not parse, name unknown columns, functions or arguments, or cannot take the
    /// types of the columns.
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

    /// Binds a predicate: one boolean column. A row for which the predicate is null does not pass.
    ///
    /// # Errors
    /// As [`Self::bind`], and `InvalidArgument` if the expression is not boolean.
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
        // Binding evaluates only small constants. Larger ones are evaluated with the rows.
        sql::with_stack(|| budget::scope(BIND_BYTES, || self.bind_here(place, exprs, input)))
    }

    fn bind_here(
        &self,
        place: &str,
        exprs: &[(&str, &str, String)],
        input: &SchemaRef,
    ) -> Result<BoundExprs> {
        let schema = with_key(input).map_err(|e| e.context(place))?;
        let mut planned = Vec::with_capacity(exprs.len());
        let mut named = Vec::with_capacity(exprs.len());
        let mut calls = Vec::new();
        let mut random = false;
        for (name, sql, place) in exprs {
            let tree =
                self.rewrite(name, sql, input, &mut calls, &mut random).map_err(|e| e.context(place))?;
            let planner = Planner { builtins: &self.inner.builtins, calls: &calls };
            let plan = planner.plan(tree.clone(), &schema).and_then(|e| {
                named.push(columns_of(&e, input));
                let e = if self.inner.fuse { null_as(e, &schema)? } else { e };
                let e = planner.coerce(e, &schema)?;
                planner.simplify(if self.inner.fuse { fast(e, &schema)? } else { e }, &schema)
            });
            planned.push(plan.map_err(|e| plan_error(&e, sql, input).context(place))?);
        }
        let shared = cse::share(planned).map_err(|e| Error::internal(e.to_string()).context(place))?;
        physical(place, exprs, shared, named, input, random, &self.inner.limits)
    }

    /// Parses one expression, and replaces our calls in it.
    fn rewrite(
        &self,
        name: &str,
        text: &str,
        input: &SchemaRef,
        calls: &mut Vec<Arc<ScalarUDF>>,
        random: &mut bool,
    ) -> Result<ast::Expr> {
        let mut tree = syntax::parse(text)?;
        let columns: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
        let rewrite = Rewrite {
            builtins: &self.inner.builtins,
            limits: &self.inner.limits,
            columns: Some(&columns),
            output: name,
            first_call: calls.len(),
            fuse: self.inner.fuse,
            patterns: &self.patterns(),
        };
        let found = rewrite.run(&mut tree)?;
        sql::exact_decimals(&mut tree);
        *random |= found.random;
        calls.extend(found.kernels.into_iter().map(|k| Arc::new(ScalarUDF::new_from_impl(k))));
        Ok(tree)
    }

    /// The functions that an expression calls, found without a schema.
    pub(crate) fn inspect(&self, text: &str) -> Result<(ast::Expr, sql::Rewritten)> {
        sql::with_stack(|| budget::scope(BIND_BYTES, || self.inspect_here(text)))
    }

    fn inspect_here(&self, text: &str) -> Result<(ast::Expr, sql::Rewritten)> {
        let tree = syntax::parse(text)?;
        let mut rewritten = tree.clone();
        let rewrite = Rewrite {
            builtins: &self.inner.builtins,
            limits: &self.inner.limits,
            columns: None,
            output: "",
            first_call: 0,
            fuse: self.inner.fuse,
            patterns: &self.patterns(),
        };
        let found = rewrite.run(&mut rewritten)?;
        Ok((tree, found))
    }
}

/// The input schema with the key column at its end.
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

/// Makes `hash_bucket(coalesce(x, 'c'), n)` hash x itself, and null as 'c', so that no column of strings is copied.
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

/// Replaces calls of DataFusion's functions by faster ones that compute the same in one pass.
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
    // A coalesce that casts the column has to stay. Integers hash by their value, whatever their width, so that widening
    // them changes nothing. But u64 and i64 have no common integer type.
    let same = match standin {
        ScalarValue::Int64(_) => column.is_integer() && *column != DataType::UInt64,
        other => text(&other.data_type()) && text(column),
    };
    let kernel = kernel.with_null_as(standin).filter(|_| same)?;
    let args = [std::slice::from_ref(value), &call.args[1..]].concat();
    Some(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(kernel)), args))
}

/// The input columns that an expression names, as sorted indices.
fn columns_of(expr: &Expr, input: &SchemaRef) -> Vec<usize> {
    let found: BTreeSet<usize> =
        expr.column_refs().into_iter().filter_map(|c| input.index_of(&c.name).ok()).collect();
    found.into_iter().collect()
}

/// Compiles shared logical expressions to physical ones. The text of an expression may name columns that its simplified form
/// does not read (`named`): they are read, too, because the text can only be bound where they are.
fn physical(
    place: &str,
    exprs: &[(&str, &str, String)],
    shared: Shared,
    named: Vec<Vec<usize>>,
    input: &SchemaRef,
    random: bool,
    limits: &Limits,
) -> Result<BoundExprs> {
    let chunk_bytes = limits.chunk_bytes;
    let mut read: Vec<usize> = named.concat();
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
    let failed = |sql: &str, e: &DataFusionError| plan_error(e, sql, input);
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
        named,
        random,
        Arc::clone(input),
        narrow,
        wide,
        common,
        outputs,
        row_bytes,
    )
    .within(chunk_bytes, limits.chunk_steps))
}

fn compile(
    expr: &Expr,
    schema: &SchemaRef,
    name: &str,
    chunk_bytes: u64,
) -> Result<(Arc<dyn PhysicalExpr>, Field), DataFusionError> {
    let df = DFSchema::try_from(Arc::clone(schema))?;
    let e = checked_rest(create_physical_expr(expr, &df, &ExecutionProps::new(), &Default::default())?)?;
    let e = short_circuits(e, schema)?;
    check_widths(&e, schema, chunk_bytes)?;
    let field = e.return_field(schema)?;
    Ok((e, field.as_ref().clone().with_name(name)))
}
