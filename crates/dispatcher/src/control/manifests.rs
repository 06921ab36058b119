//! Manifests: what the control plane alone knows of snapshots is written to them at the end of an epoch: how many splits their
//! source has, and the profile under which they were chosen.
//!
//! That happens in the background. A manifest is a description and never the only truth, so that a failure is left to the next
//! epoch.

use std::sync::Arc;
use std::time::Duration;

use caju_cache::DescriptionUpdate;
use caju_runtime::log_failure;
use caju_types::{Error, Fingerprint, IterationId, Result, format_duration, hash128};
use futures::TryStreamExt as _;
use futures::stream::{BoxStream, StreamExt as _};

use super::snapshots::Snapshots;
use crate::catalog::{Bound, ListedSplit};
use crate::definition::Definition;
use crate::state::{SplitModes, State};

/// How much longer it may take once the dispatcher is to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// A snapshot, and what is to be written to its manifest.
struct ManifestUpdate {
    /// The hint's prefix by the definition.
    prefix: Fingerprint,
    /// Where draws stand above the hint: the definition, the hint and the job's seed.
    drawn: Option<(Definition, String, u64)>,
    news: DescriptionUpdate,
    /// The hash of what is written.
    hash: u128,
}

impl Snapshots {
    /// The same splits. Where hints store split by split, each split is counted as it passes.
    pub(super) fn counted(
        &self,
        iteration: IterationId,
        bound: &Bound,
        splits: BoxStream<'static, Result<ListedSplit>>,
    ) -> BoxStream<'static, Result<ListedSplit>> {
        if !self.exists() || bound.hints.iter().all(|h| h.is_set()) {
            return splits;
        }
        let count = self.counts.begin(iteration);
        splits.inspect_ok(move |split| count.add(split)).boxed()
    }

    fn manifest_update(&self, state: &State, id: IterationId) -> Option<ManifestUpdate> {
        let iteration = state.iterations.get(&id).filter(|i| i.is_drained())?;
        let job = state.jobs.get(&iteration.job)?;
        let plan = iteration.plan.as_ref()?.value()?;
        let SplitModes { put, get, .. } = iteration.modes;
        // A set says by itself what it covers, and a save has a description of its own.
        if put + get == 0 || plan.set.is_some() || plan.save.is_some() {
            return None;
        }
        let listed = iteration.feeds.values().all(|f| f.exhausted);
        let splits = self.counts.of(id).filter(|_| listed);
        let news = DescriptionUpdate { splits, profile: super::status::profile_value(job) };
        if news == DescriptionUpdate::default() {
            return None;
        }
        let dataset = state.datasets.get(&iteration.dataset)?;
        let draws = dataset.hints.iter().any(|h| h.name == plan.hint && h.random);
        // Rates are written when there are some, and not each time that they change.
        let decided_by = job.profile.as_ref().map_or("", |p| p.text());
        let read = job.replan.read_rate.is_some();
        let text = format!("{} {} {:?} {read} {decided_by}", plan.prefix, job.spec.seed, news.splits);
        let hash = hash128(text.as_bytes());
        // A job that stored something may have begun a snapshot that was removed since its manifest was written.
        if !self.written.is_new(hash) && put == 0 {
            return None;
        }
        let drawn = draws.then(|| (dataset.definition.clone(), plan.hint.clone(), job.spec.seed));
        Some(ManifestUpdate { prefix: plan.prefix, drawn, news, hash })
    }

    async fn write_description(&self, update: &ManifestUpdate) -> Result<()> {
        let seeded = match &update.drawn {
            Some((definition, hint, seed)) => self.seeded_snapshot(definition, hint, *seed).await,
            None => None,
        };
        let of = seeded.unwrap_or(update.prefix);
        if self.writer().await?.snapshot(&of).update_description(&update.news).await? {
            tracing::debug!(snapshot = %of, splits = update.news.splits, "a manifest was updated");
        }
        Ok(())
    }
}

impl Snapshots {
    /// Once an iteration has ended that stored rows or read stored ones: updates the manifest of their snapshot, in the background.
    pub(super) fn update_manifest_soon(self: &Arc<Self>, state: &State, id: IterationId) {
        let Some(update) = self.manifest_update(state, id) else { return };
        let me = Arc::clone(self);
        self.context.tasks.background_graceful("updating a manifest", log_failure, async move {
            if let Err(error) = me.update_manifest(&update).await {
                me.written.forget(update.hash);
                tracing::debug!(prefix = %update.prefix, %error, "a manifest was not updated");
            }
            Ok(())
        });
    }

    /// # Errors
    /// `DeadlineExceeded` naming the manifest if the cache's store does not answer in time, `Cancelled` if the dispatcher stops,
    /// and the errors of the store.
    async fn update_manifest(&self, update: &ManifestUpdate) -> Result<()> {
        let stopping = async {
            self.context.tasks.stopped().await;
            self.context.clock.sleep(STOP_TIMEOUT).await;
        };
        let timeout = self.context.config.timers.cache_update_timeout;
        tokio::select! {
            written = self.write_description(update) => written,
            () = self.context.clock.sleep(timeout) => Err(Error::deadline(format!(
                "the store of the cache {} has not answered to the update of the manifest of snapshot {} for {} \
                 (--cache-update-timeout)",
                self.context.config.cache_url,
                update.prefix,
                format_duration(timeout)
            ))),
            () = stopping => Err(Error::cancelled("the dispatcher stops")),
        }
    }
}

#[cfg(test)]
mod tests {
    use caju_runtime::{Stores, Tasks};
    use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
    use caju_types::ErrorKind;

    use super::*;
    use crate::config::DispatcherConfig;
    use crate::tests::fake::{World, run};

    /// A dispatcher whose cache is in a store with faults.
    fn world(faults: Faults, timeout: Duration) -> World {
        let (url, stores) = ("memory://slow-manifests", Stores::default());
        let inner = stores.resolve(url).unwrap();
        stores.register(&inner.url.root(), Arc::new(faulty_store(inner.store, faults))).unwrap();
        let settings = |mut config: DispatcherConfig| {
            config.cache_url = url.to_string();
            config.timers.cache_update_timeout = timeout;
            config.timers.cache_request_timeout = Duration::from_secs(100);
            config
        };
        World::with_stores(settings, Arc::new(stores))
    }

    fn update() -> ManifestUpdate {
        let news = DescriptionUpdate { splits: Some(4), ..DescriptionUpdate::default() };
        ManifestUpdate { prefix: Fingerprint(0xfeed), drawn: None, news, hash: 1 }
    }

    /// `--cache-request-timeout`: a store that is silent is asked again and then given up, long before the update is.
    #[test]
    fn a_request_of_the_dispatcher_to_a_cache_ends_after_the_cache_request_timeout() {
        run(async {
            let faults = Faults::new();
            faults.add(Rule::new(Op::Any, Fault::Silence).always());
            let world = world(faults.clone(), Duration::from_secs(100_000));
            let core = Arc::clone(&world.core);
            let updating = Tasks::new()
                .spawn("an update", async move { core.snapshots.update_manifest(&update()).await });
            faults.wait_fired(1).await;
            let mut waited = 0;
            while !updating.is_finished() {
                world.clock.advance(Duration::from_secs(1));
                waited += 1;
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert!(waited < 90_000, "the update ends by its own timeout");
            }
            let error = updating.await.unwrap().unwrap_err();
            assert!(error.message().contains("did not answer within 1 min 40 s"), "{error}");
            assert!(waited >= 100, "{waited} s");
        });
    }

    #[test]
    fn an_update_of_a_manifest_that_hangs_ends_after_its_timeout_and_names_the_snapshot() {
        run(async {
            world(Faults::new(), Duration::from_secs(7))
                .core
                .snapshots
                .update_manifest(&update())
                .await
                .unwrap();
            for timeout in [7, 40] {
                let faults = Faults::new();
                faults.add(Rule::new(Op::Any, Fault::Silence).always());
                let world = world(faults.clone(), Duration::from_secs(timeout));
                let core = Arc::clone(&world.core);
                let updating = Tasks::new()
                    .spawn("an update", async move { core.snapshots.update_manifest(&update()).await });
                faults.wait_fired(1).await;
                world.clock.advance(Duration::from_secs(timeout - 1));
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert!(!updating.is_finished(), "{timeout} s are not over");
                world.clock.advance(Duration::from_secs(1));
                let error = updating.await.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                let named = format!("manifest of snapshot {} for {timeout}", Fingerprint(0xfeed));
                for says in [named.as_str(), "memory://slow-manifests", "--cache-update-timeout"] {
                    assert!(error.message().contains(says), "{error}");
                }
            }
        });
    }
}
