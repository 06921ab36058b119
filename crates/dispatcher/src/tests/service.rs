//! The wire: gRPC and Flight on one listener.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_flight::FlightDescriptor;
use arrow_flight::flight_service_client::FlightServiceClient;
use caju_proto::from_status;
use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_runtime::{Stores, Tasks};
use caju_types::ErrorKind;
use serde_json::{Value, json};

use super::fake::{FakeCatalog, open_request, run};
use crate::{Dispatcher, DispatcherConfig, DispatcherHandle, Timers};

pub(super) async fn start(config: DispatcherConfig) -> (DispatcherHandle, String) {
    let handle = Dispatcher::start(config, Arc::new(FakeCatalog::default())).await.unwrap();
    let url = format!("http://{}", handle.address());
    (handle, url)
}

pub(super) fn fast() -> DispatcherConfig {
    let ms = Duration::from_millis;
    let timers = Timers {
        heartbeat: ms(50),
        worker_timeout: ms(200),
        check_every: ms(20),
        drain: ms(2000),
        ..Timers::default()
    };
    DispatcherConfig { timers, ..Default::default() }
}

fn register(address: &str) -> v1::RegisterWorkerRequest {
    v1::RegisterWorkerRequest { address: address.into(), cores: 4, ..Default::default() }
}

#[test]
fn a_lost_worker_is_noticed_over_the_wire() {
    run(async {
        let (handle, url) = start(fast()).await;
        let mut rpc = DispatcherClient::connect(url).await.unwrap();
        let worker = rpc.register_worker(register("a:1")).await.unwrap().into_inner();
        assert_eq!(worker.heartbeat_ms, 50);
        let open = rpc.open_iteration(open_request(&json!({"splits": 2}), "")).await.unwrap().into_inner();
        assert!(!open.schema_ipc.is_empty() && open.definition_json.contains("splits"));
        let mut version = open.version;
        loop {
            let beat = v1::ClientHeartbeatRequest {
                client_id: open.client_id,
                secret: open.client_secret.clone(),
                iteration_id: open.iteration_id,
                seen_version: version,
                wait_ms: 10_000,
                ..Default::default()
            };
            let view = rpc.client_heartbeat(beat).await.unwrap().into_inner();
            if view.tasks.iter().any(|t| t.lost) {
                break;
            }
            version = view.version;
        }
        let status = rpc.get_status(v1::GetStatusRequest::default()).await.unwrap().into_inner();
        assert_eq!((status.workers[0].state.as_str(), status.jobs[0].state.as_str()), ("lost", "running"));
        assert_eq!(status.journal, "in memory");
        for (iteration_id, known) in [(open.iteration_id, 1), (open.iteration_id + 1, 0)] {
            let own = rpc.get_status(v1::GetStatusRequest { iteration_id }).await.unwrap().into_inner();
            assert_eq!((own.workers.len(), own.jobs.len()), (0, known));
            assert!(own.jobs.iter().all(|job| job.iteration_id == iteration_id && job.state == "running"));
        }
        assert!(handle.shutdown().await);
    });
}

#[test]
fn errors_keep_their_kind_and_shutdown_ends_waiting_calls() {
    run(async {
        let (handle, url) = start(fast()).await;
        let mut rpc = DispatcherClient::connect(url).await.unwrap();
        let bad = rpc.register_worker(register("nonsense")).await.unwrap_err();
        assert_eq!(from_status(&bad).kind(), ErrorKind::InvalidArgument);
        let bad = rpc.open_iteration(open_request(&json!({"bad": "steps[0]: x"}), "j")).await.unwrap_err();
        assert_eq!((from_status(&bad).kind(), bad.message()), (ErrorKind::InvalidArgument, "steps[0]: x"));

        let open = rpc.open_iteration(open_request(&json!({"splits": 2}), "j")).await.unwrap().into_inner();
        let beat = v1::ClientHeartbeatRequest {
            client_id: open.client_id,
            secret: open.client_secret.clone(),
            iteration_id: open.iteration_id,
            seen_version: open.version,
            wait_ms: 30_000,
            ..Default::default()
        };
        let mut waiting = rpc.clone();
        let call = waiting.client_heartbeat(beat);
        let stop = async {
            // The call is on its way when this one, sent later on the same connection, has its answer.
            rpc.get_status(v1::GetStatusRequest::default()).await.unwrap();
            handle.shutdown().await
        };
        let (answer, drained) = tokio::join!(call, stop);
        assert_eq!(from_status(&answer.unwrap_err()).kind(), ErrorKind::Unavailable);
        assert!(drained);
    });
}

#[test]
fn a_port_in_use_is_named_with_the_flag() {
    run(async {
        let (handle, _url) = start(fast()).await;
        let listen = handle.address().to_string();
        let config = DispatcherConfig { listen: listen.clone(), ..fast() };
        let e = Dispatcher::start(config, Arc::new(FakeCatalog::default())).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.message().contains(&listen) && e.message().contains("--listen"), "{e}");
        let config = DispatcherConfig { listen: "nonsense".into(), ..fast() };
        let e = Dispatcher::start(config, Arc::new(FakeCatalog::default())).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn a_state_dir_brings_jobs_back_and_belongs_to_one_dispatcher() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        // The worker says nothing more, and must not be missed while the lock is looked at.
        let timers = Timers { worker_timeout: Duration::from_secs(60), ..fast().timers };
        let config = DispatcherConfig { state_dir: Some(dir.path().to_path_buf()), timers, ..fast() };
        let (handle, url) = start(config.clone()).await;
        let mut rpc = DispatcherClient::connect(url).await.unwrap();
        rpc.register_worker(register("a:1")).await.unwrap();
        let open = rpc.open_iteration(open_request(&json!({"splits": 2}), "j")).await.unwrap().into_inner();
        let second = Dispatcher::start(config.clone(), Arc::new(FakeCatalog::default())).await;
        let e = second.err().unwrap();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
        assert!(e.message().contains("--state-dir"), "{e}");
        drop(rpc);
        assert!(handle.shutdown().await);

        let (handle, url) = start(config).await;
        let mut rpc = DispatcherClient::connect(url).await.unwrap();
        let beat = v1::ClientHeartbeatRequest {
            client_id: open.client_id,
            secret: open.client_secret.clone(),
            iteration_id: open.iteration_id,
            ..Default::default()
        };
        let view = rpc.client_heartbeat(beat).await.unwrap().into_inner();
        assert!(!view.unknown);
        assert_eq!(view.version, open.version);
        handle.shutdown().await;
    });
}

#[test]
fn flight_info_names_the_endpoints_and_leaves_no_trace() {
    run(async {
        let (handle, url) = start(fast()).await;
        let mut rpc = DispatcherClient::connect(url.clone()).await.unwrap();
        let channel = tonic::transport::Endpoint::new(url).unwrap().connect().await.unwrap();
        let mut flight = FlightServiceClient::new(channel);
        let command = |c: Value| FlightDescriptor::new_cmd(c.to_string());
        let ask = json!({"pipeline": {"splits": 3}, "epoch": 2});
        let none = flight.get_flight_info(command(ask.clone())).await.unwrap_err();
        assert_eq!(none.code(), tonic::Code::Unavailable);
        let mut timers = vec![];
        for address in ["a:1", "b:1"] {
            timers.push(rpc.register_worker(register(address)).await.unwrap().into_inner());
        }
        let info = flight.get_flight_info(command(ask.clone())).await.unwrap().into_inner();
        assert_eq!(info.endpoint.len(), 2);
        assert_eq!(info.endpoint[1].location[0].uri, "grpc+tcp://b:1");
        // Behind the signature.
        let said = |e: &arrow_flight::FlightEndpoint| -> Value {
            let ticket = std::str::from_utf8(&e.ticket.as_ref().unwrap().ticket).unwrap().to_owned();
            serde_json::from_str(ticket.split_once('.').unwrap().1).unwrap()
        };
        let tickets: Vec<Value> = info.endpoint.iter().map(said).collect();
        assert_eq!(tickets[0]["pipeline"], json!({"splits": 3}));
        assert_eq!((&tickets[0]["epoch"], &tickets[0]["worker"]), (&json!(2), &json!(timers[0].worker_id)));
        assert_eq!(tickets[0]["job"], tickets[1]["job"]);
        assert!(tickets[0]["job"].as_str().unwrap().starts_with("flight-"));
        let again = flight.get_flight_info(command(ask.clone())).await.unwrap().into_inner();
        let other = said(&again.endpoint[0]);
        assert_ne!(other["job"], tickets[0]["job"], "another answer, another epoch");
        assert_eq!(info.try_decode_schema().unwrap().field(0).name(), "id");
        let schema = flight.get_schema(command(ask)).await.unwrap().into_inner();
        assert!(!schema.schema.is_empty());
        let status = rpc.get_status(v1::GetStatusRequest::default()).await.unwrap().into_inner();
        assert!(status.jobs.is_empty());

        for (bad, says) in [
            (json!({"pipelin": 3}), "did you mean `pipeline`"),
            (json!({"job": "x"}), "has no `pipeline`"),
            (json!({"pipeline": "x", "epoch": -1}), "`epoch`"),
            (json!({"pipeline": "nope"}), "no dataset `nope` is registered"),
            (json!({"pipeline": {}, "mode": "of"}), "`dynamic`, `off`, `file`"),
            (json!([1]), "not a JSON object"),
        ] {
            let e = flight.get_flight_info(command(bad)).await.unwrap_err();
            assert!(e.message().contains(says), "{e}");
        }
        let e = flight.get_flight_info(FlightDescriptor::new_path(vec!["x".into()])).await.unwrap_err();
        assert!(e.message().contains("has no command"), "{e}");
        let e = flight.do_get(arrow_flight::Ticket::new("x")).await.unwrap_err();
        assert_eq!(e.code(), tonic::Code::Unimplemented);
        assert!(e.message().contains("GetFlightInfo"), "{e}");
        handle.shutdown().await;
    });
}

/// Definitions of some MiB took a second each on the threads that answer all calls. These are refused when they are read.
#[test]
fn large_definitions_of_others_delay_no_call() {
    run(async {
        let stores = Arc::new(Stores::default());
        let catalog = FakeCatalog { stores: Some(stores), ..FakeCatalog::default() };
        let handle = Dispatcher::start(fast(), Arc::new(catalog)).await.unwrap();
        let url = format!("http://{}", handle.address());
        let mut rpc = DispatcherClient::connect(url.clone()).await.unwrap();
        let large = format!("[{}[]]", "[],".repeat(2 << 20));
        let tasks = Tasks::new();
        let mut callers = vec![];
        for i in 0..8 {
            let (large, url) = (large.clone(), url.clone());
            callers.push(tasks.spawn("a caller", async move {
                let channel = tonic::transport::Endpoint::new(url).unwrap().connect().await.unwrap();
                let mut rpc = DispatcherClient::new(channel.clone());
                let save_url = if i % 5 == 4 { "memory://saves/open".to_owned() } else { String::new() };
                let refused = match i % 5 {
                    0 => {
                        let request =
                            v1::RegisterDatasetRequest { definition_json: large, ..Default::default() };
                        rpc.register_dataset(request).await.map(drop)
                    }
                    1 => {
                        let url = "memory://saves/started".to_owned();
                        let request =
                            v1::StartSaveRequest { definition_json: large, url, ..Default::default() };
                        rpc.start_save(request).await.map(drop)
                    }
                    2 => {
                        // As large as messages of Flight may be.
                        let command = format!("[{}[]]", "[],".repeat(1 << 20));
                        let mut flight = FlightServiceClient::new(channel);
                        flight.get_flight_info(FlightDescriptor::new_cmd(command)).await.map(drop)
                    }
                    _ => {
                        let request = v1::OpenIterationRequest {
                            definition_json: large,
                            save_url,
                            ..Default::default()
                        };
                        rpc.open_iteration(request).await.map(drop)
                    }
                };
                let refused = refused.unwrap_err();
                assert_eq!(from_status(&refused).kind(), ErrorKind::InvalidArgument, "{refused}");
                let wanted =
                    if i % 5 == 2 { "not a JSON object" } else { "takes more than 256.00 MiB as JSON" };
                assert!(refused.message().contains(wanted), "{refused}");
            }));
        }
        let mut longest = Duration::ZERO;
        while callers.iter().any(|c| !c.is_finished()) {
            let asked = Instant::now();
            rpc.get_status(v1::GetStatusRequest::default()).await.unwrap();
            longest = longest.max(asked.elapsed());
        }
        for caller in callers {
            caller.await.unwrap();
        }
        // One thread sends and receives all of it here. Reading the definitions on that thread, too, takes longer.
        assert!(longest < Duration::from_secs(3), "a status took {longest:?}");
        handle.shutdown().await;
    });
}
