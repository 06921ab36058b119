//! `hash_bucket`: a stable hash of strings, bytes and integers into n buckets.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, ByteView, GenericByteArray, GenericByteViewArray, Int64Array, PrimitiveArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    ArrowNativeType, ArrowPrimitiveType, ByteArrayType, ByteViewType, DataType, Field, FieldRef,
};
use arrow::downcast_dictionary_array;
use caju_types::{Error, Result};
use datafusion_common::ScalarValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::constant::Const;
use crate::kernel::{Fault, Inputs, Kernel, any_null, internal, plain_type};

/// The kernel of `hash_bucket`.
#[derive(Debug, Clone)]
pub(crate) struct HashBucket {
    n: u64,
    null_as: Option<NullValue>,
}

/// The value as which null is hashed.
#[derive(Debug, Clone, PartialEq)]
enum NullValue {
    Text(String),
    Int(i64),
}

impl NullValue {
    fn hash(&self) -> u64 {
        match self {
            NullValue::Text(t) => xxh3_64(t.as_bytes()),
            NullValue::Int(i) => xxh3_64(&i.to_le_bytes()),
        }
    }
}

impl HashBucket {
    pub(crate) fn new(n: u64, null_as: &Const) -> Result<Self> {
        if n == 0 || n > i64::MAX as u64 {
            return Err(Error::invalid("`n` must be at least 1"));
        }
        let null_as = match null_as {
            Const::Null => None,
            Const::Text(t) => Some(NullValue::Text(t.clone())),
            Const::Int(i) => Some(NullValue::Int(*i)),
            _ => return Err(Error::invalid("`null_as` must be text or an integer")),
        };
        Ok(Self { n, null_as })
    }

    #[inline]
    fn bucket(&self, hash: u64) -> i64 {
        let wide = u128::from(hash) * u128::from(self.n);
        // The high word is below n, which fits an i64.
        (wide >> 64) as i64
    }

    fn bytes<T: ByteArrayType>(&self, a: &GenericByteArray<T>) -> Vec<i64> {
        let data = a.value_data();
        let mut start = a.value_offsets()[0].as_usize();
        let ends = a.value_offsets()[1..].iter();
        ends.map(|end| {
            let end = end.as_usize();
            let bucket = self.bucket(xxh3_64(&data[start..end]));
            start = end;
            bucket
        })
        .collect()
    }

    fn views<T: ByteViewType + ?Sized>(&self, a: &GenericByteViewArray<T>) -> Vec<i64> {
        let buffers = a.data_buffers();
        let views = a.views().iter();
        views
            .map(|v| {
                let view = ByteView::from(*v);
                let len = view.length as usize;
                if len <= 12 {
                    return self.bucket(xxh3_64(&v.to_le_bytes()[4..4 + len]));
                }
                let at = view.offset as usize;
                self.bucket(xxh3_64(&buffers[view.buffer_index as usize][at..at + len]))
            })
            .collect()
    }

    fn ints<T: ArrowPrimitiveType>(
        &self,
        a: &PrimitiveArray<T>,
        le: impl Fn(T::Native) -> [u8; 8],
    ) -> Vec<i64> {
        a.values().iter().map(|v| self.bucket(xxh3_64(&le(*v)))).collect()
    }

    /// Buckets of all rows. Those of null rows are arbitrary.
    fn buckets(&self, a: &dyn Array) -> Result<Vec<i64>, Fault> {
        use arrow::datatypes as t;
        Ok(match a.data_type() {
            DataType::Utf8 => self.bytes(a.as_string::<i32>()),
            DataType::LargeUtf8 => self.bytes(a.as_string::<i64>()),
            DataType::Binary => self.bytes(a.as_binary::<i32>()),
            DataType::LargeBinary => self.bytes(a.as_binary::<i64>()),
            DataType::Utf8View => self.views(a.as_string_view()),
            DataType::BinaryView => self.views(a.as_binary_view()),
            DataType::FixedSizeBinary(_) => {
                let a = a.as_fixed_size_binary();
                (0..a.len()).map(|i| self.bucket(xxh3_64(a.value(i)))).collect()
            }
            DataType::Int8 => self.ints(a.as_primitive::<t::Int8Type>(), |v| i64::from(v).to_le_bytes()),
            DataType::Int16 => self.ints(a.as_primitive::<t::Int16Type>(), |v| i64::from(v).to_le_bytes()),
            DataType::Int32 => self.ints(a.as_primitive::<t::Int32Type>(), |v| i64::from(v).to_le_bytes()),
            DataType::Int64 => self.ints(a.as_primitive::<t::Int64Type>(), i64::to_le_bytes),
            DataType::UInt8 => self.ints(a.as_primitive::<t::UInt8Type>(), |v| u64::from(v).to_le_bytes()),
            DataType::UInt16 => self.ints(a.as_primitive::<t::UInt16Type>(), |v| u64::from(v).to_le_bytes()),
            DataType::UInt32 => self.ints(a.as_primitive::<t::UInt32Type>(), |v| u64::from(v).to_le_bytes()),
            DataType::UInt64 => self.ints(a.as_primitive::<t::UInt64Type>(), u64::to_le_bytes),
            DataType::Null => vec![0; a.len()],
            other => return Err(internal(format!("no hash of {other}"))),
        })
    }

    fn finish(&self, mut buckets: Vec<i64>, nulls: Option<NullBuffer>) -> Int64Array {
        match (&self.null_as, nulls) {
            (Some(standin), Some(nulls)) => {
                let bucket = self.bucket(standin.hash());
                for i in (!nulls.inner()).set_indices() {
                    buckets[i] = bucket;
                }
                Int64Array::new(buckets.into(), None)
            }
            (_, nulls) => Int64Array::new(buckets.into(), nulls),
        }
    }
}

fn is_text(t: &DataType) -> bool {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(t, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_))
}

impl Kernel for HashBucket {
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        let t = plain_type(&inputs[0]);
        if !is_text(t) && !t.is_integer() && !t.is_null() {
            return Err(format!("takes a string, bytes or an integer, not {t}; cast it first"));
        }
        let mixed = match &self.null_as {
            None => false,
            Some(NullValue::Text(_)) => t.is_integer(),
            Some(NullValue::Int(_)) => is_text(t),
        };
        if mixed {
            return Err(format!("has a `null_as` of another type than its value, which is {t}"));
        }
        Ok(Field::new("hash_bucket", DataType::Int64, self.null_as.is_none() && any_null(inputs)))
    }

    fn run(&self, inputs: &Inputs<'_>, _: &Field) -> Result<ArrayRef, Fault> {
        let input = inputs.raw(0)?;
        let array: &dyn Array = &input;
        downcast_dictionary_array!(
            array => {
                let keys = array.keys().values().iter().map(|k| k.as_usize());
                // A null key or a null value makes a null row.
                let buckets = match array.values().as_string_opt::<i32>() {
                    // A file's dictionary may have many values of which this batch has few.
                    Some(texts) if texts.len() > array.len() => {
                        keys.map(|k| if k < texts.len() { self.bucket(xxh3_64(texts.value(k).as_bytes())) } else { 0 })
                            .collect()
                    }
                    _ => {
                        let values = self.buckets(array.values().as_ref())?;
                        keys.map(|k| values.get(k).copied().unwrap_or(0)).collect()
                    }
                };
                Ok(Arc::new(self.finish(buckets, array.logical_nulls())))
            },
            _ => Ok(Arc::new(self.finish(self.buckets(array)?, array.logical_nulls())))
        )
    }

    fn with_null_as(&self, value: &ScalarValue) -> Option<Box<dyn Kernel>> {
        let standin = match value {
            ScalarValue::Utf8(Some(t)) | ScalarValue::LargeUtf8(Some(t)) | ScalarValue::Utf8View(Some(t)) => {
                NullValue::Text(t.clone())
            }
            ScalarValue::Int64(Some(i)) => NullValue::Int(*i),
            _ => return None,
        };
        // A stand-in of the call itself would apply to values that coalesce leaves null. There are none.
        Some(Box::new(Self { n: self.n, null_as: Some(standin) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_is_pinned() {
        let h = HashBucket::new(1_000_000, &Const::Null).unwrap();
        let wide = u128::from(xxh3_64(b"caju")) * 1_000_000;
        assert_eq!(h.bucket(xxh3_64(b"caju")), i64::try_from(wide >> 64).unwrap());
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2, "xxh3-64 with seed 0");
    }
}
