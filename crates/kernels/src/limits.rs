//! The limits of a process.

use std::time::Duration;

use caju_runtime::budget;

/// The limits of a process, whatever a definition or the data say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most pixels of an image that `decode_image` accepts. A call may lower the limit, but not raise it.
    pub max_pixels: u64,
    /// The most bytes of memory that a stage may request while it works on one chunk of rows. A chunk that needs more is
    /// split. A row that needs more is an error.
    pub chunk_bytes: u64,
    /// The most steps that a stage may take while it works on one chunk of rows, in functions whose time is not linear in the
    /// bytes that they handle. A step takes about a nanosecond. A chunk that needs more is split. A row that needs more is an
    /// error.
    pub chunk_steps: u64,
    /// The most bytes of a record that a source reads.
    pub max_record_bytes: u64,
    /// The most bytes of a row group of a Parquet file, in the columns that are read. The decoder needs all of them at once.
    pub row_group_bytes: u64,
    /// The time that binding a definition may take, including the wait for other definitions.
    pub bind_timeout: Duration,
    /// The time after which a save that has no new part counts as abandoned by those that load it while it is written.
    pub save_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pixels: caju_image::DEFAULT_MAX_PIXELS,
            chunk_bytes: budget::DEFAULT_BYTES,
            chunk_steps: budget::DEFAULT_STEPS,
            max_record_bytes: DEFAULT_MAX_RECORD_BYTES,
            row_group_bytes: DEFAULT_ROW_GROUP_BYTES,
            bind_timeout: DEFAULT_BIND_TIMEOUT,
            save_wait: DEFAULT_SAVE_WAIT,
        }
    }
}

/// Bytes of the largest record by default: well above images, sounds and documents. Sixteen readers hold one or two each.
const DEFAULT_MAX_RECORD_BYTES: u64 = 256 << 20;

/// Bytes of the largest row group by default: twice those of the largest usual files (128 MiB to 1 GiB). Each split that is read
/// concurrently holds one.
const DEFAULT_ROW_GROUP_BYTES: u64 = 2 << 30;

/// The default time for binding: ten times what the largest handwritten definitions take on a busy machine.
const DEFAULT_BIND_TIMEOUT: Duration = Duration::from_secs(10);

/// The default wait for a new part of a save. A worker needs seconds for a part, and a worker that died is replaced within this
/// time.
const DEFAULT_SAVE_WAIT: Duration = Duration::from_secs(300);
