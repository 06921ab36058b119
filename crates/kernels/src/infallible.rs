//! Which expressions give a value for every row.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion_expr::Operator;
use datafusion_physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal, NotExpr,
};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

/// Whether an expression over `schema` can be evaluated for any row without an error. It is made of columns, constants,
/// comparisons, logic, lengths and casts to wider types; of all else an error is expected.
pub(crate) fn is_infallible(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let own = expr.is::<Column>()
        || expr.is::<Literal>()
        || expr.is::<NotExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<InListExpr>()
        || expr
            .downcast_ref::<ScalarFunctionExpr>()
            .is_some_and(|f| f.args().len() == 1 && LENGTHS.contains(&f.fun().name()))
        || expr.downcast_ref::<BinaryExpr>().is_some_and(|b| compares(*b.op()))
        || expr.downcast_ref::<CastExpr>().is_some_and(|cast| {
            cast.expr().data_type(schema).is_ok_and(|from| is_wider(cast.cast_type(), &from))
        });
    own && expr.children().into_iter().all(|child| is_infallible(child, schema))
}

/// Functions of DataFusion that give a length for any value of the types that they take.
const LENGTHS: [&str; 3] = ["array_length", "character_length", "octet_length"];

fn compares(op: Operator) -> bool {
    matches!(
        op,
        Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq
            | Operator::And
            | Operator::Or
            | Operator::IsDistinctFrom
            | Operator::IsNotDistinctFrom
    )
}

/// Whether every value of one numeric type has a place in another.
fn is_wider(to: &DataType, from: &DataType) -> bool {
    let integer = |t: &DataType| t.is_integer();
    let bits = |t: &DataType| t.primitive_width().unwrap_or(0);
    match (from, to) {
        (from, to) if from == to => true,
        (from, DataType::Float64) => from.is_integer() || from.is_floating(),
        (from, DataType::Float32) => from.is_integer() || *from == DataType::Float16,
        (from, to) if integer(from) && integer(to) => {
            match (from.is_signed_integer(), to.is_signed_integer()) {
                (a, b) if a == b => bits(to) >= bits(from),
                (false, true) => bits(to) > bits(from),
                _ => false,
            }
        }
        _ => false,
    }
}
