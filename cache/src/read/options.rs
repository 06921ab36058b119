//! How parts are read.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Requests that the reader of one part has in flight, unless its options say otherwise.
pub(crate) const PREFETCH: usize = 4;

/// How a part is read.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// The wanted columns by their indexes, in this order; all if absent.
    pub projection: Option<Vec<usize>>,
    /// The wanted chunks ([`PartMeta::chunks`](crate::PartMeta::chunks)); all if absent.
    pub chunks: Option<std::ops::Range<usize>>,
    /// Requests in flight. A reader holds about the bytes of this number of requests. One is too few: a store gives one
    /// connection only a part of its bandwidth.
    pub prefetch: usize,
    /// Limits the requests that several readers have in flight together, each until its answer arrived. Without it each
    /// reader has as many as `prefetch` says.
    pub limiter: Option<Arc<Semaphore>>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { projection: None, chunks: None, prefetch: PREFETCH, limiter: None }
    }
}
