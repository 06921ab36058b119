//! Rows to files: one encoder per format and shard. Encoders compute only; the caller writes their bytes.

mod columnar;
mod tar;
mod tfrecord;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{BinaryArray, Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use caju_types::{Error, Result};
use clap::ValueEnum;

use super::Kind;

/// A file format of sample data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Format {
    /// TFRecord files of tf.train.Example
    Tfrecord,
    /// Parquet files
    Parquet,
    /// Tar files of samples (images: .jpg and .cls; text: .txt and .cls)
    Webdataset,
    /// One JPEG per image, in a folder per class
    Files,
    /// Comma-separated values with a header
    Csv,
    /// One JSON object a line
    Json,
    /// Arrow IPC files
    Arrow,
}

impl Format {
    /// The name on the command line, and of the folder when several formats are written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Tfrecord => "tfrecord",
            Format::Parquet => "parquet",
            Format::Webdataset => "webdataset",
            Format::Files => "files",
            Format::Csv => "csv",
            Format::Json => "json",
            Format::Arrow => "arrow",
        }
    }

    /// The ending of its files.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::Tfrecord => "tfrecord",
            Format::Parquet => "parquet",
            Format::Webdataset => "tar",
            Format::Files => "jpg",
            Format::Csv => "csv",
            Format::Json => "jsonl",
            Format::Arrow => "arrow",
        }
    }

    /// Whether a file without rows still says which columns it has.
    pub(crate) fn keeps_columns(self) -> bool {
        matches!(self, Format::Parquet | Format::Arrow | Format::Csv)
    }

    /// The formats that make sense for a kind of data.
    pub(crate) fn of(kind: Kind) -> &'static [Format] {
        use Format::{Arrow, Csv, Files, Json, Parquet, Tfrecord, Webdataset};
        match kind {
            Kind::Images => &[Tfrecord, Parquet, Webdataset, Files, Arrow],
            Kind::Table => &[Parquet, Tfrecord, Csv, Json, Arrow],
            Kind::Text => &[Parquet, Tfrecord, Webdataset, Csv, Json, Arrow],
        }
    }
}

/// What an encoder has made: bytes to append to the shard's file, or whole objects by name.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    pub(crate) objects: Vec<(String, Vec<u8>)>,
}

/// Turns rows into the bytes of one shard.
pub(crate) trait Encoder: Send {
    /// Adds rows.
    ///
    /// # Errors
    /// `Internal` if the format's writer refuses the rows.
    fn push(&mut self, rows: &RecordBatch, made: &mut Made) -> Result<()>;

    /// Ends the shard.
    ///
    /// # Errors
    /// As [`Encoder::push`].
    fn finish(&mut self, made: &mut Made) -> Result<()>;
}

/// The encoder of one shard.
///
/// # Errors
/// `Internal` if the format's writer refuses the schema.
pub(crate) fn encoder(format: Format, kind: Kind, schema: &SchemaRef) -> Result<Box<dyn Encoder>> {
    Ok(match format {
        Format::Tfrecord => Box::new(tfrecord::TfRecord::new(kind, schema)),
        Format::Parquet => Box::new(columnar::Parquet::new(kind, schema)?),
        Format::Arrow => Box::new(columnar::ArrowFile::new(kind, schema)?),
        Format::Csv => Box::new(columnar::Csv::new(schema)),
        Format::Json => Box::new(columnar::Json),
        Format::Webdataset => Box::new(tar::Tar),
        Format::Files => Box::new(Folders),
    })
}

/// The columns that column formats keep: images leave out their sizes, which the JPEG itself knows.
fn kept(kind: Kind, schema: &SchemaRef) -> Vec<usize> {
    match kind {
        Kind::Images => vec![0, 1, 2],
        Kind::Table | Kind::Text => (0..schema.fields().len()).collect(),
    }
}

/// One object per image: `c042/000017.jpg`.
struct Folders;

impl Encoder for Folders {
    fn push(&mut self, rows: &RecordBatch, made: &mut Made) -> Result<()> {
        let (ids, labels) = (ints(rows, "id")?, ints(rows, "label")?);
        let images = binary(rows, "image")?;
        for (i, image) in images.iter().enumerate() {
            let name = format!("c{:03}/{:06}.jpg", labels.value(i), ids.value(i));
            made.objects.push((name, image.unwrap_or_default().to_vec()));
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Made) -> Result<()> {
        Ok(())
    }
}

fn ints<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a Int64Array> {
    rows.column_by_name(name)
        .and_then(|c| c.as_primitive_opt::<Int64Type>())
        .ok_or_else(|| Error::internal(format!("sample rows have no int64 column `{name}`")))
}

fn binary<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a BinaryArray> {
    rows.column_by_name(name)
        .and_then(|c| c.as_binary_opt::<i32>())
        .ok_or_else(|| Error::internal(format!("sample rows have no binary column `{name}`")))
}
