//! A catalog without files, a clock that tests move, and shorthands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use caju_autocache::HintDef;
use caju_pipeline::LearntBoundaries;
use caju_proto::{Bytes, v1};
use caju_runtime::{Clock, IsolatedThreads, Stores};
use caju_types::{ClientId, Error, Fingerprint, IterationId, Result, WorkerId, hash128};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::catalog::{Bound, Catalog, ListedSplit, SplitShuffle};
use crate::config::{DispatcherConfig, Timers};
use crate::control::Core;
use crate::definition::Definition;
use crate::journal::{Journal, MemoryJournal};
use crate::state::Update;

/// Definitions are `{"splits": N}`, with `"single": true`, `"shuffle": SEED or null`, `"path": any`,
/// `"bad": MESSAGE`, `"list_error": MESSAGE`, `"list_panic": MESSAGE`, `"skip_limit": N` and `"hints": [NAME, ...]`. With
/// `"learns": PLACE` that stage learns its boundaries. A `"spelling": any` and a `"payload": TEXT` name nothing.
#[derive(Debug, Default, Clone)]
pub(crate) struct FakeCatalog {
    /// Part of every split: changing it changes the listing.
    pub(crate) version: Arc<AtomicU64>,
    pub(crate) binds: Arc<AtomicU64>,
    pub(crate) stores: Option<Arc<Stores>>,
}

#[async_trait]
impl Catalog for FakeCatalog {
    fn stores(&self) -> Option<Arc<Stores>> {
        self.stores.clone()
    }

    fn threads(&self) -> IsolatedThreads {
        IsolatedThreads::new("definition", 2, Duration::from_secs(60), 8 << 20)
    }

    async fn with_boundaries(
        &self,
        definition: &Definition,
        learnt: &[LearntBoundaries],
    ) -> Result<Definition> {
        let mut runs = read(definition)?;
        if let Some(map) = runs.as_object_mut() {
            map.shift_remove("learns");
        }
        let [of_stage] = learnt else { return Err(Error::invalid("one stage learns its boundaries")) };
        runs["boundaries"] = json!(of_stage.boundaries);
        Ok(Definition::from(&runs))
    }

    async fn bind(&self, definition: &Definition, source_schema: Option<SchemaRef>) -> Result<Bound> {
        self.binds.fetch_add(1, Ordering::Relaxed);
        let definition = read(definition)?;
        if let Some(bad) = definition["bad"].as_str() {
            return Err(Error::invalid(bad));
        }
        let mut said = definition.clone();
        if let Some(map) = said.as_object_mut() {
            map.shift_remove("spelling");
            map.shift_remove("payload");
        }
        let mut computed = said.clone();
        if let Some(map) = computed.as_object_mut() {
            map.shift_remove("path");
        }
        let (n, version) = (definition["splits"].as_u64().unwrap_or(0), Arc::clone(&self.version));
        let list_error = definition["list_error"].as_str().map(Error::not_found);
        let list_panic = definition["list_panic"].as_str().map(String::from);
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
        Ok(Bound {
            name: Some("fake".to_string()),
            fingerprint: Fingerprint(hash128(computed.to_string().as_bytes())),
            identity: Fingerprint(hash128(said.to_string().as_bytes())),
            payloads: definition["payload"].as_str().map(|p| Fingerprint(hash128(p.as_bytes()))),
            source_schema: source_schema.unwrap_or_else(|| Arc::clone(&schema)),
            schema,
            seed: definition["seed"].as_u64(),
            single_task: definition["single"].as_bool().unwrap_or(false),
            counts_by_file: false,
            deterministic: false,
            shuffle: definition.get("shuffle").map(|s| SplitShuffle { seed: s.as_u64() }),
            skip_limit: definition["skip_limit"].as_u64(),
            cache_only: definition["cache_only"] == true,
            unlearnt: definition["learns"].as_str().map(String::from),
            hints: definition["hints"].as_array().into_iter().flatten().filter_map(hint).collect(),
            set_bases: Vec::new(),
            random_stages: Vec::new(),
            permutes: definition.get("shuffle").is_some(),
            shards: Arc::new(|_| panic!("definitions of these tests have no shards")),
            splits: Arc::new(move || {
                let v = version.load(Ordering::Relaxed);
                let split = move |i: u64| Ok(ListedSplit::from_json(json!({ "i": i, "v": v }).to_string()));
                let (list_error, list_panic) = (list_error.clone(), list_panic.clone());
                let end = futures::stream::once(async move {
                    assert!(list_panic.is_none(), "{list_panic:?}");
                    futures::stream::iter(list_error.map(Err))
                });
                let end = end.flatten();
                futures::stream::iter((0..n).map(split)).chain(end).boxed()
            }),
        })
    }
}

fn read(definition: &Definition) -> Result<Value> {
    serde_json::from_str(definition.text()).map_err(|e| Error::invalid(format!("not a definition: {e}")))
}

fn hint(name: &Value) -> Option<HintDef> {
    let name = name.as_str()?.to_string();
    let prefix = Fingerprint(hash128(name.as_bytes()));
    Some(HintDef { name, prefix, random: false, chooses: false, cross_split_stage: None, not_storable: None })
}

/// Time moves only when a test says so.
#[derive(Debug)]
pub(crate) struct TestClock {
    now: watch::Sender<Duration>,
}

impl TestClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { now: watch::Sender::new(Duration::from_secs(1)) })
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now += by);
    }

    /// Whether some task waits for the clock. If not, the code under test waits for something else: the journal's thread.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting() > 0
    }

    /// The number of tasks that wait for the clock.
    pub(crate) fn waiting(&self) -> usize {
        self.now.receiver_count()
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Duration {
        *self.now.borrow()
    }

    fn unix_time(&self) -> Duration {
        self.now()
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.now() + duration;
        let mut now = self.now.subscribe();
        // The clock outlives the tasks that sleep by it.
        let _ = now.wait_for(|now| *now >= until).await;
    }
}

/// A control plane in memory that can be restarted.
pub(crate) struct World {
    pub(crate) core: Arc<Core>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) catalog: FakeCatalog,
    journal: MemoryJournal,
    config: DispatcherConfig,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    pub(crate) fn with(settings: impl FnOnce(DispatcherConfig) -> DispatcherConfig) -> Self {
        let config = settings(DispatcherConfig { timers: timers(), ..Default::default() });
        Self::on(TestClock::new(), config, FakeCatalog::default())
    }

    /// A dispatcher that reaches stores.
    pub(crate) fn with_stores(
        settings: impl FnOnce(DispatcherConfig) -> DispatcherConfig,
        stores: Arc<Stores>,
    ) -> Self {
        let config = settings(DispatcherConfig { timers: timers(), ..Default::default() });
        Self::on(TestClock::new(), config, FakeCatalog { stores: Some(stores), ..Default::default() })
    }

    /// A dispatcher without a journal that starts at this time.
    pub(crate) fn starting_at(unix_time: Duration) -> Self {
        let clock = TestClock::new();
        clock.advance(unix_time.saturating_sub(clock.unix_time()));
        let config = DispatcherConfig { timers: timers(), ..Default::default() };
        Self::on(clock, config, FakeCatalog::default())
    }

    /// A dispatcher whose journal is made of the one that a later process finds.
    pub(crate) fn over(wrap: impl FnOnce(MemoryJournal) -> Box<dyn Journal>) -> Self {
        Self::with_over(|config| config, wrap)
    }

    /// The same with these settings.
    pub(crate) fn with_over(
        settings: impl FnOnce(DispatcherConfig) -> DispatcherConfig,
        wrap: impl FnOnce(MemoryJournal) -> Box<dyn Journal>,
    ) -> Self {
        let (catalog, journal) = (FakeCatalog::default(), MemoryJournal::default());
        let config = settings(DispatcherConfig { timers: timers(), ..Default::default() });
        let (clock, over) = (TestClock::new(), wrap(journal.clone()));
        let core = Core::new(
            config.clone(),
            Arc::new(catalog.clone()),
            Arc::<TestClock>::clone(&clock),
            over,
            vec![],
        );
        Self { core: core.unwrap(), clock, catalog, journal, config }
    }

    /// The same after its end: what it had not written is lost, and another one starts on its journal.
    pub(crate) fn after_its_end(&mut self) {
        self.core.context.tasks.stop();
        self.core.close_journal();
        self.core = start(&self.config, &self.clock, &self.catalog, &self.journal);
    }

    fn on(clock: Arc<TestClock>, config: DispatcherConfig, catalog: FakeCatalog) -> Self {
        let journal = MemoryJournal::default();
        let core = start(&config, &clock, &catalog, &journal);
        Self { core, clock, catalog, journal, config }
    }

    /// Kills the dispatcher and starts another on its journal. What it knew must come back.
    pub(crate) fn restart(&mut self) {
        self.core.context.tasks.stop();
        let before = self.core.snapshot();
        self.core.close_journal();
        self.core = start(&self.config, &self.clock, &self.catalog, &self.journal);
        assert_eq!(self.core.snapshot(), before, "the journal does not give the state back");
    }

    /// Kills the dispatcher and starts another one on its journal with these changes.
    pub(crate) fn restart_with(&mut self, change: impl Fn(&mut Update)) {
        self.core.context.tasks.stop();
        self.core.close_journal();
        let mut groups = self.journal.replay().unwrap();
        groups.iter_mut().flatten().for_each(change);
        self.journal = MemoryJournal::default();
        self.journal.append(&groups).unwrap();
        self.core = start(&self.config, &self.clock, &self.catalog, &self.journal);
    }

    /// Kills the dispatcher and starts another one on the journal that an older version would have written, which did not
    /// journal what clients acknowledged.
    pub(crate) fn restart_after_an_older_version(&mut self) {
        self.core.context.tasks.stop();
        self.core.close_journal();
        let mut groups = self.journal.replay().unwrap();
        for group in &mut groups {
            group.retain(|u| !matches!(u, Update::RowsAcknowledged { .. }));
            for update in group {
                if let Update::ClientJoined { is_journaled, .. } = update {
                    *is_journaled = false;
                }
            }
        }
        self.journal = MemoryJournal::default();
        self.journal.append(&groups).unwrap();
        self.core = start(&self.config, &self.clock, &self.catalog, &self.journal);
    }

    pub(crate) async fn worker(&self, address: &str) -> u64 {
        self.tagged_worker(address, &[]).await
    }

    pub(crate) async fn tagged_worker(&self, address: &str, tags: &[&str]) -> u64 {
        let known = self.core.snapshot().worker_at(address).map(|w| w.id.0);
        let request = v1::RegisterWorkerRequest {
            address: address.to_string(),
            cores: 2,
            secret: known.map(|id| self.worker_secret(id)).unwrap_or_default(),
            tags: tags.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        self.core.workers.register_worker(request).await.unwrap().worker_id
    }

    /// What calls of a worker carry; nothing for an unknown one.
    pub(crate) fn worker_secret(&self, worker: u64) -> Bytes {
        let state = self.core.snapshot();
        state
            .workers
            .get(&WorkerId(worker))
            .and_then(|w| w.secret)
            .map(|s| s.to_vec().into())
            .unwrap_or_default()
    }

    /// What calls of a client carry; nothing for an unknown one.
    pub(crate) fn client_secret(&self, client: u64, iteration: u64) -> Bytes {
        let state = self.core.snapshot();
        let member =
            state.iterations.get(&IterationId(iteration)).and_then(|i| i.members.get(&ClientId(client)));
        member.and_then(|m| m.secret).map(|s| s.to_vec().into()).unwrap_or_default()
    }

    pub(crate) async fn open(&self, definition: &Value, job: &str) -> v1::OpenIterationResponse {
        self.core.epochs.open_iteration(open_request(definition, job)).await.unwrap()
    }

    /// Opens an iteration in the name of the worker of a Flight ticket.
    pub(crate) async fn open_flight(
        &self,
        mut request: v1::OpenIterationRequest,
    ) -> Result<v1::OpenIterationResponse> {
        request.worker_secret = self.worker_secret(request.flight_worker_id);
        self.core.epochs.open_iteration(request).await
    }

    pub(crate) async fn next(
        &self,
        task: u64,
        worker: u64,
        no: u64,
        want: u32,
    ) -> Result<v1::NextSplitsResponse> {
        let request = v1::NextSplitsRequest {
            task_id: task,
            worker_id: worker,
            want,
            wait_ms: 60_000,
            request_no: no,
            secret: self.worker_secret(worker),
            ..Default::default()
        };
        self.core.splits.next_splits(request).await
    }

    pub(crate) async fn finish(&self, task: u64, worker: u64) {
        self.finish_counted(task, worker, None).await;
    }

    /// The end of a task whose worker counted what it emitted, per split.
    pub(crate) async fn finish_counted(&self, task: u64, worker: u64, emitted: Option<&[(u64, u64)]>) {
        let count =
            |(split_index, rows): &(u64, u64)| v1::SplitCount { split_index: *split_index, rows: *rows };
        let request = v1::FinishTaskRequest {
            task_id: task,
            worker_id: worker,
            secret: self.worker_secret(worker),
            counted: emitted.is_some(),
            splits_out: emitted.into_iter().flatten().map(count).collect(),
            ..Default::default()
        };
        self.core.workers.finish_task(request).await.unwrap();
    }

    pub(crate) async fn fail(&self, task: u64, worker: u64, error: &Error) {
        let failure = Some(v1::Failure::from(error));
        let secret = self.worker_secret(worker);
        let request =
            v1::FinishTaskRequest { task_id: task, worker_id: worker, failure, secret, ..Default::default() };
        self.core.workers.finish_task(request).await.unwrap();
    }

    /// A heartbeat that does not wait.
    pub(crate) async fn beat(
        &self,
        client: u64,
        iteration: u64,
        ended: &[u64],
        lost: &[v1::LostTask],
    ) -> v1::ClientHeartbeatResponse {
        let request = v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: iteration,
            ended_tasks: ended.to_vec(),
            lost_tasks: lost.to_vec(),
            secret: self.client_secret(client, iteration),
            ..Default::default()
        };
        self.core.clients.client_heartbeat(request).await.unwrap()
    }

    /// A heartbeat that says what the user took: rows of splits, and tasks of which it took everything.
    pub(crate) async fn take(
        &self,
        client: u64,
        iteration: u64,
        rows: &[(u64, u64, u64)],
        taken: &[u64],
    ) -> v1::ClientHeartbeatResponse {
        let request = v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: iteration,
            ended_tasks: taken.to_vec(),
            taken_tasks: taken.to_vec(),
            acknowledged: rows.iter().map(split_rows).collect(),
            secret: self.client_secret(client, iteration),
            ..Default::default()
        };
        self.core.clients.client_heartbeat(request).await.unwrap()
    }

    pub(crate) async fn close(&self, client: u64, iteration: u64, received: Vec<v1::LostTask>) {
        let request = v1::CloseClientRequest {
            client_id: client,
            iteration_id: iteration,
            received,
            secret: self.client_secret(client, iteration),
            ..Default::default()
        };
        self.core.clients.close_client(request).await.unwrap();
    }

    /// Lets the given time pass in which only these workers and clients report.
    pub(crate) async fn silence(&self, by: Duration, workers: &[(u64, &str)], clients: &[(u64, u64)]) {
        self.core.liveness.check();
        // In steps that a dispatcher does not take for a standstill of its own.
        let step = self.core.context.config.timers.check_every;
        let mut left = by;
        while !left.is_zero() {
            let now = left.min(step);
            self.clock.advance(now);
            left -= now;
            for (worker, address) in workers {
                let request = v1::WorkerHeartbeatRequest {
                    worker_id: *worker,
                    address: (*address).to_string(),
                    secret: self.worker_secret(*worker),
                    ..Default::default()
                };
                self.core.workers.worker_heartbeat(request).await.unwrap();
            }
            for (client, iteration) in clients {
                self.beat(*client, *iteration, &[], &[]).await;
            }
            self.core.liveness.check();
        }
    }
}

fn start(
    config: &DispatcherConfig,
    clock: &Arc<TestClock>,
    catalog: &FakeCatalog,
    journal: &MemoryJournal,
) -> Arc<Core> {
    let mut journal = journal.clone();
    let replayed = journal.replay().unwrap();
    Core::new(
        config.clone(),
        Arc::new(catalog.clone()),
        Arc::<TestClock>::clone(clock),
        Box::new(journal),
        replayed,
    )
    .unwrap()
}

pub(crate) fn timers() -> Timers {
    Timers { check_every: Duration::from_secs(1), ..Default::default() }
}

pub(crate) fn open_request(definition: &Value, job: &str) -> v1::OpenIterationRequest {
    v1::OpenIterationRequest {
        definition_json: definition.to_string(),
        job: job.to_string(),
        ..Default::default()
    }
}

/// Rows `start..end` of a split.
pub(crate) fn split_rows((split, start, end): &(u64, u64, u64)) -> v1::SplitRows {
    let rows = vec![v1::RowRange { start: *start, end: *end }];
    v1::SplitRows { split_index: *split, rows, ..Default::default() }
}

/// A report that a task is lost, with what was received of it.
pub(crate) fn lost(task: u64, received: &[(u64, u64, u64)]) -> v1::LostTask {
    v1::LostTask {
        task_id: task,
        received: received.iter().map(split_rows).collect(),
        reason: "connection reset".into(),
        ..Default::default()
    }
}

/// The indices of an answer.
pub(crate) fn indices(answer: &v1::NextSplitsResponse) -> Vec<u64> {
    answer.splits.iter().map(|s| s.index).collect()
}

/// Runs a test on a runtime of its own.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async { tokio::time::timeout(Duration::from_secs(60), test).await };
    runtime.block_on(bounded).expect("the test hangs")
}
