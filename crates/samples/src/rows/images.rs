//! Photos as rows.

use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::{Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_types::{Error, Result};

use super::id::row_id;
use crate::photo::photo;

/// `id, image, label, height, width`. Only TFRecord files keep the last two.
pub(crate) fn schema() -> SchemaRef {
    let int = |name: &str| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![
        int("id"),
        Field::new("image", DataType::Binary, false),
        int("label"),
        int("height"),
        int("width"),
    ]))
}

/// Photos `start..start + len` of the data set `seed`.
///
/// # Errors
/// `Internal` if the encoder or Arrow refuse something.
pub(crate) fn rows(seed: u64, start: u64, len: usize) -> Result<RecordBatch> {
    let mut images = BinaryBuilder::with_capacity(len, len * (112 << 10));
    let mut ints: [Vec<i64>; 4] = std::array::from_fn(|_| Vec::with_capacity(len));
    for index in start..start + len as u64 {
        let photo = photo(seed, index)?;
        images.append_value(&photo.jpeg);
        let row = [row_id(index)?, photo.label.into(), photo.height.into(), photo.width.into()];
        for (column, value) in ints.iter_mut().zip(row) {
            column.push(value);
        }
    }
    let [ids, labels, heights, widths] = ints.map(|v| Arc::new(Int64Array::from(v)));
    RecordBatch::try_new(schema(), vec![ids, Arc::new(images.finish()), labels, heights, widths])
        .map_err(|e| Error::internal(format!("image rows: {e}")))
}
