//! The size of the cache, for the status. Listing a large root takes long, so a listing runs in the background, and the status
//! has the last one.

use std::sync::Arc;
use std::time::Duration;

use caju_proto::v1::CacheSize;

use super::snapshots::Snapshots;

/// A listing that is younger than this answers a status call as it is. It bounds the requests that status calls cause.
const REFRESH: Duration = Duration::from_secs(10);

impl Snapshots {
    /// The size of the cache by a recent listing; none without a cache, and while no listing has ended.
    pub(super) async fn cache_size(self: &Arc<Self>) -> Option<CacheSize> {
        if !self.exists() {
            return None;
        }
        let now = self.context.clock.now();
        let is_recent = |at: Duration| now.saturating_sub(at) < REFRESH;
        let size = self.size();
        let known = *size.known.lock();
        if !known.is_some_and(|(at, _)| is_recent(at)) {
            let mut news = size.listing.subscribe();
            if !size.listing.send_replace(true) {
                let (me, failing) = (Arc::clone(self), Arc::clone(self));
                let on_failure = move |e| {
                    tracing::debug!(error = %e, "the size of the cache is not known");
                    failing.size().listing.send_replace(false);
                };
                self.context.tasks.background("listing the cache for the status", on_failure, async move {
                    let usage = me.reader().await?.usage().await?;
                    let known = CacheSize {
                        bytes: usage.bytes,
                        budget_bytes: me.context.config.cache_budget.unwrap_or(0),
                        snapshots: usage.snapshots,
                        age_s: 0.0,
                    };
                    let size = me.size();
                    *size.known.lock() = Some((me.context.clock.now(), known));
                    size.listing.send_replace(false);
                    Ok(())
                });
            }
            tokio::select! {
                ended = news.wait_for(|listing| !listing) => drop(ended.map(|_| ())),
                () = self.context.clock.sleep(self.context.config.timers.cache_wait) => {}
            }
        }
        let known = *size.known.lock();
        let (at, size) = known?;
        Some(CacheSize { age_s: self.context.clock.now().saturating_sub(at).as_secs_f64(), ..size })
    }
}
