//! Kernels: functions with their constant arguments filled in, as DataFusion calls them.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use caju_runtime::interrupt;
use caju_types::Error;
use datafusion_common::{DataFusionError, ScalarValue, internal_err};
use datafusion_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

/// An error at a row of the arrays that a kernel was given.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) row: Option<usize>,
    pub(crate) error: Error,
}

impl Fault {
    pub(crate) fn at(row: usize, error: Error) -> Self {
        Self { row: Some(row), error }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { row: None, error }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.error)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for DataFusionError {
    fn from(f: Fault) -> Self {
        DataFusionError::External(Box::new(f))
    }
}

/// The inputs of a kernel's run.
pub(crate) struct Inputs<'a> {
    values: &'a [ColumnarValue],
    fields: &'a [FieldRef],
    pub(crate) rows: usize,
    /// One key per row. Empty for kernels that are not random.
    pub(crate) keys: &'a [u64],
}

impl Inputs<'_> {
    /// Input `i` as an array of [`Self::rows`] rows.
    pub(crate) fn array(&self, i: usize) -> Result<ArrayRef, Fault> {
        let array = self.values[i].to_array(self.rows).map_err(internal)?;
        Ok(match array.data_type() {
            DataType::Dictionary(_, v) => arrow::compute::cast(&array, v).map_err(internal)?,
            _ => array,
        })
    }

    /// Input `i` without a conversion of dictionaries.
    pub(crate) fn raw(&self, i: usize) -> Result<ArrayRef, Fault> {
        self.values[i].to_array(self.rows).map_err(internal)
    }

    /// Input `i` cast to a type. A value that the type does not have is an error.
    pub(crate) fn cast(&self, i: usize, to: &DataType) -> Result<ArrayRef, Fault> {
        let from = self.raw(i)?;
        let cast = arrow::compute::cast(&from, to).map_err(|e| Fault::from(Error::invalid(e.to_string())))?;
        let (before, now) = (from.logical_nulls(), cast.logical_nulls());
        let is_null =
            |nulls: &Option<NullBuffer>, row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        let count = |nulls: &Option<NullBuffer>| nulls.as_ref().map_or(0, NullBuffer::null_count);
        if count(&now) == count(&before) {
            return Ok(cast);
        }
        let lost = (0..cast.len()).find(|&row| is_null(&now, row) && !is_null(&before, row));
        match lost {
            Some(row) => {
                let value = arrow::util::display::array_value_to_string(&from, row).map_err(internal)?;
                Err(Fault::at(row, Error::invalid(format!("{value} is out of the range of {to}"))))
            }
            None => Ok(cast),
        }
    }

    /// The field of input `i`.
    pub(crate) fn field(&self, i: usize) -> &Field {
        &self.fields[i]
    }
}

/// An error that can only be a defect of caju.
pub(crate) fn internal(e: impl std::fmt::Display) -> Fault {
    Fault::from(Error::internal(e.to_string()))
}

/// A function with its constant arguments filled in.
pub(crate) trait Kernel: Debug + Send + Sync {
    /// The type of the result for inputs of these types.
    ///
    /// # Errors
    /// What is wrong with the types of the inputs.
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String>;

    /// Computes the result. A null input gives null.
    fn run(&self, inputs: &Inputs<'_>, output: &Field) -> Result<ArrayRef, Fault>;

    /// Whether its errors name the function themselves.
    fn names_itself(&self) -> bool {
        false
    }

    /// This function with nulls of its first input replaced by a value; none if the kernel cannot do that without a copy
    /// of the column.
    fn with_null_as(&self, _value: &ScalarValue) -> Option<Box<dyn Kernel>> {
        None
    }
}

/// The type of `field` without its dictionary.
pub(crate) fn plain_type(field: &Field) -> &DataType {
    match field.data_type() {
        DataType::Dictionary(_, v) => v,
        t => t,
    }
}

/// Whether any of the inputs may be null.
pub(crate) fn any_null(inputs: &[FieldRef]) -> bool {
    inputs.iter().any(|f| f.is_nullable())
}

/// A kernel as a DataFusion function: a pure function of its inputs, which include the key column.
pub(crate) struct KernelUdf {
    name: &'static str,
    /// A description of the function and its constants. Two calls with equal descriptions and equal inputs are equal.
    identity: String,
    /// The start of error messages: the function and its position in the text.
    place: String,
    usage: String,
    random: bool,
    kernel: Box<dyn Kernel>,
    signature: Signature,
}

impl KernelUdf {
    pub(crate) fn new(
        name: &'static str,
        place: String,
        usage: String,
        random: bool,
        kernel: Box<dyn Kernel>,
    ) -> Self {
        let identity = format!("{name} {random} {kernel:?}");
        let signature = Signature::variadic_any(Volatility::Immutable);
        Self { name, identity, place, usage, random, kernel, signature }
    }

    /// This function with nulls of its first input replaced; none if the kernel cannot do that.
    pub(crate) fn with_null_as(&self, value: &ScalarValue) -> Option<Self> {
        let kernel = self.kernel.with_null_as(value)?;
        Some(Self::new(self.name, self.place.clone(), self.usage.clone(), self.random, kernel))
    }

    fn split<'a, T>(&self, all: &'a [T]) -> (&'a [T], Option<&'a T>) {
        match all.split_last() {
            Some((key, rest)) if self.random => (rest, Some(key)),
            _ => (all, None),
        }
    }
}

impl Debug for KernelUdf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.identity)
    }
}

impl PartialEq for KernelUdf {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for KernelUdf {}

impl Hash for KernelUdf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
    }
}

impl ScalarUDFImpl for KernelUdf {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        internal_err!("the type of a kernel depends on its fields")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let (inputs, _) = self.split(args.arg_fields);
        match self.kernel.output(inputs) {
            Ok(field) => Ok(Arc::new(field)),
            Err(what) => {
                let usage = if self.usage.is_empty() { "" } else { "; write " };
                let error = Error::invalid(format!("{}: {what}{usage}{}", self.place, self.usage));
                Err(Fault::from(error).into())
            }
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        interrupt::check().map_err(Fault::from)?;
        let (values, key) = self.split(&args.args);
        let (fields, _) = self.split(&args.arg_fields);
        let keys = key.map(|k| k.to_array(args.number_rows)).transpose()?;
        let keys: &[u64] = match &keys {
            None => &[],
            Some(k) => match k.as_primitive_opt::<UInt64Type>() {
                Some(k) if k.null_count() == 0 => k.values(),
                _ => return internal_err!("the key column is not a column of keys"),
            },
        };
        let inputs = Inputs { values, fields, rows: args.number_rows, keys };
        match self.kernel.run(&inputs, &args.return_field) {
            Ok(array) => Ok(ColumnarValue::Array(array)),
            Err(fault) if self.kernel.names_itself() => Err(fault.into()),
            Err(fault) => Err(Fault { row: fault.row, error: fault.error.context(self.name) }.into()),
        }
    }
}
