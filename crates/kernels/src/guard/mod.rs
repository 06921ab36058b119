//! Guards that keep DataFusion's functions within the memory budget of a chunk (see [`caju_runtime::budget`]).
//!
//! Our kernels charge the budget themselves. DataFusion's functions do not know the budget. So each call whose result can be
//! much larger than its arguments is replaced by one that first predicts the size of the result and charges it ([`Rule`]).
//! A call whose time is not linear in the bytes that it handles charges its steps in the same way ([`Steps`]). Casts to types of
//! which even null is large, and long literals, are replaced in the same way. When an expression is bound, the same guards with
//! a small budget bound the folding of constants.
//!
//! Calls and casts whose result would not fit its type without an error are guarded, too ([`GuardedCast`]).

mod automaton;
mod cast;
mod matches;
mod patterns;
mod range;
mod rule;
mod size;
mod steps;
mod udf;

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use caju_types::{Error, format_bytes};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, ScalarValue};
use datafusion_expr::expr::{Cast, ScalarFunction, TryCast};
use datafusion_expr::{Expr, ExprSchemable, Operator, ScalarUDF, ScalarUDFImpl};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::ScalarFunctionExpr;
use datafusion_physical_expr::expressions::Column;

use cast::{GuardedCast, needs_guard};
pub(crate) use matches::MatchTime;
pub(crate) use patterns::{PatternSizes, Patterns};
use range::Range;
#[cfg(test)]
pub(crate) use rule::rule;
pub(crate) use size::fixed_width;
pub(crate) use steps::{Steps, steps};
use udf::{ChargedText, Guarded, LongLiteral};

use crate::kernel::{Fault, KernelUdf};

/// The most bytes of memory that binding the expressions of a stage may request.
pub(crate) const BIND_BYTES: u64 = 1 << 20;

/// The most bytes of the constants of one expression that are computed while it is bound. Larger constants are computed with
/// the rows. The bound is on time, too: the cost of a function such as `levenshtein` is the product of its arguments'
/// lengths, and stays below a second.
pub(crate) const FOLD_BYTES: u64 = 16 << 10;

/// The bytes above which a literal counts towards [`FOLD_BYTES`].
const FOLDED_LITERAL_BYTES: usize = 4 << 10;

/// The bytes above which a literal is charged for every row in which it is a value.
const LITERAL_BYTES: usize = 128;

fn call(f: impl ScalarUDFImpl + 'static, args: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(f)), args))
}

/// Replaces calls and casts whose results can be much larger than their inputs. The dialect that we parse has no lambdas: a
/// test checks that.
pub(crate) fn guard(expr: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    expr.transform_up(|e| match e {
        Expr::ScalarFunction(f) => {
            if let Some(cast) = cast_call(&f, schema) {
                return Ok(Transformed::yes(cast));
            }
            if reads_field_of_computed(&f) {
                let field = Guarded { inner: f.func, rule: None, steps: None, range: Some(Range::Field) };
                return Ok(Transformed::yes(call(field, f.args)));
            }
            let ours = f.func.inner().downcast_ref::<Guarded>().is_some();
            let name = f.func.name();
            let (rule, steps, range) = (rule::rule(name), steps(name), range::range(name));
            if ours || (rule.is_none() && steps.is_none() && range.is_none()) {
                return Ok(Transformed::no(Expr::ScalarFunction(f)));
            }
            Ok(Transformed::yes(call(Guarded { inner: f.func, rule, steps, range }, f.args)))
        }
        Expr::Cast(Cast { expr, field }) if is_guarded(&expr, field.data_type(), schema) => {
            Ok(Transformed::yes(call(GuardedCast::new(&field, false), vec![*expr])))
        }
        Expr::TryCast(TryCast { expr, field }) if is_guarded(&expr, field.data_type(), schema) => {
            Ok(Transformed::yes(call(GuardedCast::new(&field, true), vec![*expr])))
        }
        e => Ok(Transformed::no(e)),
    })
    .data()
}

/// Whether a call reads a field of a struct that the expression computes. Structs of columns have no values below their nulls.
fn reads_field_of_computed(f: &ScalarFunction) -> bool {
    let reads = |f: &ScalarFunction| f.func.name() == GET_FIELD;
    if !reads(f) || f.func.inner().downcast_ref::<Guarded>().is_some() {
        return false;
    }
    let mut of = f.args.first();
    while let Some(Expr::ScalarFunction(inner)) = of
        && reads(inner)
    {
        of = inner.args.first();
    }
    !matches!(of, None | Some(Expr::Column(_)))
}

/// DataFusion's function for `struct.field`.
const GET_FIELD: &str = "get_field";

/// Whether a cast of an expression is replaced by a [`GuardedCast`].
fn is_guarded(expr: &Expr, to: &DataType, schema: &DFSchema) -> bool {
    expr.get_type(schema).map_or(true, |from| needs_guard(&from, to))
}

/// Replaces `arrow_cast` and similar functions, which simplification would turn into casts.
fn cast_call(f: &ScalarFunction, schema: &DFSchema) -> Option<Expr> {
    let null_if_not = match f.func.name() {
        "arrow_cast" | "cast_to_type" => false,
        "arrow_try_cast" | "try_cast_to_type" => true,
        _ => return None,
    };
    let (_, field) = Expr::ScalarFunction(f.clone()).to_field(schema).ok()?;
    let value = f.args.first()?.clone();
    is_guarded(&value, field.data_type(), schema)
        .then(|| call(GuardedCast::new(&field, null_if_not), vec![value]))
}

/// Replaces long literals that become values of every row: as the whole expression, in the branches of `case`, and as
/// operands of `||`. Functions that copy literals are guarded, and others read them once. It has to run after constants were
/// folded: folding would turn a call without arguments into a literal again.
pub(crate) fn charge_literals(expr: Expr) -> Result<Expr, DataFusionError> {
    let expr = expr.transform_up(|e| {
        Ok(match e {
            Expr::Case(mut case) => {
                for (_, then) in &mut case.when_then_expr {
                    **then = long_literal(std::mem::take(&mut **then));
                }
                case.else_expr = case.else_expr.map(|e| Box::new(long_literal(*e)));
                Transformed::yes(Expr::Case(case))
            }
            Expr::BinaryExpr(mut b) if b.op == Operator::StringConcat => {
                b.left = Box::new(long_literal(*b.left));
                b.right = Box::new(long_literal(*b.right));
                Transformed::yes(Expr::BinaryExpr(b))
            }
            e => Transformed::no(e),
        })
    });
    Ok(long_literal(expr.data()?))
}

/// Charges the steps of operators that match text by a pattern: `like`, `similar to`, `~`. It has to run after constants were
/// folded, since these operators are simplified.
pub(crate) fn charge_matches(expr: Expr) -> Result<Expr, DataFusionError> {
    expr.transform_up(|mut e| {
        let Some((text, pattern, steps)) = steps::matched(&mut e) else { return Ok(Transformed::no(e)) };
        **text = call(ChargedText::new(steps), vec![std::mem::take(&mut **text), pattern]);
        Ok(Transformed::yes(e))
    })
    .data()
}

/// Replaces long literals by calls that charge the budget, so that no constant is computed from them while an expression is
/// bound.
pub(crate) fn keep_long_literals(expr: Expr) -> Result<Expr, DataFusionError> {
    expr.transform_up(|e| Ok(Transformed::yes(literal_above(e, FOLDED_LITERAL_BYTES)))).data()
}

fn long_literal(expr: Expr) -> Expr {
    literal_above(expr, LITERAL_BYTES)
}

fn literal_above(expr: Expr, bytes: usize) -> Expr {
    match expr {
        Expr::Literal(value, None) if is_text(&value) && value.size() > bytes => {
            call(LongLiteral::new(value), vec![])
        }
        e => e,
    }
}

fn is_text(value: &ScalarValue) -> bool {
    !value.is_null()
        && matches!(
            value,
            ScalarValue::Utf8(_)
                | ScalarValue::LargeUtf8(_)
                | ScalarValue::Utf8View(_)
                | ScalarValue::Binary(_)
                | ScalarValue::LargeBinary(_)
                | ScalarValue::BinaryView(_)
                | ScalarValue::List(_)
                | ScalarValue::LargeList(_)
                | ScalarValue::Struct(_)
                | ScalarValue::Map(_)
        )
}

/// Refuses an expression of whose values a single one exceeds the budget of a chunk, by its type alone.
pub(crate) fn check_widths(
    expr: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
    max_bytes: u64,
) -> Result<(), DataFusionError> {
    for child in expr.children() {
        check_widths(child, schema, max_bytes)?;
    }
    let width = expr.return_field(schema).map_or(0, |f| fixed_width(f.data_type()));
    if width <= max_bytes || expr.downcast_ref::<Column>().is_some() {
        return Ok(());
    }
    let what = match expr.downcast_ref::<ScalarFunctionExpr>() {
        Some(f) => format!("`{}`", f.name()),
        None => "the expression".to_owned(),
    };
    let error = Error::invalid(format!(
        "{what} gives values of {} each, and {} is the most that the work on one chunk may take; make them smaller, or \
         raise --chunk-memory",
        format_bytes(width),
        format_bytes(max_bytes)
    ));
    Err(Fault::from(error).into())
}

/// The bytes per row of wide values in an expression that are not charged elsewhere: the results of `case` and similar
/// expressions, whose nulls take as much as values.
pub(crate) fn wide_bytes(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> u64 {
    let below = expr.children().into_iter().fold(0u64, |a, c| a.saturating_add(wide_bytes(c, schema)));
    let charged = expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(|f| {
        let udf = f.fun().inner();
        udf.downcast_ref::<KernelUdf>().is_some() || udf.downcast_ref::<GuardedCast>().is_some()
    });
    if charged || expr.downcast_ref::<Column>().is_some() {
        return below;
    }
    let width = expr.return_field(schema).map_or(0, |f| fixed_width(f.data_type()));
    if width > size::WIDE_BYTES { below.saturating_add(width) } else { below }
}
