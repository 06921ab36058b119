//! Number literals that become decimals: DataFusion reads a literal that is no integer of 64 bits as a float first, which holds
//! 15 digits.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{DataType, Expr, UnaryOperator, Value, visit_expressions_mut};

/// The most digits that a float holds, whatever they are.
const FLOAT_DIGITS: usize = 15;

/// Turns long number literals within casts to decimals into text, of which a cast loses no digit.
pub(crate) fn exact_decimals(expr: &mut Expr) {
    let visited: ControlFlow<Infallible> = visit_expressions_mut(expr, |e| {
        if let Expr::Cast { expr, data_type, .. } = e
            && is_decimal(data_type)
            && let Some(text) = long_number(expr)
        {
            **expr = Expr::value(Value::SingleQuotedString(text));
        }
        ControlFlow::Continue(())
    });
    match visited {
        ControlFlow::Continue(()) => {}
    }
}

fn is_decimal(t: &DataType) -> bool {
    matches!(t, DataType::Decimal(_) | DataType::Numeric(_) | DataType::Dec(_))
}

/// The text of a number literal with its sign, if a float might not hold all its digits.
fn long_number(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Nested(e) => long_number(e),
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } => long_number(expr),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            let text = long_number(expr)?;
            Some(text.strip_prefix('-').map_or_else(|| format!("-{text}"), str::to_owned))
        }
        Expr::Value(v) => match &v.value {
            Value::Number(text, _) => {
                let digits = text.bytes().filter(u8::is_ascii_digit).count();
                let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
                (is_plain && digits > FLOAT_DIGITS).then(|| text.clone())
            }
            _ => None,
        },
        _ => None,
    }
}
