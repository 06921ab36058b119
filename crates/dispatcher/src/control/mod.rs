//! The control plane: what a call, a silence or a failure means.
//!
//! [`Core`] holds one service for each kind of call, and each service holds the parts that it uses. All of them use the
//! [`Context`]. What a part keeps is under a lock of its own; `locks` states the order of the locks. A step decides under the
//! lock of the state ([`store::Store`]), which takes microseconds; the answer leaves when what was decided, and all that it
//! rests on, is durable. Who waits for news of an iteration, or for its splits, waits at its notifier.

mod absent_consumers;
mod acknowledged_rows;
mod acknowledgements;
mod attempts;
mod autocache;
mod cache_size;
mod call_times;
mod clients;
mod completed_splits;
mod completion;
mod consumers;
mod context;
mod datasets;
mod ended_tasks;
mod fairness;
mod holders;
mod iterations;
mod jobs;
mod joining;
mod known_size;
mod learning;
mod learnt_boundaries;
mod listing;
mod listings;
mod liveness;
mod manifests;
mod notifiers;
mod open;
mod peer_reports;
mod policies;
mod priority;
mod process;
mod reader_calls;
mod reattach;
mod reopen;
mod reports;
mod restored_beginning;
mod resume;
mod rounds;
mod row_checksums;
mod saves;
mod scaling;
pub(crate) mod secrets;
mod served;
mod sets;
mod shards;
mod sharing;
mod snapshots;
mod split_counts;
mod splits;
mod status;
mod store;
mod stragglers;
mod targets;
mod task_messages;
mod task_speeds;
pub(crate) mod usage;
mod workers;
mod written_hashes;

use std::sync::Arc;
use std::time::Duration;

use caju_runtime::Clock;
use caju_types::{ClientId, Error, IterationId, Result};

use crate::catalog::Catalog;
use crate::config::DispatcherConfig;
use crate::journal::Journal;
#[cfg(test)]
use crate::state::State;
use crate::state::{Iteration, Update};
use autocache::{Decisions, JobDecisions};
use clients::Clients;
#[cfg(test)]
pub(crate) use clients::task_infos;
use consumers::ConsumerCalls;
pub(crate) use context::Context;
use context::IterationObserver;
use datasets::Datasets;
use iterations::Iterations;
use learning::Learning;
use listings::{Listings, Providers};
use liveness::LivenessChecks;
use open::Epochs;
use rounds::{RoundOrders, Rounds};
use saves::SaveCalls;
pub use saves::Saves;
pub(crate) use scaling::ClusterCounts;
use scaling::Scaling;
use snapshots::Snapshots;
use split_counts::SplitCounts;
use splits::SplitLeases;
use status::Status;
pub(crate) use store::Txn;
use workers::Workers;

/// The longest pause between two checks of the present readers of a dispatcher that drains.
const MAX_DRAIN_POLL: Duration = Duration::from_millis(100);

/// The control plane of one dispatcher: its services.
pub(crate) struct Core {
    pub(crate) context: Arc<Context>,
    pub(crate) datasets: Arc<Datasets>,
    pub(crate) learning: Arc<Learning>,
    pub(crate) epochs: Epochs,
    pub(crate) clients: Clients,
    pub(crate) consumers: ConsumerCalls,
    pub(crate) rounds: Rounds,
    pub(crate) splits: SplitLeases,
    pub(crate) workers: Workers,
    pub(crate) saves: Arc<SaveCalls>,
    pub(crate) scaling: Arc<Scaling>,
    pub(crate) liveness: Arc<LivenessChecks>,
    pub(crate) status: Status,
    snapshots: Arc<Snapshots>,
}

impl Core {
    /// A control plane on what a journal holds.
    ///
    /// # Errors
    /// Those of the operator's secret and of the journal.
    pub(crate) fn new(
        config: DispatcherConfig,
        catalog: Arc<dyn Catalog>,
        clock: Arc<dyn Clock>,
        journal: Box<dyn Journal>,
        replayed: Vec<Vec<Update>>,
    ) -> Result<Arc<Self>> {
        let (providers, counts) = (Arc::new(Providers::default()), Arc::new(SplitCounts::default()));
        let orders = Arc::new(RoundOrders::default());
        let jobs = Arc::new(JobDecisions::new(config.record_autocache_events.as_deref()));
        let observers: Vec<Arc<dyn IterationObserver>> = vec![
            Arc::clone(&providers) as _,
            Arc::clone(&counts) as _,
            Arc::clone(&orders) as _,
            Arc::clone(&jobs) as _,
        ];
        let context = Context::new(config, clock, journal, replayed, observers)?;
        let datasets = Arc::new(Datasets::new(Arc::clone(&context), Arc::clone(&catalog)));
        let learning = Arc::new(Learning::new(Arc::clone(&context), Arc::clone(&datasets)));
        let snapshots = Arc::new(Snapshots::new(Arc::clone(&context), catalog, counts));
        let listings = Listings::new(
            Arc::clone(&context),
            Arc::clone(&datasets),
            Arc::clone(&snapshots),
            Arc::clone(&providers),
        );
        let decisions = Arc::new(Decisions::new(
            Arc::clone(&context),
            Arc::clone(&datasets),
            Arc::clone(&snapshots),
            Arc::clone(&providers),
            jobs,
        ));
        let iterations = Arc::new(Iterations::new(Arc::clone(&context), Arc::clone(&snapshots)));
        let saves = Arc::new(SaveCalls::new(Arc::clone(&context), Arc::clone(&datasets)));
        let scaling = Arc::new(Scaling::new(Arc::clone(&context), Arc::clone(&learning)));
        Ok(Arc::new(Self {
            epochs: Epochs {
                context: Arc::clone(&context),
                datasets: Arc::clone(&datasets),
                learning: Arc::clone(&learning),
                snapshots: Arc::clone(&snapshots),
                decisions: Arc::clone(&decisions),
                iterations: Arc::clone(&iterations),
                saves: Arc::clone(&saves),
            },
            clients: Clients {
                context: Arc::clone(&context),
                providers: Arc::clone(&providers),
                iterations: Arc::clone(&iterations),
            },
            consumers: ConsumerCalls { context: Arc::clone(&context) },
            rounds: Rounds { context: Arc::clone(&context), orders },
            splits: SplitLeases { context: Arc::clone(&context), listings },
            workers: Workers {
                context: Arc::clone(&context),
                learning: Arc::clone(&learning),
                snapshots: Arc::clone(&snapshots),
                decisions,
            },
            liveness: Arc::new(LivenessChecks {
                context: Arc::clone(&context),
                datasets: Arc::clone(&datasets),
                iterations,
            }),
            status: Status {
                context: Arc::clone(&context),
                providers,
                snapshots: Arc::clone(&snapshots),
                saves: Arc::clone(&saves),
                scaling: Arc::clone(&scaling),
            },
            context,
            datasets,
            learning,
            saves,
            scaling,
            snapshots,
        }))
    }

    /// A copy of the state.
    #[cfg(test)]
    pub(crate) fn snapshot(&self) -> State {
        self.context.store.read(State::clone)
    }

    /// Opens no epoch any more.
    pub(crate) fn open_no_more(&self) {
        self.context.process.drain();
    }

    /// Opens no epoch any more, and waits until no present reader is in the middle of one; false at the bound.
    pub(crate) async fn drain(&self, bound: Duration) -> bool {
        self.open_no_more();
        let Context { clock, config, .. } = self.context.as_ref();
        let until = clock.now() + bound;
        let pause = config.timers.check_every.min(MAX_DRAIN_POLL);
        while self.is_read() {
            if clock.now() >= until {
                return false;
            }
            clock.sleep(pause).await;
        }
        true
    }

    /// Whether some reader that reported lately is in the middle of an epoch.
    fn is_read(&self) -> bool {
        let Context { clock, config, store, .. } = self.context.as_ref();
        let (now, alive) = (clock.now(), config.timers.heartbeat * 3);
        store.read(|state| {
            let reports = self.context.reports.lock();
            let present = |id: IterationId, client: ClientId| {
                reports.clients.get(&(id, client)).is_some_and(|c| now.saturating_sub(c.at) <= alive)
            };
            let read = |i: &Iteration| i.failure.is_none() && i.own_members().any(|c| present(i.id, c));
            state.iterations.values().any(read)
        })
    }

    /// Writes what is enqueued; nothing can be decided afterwards.
    pub(crate) fn close_journal(&self) {
        self.context.store.close();
    }

    /// Closes the cache in order.
    pub(crate) async fn close_cache(&self, bound: Duration) {
        self.snapshots.close(bound).await;
    }

    /// Waits until the journal fails, if it ever does.
    pub(crate) async fn journal_failed(&self) -> Error {
        self.context.store.failed().await
    }
}
