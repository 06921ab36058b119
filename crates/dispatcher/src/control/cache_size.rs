//! The size of the cache, for the status. Listing a large root takes long, so a listing runs in the background, and the status
//! has the last one.

use std::sync::Arc;
use std::time::Duration;

use caju_proto::v1::CacheSize;
use caju_runtime::OrderedMutex;
use tokio::sync::watch;

use super::Core;
use crate::locks;

/// A listing that is younger than this answers a status call as it is. It bounds the requests that status calls cause.
const REFRESH: Duration = Duration::from_secs(10);

/// The last listing of the cache's root.
pub(super) struct KnownSize {
    known: OrderedMutex<Option<(Duration, CacheSize)>>,
    /// Whether a listing is under way.
    listing: watch::Sender<bool>,
}

impl Default for KnownSize {
    fn default() -> Self {
        Self { known: OrderedMutex::new(locks::CACHE_SIZE, None), listing: watch::Sender::new(false) }
    }
}

impl Core {
    /// The size of the cache by a recent listing; none without a cache, and while no listing has ended.
    pub(super) async fn cache_size(self: &Arc<Self>) -> Option<CacheSize> {
        if !self.snapshots.exists() {
            return None;
        }
        let now = self.clock.now();
        let is_recent = |at: Duration| now.saturating_sub(at) < REFRESH;
        let size = self.snapshots.size();
        let known = *size.known.lock();
        if !known.is_some_and(|(at, _)| is_recent(at)) {
            let mut news = size.listing.subscribe();
            if !size.listing.send_replace(true) {
                let (core, failing) = (Arc::clone(self), Arc::clone(self));
                let on_failure = move |e| {
                    tracing::debug!(error = %e, "the size of the cache is not known");
                    failing.snapshots.size().listing.send_replace(false);
                };
                self.tasks.background("listing the cache for the status", on_failure, async move {
                    let usage = core.snapshots.reader().await?.usage().await?;
                    let known = CacheSize {
                        bytes: usage.bytes,
                        budget_bytes: core.config.cache_budget.unwrap_or(0),
                        snapshots: usage.snapshots,
                        age_s: 0.0,
                    };
                    let size = core.snapshots.size();
                    *size.known.lock() = Some((core.clock.now(), known));
                    size.listing.send_replace(false);
                    Ok(())
                });
            }
            tokio::select! {
                ended = news.wait_for(|listing| !listing) => drop(ended.map(|_| ())),
                () = self.clock.sleep(self.config.timers.cache_wait) => {}
            }
        }
        let known = *size.known.lock();
        let (at, size) = known?;
        Some(CacheSize { age_s: self.clock.now().saturating_sub(at).as_secs_f64(), ..size })
    }
}
