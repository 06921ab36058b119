//! The control plane: what events mean.
//!
//! [`Core`] holds the state behind one lock. A call decides under the lock, which takes microseconds; it
//! answers when what it decided, and all that it has seen, is durable. Whoever waits for news of an iteration
//! watches its bell.

mod accounts;
mod autocache;
mod caching;
mod check;
mod clients;
mod datasets;
mod describing;
mod leases;
pub(crate) mod limits;
mod observed;
mod open;
mod saves;
pub(crate) mod secrets;
mod sets;
mod status;
mod workers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caju_autocache::{CachePlan, Document};
use caju_runtime::{Clock, Tasks, random_secret};
use caju_types::{ClientId, DatasetId, Error, ErrorKind, IterationId, Result, Secret};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::catalog::{Bound, Catalog, SplitShuffle};
use crate::config::DispatcherConfig;
use crate::journal::{Journal, JournalWriter};
use crate::splits::{Issued, SharedProvider, SplitOrder, SplitProvider};
use crate::state::{FeedId, Iteration, Mode, State, Update, follow_ups};
use autocache::AutocacheJobs;
use observed::Observed;
pub use saves::Saves;

/// Updates after which the journal is compacted.
const COMPACT_AFTER: u64 = 20_000;
/// Bytes after which the journal is compacted, unless the datasets in it are larger.
const COMPACT_AFTER_BYTES: u64 = 64 << 20;

/// The control plane of one dispatcher.
pub(crate) struct Core {
    pub(crate) config: DispatcherConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
    catalog: Arc<dyn Catalog>,
    inner: Mutex<Inner>,
    journal: JournalWriter,
    bells: Mutex<HashMap<IterationId, Arc<watch::Sender<()>>>>,
    providers: Mutex<BTreeMap<(IterationId, FeedId), Provider>>,
    bound: Mutex<HashMap<DatasetId, Arc<Bound>>>,
    uses: Mutex<limits::Uses>,
    observed: Mutex<Observed>,
    autocache: AutocacheJobs,
    saves: saves::SaveBooks,
    describing: describing::Describing,
    /// What calls of operators carry; without it such calls are refused.
    operator: Option<Secret>,
    /// The cache, for looking whether sets of parts are there.
    cache: tokio::sync::OnceCell<Arc<caju_cache::Cache>>,
    started: Duration,
    /// No epoch is opened any more.
    draining: AtomicBool,
    /// Distinguishes the names that this process makes from those of others before it.
    names: (u128, AtomicU64),
}

struct Inner {
    state: State,
    updates_since_snapshot: u64,
    bytes_since_snapshot: u64,
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

/// One decision: changes are applied as they are made, and journaled together.
pub(crate) struct Txn<'a> {
    pub(crate) state: &'a mut State,
    updates: Vec<Update>,
    touched: BTreeSet<IterationId>,
}

impl Txn<'_> {
    pub(crate) fn apply(&mut self, update: Update) {
        self.state.apply(&update);
        self.updates.push(update);
    }

    /// Applies what must follow from the changes made so far.
    pub(crate) fn settle(&mut self) {
        for id in self.state.take_touched() {
            for mut update in follow_ups(self.state, id) {
                draw_secret(&mut update);
                self.apply(update);
            }
            self.touched.insert(id);
        }
        self.touched.append(&mut self.state.take_touched());
    }
}

/// What is decided is pure, but for secrets: a new task gets one here. Without random numbers it has none, and nobody
/// can read it.
fn draw_secret(update: &mut Update) {
    if let Update::TaskCreated { secret, task, .. } = update {
        match random_secret() {
            Ok(drawn) => *secret = Some(drawn),
            Err(error) => tracing::error!(%task, %error, "a task without a secret cannot be read"),
        }
    }
}

/// Where a new journal begins to count. Milliseconds grow faster than a dispatcher gives out identifiers, and each has
/// room for 4096 of which a random one is taken: a clock that was set back gives none out twice.
fn first_id(unix_ms: u128) -> Result<u64> {
    let random = random_secret()?.as_bytes().iter().fold(0u64, |sum, b| (sum << 1) ^ u64::from(*b));
    let id = u64::try_from(unix_ms % (1 << 41)).unwrap_or(1) * 4096;
    Ok(id + random % 4096)
}

impl Core {
    /// A control plane on what a journal holds.
    pub(crate) fn new(
        config: DispatcherConfig,
        catalog: Arc<dyn Catalog>,
        clock: Arc<dyn Clock>,
        journal: Box<dyn Journal>,
        replayed: &[Vec<Update>],
    ) -> Result<Arc<Self>> {
        let mut state = State::default();
        replayed.iter().flatten().for_each(|u| state.apply(u));
        state.take_touched();
        let unix_ms = clock.unix_time().as_millis();
        let beside_journal = config.state_dir.as_ref().map(|dir| dir.join(secrets::OPERATOR_SECRET));
        let operator_file = config.operator_secret_file.clone().or(beside_journal);
        let operator = operator_file.map(|file| secrets::operator_secret(&file)).transpose()?;
        let record_dir = config.record_autocache_events.clone();
        let core = Arc::new(Self {
            started: clock.now(),
            draining: AtomicBool::new(false),
            names: (unix_ms, AtomicU64::new(0)),
            config,
            clock,
            tasks: Tasks::new(),
            catalog,
            inner: Mutex::new(Inner { state, updates_since_snapshot: 0, bytes_since_snapshot: 0 }),
            journal: JournalWriter::start(journal)?,
            bells: Mutex::default(),
            providers: Mutex::default(),
            bound: Mutex::default(),
            uses: Mutex::default(),
            observed: Mutex::default(),
            autocache: AutocacheJobs::new(record_dir.as_deref()),
            saves: saves::SaveBooks::default(),
            describing: describing::Describing::default(),
            operator,
            cache: tokio::sync::OnceCell::new(),
        });
        if replayed.is_empty() {
            let base_id = first_id(unix_ms)?;
            core.transact(|txn| txn.apply(Update::Founded { base_id }));
        } else if replayed.len() as u64 > COMPACT_AFTER / 10 {
            core.journal.compact(core.inner.lock().state.clone());
        }
        Ok(core)
    }

    /// A copy of the state.
    #[cfg(test)]
    pub(crate) fn snapshot(&self) -> State {
        self.inner.lock().state.clone()
    }

    /// Opens no epoch any more, and waits until no present reader is in the middle of one; false at the bound.
    pub(crate) async fn drain(&self, bound: Duration) -> bool {
        self.draining.store(true, Ordering::Release);
        let until = self.clock.now() + bound;
        let pause = self.config.timers.check_every.min(Duration::from_millis(100));
        while self.is_read() {
            if self.clock.now() >= until {
                return false;
            }
            self.clock.sleep(pause).await;
        }
        true
    }

    /// Whether some reader that was heard of lately is in the middle of an epoch.
    fn is_read(&self) -> bool {
        let (now, alive) = (self.clock.now(), self.config.timers.heartbeat * 3);
        let inner = self.inner.lock();
        let observed = self.observed.lock();
        let present = |id: IterationId, client: ClientId| {
            observed.clients.get(&(id, client)).is_some_and(|c| now.saturating_sub(c.at) <= alive)
        };
        let read = |i: &Iteration| i.failure.is_none() && i.own_members().any(|c| present(i.id, c));
        inner.state.iterations.values().any(read)
    }

    /// Writes what is enqueued; nothing can be decided afterwards.
    pub(crate) fn close_journal(&self) {
        self.journal.close();
    }

    /// Waits until the journal fails, if it ever does.
    pub(crate) async fn journal_failed(&self) -> caju_types::Error {
        self.journal.failed().await
    }

    /// Decides something under the lock; the result, and the number that must be durable before it is told.
    fn transact<R>(&self, decide: impl FnOnce(&mut Txn<'_>) -> R) -> (R, u64) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut txn = Txn { state: &mut inner.state, updates: Vec::new(), touched: BTreeSet::new() };
        let result = decide(&mut txn);
        txn.settle();
        let Txn { updates, touched, .. } = txn;
        let number = if updates.is_empty() {
            self.journal.last()
        } else {
            inner.updates_since_snapshot += updates.len() as u64;
            inner.bytes_since_snapshot += updates.iter().map(limits::journal_bytes).sum::<u64>();
            self.journal.enqueue(updates)
        };
        if inner.updates_since_snapshot > COMPACT_AFTER
            || inner.bytes_since_snapshot > COMPACT_AFTER_BYTES.max(inner.state.dataset_bytes())
        {
            (inner.updates_since_snapshot, inner.bytes_since_snapshot) = (0, 0);
            self.journal.compact(inner.state.clone());
        }
        self.tidy(&inner.state, &touched);
        drop(guard);
        (result, number)
    }

    /// Decides something and waits until it is durable, whether it turned out well or not.
    pub(crate) async fn commit<R>(&self, decide: impl FnOnce(&mut Txn<'_>) -> Result<R>) -> Result<R> {
        let (result, number) = self.transact(decide);
        self.journal.durable(number).await?;
        result
    }

    /// Reads the state. What was seen may not be durable yet: nobody is told of it.
    fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.inner.lock().state)
    }

    /// Looks at the state, and waits until what it saw is durable.
    pub(crate) async fn look<R>(&self, look: impl FnOnce(&State) -> R) -> Result<R> {
        let (result, number) = self.transact(|txn| look(txn.state));
        self.journal.durable(number).await?;
        Ok(result)
    }

    /// Rings the bells of changed iterations, and drops what nobody needs any more.
    fn tidy(&self, state: &State, touched: &BTreeSet<IterationId>) {
        for id in touched {
            let iteration = state.iterations.get(id);
            if !iteration.is_some_and(Iteration::is_running) {
                self.providers.lock().retain(|(i, _), _| i != id);
                self.describing.settle(*id);
            }
            let mut bells = self.bells.lock();
            if let Some(bell) = bells.get(id) {
                bell.send_replace(());
            }
            if iteration.is_none() {
                bells.remove(id);
                self.observed.lock().forget(*id);
                self.autocache.retain_jobs_of(state);
                self.describing.forget(*id);
            }
        }
    }

    fn bell(&self, id: IterationId) -> Arc<watch::Sender<()>> {
        Arc::clone(self.bells.lock().entry(id).or_insert_with(|| Arc::new(watch::Sender::new(()))))
    }

    /// Waits for news of an iteration until a deadline of the monotonic clock; false at the deadline.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher shuts down.
    async fn wait(&self, news: &mut watch::Receiver<()>, deadline: Duration) -> Result<bool> {
        let left = deadline.saturating_sub(self.clock.now());
        if left.is_zero() {
            return Ok(false);
        }
        tokio::select! {
            _ = news.changed() => Ok(true),
            () = self.clock.sleep(left) => Ok(false),
            () = self.tasks.stopped() => Err(Error::unavailable(
                "the dispatcher is shutting down; try again when it is back",
            )),
        }
    }

    /// When a call that wants to wait so long has to answer.
    fn deadline(&self, wait_ms: u64) -> Duration {
        self.clock.now() + Duration::from_millis(wait_ms).min(self.config.timers.longest_poll)
    }

    /// A name for something of one user alone, never given before.
    pub(crate) fn unique_name(&self, prefix: &str) -> String {
        format!("{prefix}{:x}-{}", self.names.0, self.names.1.fetch_add(1, Ordering::Relaxed))
    }

    /// The provider of a feed; begins to list if there is none. Called under the lock of the state.
    fn provider(self: &Arc<Self>, state: &State, iteration: &Iteration, feed: FeedId) -> SharedProvider {
        let mut providers = self.providers.lock();
        if let Some(provider) = providers.get(&(iteration.id, feed)) {
            return Arc::clone(&provider.shared);
        }
        let shared = Arc::new(SplitProvider::default());
        let books = iteration.feeds.get(&feed);
        let issued =
            books.map_or(Issued { count: 0, digest: 0 }, |f| Issued { count: f.issued, digest: f.digest });
        let listing = Listing {
            feed,
            issued,
            dataset: iteration.dataset.clone(),
            job_seed: state.jobs.get(&iteration.job).map_or(0, |j| j.seed),
            epoch: iteration.epoch,
            slot: (iteration.mode == Mode::Off).then_some(feed.0),
            iteration: iteration.id,
            plan: iteration.plan.clone(),
        };
        let bell = self.bell(iteration.id);
        let filler = self.tasks.child();
        let (name, failing) = (format!("the listing of {}", listing.iteration), Arc::clone(&shared));
        let rung = Arc::clone(&bell);
        let on_failure = move |e: Error| {
            // A listing that is stopped is not asked for splits any more.
            if e.kind() != ErrorKind::Cancelled {
                tracing::error!(error = %e, "a listing broke down");
                failing.fail_or_end(Err(e));
                rung.send_replace(());
            }
        };
        let filling = listing.fill(Arc::clone(self), Arc::clone(&shared), bell);
        filler.background(name, on_failure, async move {
            filling.await;
            Ok(())
        });
        let provider = Provider { shared: Arc::clone(&shared), filler };
        providers.insert((iteration.id, feed), provider);
        shared
    }
}

/// What a provider's filler must know.
struct Listing {
    feed: FeedId,
    issued: Issued,
    dataset: DatasetId,
    job_seed: u64,
    epoch: u64,
    slot: Option<u32>,
    iteration: IterationId,
    plan: Option<Document<CachePlan>>,
}

impl Listing {
    async fn fill(self, core: Arc<Core>, provider: SharedProvider, bell: Arc<watch::Sender<()>>) {
        let poke = || {
            bell.send_replace(());
        };
        let bound = match core.bound(&self.dataset).await {
            Ok(bound) => bound,
            Err(e) => {
                provider.fail_or_end(Err(e));
                return poke();
            }
        };
        let seed = |s: SplitShuffle| s.seed.unwrap_or(self.job_seed);
        let order = bound.shuffle.map(|s| SplitOrder::new(seed(s), self.epoch, self.slot));
        let splits = match sets::plan_of(self.plan.as_ref()) {
            None => core.tallied(self.iteration, &bound, (bound.splits)()),
            Some(plan) => match self.with_set(&core, &bound, plan).await {
                Ok(sets::Found::Splits(all)) => Box::pin(futures::stream::iter(all.into_iter().map(Ok))),
                Ok(sets::Found::Groups(mut groups)) => {
                    drop(core);
                    if let Some(order) = order {
                        order.permute(0, &mut groups);
                    }
                    return provider.fill_groups(groups, self.issued, poke).await;
                }
                Err(e) => {
                    provider.fail_or_end(Err(e));
                    return poke();
                }
            },
        };
        drop(core);
        provider.fill(self.feed, order, splits, self.issued, poke).await;
    }
}
