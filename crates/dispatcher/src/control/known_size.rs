//! What is known of the size of the cache.

use std::time::Duration;

use caju_proto::v1::CacheSize;
use caju_runtime::OrderedMutex;
use tokio::sync::watch;

use crate::locks;

/// The last listing of the cache's root.
pub(super) struct KnownSize {
    pub(super) known: OrderedMutex<Option<(Duration, CacheSize)>>,
    /// Whether a listing is under way.
    pub(super) listing: watch::Sender<bool>,
}

impl Default for KnownSize {
    fn default() -> Self {
        Self { known: OrderedMutex::new(locks::CACHE_SIZE, None), listing: watch::Sender::new(false) }
    }
}
