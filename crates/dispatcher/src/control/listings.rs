//! Listings: the fresh splits of iterations, found a little ahead of the leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use caju_runtime::{OrderedMutex, Tasks};
use caju_types::{Error, ErrorKind, IterationId};

use super::context::{Context, IterationObserver};
use super::datasets::Datasets;
use super::listing::Listing;
use super::notifiers::Notifier;
use super::sets;
use super::snapshots::Snapshots;
use crate::catalog::SplitShuffle;
use crate::locks;
use crate::splits::{Issued, SharedProvider, SkippedSplits, SplitOrder, SplitProvider};
use crate::state::{Feed, FeedId, Iteration, Mode, State};

/// The providers of the splits of running iterations.
pub(super) struct Providers {
    by_feed: OrderedMutex<BTreeMap<(IterationId, FeedId), Provider>>,
}

impl Default for Providers {
    fn default() -> Self {
        Self { by_feed: OrderedMutex::new(locks::LISTINGS, BTreeMap::new()) }
    }
}

struct Provider {
    shared: SharedProvider,
    filler: Tasks,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.filler.stop();
    }
}

impl IterationObserver for Providers {
    /// Splits of an iteration that has ended are not listed any more.
    fn changed(&self, id: IterationId, is_running: bool) {
        if !is_running {
            self.by_feed.lock().retain(|(i, _), _| *i != id);
        }
    }

    fn removed(&self, _id: IterationId, _state: &State) {}
}

impl Providers {
    /// The number of splits of an iteration, as far as its providers know it; 0 while one of them does not.
    pub(super) fn splits_total(&self, iteration: &Iteration) -> u64 {
        let providers = self.by_feed.lock();
        let total = |(id, feed): (&FeedId, &Feed)| {
            let listed = providers.get(&(iteration.id, *id)).and_then(|p| p.shared.total());
            listed.or_else(|| feed.exhausted.then_some(feed.issued))
        };
        let all: Option<Vec<u64>> = iteration.feeds.iter().map(total).collect();
        all.unwrap_or_default().into_iter().sum()
    }
}

/// Lists the splits of iterations.
pub(super) struct Listings {
    context: Arc<Context>,
    source: Source,
    providers: Arc<Providers>,
}

/// What a listing reads.
#[derive(Clone)]
struct Source {
    datasets: Arc<Datasets>,
    snapshots: Arc<Snapshots>,
}

impl Listings {
    pub(super) fn new(
        context: Arc<Context>,
        datasets: Arc<Datasets>,
        snapshots: Arc<Snapshots>,
        providers: Arc<Providers>,
    ) -> Self {
        Self { context, source: Source { datasets, snapshots }, providers }
    }

    /// The provider of a feed; begins to list if there is none. Called under the lock of the state.
    pub(super) fn provider(&self, state: &State, iteration: &Iteration, feed: FeedId) -> SharedProvider {
        let mut providers = self.providers.by_feed.lock();
        if let Some(provider) = providers.get(&(iteration.id, feed)) {
            return Arc::clone(&provider.shared);
        }
        let shared = Arc::new(SplitProvider::default());
        let known = iteration.feeds.get(&feed);
        let issued =
            known.map_or(Issued { count: 0, digest: 0 }, |f| Issued { count: f.issued, digest: f.digest });
        let skipped_splits =
            iteration.resume.as_deref().map_or_else(SkippedSplits::default, |r| SkippedSplits {
                positions: r.skipped_splits(feed),
                listed: r.taken.listed().get(&feed.0).copied(),
            });
        let listing = Listing {
            feed,
            issued,
            skipped_splits,
            dataset: iteration.dataset.clone(),
            job_seed: state.jobs.get(&iteration.job).map_or(0, |j| j.spec.seed),
            epoch: iteration.epoch,
            slot: (iteration.mode == Mode::Off).then_some(feed.0),
            shard: iteration.shard_of(feed),
            iteration: iteration.id,
            plan: iteration.plan.clone(),
        };
        let notifier = self.context.notifiers.of(iteration.id);
        let filler = self.context.tasks.child();
        let (name, failing) = (format!("the listing of {}", listing.iteration), Arc::clone(&shared));
        let notified = Arc::clone(&notifier);
        let on_failure = move |e: Error| {
            // A listing that is stopped is not asked for splits any more.
            if e.kind() != ErrorKind::Cancelled {
                tracing::error!(error = %e, "a listing broke down");
                failing.fail_or_end(Err(e));
                notified.notify_splits();
            }
        };
        let filling = listing.fill(self.source.clone(), Arc::clone(&shared), notifier);
        filler.background(name, on_failure, async move {
            filling.await;
            Ok(())
        });
        let provider = Provider { shared: Arc::clone(&shared), filler };
        providers.insert((iteration.id, feed), provider);
        shared
    }
}

impl Listing {
    async fn fill(self, source: Source, provider: SharedProvider, notifier: Arc<Notifier>) {
        let notify = || notifier.notify_splits();
        let Source { datasets, snapshots } = source;
        let bound = match datasets.bound(&self.dataset).await {
            Ok(bound) => bound,
            Err(e) => {
                provider.fail_or_end(Err(e));
                return notify();
            }
        };
        let shard = self.shard.map(|shard| (bound.shards)(shard));
        let permutes = shard.as_ref().map_or(bound.permutes, |s| s.permutes);
        let seed = |s: SplitShuffle| s.seed.unwrap_or(self.job_seed);
        let shuffle = bound.shuffle.filter(|_| permutes);
        let order = shuffle.map(|s| SplitOrder::new(seed(s), self.epoch, self.slot));
        if let Some(shard) = shard {
            provider.names_listing(shard.listed);
            let splits = snapshots.counted(self.iteration, &bound, shard.splits);
            drop((datasets, snapshots));
            return provider.fill(self.feed, order, splits, (self.issued, self.skipped_splits), notify).await;
        }
        let splits = match sets::plan_of(self.plan.as_ref()) {
            None => snapshots.counted(self.iteration, &bound, (bound.splits)()),
            Some(plan) => match self.with_set(&snapshots, &bound, plan, order).await {
                Ok(sets::IterationSplits::Splits(all)) => {
                    Box::pin(futures::stream::iter(all.into_iter().map(Ok)))
                }
                Ok(sets::IterationSplits::Groups(mut groups, whole)) => {
                    drop((datasets, snapshots));
                    if let Some(order) = order {
                        order.permute(0, &mut groups);
                    }
                    if let Some(first) = groups.iter_mut().flatten().next() {
                        first.whole = Some(whole);
                    }
                    return provider.fill_groups(groups, self.issued, notify).await;
                }
                Err(e) => {
                    provider.fail_or_end(Err(e));
                    return notify();
                }
            },
        };
        drop((datasets, snapshots));
        provider.fill(self.feed, order, splits, (self.issued, self.skipped_splits), notify).await;
    }
}
