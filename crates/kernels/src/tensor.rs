//! Tensors and images in Arrow arrays: the canonical extension types, and reading rows from them.
//!
//! A tensor of one shape is `arrow.fixed_shape_tensor` over a fixed-size list; an image of varying size is
//! `arrow.variable_shape_tensor` over `struct<data: list<T>, shape: fixed_size_list<int32>[3]>`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, LargeBinaryArray};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Fields, Float32Type, Int32Type, UInt8Type};
use caju_types::Error;

use crate::kernel::{Fault, internal, plain_type};
use caju_image::{Dtype, InputKind, RowInput};

const NAME: &str = "ARROW:extension:name";
const METADATA: &str = "ARROW:extension:metadata";
const FIXED: &str = "arrow.fixed_shape_tensor";
const VARIABLE: &str = "arrow.variable_shape_tensor";

/// The channels of an image.
pub(crate) const CHANNELS: usize = 3;

/// Marks `field`, a fixed-size list, as an `arrow.fixed_shape_tensor` of this shape.
pub(crate) fn with_fixed_shape(field: Field, shape: &[u32]) -> Field {
    let shape: Vec<String> = shape.iter().map(u32::to_string).collect();
    extension(field, FIXED, format!("{{\"shape\":[{}]}}", shape.join(",")))
}

fn extension(field: Field, name: &str, metadata: String) -> Field {
    let pairs = [(NAME.to_owned(), name.to_owned()), (METADATA.to_owned(), metadata)];
    field.with_metadata(pairs.into_iter().collect())
}

/// The shape of an `arrow.fixed_shape_tensor`, outermost dimension first. None for any other field, and for a tensor with
/// permuted dimensions.
pub fn fixed_shape(field: &Field) -> Option<Vec<u32>> {
    let (shape, _) = layout(field).filter(|(_, order)| order.is_none())?;
    shape.into_iter().map(|d| u32::try_from(d).ok()).collect()
}

/// The shape of an `arrow.fixed_shape_tensor`, and the order of its dimensions if they are permuted. Both are in the metadata of
/// its field: tensors of one data type may have different ones.
fn layout(field: &Field) -> Option<(Vec<u64>, Option<Vec<u64>>)> {
    if field.metadata().get(NAME)? != FIXED {
        return None;
    }
    let metadata: serde_json::Value = serde_json::from_str(field.metadata().get(METADATA)?).ok()?;
    let numbers = |of: &serde_json::Value| -> Option<Vec<u64>> {
        of.as_array()?.iter().map(serde_json::Value::as_u64).collect()
    };
    let order: Option<Vec<u64>> = match metadata.get("permutation").filter(|order| !order.is_null()) {
        Some(order) => Some(numbers(order)?),
        None => None,
    };
    let is_permuted = |order: &Vec<u64>| !(0u64..).zip(order).all(|(i, at)| i == *at);
    Some((numbers(metadata.get("shape")?)?, order.filter(is_permuted)))
}

/// What two columns of one data type differ in, if both are of tensors: the first one's shape and the second one's, as text.
pub fn differing_tensors(one: &Field, other: &Field) -> Option<(String, String)> {
    let (one, other) = (layout(one)?, layout(other)?);
    let text = |(shape, order): &(Vec<u64>, Option<Vec<u64>>)| match order {
        Some(order) => format!("tensors of shape {shape:?} with dimensions permuted as {order:?}"),
        None => format!("tensors of shape {shape:?}"),
    };
    (one != other).then(|| (text(&one), text(&other)))
}

fn sample(dtype: Dtype) -> DataType {
    match dtype {
        Dtype::U8 => DataType::UInt8,
        Dtype::F32 => DataType::Float32,
    }
}

fn dtype_of(t: &DataType) -> Option<Dtype> {
    match t {
        DataType::UInt8 => Some(Dtype::U8),
        DataType::Float32 => Some(Dtype::F32),
        _ => None,
    }
}

/// The type of the images of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageType {
    pub(crate) dtype: Dtype,
    /// Height and width, if all images have the same size.
    pub(crate) size: Option<(u32, u32)>,
}

impl ImageType {
    /// The type of the images of a column; none if it is no image column.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        match field.data_type() {
            DataType::FixedSizeList(item, n) => {
                let shape = fixed_shape(field)?;
                let [height, width, channels] = shape[..] else { return None };
                let samples = u64::from(height) * u64::from(width) * CHANNELS as u64;
                if channels as usize != CHANNELS || u64::try_from(*n) != Ok(samples) {
                    return None;
                }
                Some(Self { dtype: dtype_of(item.data_type())?, size: Some((height, width)) })
            }
            DataType::Struct(fields) => Some(Self { dtype: variable_dtype(fields)?, size: None }),
            _ => None,
        }
    }

    /// The field of a column of such images.
    pub(crate) fn field(self, name: &str, nullable: bool) -> Result<Field, String> {
        match self.size {
            Some((height, width)) => {
                let samples = u64::from(height) * u64::from(width) * CHANNELS as u64;
                let n = i32::try_from(samples)
                    .map_err(|_| format!("gives images of {height} x {width}: too large"))?;
                let list = DataType::FixedSizeList(item(self.dtype), n);
                Ok(with_fixed_shape(Field::new(name, list, nullable), &[height, width, 3]))
            }
            None => {
                let t = DataType::Struct(variable_fields(self.dtype));
                Ok(extension(
                    Field::new(name, t, nullable),
                    VARIABLE,
                    "{\"uniform_shape\":[null,null,3]}".into(),
                ))
            }
        }
    }

    /// The input kind of a chain of image operations over such a column.
    pub(crate) fn input(self) -> InputKind {
        match self.dtype {
            Dtype::U8 => InputKind::U8,
            Dtype::F32 => InputKind::F32,
        }
    }
}

/// The field of an image's samples.
pub(crate) fn item(dtype: Dtype) -> Arc<Field> {
    Arc::new(Field::new("item", sample(dtype), false))
}

/// The fields below an `arrow.variable_shape_tensor` of images.
pub(crate) fn variable_fields(dtype: Dtype) -> Fields {
    let dim = Arc::new(Field::new("item", DataType::Int32, false));
    let shape = DataType::FixedSizeList(dim, 3);
    Fields::from(vec![
        Field::new("data", DataType::List(item(dtype)), false),
        Field::new("shape", shape, false),
    ])
}

fn variable_dtype(fields: &Fields) -> Option<Dtype> {
    let [data, shape] = &fields[..] else { return None };
    let DataType::FixedSizeList(dim, 3) = shape.data_type() else { return None };
    if data.name() != "data" || shape.name() != "shape" || dim.data_type() != &DataType::Int32 {
        return None;
    }
    match data.data_type() {
        DataType::List(item) => dtype_of(item.data_type()),
        _ => None,
    }
}

/// The samples of all images of a column.
enum Samples {
    U8(ScalarBuffer<u8>),
    F32(ScalarBuffer<f32>),
}

/// The images of a column, row by row.
pub(crate) struct ImageRows {
    samples: Samples,
    /// The samples that are null, if any is. What lies in their places is nobody's value.
    nulls: Option<NullBuffer>,
    layout: Layout,
}

/// The position of each image in the samples.
enum Layout {
    Fixed { height: u32, width: u32 },
    Variable { offsets: ScalarBuffer<i32>, shapes: ScalarBuffer<i32> },
}

impl ImageRows {
    pub(crate) fn new(array: &ArrayRef, kind: ImageType) -> Result<Self, Fault> {
        if let Some((height, width)) = kind.size {
            let list =
                array.as_fixed_size_list_opt().ok_or_else(|| internal("an image column of another type"))?;
            let (samples, nulls) = samples(list.values(), kind.dtype)?;
            return Ok(Self { samples, nulls, layout: Layout::Fixed { height, width } });
        }
        let wrong = || internal("an image column of another type");
        let fields = array.as_struct_opt().ok_or_else(wrong)?;
        let data = fields.column(0).as_list_opt::<i32>().ok_or_else(wrong)?;
        let shapes = fields.column(1).as_fixed_size_list_opt().ok_or_else(wrong)?;
        let shapes = shapes.values().as_primitive_opt::<Int32Type>().ok_or_else(wrong)?.values().clone();
        let layout = Layout::Variable { offsets: data.offsets().inner().clone(), shapes };
        let (samples, nulls) = samples(data.values(), kind.dtype)?;
        Ok(Self { samples, nulls, layout })
    }

    /// Height and width of image `i`.
    pub(crate) fn size(&self, i: usize) -> Result<(u32, u32), Error> {
        let (offsets, shapes) = match &self.layout {
            Layout::Fixed { height, width } => return Ok((*height, *width)),
            Layout::Variable { offsets, shapes } => (offsets, shapes),
        };
        let shape = &shapes[3 * i..3 * i + 3];
        let len = i64::from(offsets[i + 1]) - i64::from(offsets[i]);
        let product = shape.iter().try_fold(1i64, |a, d| a.checked_mul(i64::from(*d)));
        match (u32::try_from(shape[0]), u32::try_from(shape[1])) {
            (Ok(h), Ok(w)) if shape[2] == 3 && product == Some(len) => Ok((h, w)),
            _ => Err(Error::data_loss(format!(
                "an image of shape {shape:?} has {len} samples; it should be RGB"
            ))),
        }
    }

    /// Image `i`.
    ///
    /// # Errors
    /// `DataLoss` for one that is no RGB image, or has null samples.
    pub(crate) fn get(&self, i: usize) -> Result<RowInput<'_>, Error> {
        let (height, width) = self.size(i)?;
        let len = height as usize * width as usize * CHANNELS;
        let start = match &self.layout {
            Layout::Fixed { .. } => i * len,
            Layout::Variable { offsets, .. } => usize::try_from(offsets[i]).unwrap_or(0),
        };
        let missing = self.nulls.as_ref().map_or(0, |nulls| nulls.slice(start, len).null_count());
        if missing > 0 {
            return Err(Error::data_loss(format!(
                "{missing} of the {len} samples of an image are null; an image has all of its samples, or is null itself"
            )));
        }
        Ok(match &self.samples {
            Samples::U8(s) => RowInput::Pixels { data: &s[start..start + len], height, width },
            Samples::F32(s) => RowInput::FloatPixels { data: &s[start..start + len], height, width },
        })
    }
}

fn samples(values: &ArrayRef, dtype: Dtype) -> Result<(Samples, Option<NullBuffer>), Fault> {
    fn of<T: ArrowPrimitiveType>(values: &ArrayRef) -> Option<ScalarBuffer<T::Native>> {
        Some(values.as_primitive_opt::<T>()?.values().clone())
    }
    let samples = match dtype {
        Dtype::U8 => of::<UInt8Type>(values).map(Samples::U8),
        Dtype::F32 => of::<Float32Type>(values).map(Samples::F32),
    };
    let samples = samples.ok_or_else(|| internal("an image column of another type"))?;
    Ok((samples, values.nulls().filter(|nulls| nulls.null_count() > 0).cloned()))
}

/// A column of bytes, row by row.
pub(crate) enum ByteRows<'a> {
    Small(&'a BinaryArray),
    Large(&'a LargeBinaryArray),
    View(&'a BinaryViewArray),
}

impl<'a> ByteRows<'a> {
    /// Whether a column is one of bytes.
    pub(crate) fn accepts(field: &Field) -> bool {
        matches!(plain_type(field), DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
    }

    pub(crate) fn new(array: &'a ArrayRef) -> Result<Self, Fault> {
        match array.data_type() {
            DataType::Binary => Ok(Self::Small(array.as_binary())),
            DataType::LargeBinary => Ok(Self::Large(array.as_binary())),
            DataType::BinaryView => Ok(Self::View(array.as_binary_view())),
            other => Err(internal(format!("bytes of type {other}"))),
        }
    }

    pub(crate) fn get(&self, i: usize) -> &'a [u8] {
        match self {
            Self::Small(a) => a.value(i),
            Self::Large(a) => a.value(i),
            Self::View(a) => a.value(i),
        }
    }
}
