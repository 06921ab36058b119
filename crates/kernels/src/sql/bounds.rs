//! Bounds on what a text asks of the planner: the depth of types, the size of numbers, the memory of patterns.

use std::ops::ControlFlow;

use caju_pipeline::MAX_TYPE_LEVELS;
use caju_types::{Error, Result};
use datafusion_sql::sqlparser::ast::{
    ArrayElemTypeDef, BinaryOperator, DataType, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, Value, visit_expressions,
};

use super::context::Builtins;
use crate::columns::too_deep;
use crate::guard::{Patterns, Steps, steps};

/// Checks one expression without those in it.
///
/// # Errors
/// `InvalidArgument` that names the type, the number or the pattern.
pub(super) fn check(expr: &Expr, builtins: &Builtins, patterns: &Patterns) -> Result<()> {
    match expr {
        Expr::Value(v) => match &v.value {
            Value::Number(text, _) if text.parse::<f64>().is_ok_and(f64::is_infinite) => {
                let short: String = text.chars().take(MAX_SHOWN).collect();
                Err(Error::invalid(format!("the number `{short}` does not fit a float64")))
            }
            _ => Ok(()),
        },
        Expr::Cast { data_type, .. } if is_deeper(data_type, MAX_TYPE_LEVELS) => {
            Err(Error::invalid(format!("the type of a cast is {}", too_deep())))
        }
        Expr::BinaryOp { op, right, .. } => match op {
            BinaryOperator::PGRegexMatch | BinaryOperator::PGRegexNotMatch => count(right, false, patterns),
            BinaryOperator::PGRegexIMatch | BinaryOperator::PGRegexNotIMatch => count(right, true, patterns),
            _ => Ok(()),
        },
        Expr::RLike { pattern, .. } | Expr::SimilarTo { pattern, .. } => count(pattern, false, patterns),
        Expr::Function(f) => call(f, builtins, patterns),
        _ => Ok(()),
    }
}

/// The most characters of a number in messages.
const MAX_SHOWN: usize = 40;

/// Checks a call: the type that `arrow_cast` names, and the pattern of a function of regular expressions.
fn call(f: &Function, builtins: &Builtins, patterns: &Patterns) -> Result<()> {
    let FunctionArguments::List(list) = &f.args else { return Ok(()) };
    let written = f.name.to_string().to_lowercase();
    let name = builtins.own_name(&written).unwrap_or(&written);
    let mut args = list.args.iter().filter_map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Some(e),
        _ => None,
    });
    let Some(second) = args.nth(1) else { return Ok(()) };
    if matches!(name, "arrow_cast" | "arrow_try_cast") {
        return match text(second).is_some_and(|of| levels(&of) > MAX_TYPE_LEVELS + LEAF_LEVELS) {
            true => Err(Error::invalid(format!("the type of `{name}` is {}", too_deep()))),
            false => Ok(()),
        };
    }
    match steps(name) {
        Some(Steps::Regexp | Steps::Matches(_)) => {
            let is_flags = |of: &String| of.len() <= MAX_FLAGS && of.contains('i');
            count(second, args.filter_map(text).any(|of| is_flags(&of)), patterns)
        }
        _ => Ok(()),
    }
}

/// The most letters of the flags of a regular expression.
const MAX_FLAGS: usize = 8;

/// The levels of parentheses in the name of a type that is no list, as in `Timestamp(ns)`.
const LEAF_LEVELS: usize = 2;

/// The levels of parentheses in a text.
fn levels(of: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in of.bytes() {
        match byte {
            b'(' => open += 1,
            b')' => open = open.saturating_sub(1),
            _ => {}
        }
        most = open.max(most);
    }
    most
}

/// Whether a type has more than `levels` levels. The recursion ends below `levels`.
fn is_deeper(of: &DataType, levels: usize) -> bool {
    let within = |of: &DataType| levels.checked_sub(1).is_none_or(|left| is_deeper(of, left));
    match of {
        DataType::Array(
            ArrayElemTypeDef::AngleBracket(of)
            | ArrayElemTypeDef::SquareBracket(of, _)
            | ArrayElemTypeDef::Parenthesis(of),
        ) => within(of),
        DataType::Nullable(of) | DataType::LowCardinality(of) => within(of),
        DataType::Map(key, value) => within(key) || within(value),
        DataType::Struct(fields, _) | DataType::Tuple(fields) => fields.iter().any(|f| within(&f.field_type)),
        _ => false,
    }
}

/// Counts all texts in the expression of a pattern: any of them may be chosen.
fn count(pattern: &Expr, insensitive: bool, patterns: &Patterns) -> Result<()> {
    let visited = visit_expressions(pattern, |e| match text(e).map(|of| patterns.count(&of, insensitive)) {
        Some(Err(e)) => ControlFlow::Break(e),
        _ => ControlFlow::Continue(()),
    });
    match visited {
        ControlFlow::Break(e) => Err(e),
        ControlFlow::Continue(()) => Ok(()),
    }
}

fn text(e: &Expr) -> Option<String> {
    match e {
        Expr::Nested(e) => text(e),
        Expr::Value(v) => v.value.clone().into_string(),
        _ => None,
    }
}
