//! `image_width` and `image_height`: of a file from its header, of an image from its shape.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array};
use arrow::datatypes::{DataType, Field, FieldRef};
use caju_types::Error;

use crate::kernel::{Fault, Inputs, Kernel, any_null};
use crate::tensor::{ByteRows, ImageRows, ImageType};
use caju_image::image_size;

/// The kernel of `image_width` and `image_height`.
#[derive(Debug)]
pub(crate) struct ImageSide {
    pub(crate) width: bool,
}

impl ImageSide {
    fn pick(&self, (h, w): (u32, u32)) -> Result<i32, Error> {
        let side = if self.width { w } else { h };
        i32::try_from(side).map_err(|_| Error::invalid(format!("an image of {h} x {w} pixels")))
    }
}

impl Kernel for ImageSide {
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        if !ByteRows::accepts(&inputs[0]) && ImageType::of(&inputs[0]).is_none() {
            return Err(format!("takes an image or the bytes of one, not {}", inputs[0].data_type()));
        }
        Ok(Field::new("side", DataType::Int32, any_null(inputs)))
    }

    fn run(&self, inputs: &Inputs<'_>, _: &Field) -> Result<ArrayRef, Fault> {
        let input = inputs.array(0)?;
        let nulls = input.logical_nulls();
        let mut out = vec![0; input.len()];
        let present = |i: usize| nulls.as_ref().is_none_or(|n| n.is_valid(i));
        if let Some(kind) = ImageType::of(inputs.field(0)) {
            let rows = ImageRows::new(&input, kind)?;
            for i in (0..input.len()).filter(|i| present(*i)) {
                out[i] = rows.size(i).and_then(|s| self.pick(s)).map_err(|e| Fault::at(i, e))?;
            }
        } else {
            let rows = ByteRows::new(&input)?;
            for i in (0..input.len()).filter(|i| present(*i)) {
                out[i] = image_size(rows.get(i)).and_then(|s| self.pick(s)).map_err(|e| Fault::at(i, e))?;
            }
        }
        Ok(Arc::new(Int32Array::new(out.into(), nulls)))
    }
}
