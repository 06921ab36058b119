//! `truncate`: the beginnings of lists, strings and bytes.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, FixedSizeListArray, GenericBinaryArray, GenericListArray,
    GenericStringArray, MutableArrayData, OffsetSizeTrait, StringViewArray, make_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef};

use super::list::{range, values};
use crate::kernel::{Fault, Inputs, Kernel, any_null, internal, plain_type};
use crate::tensor;

/// The kernel of `truncate`.
#[derive(Debug)]
pub(crate) struct Truncate {
    pub(crate) n: u32,
}

impl Truncate {
    fn chars<'a>(&self, text: &'a str) -> &'a str {
        let n = self.n as usize;
        if text.len() <= n {
            return text;
        }
        text.char_indices().nth(n).map_or(text, |(at, _)| &text[..at])
    }

    fn bytes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[..bytes.len().min(self.n as usize)]
    }

    fn strings<O: OffsetSizeTrait>(&self, a: &GenericStringArray<O>) -> ArrayRef {
        Arc::new(a.iter().map(|t| t.map(|t| self.chars(t))).collect::<GenericStringArray<O>>())
    }

    fn binaries<O: OffsetSizeTrait>(&self, a: &GenericBinaryArray<O>) -> ArrayRef {
        Arc::new(a.iter().map(|b| b.map(|b| self.bytes(b))).collect::<GenericBinaryArray<O>>())
    }

    /// The values of all rows, cut, and their lengths.
    fn cut(&self, input: &ArrayRef) -> Result<(ArrayRef, Vec<usize>), Fault> {
        let from = values(input).to_data();
        let mut out =
            MutableArrayData::new(vec![&from], false, from.len().min(input.len() * self.n as usize));
        let mut lengths = Vec::with_capacity(input.len());
        for i in 0..input.len() {
            let (start, end) = if input.is_null(i) { (0, 0) } else { range(input, i) };
            let end = end.min(start + self.n as usize);
            out.try_extend(0, start, end).map_err(internal)?;
            lengths.push(end - start);
        }
        Ok((make_array(out.freeze()), lengths))
    }

    fn lists<O: OffsetSizeTrait>(&self, input: &ArrayRef, item: &FieldRef) -> Result<ArrayRef, Fault> {
        let long = |w: &[O]| (w[1] - w[0]).as_usize() > self.n as usize;
        if !input.as_list::<O>().value_offsets().windows(2).any(long) {
            return Ok(Arc::clone(input));
        }
        let (values, lengths) = self.cut(input)?;
        let offsets = OffsetBuffer::<O>::from_lengths(lengths);
        let list = GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, input.logical_nulls());
        Ok(Arc::new(list.map_err(internal)?))
    }
}

impl Kernel for Truncate {
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        use DataType::{Binary, BinaryView, LargeBinary, LargeList, LargeUtf8, List, Utf8, Utf8View};
        let nullable = any_null(inputs);
        match plain_type(&inputs[0]) {
            t
            @ (Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | List(_) | LargeList(_)) => {
                Ok(Field::new("truncate", t.clone(), nullable))
            }
            DataType::FixedSizeList(item, size) => {
                let n = u32::try_from(*size).unwrap_or(0).min(self.n);
                #[expect(clippy::cast_possible_wrap, reason = "at most `size`")]
                let list = DataType::FixedSizeList(Arc::clone(item), n as i32);
                let out = Field::new("truncate", list, nullable);
                Ok(if item.data_type().is_numeric() { tensor::with_fixed_shape(out, &[n]) } else { out })
            }
            t => Err(format!("takes a list, a string or bytes, not {t}")),
        }
    }

    fn run(&self, inputs: &Inputs<'_>, output: &Field) -> Result<ArrayRef, Fault> {
        let input = inputs.array(0)?;
        Ok(match input.data_type() {
            DataType::Utf8 => self.strings(input.as_string::<i32>()),
            DataType::LargeUtf8 => self.strings(input.as_string::<i64>()),
            DataType::Utf8View => {
                let cut = input.as_string_view().iter().map(|t| t.map(|t| self.chars(t)));
                Arc::new(cut.collect::<StringViewArray>())
            }
            DataType::Binary => self.binaries(input.as_binary::<i32>()),
            DataType::LargeBinary => self.binaries(input.as_binary::<i64>()),
            DataType::BinaryView => {
                let cut = input.as_binary_view().iter().map(|b| b.map(|b| self.bytes(b)));
                Arc::new(cut.collect::<BinaryViewArray>())
            }
            DataType::List(item) => self.lists::<i32>(&input, item)?,
            DataType::LargeList(item) => self.lists::<i64>(&input, item)?,
            DataType::FixedSizeList(..) => self.fixed(&input, output)?,
            other => return Err(internal(format!("cannot truncate {other}"))),
        })
    }
}

impl Truncate {
    fn fixed(&self, input: &ArrayRef, output: &Field) -> Result<ArrayRef, Fault> {
        let DataType::FixedSizeList(item, size) = output.data_type() else {
            return Err(internal("truncate gives the input's type"));
        };
        let n = *size as usize;
        let from = values(input).to_data();
        let mut out = MutableArrayData::new(vec![&from], false, input.len() * n);
        for i in 0..input.len() {
            let (start, _) = range(input, i);
            out.try_extend(0, start, start + n).map_err(internal)?;
        }
        let values = make_array(out.freeze());
        let nulls = input.logical_nulls();
        let list =
            FixedSizeListArray::try_new_with_length(Arc::clone(item), *size, values, nulls, input.len());
        Ok(Arc::new(list.map_err(internal)?))
    }
}
