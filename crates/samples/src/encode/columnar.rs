//! Parquet, Arrow IPC, CSV and JSON lines, written by the Arrow libraries into a buffer.

use std::sync::Arc;

use arrow::csv::WriterBuilder;
use arrow::ipc::writer::FileWriter;
use arrow::json::LineDelimitedWriter;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_types::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::encoder::{Encoded, Encoder, stored_columns};
use crate::Kind;

fn refused(format: &str, e: impl std::fmt::Display) -> Error {
    Error::internal(format!("{format} writer: {e}"))
}

/// The rows with the stored columns only.
fn project(rows: &RecordBatch, columns: &[usize]) -> Result<RecordBatch> {
    rows.project(columns).map_err(|e| Error::internal(format!("sample rows: {e}")))
}

pub(super) struct Parquet {
    columns: Vec<usize>,
    writer: ArrowWriter<Vec<u8>>,
}

impl Parquet {
    pub(super) fn new(kind: Kind, schema: &SchemaRef) -> Result<Self> {
        let columns = stored_columns(kind, schema);
        let schema = Arc::new(schema.project(&columns).map_err(|e| refused("Parquet", e))?);
        let props = WriterProperties::builder();
        let props = match kind {
            // JPEG does not compress further, and small row groups let a reader take few images at a time.
            Kind::Images => props
                .set_max_row_group_row_count(Some(64))
                .set_dictionary_enabled(false)
                .set_compression(Compression::UNCOMPRESSED),
            Kind::Table | Kind::Text => {
                props.set_max_row_group_row_count(Some(16_384)).set_compression(Compression::SNAPPY)
            }
        };
        let writer = ArrowWriter::try_new(Vec::new(), schema, Some(props.build()))
            .map_err(|e| refused("Parquet", e))?;
        Ok(Self { columns, writer })
    }

    /// Moves the bytes written so far out of the writer, which counts its position itself.
    fn drain(&mut self, encoded: &mut Encoded) {
        encoded.bytes.append(self.writer.inner_mut());
    }
}

impl Encoder for Parquet {
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()> {
        self.writer.write(&project(rows, &self.columns)?).map_err(|e| refused("Parquet", e))?;
        self.drain(encoded);
        Ok(())
    }

    fn finish(&mut self, encoded: &mut Encoded) -> Result<()> {
        self.writer.finish().map_err(|e| refused("Parquet", e))?;
        self.drain(encoded);
        Ok(())
    }
}

pub(super) struct ArrowFile {
    columns: Vec<usize>,
    writer: FileWriter<Vec<u8>>,
}

impl ArrowFile {
    pub(super) fn new(kind: Kind, schema: &SchemaRef) -> Result<Self> {
        let columns = stored_columns(kind, schema);
        let schema = schema.project(&columns).map_err(|e| refused("Arrow", e))?;
        let writer = FileWriter::try_new(Vec::new(), &schema).map_err(|e| refused("Arrow", e))?;
        Ok(Self { columns, writer })
    }
}

impl Encoder for ArrowFile {
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()> {
        self.writer.write(&project(rows, &self.columns)?).map_err(|e| refused("Arrow", e))?;
        encoded.bytes.append(self.writer.get_mut());
        Ok(())
    }

    fn finish(&mut self, encoded: &mut Encoded) -> Result<()> {
        self.writer.finish().map_err(|e| refused("Arrow", e))?;
        encoded.bytes.append(self.writer.get_mut());
        Ok(())
    }
}

pub(super) struct Csv {
    schema: SchemaRef,
    has_header: bool,
}

impl Csv {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        Self { schema: Arc::clone(schema), has_header: false }
    }
}

impl Encoder for Csv {
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()> {
        let mut writer = WriterBuilder::new().with_header(!self.has_header).build(&mut encoded.bytes);
        writer.write(rows).map_err(|e| refused("CSV", e))?;
        self.has_header = true;
        Ok(())
    }

    fn finish(&mut self, encoded: &mut Encoded) -> Result<()> {
        match self.has_header {
            true => Ok(()),
            // A file without rows also has a header.
            false => self.push(&RecordBatch::new_empty(Arc::clone(&self.schema)), encoded),
        }
    }
}

pub(super) struct Json;

impl Encoder for Json {
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()> {
        let mut writer = LineDelimitedWriter::new(&mut encoded.bytes);
        writer.write(rows).and_then(|()| writer.finish()).map_err(|e| refused("JSON", e))
    }

    fn finish(&mut self, _: &mut Encoded) -> Result<()> {
        Ok(())
    }
}
