//! Constant arguments, known when an expression is bound.

use std::fmt;

use arrow::array::Array;
use datafusion_common::ScalarValue;
use datafusion_sql::sqlparser::ast::{Expr, UnaryOperator, Value};

/// A constant argument.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Const {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Const>),
}

impl Const {
    /// The constant of a literal; none for any other expression.
    pub(crate) fn of_literal(expr: &Expr) -> Option<Self> {
        match expr {
            Expr::Nested(e) => Self::of_literal(e),
            Expr::Value(v) => match &v.value {
                Value::Null => Some(Const::Null),
                Value::Boolean(b) => Some(Const::Bool(*b)),
                Value::SingleQuotedString(s) => Some(Const::Text(s.clone())),
                Value::Number(n, _) => Self::of_number(n),
                _ => None,
            },
            Expr::UnaryOp { op: UnaryOperator::Plus, expr } => Self::of_literal(expr),
            Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match Self::of_literal(expr)? {
                Const::Int(i) => i.checked_neg().map(Const::Int),
                Const::Float(f) => Some(Const::Float(-f)),
                _ => None,
            },
            Expr::Array(a) => a.elem.iter().map(Self::of_literal).collect::<Option<_>>().map(Const::List),
            _ => None,
        }
    }

    fn of_number(text: &str) -> Option<Self> {
        if let Ok(i) = text.parse() {
            return Some(Const::Int(i));
        }
        text.parse().ok().filter(|f: &f64| f.is_finite()).map(Const::Float)
    }

    /// The constant of a folded expression.
    pub(crate) fn of_scalar(v: &ScalarValue) -> Option<Self> {
        if v.is_null() {
            return Some(Const::Null);
        }
        match v {
            ScalarValue::Boolean(Some(b)) => Some(Const::Bool(*b)),
            ScalarValue::Float32(Some(f)) => Some(Const::Float(f64::from(*f))),
            ScalarValue::Float64(Some(f)) => Some(Const::Float(*f)),
            ScalarValue::Utf8(Some(s)) | ScalarValue::LargeUtf8(Some(s)) | ScalarValue::Utf8View(Some(s)) => {
                Some(Const::Text(s.clone()))
            }
            ScalarValue::List(list) if list.len() == 1 => {
                let values = list.value(0);
                let each = |i| Self::of_scalar(&ScalarValue::try_from_array(&values, i).ok()?);
                (0..values.len()).map(each).collect::<Option<_>>().map(Const::List)
            }
            v if v.data_type().is_integer() => match v.cast_to(&arrow::datatypes::DataType::Int64).ok()? {
                ScalarValue::Int64(Some(i)) => Some(Const::Int(i)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The constant as a DataFusion scalar; none for lists.
    pub(crate) fn to_scalar(&self) -> Option<ScalarValue> {
        Some(match self {
            Const::Null => ScalarValue::Null,
            Const::Bool(b) => ScalarValue::Boolean(Some(*b)),
            Const::Int(i) => ScalarValue::Int64(Some(*i)),
            Const::Float(f) => ScalarValue::Float64(Some(*f)),
            Const::Text(t) => ScalarValue::Utf8(Some(t.clone())),
            Const::List(_) => return None,
        })
    }
}

impl fmt::Display for Const {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Const::Null => f.write_str("null"),
            Const::Bool(b) => write!(f, "{b}"),
            Const::Int(i) => write!(f, "{i}"),
            Const::Float(x) => write!(f, "{x:?}"),
            Const::Text(t) => write!(f, "'{}'", t.replace('\'', "''")),
            Const::List(l) => {
                f.write_str("[")?;
                for (i, c) in l.iter().enumerate() {
                    write!(f, "{}{c}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
        }
    }
}
