//! The kinds of sample rows.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_types::Result;

use crate::rows::{images, table, text};

/// What the rows are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// JPEG photos of about 500x375 pixels and 110 KB. Columns: `id`, `image`, `label`, `height`, `width`.
    Images,
    /// A table in the shape of the Criteo click logs. Columns: `label`, `I1` to `I13`, `C1` to `C26`.
    Table,
    /// Documents whose lengths vary by orders of magnitude. Columns: `id`, `text`, `label`.
    Text,
}

impl Kind {
    /// The name on the command line and in the marker file.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Images => "images",
            Kind::Table => "table",
            Kind::Text => "text",
        }
    }

    /// The columns of the rows. Formats of columns leave out the height and width of images.
    pub fn schema(self) -> SchemaRef {
        match self {
            Kind::Images => images::schema(),
            Kind::Table => table::schema(),
            Kind::Text => text::schema(),
        }
    }

    /// The `len` rows from index `start` on, of the data set with this seed.
    ///
    /// # Errors
    /// `InvalidArgument` for an index that does not fit into an int64. `Internal` if the JPEG encoder or Arrow refuses
    /// the values.
    pub fn rows(self, seed: u64, start: u64, len: usize) -> Result<RecordBatch> {
        match self {
            Kind::Images => images::rows(seed, start, len),
            Kind::Table => table::rows(seed, start, len),
            Kind::Text => text::rows(seed, start, len),
        }
    }

    /// Rows of one block, the unit of work of a CPU thread: some milliseconds, and at most a few megabytes.
    pub(crate) fn block_rows(self) -> u64 {
        match self {
            Kind::Images => 16,
            Kind::Table => 8192,
            Kind::Text => 2048,
        }
    }

    /// Rows of one file by default, which makes it a few tens of megabytes.
    pub(crate) fn shard_rows(self) -> u64 {
        match self {
            Kind::Images => 512,
            Kind::Table => 262_144,
            Kind::Text => 65_536,
        }
    }
}
