//! `one_hot`: classes as vectors.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, Int64Array, PrimitiveArray,
};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Int64Type, UInt8Type};
use caju_runtime::budget;
use caju_types::{Error, Result, format_count};

use crate::kernel::{Fault, Inputs, Kernel, any_null, internal, plain_type};
use crate::tensor;

/// The kernel of `one_hot`.
#[derive(Debug)]
pub(crate) struct OneHot {
    n: u32,
    float: bool,
}

impl OneHot {
    pub(crate) fn new(n: u32, dtype: &str) -> Result<Self> {
        if n == 0 || i32::try_from(n).is_err() {
            return Err(Error::invalid(format!("`n` is {n}; it must be at least 1")));
        }
        let float = match dtype {
            "float32" => true,
            "uint8" => false,
            other => {
                return Err(Error::invalid(format!("`dtype` is '{other}'; it must be 'float32' or 'uint8'")));
            }
        };
        Ok(Self { n, float })
    }

    fn fill<T: ArrowPrimitiveType>(&self, input: &Int64Array, one: T::Native) -> Result<ArrayRef, Fault> {
        let n = self.n as usize;
        let what = format_args!("{} vectors of {} values", input.len(), format_count(n as u64));
        let mut out = budget::vec::<T::Native>(budget::product(&[input.len(), n]), what)?;
        for (i, v) in input.iter().enumerate() {
            let Some(v) = v else { continue };
            match usize::try_from(v) {
                Ok(at) if at < n => out[i * n + at] = one,
                _ => {
                    return Err(Fault::at(
                        i,
                        Error::invalid(format!("{v} is not a class from 0 to {}", n - 1)),
                    ));
                }
            }
        }
        Ok(Arc::new(PrimitiveArray::<T>::new(out.into(), None)))
    }
}

impl Kernel for OneHot {
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        let t = plain_type(&inputs[0]);
        if !t.is_integer() {
            return Err(format!("takes an integer, not {t}"));
        }
        let item = Field::new("item", if self.float { DataType::Float32 } else { DataType::UInt8 }, false);
        #[expect(clippy::cast_possible_wrap, reason = "checked by new")]
        let list = DataType::FixedSizeList(Arc::new(item), self.n as i32);
        Ok(tensor::with_fixed_shape(Field::new("one_hot", list, any_null(inputs)), &[self.n]))
    }

    fn run(&self, inputs: &Inputs<'_>, output: &Field) -> Result<ArrayRef, Fault> {
        let input = inputs.cast(0, &DataType::Int64)?;
        let input = input.as_primitive::<Int64Type>();
        let values = if self.float {
            self.fill::<Float32Type>(input, 1.0)?
        } else {
            self.fill::<UInt8Type>(input, 1)?
        };
        let DataType::FixedSizeList(item, size) = output.data_type() else {
            return Err(internal("one_hot gives fixed-size lists"));
        };
        let list = FixedSizeListArray::try_new(Arc::clone(item), *size, values, input.nulls().cloned());
        Ok(Arc::new(list.map_err(internal)?))
    }
}
