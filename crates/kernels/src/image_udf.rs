//! Chains of image operations as one function: each row passes through the whole chain before the next row.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, FixedSizeListArray, Int32Array, ListArray, PrimitiveArray,
    StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, UInt8Type};
use caju_runtime::{budget, interrupt};
use caju_types::{Error, ErrorKind, Result};

use crate::kernel::{Fault, Inputs, Kernel, any_null, internal};
use crate::tensor::{self, ByteRows, CHANNELS, ImageRows, ImageType};
use crate::udf::offsets;
use caju_image::{Dtype, ImageChain, ImageOp, InputKind, OutputKind, RowInput, Scratch};

thread_local! {
    /// The buffers of this thread, reused from batch to batch.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// A chain of image operations over one column.
#[derive(Debug, Clone)]
pub(crate) struct ChainKernel {
    /// The operations in the order of application, with the call sites of random ones.
    pub(crate) ops: Vec<(ImageOp, Option<u64>)>,
    pub(crate) scaled: bool,
}

/// A chain planned for a given column.
struct Plan {
    chain: ImageChain,
    /// The type of the input images; none for a column of bytes.
    input: Option<ImageType>,
    output: ImageType,
}

/// Whether an operation keeps the size of the image.
fn keeps_size(op: &ImageOp) -> bool {
    matches!(
        op,
        ImageOp::RandomFlip { .. }
            | ImageOp::ColorJitter { .. }
            | ImageOp::Grayscale
            | ImageOp::GaussianBlur { .. }
            | ImageOp::Normalize { .. }
            | ImageOp::ToFloat
    )
}

impl ChainKernel {
    fn plan(&self, field: &Field) -> Result<Plan, String> {
        let input = ImageType::of(field);
        let kind = match input {
            Some(image) => image.input(),
            None if ByteRows::accepts(field) => InputKind::Encoded,
            None => return Err(self.refusal(field)),
        };
        let chain =
            ImageChain::new(self.ops.clone(), kind).map_err(|e| e.to_string())?.allow_scaled(self.scaled);
        let output = match chain.output() {
            OutputKind::Fixed { height, width, dtype } => ImageType { dtype, size: Some((height, width)) },
            OutputKind::Variable { dtype } => {
                let kept = self.ops.iter().all(|(op, _)| keeps_size(op));
                ImageType { dtype, size: input.and_then(|i| i.size).filter(|_| kept) }
            }
        };
        Ok(Plan { chain, input, output })
    }

    fn refusal(&self, field: &Field) -> String {
        let first = self.ops.first().map_or("", |(op, _)| op.name());
        let t = field.data_type();
        match (first, t) {
            ("decode_image", DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => {
                "decode_image takes the bytes of an image file, not a string".into()
            }
            ("decode_image", t) => format!("decode_image takes the bytes of an image file, not {t}"),
            (first, DataType::FixedSizeList(..)) => format!(
                "{first} takes an image; this is a fixed-size list that does not say its shape: \
                 arrow.fixed_shape_tensor of height x width x 3, uint8 or float32"
            ),
            (first, t) => format!("{first} takes an image, not {t}"),
        }
    }
}

/// The rows of the column that a chain reads.
enum Rows<'a> {
    Bytes(ByteRows<'a>),
    Images(ImageRows),
}

impl Rows<'_> {
    fn get(&self, i: usize) -> Result<RowInput<'_>> {
        match self {
            Rows::Bytes(rows) => Ok(RowInput::Encoded(rows.get(i))),
            Rows::Images(rows) => rows.get(i),
        }
    }
}

/// Adds the row to an error. Operations name themselves in errors; the decoder reports damage.
fn failed(row: usize, e: Error) -> Fault {
    Fault::at(row, if e.kind() == ErrorKind::DataLoss { e.context("decode_image") } else { e })
}

impl Kernel for ChainKernel {
    fn names_itself(&self) -> bool {
        true
    }

    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        self.plan(&inputs[0])?.output.field("image", any_null(inputs))
    }

    fn run(&self, inputs: &Inputs<'_>, _: &Field) -> Result<ArrayRef, Fault> {
        let plan = self.plan(inputs.field(0)).map_err(internal)?;
        let array = inputs.array(0)?;
        let rows = match plan.input {
            None => Rows::Bytes(ByteRows::new(&array)?),
            Some(kind) => Rows::Images(ImageRows::new(&array, kind)?),
        };
        let job =
            Job { plan: &plan, rows, nulls: array.logical_nulls(), len: array.len(), keys: inputs.keys };
        SCRATCH.with(|s| match s.try_borrow_mut() {
            Ok(mut s) => job.run(&mut s),
            Err(_) => job.run(&mut Scratch::default()),
        })
    }
}

/// One batch through a chain.
struct Job<'a> {
    plan: &'a Plan,
    rows: Rows<'a>,
    nulls: Option<NullBuffer>,
    len: usize,
    keys: &'a [u64],
}

impl Job<'_> {
    fn run(self, s: &mut Scratch) -> Result<ArrayRef, Fault> {
        let chain = &self.plan.chain;
        match (self.plan.output.dtype, self.plan.output.size) {
            (Dtype::U8, Some(size)) => {
                self.fixed::<UInt8Type>(size, |row, key, out| chain.run_fixed_u8(row, key, s, out))
            }
            (Dtype::F32, Some(size)) => {
                self.fixed::<Float32Type>(size, |row, key, out| chain.run_fixed_f32(row, key, s, out))
            }
            (Dtype::U8, None) => {
                self.variable::<UInt8Type>(|row, key, out| chain.run_variable_u8(row, key, s, out))
            }
            (Dtype::F32, None) => {
                self.variable::<Float32Type>(|row, key, out| chain.run_variable_f32(row, key, s, out))
            }
        }
    }

    fn is_null(&self, i: usize) -> bool {
        self.nulls.as_ref().is_some_and(|n| n.is_null(i))
    }

    fn key(&self, i: usize) -> u64 {
        self.keys.get(i).copied().unwrap_or(0)
    }

    /// Images of one size, written directly to the column's buffer.
    fn fixed<T: ArrowPrimitiveType>(
        self,
        (height, width): (u32, u32),
        mut run: impl FnMut(RowInput<'_>, u64, &mut [T::Native]) -> Result<()>,
    ) -> Result<ArrayRef, Fault> {
        let n = budget::product(&[height as usize, width as usize, CHANNELS]);
        let what = format_args!("{} images of {height} x {width}", self.len);
        let mut values = budget::vec::<T::Native>(budget::product(&[self.len, n]), what)?;
        for (i, out) in values.chunks_exact_mut(n).enumerate() {
            interrupt::check()?;
            if !self.is_null(i) {
                let row = self.rows.get(i).map_err(|e| Fault::at(i, e))?;
                run(row, self.key(i), out).map_err(|e| failed(i, e))?;
            }
        }
        let values = PrimitiveArray::<T>::new(values.into(), None);
        let size = i32::try_from(n).map_err(internal)?;
        let item = tensor::item(self.plan.output.dtype);
        let list =
            FixedSizeListArray::try_new_with_length(item, size, Arc::new(values), self.nulls, self.len);
        Ok(Arc::new(list.map_err(internal)?))
    }

    /// Images of several sizes: one buffer of samples, and the shapes.
    fn variable<T: ArrowPrimitiveType>(
        self,
        mut run: impl FnMut(RowInput<'_>, u64, &mut Vec<T::Native>) -> Result<(u32, u32)>,
    ) -> Result<ArrayRef, Fault> {
        let (mut values, mut ends, mut shapes) = (Vec::new(), vec![0], Vec::with_capacity(3 * self.len));
        for i in 0..self.len {
            interrupt::check()?;
            let mut size = (0, 0);
            if !self.is_null(i) {
                let row = self.rows.get(i).map_err(|e| Fault::at(i, e))?;
                size = run(row, self.key(i), &mut values).map_err(|e| failed(i, e))?;
                if i == 0 {
                    // Images of one file are of similar size, and growing by doubling would copy gigabytes. If this
                    // reservation fails, the buffer grows by doubling.
                    drop(values.try_reserve_exact(
                        values.len().saturating_mul(self.len - 1).min(MAX_RESERVED_SAMPLES),
                    ));
                }
            }
            ends.push(values.len());
            let side = |n: u32| {
                i32::try_from(n).map_err(|_| Fault::at(i, Error::invalid("an image side above 2^31")))
            };
            shapes.extend([side(size.0)?, side(size.1)?, 3]);
        }
        let dtype = self.plan.output.dtype;
        let fields = tensor::variable_fields(dtype);
        let values = Arc::new(PrimitiveArray::<T>::new(values.into(), None));
        let data =
            ListArray::try_new(tensor::item(dtype), offsets(&ends)?, values, None).map_err(internal)?;
        let dim = Arc::new(Field::new("item", DataType::Int32, false));
        let shapes = Arc::new(Int32Array::new(shapes.into(), None));
        let shape =
            FixedSizeListArray::try_new_with_length(dim, 3, shapes, None, self.len).map_err(internal)?;
        let image = StructArray::try_new_with_length(
            fields,
            vec![Arc::new(data), Arc::new(shape)],
            self.nulls,
            self.len,
        );
        Ok(Arc::new(image.map_err(internal)?))
    }
}

/// The most samples that are reserved by the size of a batch's first image.
const MAX_RESERVED_SAMPLES: usize = 64 << 20;
