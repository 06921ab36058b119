//! One file per image: `c042/000017.jpg`.

use arrow_array::RecordBatch;
use caju_types::Result;

use super::encoder::{Encoded, Encoder, binary_column, int_column};

/// Puts each image into the folder of its class.
pub(super) struct ImageFiles;

impl Encoder for ImageFiles {
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()> {
        let (ids, labels) = (int_column(rows, "id")?, int_column(rows, "label")?);
        let images = binary_column(rows, "image")?;
        for (i, image) in images.iter().enumerate() {
            let name = format!("c{:03}/{:06}.jpg", labels.value(i), ids.value(i));
            encoded.objects.push((name, image.unwrap_or_default().to_vec()));
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Encoded) -> Result<()> {
        Ok(())
    }
}
