//! The file formats of sample data.

use crate::Kind;

/// A file format of sample data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// TFRecord files of `tf.train.Example`.
    Tfrecord,
    /// Parquet files.
    Parquet,
    /// Tar files of samples: `.jpg` and `.cls` for images, `.txt` and `.cls` for text.
    Webdataset,
    /// One JPEG file per image, in one folder per class.
    Files,
    /// Comma-separated values with a header.
    Csv,
    /// One JSON object per line.
    Json,
    /// Arrow IPC files.
    Arrow,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 7] = [
        Format::Tfrecord,
        Format::Parquet,
        Format::Webdataset,
        Format::Files,
        Format::Csv,
        Format::Json,
        Format::Arrow,
    ];

    /// The name on the command line, in the marker file, and of the folder when several formats are written.
    pub fn name(self) -> &'static str {
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

    /// The format with this name.
    pub(crate) fn named(name: &str) -> Option<Format> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }

    /// The extension of its files, without the dot.
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

    /// Whether a file without rows still names its columns.
    pub(crate) fn keeps_columns(self) -> bool {
        matches!(self, Format::Parquet | Format::Arrow | Format::Csv)
    }

    /// The formats that can hold a kind of rows.
    pub fn of(kind: Kind) -> &'static [Format] {
        use Format::{Arrow, Csv, Files, Json, Parquet, Tfrecord, Webdataset};
        match kind {
            Kind::Images => &[Tfrecord, Parquet, Webdataset, Files, Arrow],
            Kind::Table => &[Parquet, Tfrecord, Csv, Json, Arrow],
            Kind::Text => &[Parquet, Tfrecord, Webdataset, Csv, Json, Arrow],
        }
    }
}
