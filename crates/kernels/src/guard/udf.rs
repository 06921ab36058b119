//! Functions that ask the budget before they compute.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::{is_null, nullif};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use caju_runtime::{budget, interrupt};
use datafusion_common::{DataFusionError, ScalarValue, internal_err};
use datafusion_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::range::Range;
use super::rule::Rule;
use super::size::Arg;
use super::steps::Steps;
use crate::kernel::Fault;

/// A function of DataFusion, with the bounds of its result, of its steps and of its first argument.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Guarded {
    pub(super) inner: Arc<ScalarUDF>,
    pub(super) rule: Option<Rule>,
    pub(super) steps: Option<Steps>,
    pub(super) range: Option<Range>,
}

impl Guarded {
    fn charge(&self, values: &[ColumnarValue], rows: usize) -> Result<(), DataFusionError> {
        let args = values.iter().map(Arg::new).collect::<Result<Vec<_>, _>>()?;
        let all_scalar = args.iter().all(Arg::is_scalar);
        // One value for all rows may be copied for each of them.
        let times = if all_scalar { rows } else { 1 };
        let rows = if all_scalar { 1 } else { rows };
        let what = format_args!("`{}`", self.inner.name());
        if let (Some(range), Some(first)) = (self.range, args.first()) {
            range.check(first, rows, &what)?;
        }
        if let Some(steps) = self.steps {
            // A call with constants only computes one value.
            steps.charge(&args, rows, what).map_err(fault)?;
        }
        let Some(rule) = self.rule else { return Ok(()) };
        let reserve = |bytes: u64| budget::reserve(bytes.saturating_mul(times as u64), what);
        match reserve(rule.bytes(&args, rows)?) {
            Ok(()) => Ok(()),
            Err(e) => match rule.counted(&args, rows) {
                Some(bytes) => reserve(bytes).map_err(fault),
                None => Err(fault(e)),
            },
        }
    }
}

fn fault(e: caju_types::Error) -> DataFusionError {
    Fault::from(e).into()
}

impl ScalarUDFImpl for Guarded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType, DataFusionError> {
        self.inner.inner().return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>, DataFusionError> {
        self.inner.coerce_types(types)
    }

    fn is_strict(&self) -> bool {
        self.inner.inner().is_strict()
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        interrupt::check().map_err(fault)?;
        self.charge(&args.args, args.number_rows)?;
        if matches!(self.rule, Some(Rule::Pad)) {
            raise_negative_length(&mut args.args);
        }
        if self.range == Some(Range::Field) {
            return visible_field(&self.inner, args);
        }
        let Some(range) = self.range.filter(|r| r.is_of_result()) else {
            return self.inner.invoke_with_args(args);
        };
        let (values, rows) = (args.args.clone(), args.number_rows);
        let result = self.inner.invoke_with_args(args)?;
        range.check_result(&values, &result, rows, &format_args!("`{}`", self.inner.name()))?;
        Ok(result)
    }
}

/// Makes negative lengths of `lpad` and `rpad` 0, which gives the same text. DataFusion takes those of a column for huge ones, and
/// panics.
fn raise_negative_length(args: &mut [ColumnarValue]) {
    let Some(ColumnarValue::Array(lengths)) = args.get_mut(1) else { return };
    let raised = lengths.as_primitive_opt::<Int64Type>().filter(|n| n.values().iter().any(|n| *n < 0));
    if let Some(raised) = raised.map(|n| n.unary::<_, Int64Type>(|n| n.max(0))) {
        *lengths = Arc::new(raised);
    }
}

/// Calls `get_field`; the result is null where the struct is null. DataFusion's gives the value that the field has there.
fn visible_field(get_field: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
    let parent = match args.args.first() {
        Some(ColumnarValue::Array(parent)) if parent.null_count() > 0 => Arc::clone(parent),
        _ => return get_field.invoke_with_args(args),
    };
    let field = get_field.invoke_with_args(args)?.into_array(parent.len())?;
    if field.data_type() == &DataType::Null {
        return Ok(ColumnarValue::Array(field));
    }
    Ok(ColumnarValue::Array(nullif(&field, &is_null(&parent)?)?))
}

/// The first argument, unchanged. The steps of matching it by the second one, a pattern, are
/// charged.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ChargedText {
    steps: Steps,
    signature: Signature,
}

impl ChargedText {
    pub(super) fn new(steps: Steps) -> Self {
        Self { steps, signature: Signature::any(2, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for ChargedText {
    fn name(&self) -> &'static str {
        "charged_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let field = args.arg_fields.first();
        Ok(field.map_or_else(|| Arc::new(Field::new("", DataType::Null, true)), Arc::clone))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        interrupt::check().map_err(fault)?;
        let values = args.args.iter().map(Arg::new).collect::<Result<Vec<_>, _>>()?;
        let rows = if values.iter().all(Arg::is_scalar) { 1 } else { args.number_rows };
        self.steps.charge(&values, rows, "matching a pattern").map_err(fault)?;
        match args.args.into_iter().next() {
            Some(text) => Ok(text),
            None => internal_err!("a match without a text"),
        }
    }
}

/// A long literal, which may be copied for every row.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct LongLiteral {
    value: ScalarValue,
    signature: Signature,
}

impl LongLiteral {
    pub(super) fn new(value: ScalarValue) -> Self {
        Self { value, signature: Signature::nullary(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for LongLiteral {
    fn name(&self) -> &'static str {
        "literal"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(self.value.data_type())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        Ok(Arc::new(Field::new(self.name(), self.value.data_type(), self.value.is_null())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let bytes = (self.value.size() as u64).saturating_mul(args.number_rows as u64);
        budget::reserve(bytes, format_args!("a literal of {} bytes in every row", self.value.size()))
            .map_err(fault)?;
        Ok(ColumnarValue::Scalar(self.value.clone()))
    }
}
