//! Encoders turn rows into the bytes of a file, one encoder per format and file. They do no I/O: the caller writes the
//! bytes.

mod columnar;
mod encoder;
mod files;
mod tar;
mod tfrecord;

use arrow_schema::SchemaRef;
use caju_types::Result;

use crate::{Format, Kind};

pub(crate) use encoder::{Encoded, Encoder};

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
        Format::Files => Box::new(files::ImageFiles),
    })
}
