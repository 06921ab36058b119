//! Comparisons of floats in which `-0.0` equals `0.0`, as it does for `=`.
//!
//! DataFusion compares bits in `in` lists, in `case x when`, and in functions that search a list. So `-0.0 = 0.0` was true and
//! `-0.0 in (0.0, 1.0, 2.0, 3.0)` was false. The values that are compared have no negative zero here.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, StructArray,
};
use arrow::compute::kernels::cmp::eq;
use arrow::compute::nullif;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::utils::normalize_float_zero;
use datafusion_common::{DFSchema, DataFusionError, ScalarValue, internal_err};
use datafusion_expr::expr::{Case, InList, ScalarFunction};
use datafusion_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

/// Functions that look for values in a list, and return no value of it.
const SEARCHES: [&str; 5] =
    ["array_has", "array_has_all", "array_has_any", "array_position", "array_positions"];

/// Functions that return the list without or with other values in place of those that they look for.
const CHANGES: [&str; 6] = [
    "array_remove",
    "array_remove_all",
    "array_remove_n",
    "array_replace",
    "array_replace_all",
    "array_replace_n",
];

/// Takes the sign off zeros wherever `expr` compares floats by their bits. Types have to match already.
pub(crate) fn equal_zeros(expr: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    expr.transform_up(|e| match e {
        Expr::InList(InList { expr, list, negated }) if is_float(&expr, schema) => {
            let list = list.into_iter().map(|item| unsigned(item, schema)).collect::<Result<_, _>>()?;
            let expr = Box::new(unsigned(*expr, schema)?);
            Ok(Transformed::yes(Expr::InList(InList { expr, list, negated })))
        }
        Expr::Case(Case { expr: Some(of), when_then_expr, else_expr }) if is_float(&of, schema) => {
            let when = |(when, then): (Box<Expr>, _)| Ok((Box::new(unsigned(*when, schema)?), then));
            let when_then_expr =
                when_then_expr.into_iter().map(when).collect::<Result<_, DataFusionError>>()?;
            let expr = Some(Box::new(unsigned(*of, schema)?));
            Ok(Transformed::yes(Expr::Case(Case { expr, when_then_expr, else_expr })))
        }
        Expr::ScalarFunction(call) if call.args.iter().any(|arg| has_floats(arg, schema)) => {
            of_call(call, schema)
        }
        e => Ok(Transformed::no(e)),
    })
    .data()
}

fn of_call(call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>, DataFusionError> {
    let (name, ScalarFunction { func, args }) = (call.func.name().to_owned(), call);
    let args = match &args[..] {
        // The result is the first value with its sign.
        [value, other] if name == "nullif" && is_float(value, schema) => {
            if value.get_type(schema)? != other.get_type(schema)? {
                return Ok(Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args })));
            }
            let udf =
                ScalarUDF::new_from_impl(NullIf { signature: Signature::any(2, Volatility::Immutable) });
            let call = ScalarFunction::new_udf(Arc::new(udf), args);
            return Ok(Transformed::yes(Expr::ScalarFunction(call)));
        }
        _ if SEARCHES.contains(&name.as_str()) => {
            args.into_iter().map(|arg| unsigned(arg, schema)).collect::<Result<_, _>>()?
        }
        // The list keeps the signs of its other zeros: only a literal zero is looked for in a list without signs.
        [list, of, rest @ ..] if CHANGES.contains(&name.as_str()) && is_zero(of) => {
            let (list, of) = (unsigned(list.clone(), schema)?, unsigned(of.clone(), schema)?);
            [&[list, of], rest].concat()
        }
        _ => return Ok(Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args }))),
    };
    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args })))
}

/// Whether it is a literal zero, as it is written or cast to the type of the list.
fn is_zero(e: &Expr) -> bool {
    match e {
        Expr::Literal(ScalarValue::Float64(Some(value)), _) => *value == 0.0,
        Expr::Literal(ScalarValue::Float32(Some(value)), _) => *value == 0.0,
        Expr::Literal(ScalarValue::Int64(Some(value)), _) => *value == 0,
        Expr::Cast(cast) => is_zero(&cast.expr),
        Expr::Negative(of) => is_zero(of),
        _ => false,
    }
}

fn is_float(e: &Expr, schema: &DFSchema) -> bool {
    e.get_type(schema).is_ok_and(|of| of.is_floating())
}

fn has_floats(e: &Expr, schema: &DFSchema) -> bool {
    e.get_type(schema).is_ok_and(|of| holds_floats(&of))
}

fn holds_floats(of: &DataType) -> bool {
    match of {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            holds_floats(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|f| holds_floats(f.data_type())),
        of => of.is_floating(),
    }
}

/// The expression with `0.0` in place of `-0.0`.
fn unsigned(e: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    if !has_floats(&e, schema) {
        return Ok(e);
    }
    if let Expr::Literal(value, metadata) = e {
        let zeros = without_sign(&value.to_array()?)?;
        return Ok(Expr::Literal(ScalarValue::try_from_array(&zeros, 0)?, metadata));
    }
    let udf = ScalarUDF::new_from_impl(UnsignedZeros { signature: Signature::any(1, Volatility::Immutable) });
    Ok(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(udf), vec![e])))
}

/// The values with `0.0` in place of `-0.0`, at any depth.
fn without_sign(values: &ArrayRef) -> Result<ArrayRef, DataFusionError> {
    fn list<O: OffsetSizeTrait>(values: &ArrayRef, item: &FieldRef) -> Result<ArrayRef, DataFusionError> {
        let list = values.as_list::<O>();
        let items = without_sign(list.values())?;
        let offsets = list.offsets().clone();
        Ok(Arc::new(GenericListArray::try_new(Arc::clone(item), offsets, items, list.nulls().cloned())?))
    }
    match values.data_type() {
        of if !holds_floats(of) => Ok(Arc::clone(values)),
        DataType::List(item) => list::<i32>(values, item),
        DataType::LargeList(item) => list::<i64>(values, item),
        DataType::FixedSizeList(item, size) => {
            let list = values.as_fixed_size_list();
            let items = without_sign(list.values())?;
            let nulls = list.nulls().cloned();
            Ok(Arc::new(FixedSizeListArray::try_new_with_length(
                Arc::clone(item),
                *size,
                items,
                nulls,
                list.len(),
            )?))
        }
        DataType::Struct(fields) => {
            let of = values.as_struct();
            let columns = of.columns().iter().map(without_sign).collect::<Result<_, _>>()?;
            Ok(Arc::new(StructArray::try_new_with_length(
                fields.clone(),
                columns,
                of.nulls().cloned(),
                of.len(),
            )?))
        }
        _ => Ok(normalize_float_zero(values)),
    }
}

/// Takes the sign off zeros.
#[derive(Debug, PartialEq, Eq, Hash)]
struct UnsignedZeros {
    signature: Signature,
}

impl ScalarUDFImpl for UnsignedZeros {
    fn name(&self) -> &str {
        "unsigned_zeros"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType, DataFusionError> {
        match args {
            [of] => Ok(of.clone()),
            _ => internal_err!("the sign of zeros of {} values", args.len()),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let [of] = args.arg_fields else { return internal_err!("the sign of zeros of no value") };
        Ok(Arc::new(Field::new(self.name(), of.data_type().clone(), of.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        match &args.args[..] {
            [ColumnarValue::Array(values)] => Ok(ColumnarValue::Array(without_sign(values)?)),
            [ColumnarValue::Scalar(value)] => {
                let zeros = without_sign(&value.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&zeros, 0)?))
            }
            _ => internal_err!("the sign of zeros of no value"),
        }
    }
}

/// `nullif` of floats.
#[derive(Debug, PartialEq, Eq, Hash)]
struct NullIf {
    signature: Signature,
}

impl ScalarUDFImpl for NullIf {
    fn name(&self) -> &str {
        "nullif_zeros"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType, DataFusionError> {
        match args {
            [of, _] => Ok(of.clone()),
            _ => internal_err!("nullif of {} values", args.len()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let [value, other] = &args.args[..] else {
            return internal_err!("nullif of {} values", args.args.len());
        };
        let (values, others) = (value.to_array(args.number_rows)?, other.to_array(args.number_rows)?);
        let equal = eq(&without_sign(&values)?, &without_sign(&others)?)?;
        Ok(ColumnarValue::Array(nullif(&values, &equal)?))
    }
}
