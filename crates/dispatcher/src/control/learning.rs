//! Boundaries of `bucket_by_length` that workers learn.
//!
//! A definition that learns boundaries does not run. One worker learns them, the first report is journaled, and readers get
//! the dataset with these boundaries: another definition, whose fingerprint names its snapshots and states. So all workers,
//! epochs and restarts have the same boundaries, and a state of other boundaries is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::LearntBoundaries;
use caju_planner::JobSample;
use caju_proto::v1;
use caju_runtime::OrderedMutex;
use caju_types::{Error, ErrorKind, Fingerprint, Result, WorkerId, format_bytes};
use tokio::sync::watch;

use super::context::Context;
use super::datasets::{Datasets, RequestedDataset, find_to_open};
use super::learnt_boundaries::{check_same, from_journal, from_proto, spelling, to_journal};
use super::secrets;
use crate::config::DispatcherConfig;
use crate::definition::Definition;
use crate::locks;
use crate::state::{Dataset, Learnt, State, Update};

/// The longest that a call waits for boundaries if its client asks again.
const POLL: Duration = Duration::from_secs(5);
/// How long a call of a client that does not ask again waits. Half of what clients give the dispatcher to open an epoch.
const LONG_POLL: Duration = Duration::from_secs(60);
/// The boundaries that one worker learns concurrently. Each reads rows as a task does.
const MAX_LEARNING_PER_WORKER: usize = 4;
/// The workers in readers' processes that may learn the same boundaries. One of them is enough.
const MAX_OWN_WORKERS: usize = 4096;

/// What workers learn now, and what they report.
pub(crate) struct Learning {
    context: Arc<Context>,
    datasets: Arc<Datasets>,
    /// By the identity of the definition.
    pending: OrderedMutex<BTreeMap<Fingerprint, Pending>>,
}

/// Boundaries for which readers wait.
struct Pending {
    dataset: Arc<Dataset>,
    place: String,
    /// Who learns them, in which incarnation.
    learner: Option<(WorkerId, u32, String)>,
    /// Workers that were lost while they learnt them.
    lost: Vec<String>,
    readers: usize,
    /// Workers in the processes of readers that waited for them: no reader of another process reads from these, so no other
    /// definition is run there.
    own_workers: BTreeSet<String>,
    /// When the last reader came or left.
    asked: Duration,
    outcome: watch::Sender<Outcome>,
}

/// What became of boundaries.
#[derive(Debug, Clone, Default)]
enum Outcome {
    #[default]
    Open,
    Learnt,
    Failed(Error),
}

/// A reader that waits for boundaries.
struct Waiting<'a> {
    learning: &'a Learning,
    definition: Fingerprint,
    outcome: watch::Receiver<Outcome>,
}

/// The answer to a reader whose definition may learn boundaries.
pub(super) enum Awaited {
    /// This dataset runs.
    Runs(RequestedDataset),
    /// It is not known yet.
    Learning(v1::Learning),
}

impl Pending {
    /// Takes the work from a worker that was lost.
    fn check_learner(&mut self, state: &State) {
        let Some((worker, incarnation, described)) = &self.learner else { return };
        let same = state.workers.get(worker).filter(|w| w.incarnation == *incarnation);
        if same.is_some_and(|w| !w.is_lost()) {
            return;
        }
        if !same.is_some_and(|w| w.left) {
            tracing::warn!("{described} was lost while it learnt the boundaries of {}", self.place);
            self.lost.push(described.clone());
        }
        self.learner = None;
    }

    fn is_failed(&self) -> bool {
        matches!(*self.outcome.borrow(), Outcome::Failed(_))
    }

    /// Whether a reader waits, or has asked within this time and may ask again.
    fn is_wanted(&self, now: Duration, within: Duration) -> bool {
        self.readers > 0 || now.saturating_sub(self.asked) < within
    }

    /// Whether they are still to be learnt, or a reader has yet to get their failure.
    ///
    /// As many lost workers as may be lost with one split make them fail.
    fn is_kept(
        &mut self,
        state: &State,
        definition: Fingerprint,
        now: Duration,
        config: &DispatcherConfig,
    ) -> bool {
        let (losses, within) = (config.losses.splits, config.timers.boundaries_gc_timeout);
        if self.is_failed() {
            return self.is_wanted(now, within);
        }
        self.check_learner(state);
        if u32::try_from(self.lost.len()).is_ok_and(|lost| lost >= losses) {
            return self.settle(Outcome::Failed(all_lost(self)));
        }
        if state.learnt.contains_key(&definition) {
            return self.settle(Outcome::Learnt);
        }
        self.learner.is_some() || self.is_wanted(now, within)
    }

    /// Ends the wait. Returns whether a failure is kept, for the next reader that asks.
    fn settle(&self, outcome: Outcome) -> bool {
        self.outcome.send_replace(outcome);
        self.is_failed() && self.readers == 0
    }

    fn sample(&self, definition: Fingerprint) -> JobSample {
        let folded = definition.0 ^ (definition.0 >> 64);
        JobSample {
            // Iterations have small numbers.
            iteration: u64::try_from(folded & u128::from(u64::MAX)).unwrap_or(0) | 1 << 63,
            job: format!("the boundaries of {}", self.place),
            // One worker learns them.
            most_workers: Some(1),
            ..JobSample::default()
        }
    }
}

impl Learning {
    pub(super) fn new(context: Arc<Context>, datasets: Arc<Datasets>) -> Self {
        Self { context, datasets, pending: OrderedMutex::new(locks::LEARNING, BTreeMap::new()) }
    }

    fn is_idle(&self) -> bool {
        self.pending.lock().is_empty()
    }

    /// Ends the wait for boundaries.
    fn settle(&self, definition: Fingerprint, outcome: Outcome) {
        let mut pending = self.pending.lock();
        if pending.get(&definition).is_some_and(|of| !of.settle(outcome)) {
            pending.remove(&definition);
        }
    }

    /// Whether a worker learns these boundaries now, in this incarnation.
    fn is_learner(&self, definition: Fingerprint, worker: WorkerId, incarnation: u32) -> bool {
        let pending = self.pending.lock();
        let learner = pending.get(&definition).and_then(|of| of.learner.as_ref());
        learner.is_some_and(|(id, of, _)| (*id, *of) == (worker, incarnation))
    }

    /// The worker gives the work up; another one does it.
    fn give_up(&self, definition: Fingerprint, worker: WorkerId) {
        if let Some(pending) = self.pending.lock().get_mut(&definition) {
            pending.learner.take_if(|(learner, ..)| *learner == worker);
        }
    }

    /// The dataset whose boundaries are learnt; none if nobody wants them.
    fn dataset(&self, definition: Fingerprint) -> Option<Arc<Dataset>> {
        self.pending.lock().get(&definition).map(|p| Arc::clone(&p.dataset))
    }

    /// Each of the boundaries for which readers wait, as a job that has done nothing yet.
    pub(super) fn samples(&self, now: Duration) -> Vec<JobSample> {
        let within = self.context.config.timers.boundaries_gc_timeout;
        let pending = self.pending.lock();
        let waited_for = pending.iter().filter(|(_, of)| of.is_wanted(now, within) && !of.is_failed());
        waited_for.map(|(definition, of)| of.sample(*definition)).collect()
    }

    /// What is learnt, and by whom.
    fn describe(&self, definition: Fingerprint) -> v1::Learning {
        let pending = self.pending.lock();
        let Some(of) = pending.get(&definition) else { return v1::Learning::default() };
        let worker = of.learner.as_ref().map(|(.., described)| described.clone());
        v1::Learning { stage: of.place.clone(), worker: worker.unwrap_or_default() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut all = self.learning.pending.lock();
        let Some(pending) = all.get_mut(&self.definition) else { return };
        pending.readers = pending.readers.saturating_sub(1);
        pending.asked = self.learning.context.clock.now();
        if pending.is_failed() && pending.readers == 0 {
            all.remove(&self.definition);
        }
    }
}

impl Learning {
    /// What the worker that sends this heartbeat learns from now on.
    pub(super) fn boundaries_to_learn(
        &self,
        worker: WorkerId,
        request: &v1::WorkerHeartbeatRequest,
    ) -> Vec<v1::BoundariesToLearn> {
        if self.is_idle() {
            return Vec::new();
        }
        self.context.store.read(|state| self.assign(state, worker, request))
    }

    fn assign(
        &self,
        state: &State,
        id: WorkerId,
        request: &v1::WorkerHeartbeatRequest,
    ) -> Vec<v1::BoundariesToLearn> {
        let worker = state.workers.get(&id).filter(|w| w.is_active() && request.learns_boundaries);
        let (now, mut orders) = (self.context.clock.now(), Vec::new());
        let mut all = self.pending.lock();
        let is_mine = |of: &Pending| of.learner.as_ref().is_some_and(|(learner, ..)| *learner == id);
        let mut learning = all.values().filter(|of| is_mine(of)).count();
        all.retain(|definition, pending| {
            if !pending.is_kept(state, *definition, now, &self.context.config) {
                return false;
            }
            let Some(worker) = worker.filter(|_| !pending.is_failed()) else { return true };
            // A worker whose answer was lost gets the same order again.
            let again = is_mine(pending) && !request.learning.contains(&definition.to_string());
            let first = pending.learner.is_none()
                && learning < MAX_LEARNING_PER_WORKER
                && (!worker.is_in_reader() || pending.own_workers.contains(&worker.address));
            learning += usize::from(first);
            if first || again {
                pending.learner = Some((id, worker.incarnation, worker.describe()));
                orders.push(v1::BoundariesToLearn {
                    dataset: definition.to_string(),
                    definition_json: pending.dataset.definition.text().to_owned(),
                    source_schema_ipc: pending.dataset.source_schema_ipc.clone().into(),
                });
            }
            true
        });
        orders
    }

    /// A worker has learnt boundaries, or could not.
    pub(crate) async fn report_boundaries(
        &self,
        request: v1::ReportBoundariesRequest,
    ) -> Result<v1::ReportBoundariesResponse> {
        let id = WorkerId(request.worker_id);
        let (worker, incarnation) = self
            .context
            .read_durable_except_leases(|state| {
                secrets::worker(state, id, &request.secret).map(|w| (w.describe(), w.incarnation))
            })
            .await??;
        let definition = Fingerprint::try_from(request.dataset).map_err(Error::invalid)?;
        if let Some(failure) = &request.failure {
            match Error::from(failure) {
                e if e.kind() == ErrorKind::Cancelled => self.give_up(definition, id),
                e if self.is_learner(definition, id, incarnation) => {
                    self.settle(definition, Outcome::Failed(e))
                }
                // It was lost meanwhile, and another one learns.
                e => tracing::warn!(error = %e, "{worker} could not learn boundaries that others learn now"),
            }
            return Ok(v1::ReportBoundariesResponse {});
        }
        let learnt: Vec<LearntBoundaries> = request.stages.into_iter().map(from_proto).collect();
        let known = self.context.store.read(|state| state.learnt.get(&definition).cloned());
        let result = match (known, self.dataset(definition)) {
            (Some(known), _) => check_same(&known, &learnt, &worker),
            // Nobody waits any more.
            (None, None) => return Ok(v1::ReportBoundariesResponse {}),
            (None, Some(dataset)) => self.on_learnt(&dataset, &learnt, &worker).await,
        };
        let is_known = || self.context.store.read(|state| state.learnt.contains_key(&definition));
        let outcome = match &result {
            Err(error) => {
                tracing::error!(%error, "boundaries that a worker reports are refused");
                // Readers get those that are journaled.
                if is_known() { Outcome::Learnt } else { Outcome::Failed(error.clone()) }
            }
            Ok(()) => Outcome::Learnt,
        };
        self.settle(definition, outcome);
        result.map(|()| v1::ReportBoundariesResponse {})
    }

    /// Journals the first boundaries of a definition, and registers the dataset that runs with them.
    async fn on_learnt(&self, dataset: &Dataset, learnt: &[LearntBoundaries], worker: &str) -> Result<()> {
        let runs = self.running_definition(dataset, learnt).await?;
        let (bound, runs) = self.datasets.bind(runs).await?;
        let stages: Vec<_> = learnt.iter().map(to_journal).collect::<Result<_>>()?;
        let registered = self
            .context
            .commit(|txn| {
                if let Some(known) = txn.state.learnt.get(&dataset.identity) {
                    return check_same(known, learnt, worker).map(|()| None);
                }
                let registered = self.datasets.register(txn, &bound, runs, None, None)?;
                let learnt = Learnt {
                    definition: dataset.identity,
                    spelling: spelling(&dataset.definition),
                    dataset: registered.id.clone(),
                    stages,
                };
                txn.apply(Update::BoundariesLearnt { learnt });
                Ok(Some(registered))
            })
            .await?;
        if let Some(registered) = registered.filter(|r| r.payloads == bound.payloads) {
            self.datasets.keep(&registered.id, &bound);
        }
        for of_stage in learnt {
            tracing::info!("{worker} learnt the boundaries of {of_stage}");
        }
        Ok(())
    }

    async fn running_definition(&self, dataset: &Dataset, learnt: &[LearntBoundaries]) -> Result<Definition> {
        self.datasets.catalog().with_boundaries(&dataset.definition, learnt).await
    }

    /// The dataset that runs for a reader. If its boundaries are to be learnt, this waits for them for a while.
    ///
    /// # Errors
    /// Those of the worker that could not learn them; `Unavailable` if they are not known in time, and the client does not ask
    /// again.
    pub(super) async fn with_boundaries(
        &self,
        wanted: RequestedDataset,
        request: &v1::OpenIterationRequest,
    ) -> Result<Awaited> {
        // Definitions may hold many rows, so only those that learn are copied.
        let learns = |dataset: &Dataset| Some((dataset.unlearnt.clone()?, dataset.clone()));
        let learning = match &wanted {
            RequestedDataset::Bound(_, dataset) => learns(dataset),
            RequestedDataset::Known(id) => {
                self.context.read_durable(|state| find_to_open(state, id, request).map(learns)).await??
            }
        };
        let Some((place, dataset)) = learning else { return Ok(Awaited::Runs(wanted)) };
        let (definition, dataset) = (dataset.identity, Arc::new(dataset));
        let asks_again = request.boundaries_wait_ms > 0;
        let poll = Duration::from_millis(request.boundaries_wait_ms).min(POLL);
        let until = self.context.clock.now() + if asks_again { poll } else { LONG_POLL };
        loop {
            if let Some(runs) = self.running(&dataset).await? {
                return Ok(Awaited::Runs(runs));
            }
            let mut waiting = self.wait_for_boundaries(&dataset, &place, &request.local_workers)?;
            // They may have been learnt just before the wait began.
            if let Some(runs) = self.running(&dataset).await? {
                return Ok(Awaited::Runs(runs));
            }
            let settled = waiting.outcome.wait_for(|outcome| !matches!(outcome, Outcome::Open));
            let left = until.saturating_sub(self.context.clock.now());
            let outcome = tokio::select! {
                biased;
                settled = settled => settled.map_or(Outcome::Learnt, |outcome| outcome.clone()),
                () = self.context.clock.sleep(left) => Outcome::Open,
            };
            match outcome {
                Outcome::Learnt => {}
                Outcome::Failed(e) => return Err(e),
                Outcome::Open if asks_again => {
                    return Ok(Awaited::Learning(self.describe(definition)));
                }
                Outcome::Open => return Err(not_yet(&self.describe(definition))),
            }
        }
    }

    /// The dataset with the boundaries that were learnt; none if they are not known.
    async fn running(&self, dataset: &Dataset) -> Result<Option<RequestedDataset>> {
        let known = self
            .context
            .read_durable(|state| {
                let learnt = state.learnt.get(&dataset.identity)?.clone();
                let payloads = state.datasets.get(&learnt.dataset)?.payloads;
                Some((learnt, payloads))
            })
            .await?;
        let Some((learnt, payloads)) = known else { return Ok(None) };
        if payloads == dataset.payloads {
            return Ok(Some(RequestedDataset::Known(learnt.dataset)));
        }
        // The same code in another form, whose dataset is chosen as for any other definition.
        let stages: Vec<_> = learnt.stages.iter().map(from_journal).collect();
        let runs = self.running_definition(dataset, &stages).await?;
        let (bound, dataset) = self.datasets.bind(runs).await?;
        Ok(Some(RequestedDataset::Bound(bound, Box::new(dataset))))
    }

    /// # Errors
    /// `ResourceExhausted` if boundaries of too many datasets are being learnt, or of too many bytes of definitions.
    fn wait_for_boundaries(
        &self,
        dataset: &Arc<Dataset>,
        place: &str,
        own_workers: &[String],
    ) -> Result<Waiting<'_>> {
        let (definition, asked) = (dataset.identity, self.context.clock.now());
        let mut all = self.pending.lock();
        let (limit, limit_bytes) =
            (self.context.config.memory.datasets, self.context.config.memory.dataset_bytes);
        let held: u64 = all.values().map(|of| of.dataset.bytes()).sum();
        let is_full = all.len() >= limit || held.saturating_add(dataset.bytes()) > limit_bytes;
        if is_full && !all.contains_key(&definition) {
            return Err(Error::exhausted(format!(
                "{place}: the boundaries of {} datasets ({}) are being learnt, and the dispatcher may hold no more; try again \
                 later, or start it with more --max-datasets or --max-dataset-bytes",
                all.len(),
                format_bytes(held)
            )));
        }
        let pending = all.entry(definition).or_insert_with(|| Pending {
            dataset: Arc::clone(dataset),
            place: place.to_string(),
            learner: None,
            lost: Vec::new(),
            readers: 0,
            own_workers: BTreeSet::new(),
            asked,
            outcome: watch::Sender::default(),
        });
        pending.readers += 1;
        let room = MAX_OWN_WORKERS.saturating_sub(pending.own_workers.len());
        pending.own_workers.extend(own_workers.iter().take(room).cloned());
        Ok(Waiting { learning: self, definition, outcome: pending.outcome.subscribe() })
    }
}

fn all_lost(pending: &Pending) -> Error {
    Error::failed_precondition(format!(
        "{}: its boundaries were not learnt, because each worker was lost that learnt them: {}; see the logs of these \
         workers, give the boundaries as a list, or start the dispatcher with more --max-split-losses",
        pending.place,
        pending.lost.join(", ")
    ))
}

fn not_yet(learning: &v1::Learning) -> Error {
    let who = match learning.worker.as_str() {
        "" => "no worker learns them yet".to_string(),
        worker => format!("{worker} learns them"),
    };
    Error::unavailable(format!("{}: its boundaries are not known yet: {who}; try again", learning.stage))
}
