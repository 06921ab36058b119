//! `pad`: makes lists of one length.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, MutableArrayData, make_array};
use arrow::datatypes::{ArrowNativeType, DataType, Field, FieldRef};
use caju_runtime::budget;
use caju_types::{Error, Result, format_count};
use datafusion_common::ScalarValue;

use crate::constant::Const;
use crate::guard::fixed_width;
use crate::kernel::{Fault, Inputs, Kernel, any_null, internal, plain_type};
use crate::tensor;

/// The kernel of `pad`.
#[derive(Debug)]
pub(crate) struct Pad {
    n: u32,
    value: Const,
}

impl Pad {
    pub(crate) fn new(n: u32, value: &Const) -> Result<Self> {
        if i32::try_from(n).is_err() {
            return Err(Error::invalid(format!("`n` is {n}; that is too long")));
        }
        Ok(Self { n, value: value.clone() })
    }

    /// The bytes of one value of padding, including overhead.
    fn filling_bytes(&self) -> u64 {
        match &self.value {
            Const::Text(t) => 16 + t.len() as u64,
            _ => 16,
        }
    }

    /// The padding as a value of the list's type.
    fn filling(&self, to: &DataType) -> Result<ScalarValue, String> {
        let cannot = || format!("pads with {} a list of {to}", self.value);
        if let Const::Null = self.value {
            return match to {
                DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                    ScalarValue::Binary(Some(Vec::new())).cast_to(to)
                }
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                    ScalarValue::from("").cast_to(to)
                }
                _ => ScalarValue::new_default(to),
            }
            .map_err(|_| format!("cannot pad a list of {to} without a `value`"));
        }
        let value = self.value.to_scalar().ok_or_else(cannot)?;
        let is_text = matches!(value, ScalarValue::Utf8(_));
        let wants_text = matches!(
            to,
            DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
        );
        if is_text != wants_text {
            return Err(cannot());
        }
        let cast = value.cast_to(to).map_err(|_| cannot())?;
        if cast.is_null() || !keeps(&value, &cast) { Err(cannot()) } else { Ok(cast) }
    }
}

/// Whether a cast of a constant is the same value. A float may be rounded to a narrower one, but does not become infinite.
fn keeps(value: &ScalarValue, cast: &ScalarValue) -> bool {
    let back = cast.cast_to(&value.data_type());
    match (value, &back) {
        (ScalarValue::Float64(Some(v)), Ok(ScalarValue::Float64(Some(back))))
            if cast.data_type().is_floating() =>
        {
            v.is_finite() == back.is_finite()
        }
        (value, Ok(back)) => value == back,
        (_, Err(_)) => false,
    }
}

/// The field of a list's values.
pub(super) fn item(t: &DataType) -> Option<&FieldRef> {
    match t {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// Row `i` of a list array as a range of its values.
pub(super) fn range(array: &ArrayRef, i: usize) -> (usize, usize) {
    match array.data_type() {
        DataType::List(_) => {
            let o = array.as_list::<i32>().value_offsets();
            (o[i] as usize, o[i + 1] as usize)
        }
        DataType::LargeList(_) => {
            let o = array.as_list::<i64>().value_offsets();
            (o[i].as_usize(), o[i + 1].as_usize())
        }
        _ => {
            let n = array.as_fixed_size_list().value_length() as usize;
            (i * n, (i + 1) * n)
        }
    }
}

/// The values of a list array.
pub(super) fn values(array: &ArrayRef) -> &ArrayRef {
    match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().values(),
        DataType::LargeList(_) => array.as_list::<i64>().values(),
        _ => array.as_fixed_size_list().values(),
    }
}

impl Kernel for Pad {
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        let t = plain_type(&inputs[0]);
        let item = item(t).ok_or_else(|| format!("takes a list, not {t}"))?;
        self.filling(item.data_type())?;
        let field = Field::new("item", item.data_type().clone(), item.is_nullable());
        #[expect(clippy::cast_possible_wrap, reason = "checked by new")]
        let list = DataType::FixedSizeList(Arc::new(field), self.n as i32);
        let out = Field::new("pad", list, any_null(inputs));
        Ok(if item.data_type().is_numeric() { tensor::with_fixed_shape(out, &[self.n]) } else { out })
    }

    fn run(&self, inputs: &Inputs<'_>, output: &Field) -> Result<ArrayRef, Fault> {
        let input = inputs.array(0)?;
        let DataType::FixedSizeList(item, size) = output.data_type() else {
            return Err(internal("pad gives fixed-size lists"));
        };
        let n = self.n as usize;
        let width = match fixed_width(item.data_type()) {
            0 => self.filling_bytes(),
            n => n,
        };
        let bytes = width.saturating_mul(budget::product(&[input.len().saturating_add(1), n]) as u64);
        let what = format_args!("{} lists of {} values", input.len(), format_count(u64::from(self.n)));
        budget::reserve(bytes.saturating_add(input.get_buffer_memory_size() as u64), what)?;
        let filling =
            self.filling(item.data_type()).map_err(internal)?.to_array_of_size(n).map_err(internal)?;
        let (from, fill) = (values(&input).to_data(), filling.to_data());
        let mut out = MutableArrayData::new(vec![&from, &fill], false, input.len() * n);
        for i in 0..input.len() {
            let (start, end) = if input.is_null(i) { (0, 0) } else { range(&input, i) };
            if end - start > n {
                let what = format!(
                    "a list of {} values cannot be padded to {n}; truncate(list, {n}) first",
                    end - start
                );
                return Err(Fault::at(i, Error::invalid(what)));
            }
            out.try_extend(0, start, end).map_err(internal)?;
            out.try_extend(1, 0, n - (end - start)).map_err(internal)?;
        }
        let values = make_array(out.freeze());
        let nulls = input.logical_nulls();
        let list =
            FixedSizeListArray::try_new_with_length(Arc::clone(item), *size, values, nulls, input.len());
        Ok(Arc::new(list.map_err(internal)?))
    }
}
