//! Two dispatchers that give out the same identifiers, as after a clock that was set back with no journal: the worker
//! distinguishes their tasks, and no reader gets the rows, or the end, of another one's task.

use std::sync::Arc;
use std::time::Duration;

use caju_client::{Client, ClientConfig};
use caju_dispatcher::journal::{Journal, MemoryJournal};
use caju_dispatcher::state::Update;
use caju_dispatcher::{Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, Timers};
use caju_kernels::{Limits, Registry};
use caju_runtime::{CpuPool, IoCounters, Stores, SystemClock};
use caju_sources::SourceContext;
use caju_types::{Secret, WorkerId};
use caju_worker::{Worker, WorkerConfig, WorkerHandle};
use serde_json::json;

use crate::cluster::{assert_once, drain, range, request};

/// A dispatcher whose identifiers begin at 1000.
async fn dispatcher(listen: &str, stores: &Arc<Stores>) -> DispatcherHandle {
    dispatcher_with(listen, stores, Vec::new()).await
}

/// The same with more in its journal.
async fn dispatcher_with(listen: &str, stores: &Arc<Stores>, more: Vec<Update>) -> DispatcherHandle {
    let ctx = SourceContext::new(Arc::clone(stores), Arc::new(IoCounters::new()));
    let catalog = Arc::new(EngineCatalog::new(Registry::new(Limits::default()), ctx));
    let timers = Timers {
        heartbeat: Duration::from_millis(50),
        worker_timeout: Duration::from_millis(800),
        check_every: Duration::from_millis(20),
        ..Timers::default()
    };
    let config = DispatcherConfig { listen: listen.into(), timers, ..DispatcherConfig::default() };
    let mut journal = MemoryJournal::default();
    let mut updates = vec![Update::Founded { base_id: 1000 }];
    updates.extend(more);
    journal.append(&[updates]).unwrap();
    Dispatcher::start_on(config, catalog, SystemClock::shared(), Box::new(journal)).await.unwrap()
}

async fn worker(dispatcher: &str, stores: &Arc<Stores>) -> WorkerHandle {
    let mut config = WorkerConfig::new(dispatcher, Arc::clone(stores));
    config.pool = Some(CpuPool::new(1).unwrap());
    Worker::start(config).await.unwrap()
}

async fn read(address: &str, rows: u64) {
    let client = Client::connect(address, ClientConfig::default()).await.unwrap();
    let def = range(rows, &[json!({"batch": {"size": 10, "drop_remainder": false}})]);
    let mut reader = client.read(request(&def, "train")).await.unwrap();
    assert_once(drain(&mut reader).await.unwrap(), rows as i64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_calls_are_refused_loses_its_tasks_and_not_the_epoch() {
    let stores = Arc::new(Stores::default());
    let first = dispatcher("127.0.0.1:0", &stores).await;
    let address = first.address().to_string();
    let worker = worker(&address, &stores).await;
    assert!(first.shutdown().await);
    // This dispatcher knows the worker by another secret, so it refuses the worker's calls until it has missed the worker's
    // heartbeats for the worker timeout. Meanwhile it sends readers there.
    let usurped = Update::WorkerRegistered {
        worker: WorkerId(1),
        address: worker.address().to_string(),
        slot: 0,
        tags: Vec::new(),
        cores: 1,
        version: String::new(),
        secret: Some(Secret::from_bytes([9; Secret::BYTES])),
        unconfirmed: false,
    };
    let second = dispatcher_with(&address, &stores, vec![usurped]).await;
    read(&address, 2000).await;
    worker.shutdown().await;
    assert!(second.shutdown().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_ended_under_another_dispatcher_is_not_taken_for_the_one_of_now() {
    let stores = Arc::new(Stores::default());
    let first = dispatcher("127.0.0.1:0", &stores).await;
    let address = first.address().to_string();
    let worker = worker(&address, &stores).await;
    read(&address, 1000).await;
    assert!(first.shutdown().await);
    let second = dispatcher(&address, &stores).await;
    // The same identifiers: of the first job, of its first epoch, of its first client and task.
    read(&address, 2000).await;
    worker.shutdown().await;
    assert!(second.shutdown().await);
}
