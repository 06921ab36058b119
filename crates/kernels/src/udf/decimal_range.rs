//! Results of decimal arithmetic that have more digits than their type.
//!
//! Arrow fails where a result does not fit the integer behind a decimal, and that integer holds some numbers of 39 digits. DataFusion
//! widens the type of a result up to 38 digits (76 for `Decimal256`), so only results of these types are checked.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Decimal128Type, Decimal256Type,
    DecimalType, Field, FieldRef,
};
use caju_types::Error;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, internal_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use crate::kernel::Fault;

/// Checks the results of decimal arithmetic whose type is the widest one.
pub(crate) fn decimals_in_range(expr: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    expr.transform_up(|e| {
        if let Some(inner) = checked_twice(&e) {
            return Ok(Transformed::yes(inner));
        }
        let Expr::BinaryExpr(BinaryExpr { op, .. }) = &e else { return Ok(Transformed::no(e)) };
        if !matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply) {
            return Ok(Transformed::no(e));
        }
        match e.get_type(schema) {
            Ok(of) if is_widest(&of) => {
                let signature = Signature::any(1, Volatility::Immutable);
                let udf = ScalarUDF::new_from_impl(InRange { of, signature });
                Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(udf), vec![e]))))
            }
            _ => Ok(Transformed::no(e)),
        }
    })
    .data()
}

/// The inner one of two checks of one value: an expression is rewritten before and after it is simplified.
fn checked_twice(e: &Expr) -> Option<Expr> {
    let is_check =
        |e: &Expr| matches!(e, Expr::ScalarFunction(f) if f.func.inner().downcast_ref::<InRange>().is_some());
    let Expr::ScalarFunction(f) = e else { return None };
    f.args.first().filter(|arg| is_check(e) && is_check(arg)).cloned()
}

fn is_widest(of: &DataType) -> bool {
    match of {
        DataType::Decimal128(digits, _) => *digits == DECIMAL128_MAX_PRECISION,
        DataType::Decimal256(digits, _) => *digits == DECIMAL256_MAX_PRECISION,
        _ => false,
    }
}

/// Whether decimals of type `of` have at most its digits.
#[derive(Debug, PartialEq, Eq, Hash)]
struct InRange {
    of: DataType,
    signature: Signature,
}

/// The first row whose value has more digits than the type.
fn first_outside<T: DecimalType>(values: &ArrayRef) -> Option<usize> {
    let values = values.as_primitive::<T>();
    if values.validate_decimal_precision(T::MAX_PRECISION).is_ok() {
        return None;
    }
    let fits = |value| T::validate_decimal_precision(value, T::MAX_PRECISION, 0).is_ok();
    values.iter().position(|value| value.is_some_and(|value| !fits(value)))
}

impl ScalarUDFImpl for InRange {
    fn name(&self) -> &str {
        "decimal_in_range"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(self.of.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let nullable = args.arg_fields.iter().any(|f| f.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.of.clone(), nullable)))
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let Some(value) = args.args.pop() else { return internal_err!("a check of no decimal") };
        let values = value.to_array(1)?;
        let outside = match values.data_type() {
            DataType::Decimal128(..) => first_outside::<Decimal128Type>(&values),
            DataType::Decimal256(..) => first_outside::<Decimal256Type>(&values),
            other => return internal_err!("a check of {other} as a decimal"),
        };
        match outside {
            None => Ok(value),
            Some(row) => {
                let what = format!(
                    "the result of decimal arithmetic does not fit {}; cast the operands to fewer digits or to double before",
                    self.of
                );
                Err(Fault::at(row, Error::invalid(what)).into())
            }
        }
    }
}
