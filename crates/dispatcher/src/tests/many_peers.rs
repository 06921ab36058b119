//! Many peers that have nothing to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_runtime::{Clock, SystemClock};
use futures::future::join_all;
use serde_json::json;
use tonic::transport::Channel;

use super::fake::{FakeCatalog, open_request, run};
use super::service::fast;
use crate::config::{DispatcherConfig, Timers};
use crate::journal::{Journal as _, MemoryJournal};
use crate::server::Dispatcher;

const WORKERS: usize = 200;
const CLIENTS: usize = 1_000;
/// Peers of one connection: a test process may not open thousands of files.
const PEERS: usize = 20;
/// How often each of them reports.
const ROUNDS: usize = 3;
/// The longest that an idle report may take, in a debug build on a busy machine.
const SLOWEST: Duration = Duration::from_secs(10);

type Rpc = DispatcherClient<Channel>;

async fn beat(mut rpc: Rpc, open: v1::OpenIterationResponse) -> Duration {
    let begin = Instant::now();
    let request = v1::ClientHeartbeatRequest {
        client_id: open.client_id,
        iteration_id: open.iteration_id,
        secret: open.client_secret,
        seen_version: open.version,
        knows_tasks: true,
        ..Default::default()
    };
    let answer = rpc.client_heartbeat(request).await.unwrap().into_inner();
    assert!(!answer.unknown && answer.failure.is_none());
    assert!(answer.same_tasks || answer.tasks.len() == WORKERS);
    begin.elapsed()
}

async fn report(mut rpc: Rpc, worker: v1::RegisterWorkerResponse, address: String) -> Duration {
    let begin = Instant::now();
    let request = v1::WorkerHeartbeatRequest {
        worker_id: worker.worker_id,
        address,
        secret: worker.secret,
        ..Default::default()
    };
    assert!(!rpc.worker_heartbeat(request).await.unwrap().into_inner().register_again);
    begin.elapsed()
}

#[test]
fn a_thousand_idle_clients_and_two_hundred_workers_are_served_and_write_nothing() {
    run(async {
        let timers = Timers { worker_timeout: Duration::from_secs(60), ..Timers::default() };
        let (config, journal) = (DispatcherConfig { timers, ..fast() }, MemoryJournal::default());
        assert!(config.connections.connections >= WORKERS + CLIENTS, "one of each peer");
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let catalog = Arc::new(FakeCatalog::default());
        let handle = Dispatcher::start_on(config, catalog, clock, Box::new(journal.clone())).await.unwrap();
        let url = format!("http://{}", handle.address());
        let connections = (WORKERS + CLIENTS) / PEERS;
        let connect = || async { Rpc::connect(url.clone()).await.unwrap() };
        let rpcs = join_all((0..connections).map(|_| connect())).await;
        let rpc = |i: usize| rpcs[i % connections].clone();

        let addresses: Vec<String> = (0..WORKERS).map(|i| format!("worker-{i}:1")).collect();
        let register = |(i, address): (usize, &String)| {
            let (mut rpc, address) = (rpc(i), address.clone());
            async move {
                let request = v1::RegisterWorkerRequest { address, cores: 4, ..Default::default() };
                rpc.register_worker(request).await.unwrap().into_inner()
            }
        };
        let workers = join_all(addresses.iter().enumerate().map(register)).await;
        let open = |i: usize| {
            let mut rpc = rpc(i);
            async move {
                rpc.open_iteration(open_request(&json!({"splits": 500}), "j")).await.unwrap().into_inner()
            }
        };
        let clients = join_all((0..CLIENTS).map(open)).await;

        let mut before = journal.clone().replay().unwrap().len();
        for round in 0..ROUNDS {
            let beats = clients.iter().enumerate().map(|(i, open)| beat(rpc(i), open.clone()));
            let reports = workers.iter().zip(&addresses).enumerate();
            let reports = reports.map(|(i, (w, address))| report(rpc(i), w.clone(), address.clone()));
            let (beats, reports) = tokio::join!(join_all(beats), join_all(reports));
            let slowest = beats.into_iter().chain(reports).max().unwrap();
            assert!(slowest < SLOWEST, "round {round}: {slowest:?}");
            let after = journal.clone().replay().unwrap().len();
            assert_eq!(after, before, "round {round}: reports of idle peers are not journaled");
            before = after;
        }
        let mut status = rpc(0);
        let status = status.get_status(v1::GetStatusRequest::default()).await.unwrap().into_inner();
        assert_eq!((status.workers.len(), status.jobs[0].clients), (WORKERS, 1_000));
        assert!(status.workers.iter().all(|w| w.state == "active"));
        drop(rpcs);
        assert!(handle.shutdown().await);
    });
}
