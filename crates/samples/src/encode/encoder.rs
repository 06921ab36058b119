//! The interface of all encoders, and the columns that they share.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{BinaryArray, Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use caju_types::{Error, Result};

use crate::Kind;

/// The output of an encoder: bytes to append to the shard's file, or whole objects by name.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) objects: Vec<(String, Vec<u8>)>,
}

/// Turns rows into the bytes of one shard.
pub(crate) trait Encoder: Send {
    /// Adds rows.
    ///
    /// # Errors
    /// `Internal` if the format's writer refuses the rows.
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()>;

    /// Finishes the shard.
    ///
    /// # Errors
    /// As [`Encoder::push`].
    fn finish(&mut self, encoded: &mut Encoded) -> Result<()>;
}

/// The columns that formats of columns store. They leave out the height and width of images, which the JPEG contains.
pub(super) fn stored_columns(kind: Kind, schema: &SchemaRef) -> Vec<usize> {
    match kind {
        Kind::Images => vec![0, 1, 2],
        Kind::Table | Kind::Text => (0..schema.fields().len()).collect(),
    }
}

pub(super) fn int_column<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a Int64Array> {
    rows.column_by_name(name)
        .and_then(|c| c.as_primitive_opt::<Int64Type>())
        .ok_or_else(|| Error::internal(format!("sample rows have no int64 column `{name}`")))
}

pub(super) fn binary_column<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a BinaryArray> {
    rows.column_by_name(name)
        .and_then(|c| c.as_binary_opt::<i32>())
        .ok_or_else(|| Error::internal(format!("sample rows have no binary column `{name}`")))
}
