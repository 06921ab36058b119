//! `coalesce`, `greatest` and `least` of a number column and a constant, in one pass.
//!
//! DataFusion splits and merges the column, which is some twenty times slower. Preprocessing of tables consists mostly of
//! these functions. A test checks that the values are equal.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::{ArrowNativeTypeOp, DataType, Field, FieldRef};
use arrow::downcast_primitive_array;
use datafusion_common::{DFSchema, DataFusionError, ScalarValue, internal_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Coalesce,
    Greatest,
    Least,
}

/// One of the functions with its constant. The column is its argument.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WithConstant {
    op: Op,
    constant: ScalarValue,
    signature: Signature,
}

/// Replaces the call, if its arguments are a number and a constant that is not null. The planner has made them of one type.
pub(crate) fn with_constant(call: &ScalarFunction, schema: &DFSchema) -> Option<Expr> {
    let op = match call.func.name() {
        "coalesce" => Op::Coalesce,
        "greatest" => Op::Greatest,
        "least" => Op::Least,
        _ => return None,
    };
    let (value, constant) = match &call.args[..] {
        [Expr::Literal(..), Expr::Literal(..)] => return None,
        [value, Expr::Literal(constant, _)] => (value, constant),
        [Expr::Literal(constant, _), value] if op != Op::Coalesce => (value, constant),
        _ => return None,
    };
    let t = value.get_type(schema).ok()?;
    let number = t.is_integer() || matches!(t, DataType::Float32 | DataType::Float64);
    if !number || constant.is_null() || constant.data_type() != t {
        return None;
    }
    let signature = Signature::any(1, Volatility::Immutable);
    let udf = ScalarUDF::new_from_impl(WithConstant { op, constant: constant.clone(), signature });
    Some(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(udf), vec![value.clone()])))
}

impl WithConstant {
    fn apply<T: ArrowPrimitiveType>(&self, a: &PrimitiveArray<T>, constant: T::Native) -> ArrayRef {
        let pick = |keep: fn(T::Native, T::Native) -> bool| {
            a.values().iter().map(|v| if keep(*v, constant) { *v } else { constant }).collect()
        };
        // Floats are compared in total order, as DataFusion compares them.
        let mut out: Vec<T::Native> = match self.op {
            Op::Coalesce => a.values().to_vec(),
            Op::Greatest => pick(T::Native::is_gt),
            Op::Least => pick(T::Native::is_lt),
        };
        if let Some(nulls) = a.nulls().filter(|n| n.null_count() > 0) {
            for i in (!nulls.inner()).set_indices() {
                out[i] = constant;
            }
        }
        Arc::new(PrimitiveArray::<T>::new(out.into(), None))
    }
}

impl ScalarUDFImpl for WithConstant {
    fn name(&self) -> &str {
        match self.op {
            Op::Coalesce => "coalesce",
            Op::Greatest => "greatest",
            Op::Least => "least",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(self.constant.data_type())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        Ok(Arc::new(Field::new(self.name(), self.constant.data_type(), false)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let input = args.args[0].to_array(args.number_rows)?;
        let constant = self.constant.to_array()?;
        if input.data_type() != constant.data_type() {
            return internal_err!("{} of {} and {}", self.name(), input.data_type(), constant.data_type());
        }
        let array: &dyn Array = &input;
        Ok(ColumnarValue::Array(downcast_primitive_array!(
            array => self.apply(array, value_like(array, &constant)),
            other => return internal_err!("{} of {other}", self.name())
        )))
    }
}

/// The only value of an array of the type of `a`.
fn value_like<T: ArrowPrimitiveType>(_: &PrimitiveArray<T>, one: &ArrayRef) -> T::Native {
    one.as_primitive::<T>().value(0)
}
