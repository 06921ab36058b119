//! What a probe is asked for, and what it reports.

use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::write::UPLOADS_IN_FLIGHT;
use caju_autocache::Encoding;

/// The most copies of a probe's file that are written concurrently. More would cost more bytes than the figure is worth.
const MAX_WRITES: usize = 8;

/// The costs of some rows in one encoding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The encoding.
    pub encoding: Encoding,
    /// Rows of the probe.
    pub rows: u64,
    /// Bytes that they take, without the header and footer of the file.
    pub bytes: u64,
    /// CPU seconds of encoding them.
    pub encode_cpu_s: f64,
    /// CPU seconds of decoding them as every epoch does: with the checksum, unless the store's files are mapped.
    pub decode_cpu_s: f64,
    /// CPU seconds of fetching a byte, which `decode_cpu_s` includes; 0 where files are mapped.
    #[serde(default)]
    pub fetch_cpu_s_per_byte: f64,
    /// Bytes per second at which the store accepts parts from several concurrent writers; 0 if that was not measured.
    pub write_bytes_per_s: f64,
    /// Bytes per second at which the store delivers parts to several concurrent readers; 0 if that was not measured.
    pub read_bytes_per_s: f64,
    /// CPU seconds that the whole probe took. They count against the limit of profiling.
    #[serde(default)]
    pub spent_cpu_s: f64,
    /// Seconds for which the probe's requests would have been all requests of the task. They count against the limit of
    /// profiling. 0 where files are mapped.
    #[serde(default)]
    pub spent_store_s: f64,
}

/// The task that a probe is made for. The probe does everything as that task would.
#[derive(Debug, Clone, Copy)]
pub struct ProbeTask {
    /// Threads that decode concurrently, at most one per core: they share the memory's bandwidth.
    pub threads: usize,
    /// Splits that the task reads concurrently.
    pub readers: usize,
    /// Whether the store's bandwidth is measured, too. The file is then written and read by as many requests as the task
    /// would have in flight. That moves many times its bytes: a few such probes per task are enough.
    pub measures_store: bool,
    /// CPU seconds that fetching a byte took in an earlier probe. With them, a probe that does not measure the store makes
    /// no requests, unless the store's files are mapped.
    pub fetch_cpu_s_per_byte: Option<f64>,
}

impl ProbeTask {
    /// The numbers of concurrent write requests and of concurrent read requests that the task would have in flight.
    pub(super) fn requests(self) -> (usize, usize) {
        ((self.readers * UPLOADS_IN_FLIGHT).clamp(1, MAX_WRITES), Cache::requests_at_once(self.readers))
    }
}
