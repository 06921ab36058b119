//! A client that knows every identifier and no secret: whatever it tries, it is refused, and the job's owner gets all rows.

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightDescriptor, Ticket};
use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_tests::cluster::Cluster;
use caju_tests::frames::{ERROR, VERSION, answer, open_frame};
use caju_tests::pipeline::{Pipeline, Report};
use serde_json::json;
use tonic::Code;
use tonic::transport::Channel;

#[test]
fn a_stranger_can_do_nothing_to_a_running_job() {
    let rows = 100_000;
    let cluster = Cluster::start(1);
    let p =
        Pipeline::of(json!({ "range": rows }), json!([{ "burn": { "per_row": "50us" } }, { "batch": 100 }]));
    let owner = cluster.start_read(&p, &["--job", "owned", "--report", "r.json"]);
    let (iteration, task, worker, address) = cluster.wait_for_status("a task", |s| {
        let worker = &s["workers"][0];
        Some((
            s["jobs"][0]["iteration_id"].as_u64()?,
            worker["tasks"][0].as_u64()?,
            worker["worker_id"].as_u64()?,
            worker["address"].as_str()?.to_string(),
        ))
    });
    // Identifiers are given out one after the other.
    let clients: Vec<u64> = (iteration..task + 3).collect();

    for client in &clients {
        for ticket in [&[][..], &[0; 16], &[7; 16]] {
            let (kind, says) = answer(&address, &open_frame(VERSION, task, *client, ticket));
            assert!(kind == ERROR && says.contains("has no ticket"), "{kind}: {says}");
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(strangers_calls(&cluster, iteration, task, worker, &address, &clients));
    let dataset =
        cluster.wait_for_status("the dataset", |s| Some(s["jobs"][0]["dataset_id"].as_str()?.to_string()));
    runtime.block_on(strangers_tickets(&address, worker, &dataset));
    runtime.block_on(anothers_tickets(&cluster, &address));
    // Its connections close with it: one that answers no longer would hold up the dispatcher's end.
    drop(runtime);

    owner.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    let whole = Pipeline::of(json!({ "range": rows }), json!([{ "batch": 100 }])).report(&[]);
    assert_eq!((report.rows(), report.checksums()), (vec![rows], whole.checksums()));
    cluster.stop();
}

/// Tickets of Arrow Flight are signed for one incarnation of a worker: they cannot be made for a job whose name is in `caju
/// status`, nor changed for another job.
async fn strangers_tickets(address: &str, worker: u64, dataset: &str) {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut flight = FlightServiceClient::new(channel);
    for pipeline in [json!(dataset), json!({ "source": { "range": 100_000 } })] {
        let ticket = json!({ "pipeline": pipeline, "job": "owned", "epoch": 0, "worker": worker });
        for signature in ["", ".", "00000000000000000000000000000000."] {
            let ticket = Ticket::new(format!("{signature}{ticket}"));
            let e = flight.do_get(ticket).await.expect_err("a stranger got rows of the owner's");
            assert_eq!(e.code(), Code::PermissionDenied, "{e}");
            assert!(e.message().contains("is not one that the dispatcher signed"), "{e}");
        }
    }
}

/// A caller that asks for the flight info of a job gets tickets that the worker accepts unchanged, and in no other form. That
/// a Flight reader may not share an epoch with the owner's readers is refused by the dispatcher.
async fn anothers_tickets(cluster: &Cluster, address: &str) {
    let connect = |address: String| async move {
        FlightServiceClient::new(Channel::from_shared(address).unwrap().connect().await.unwrap())
    };
    let mut dispatcher = connect(format!("http://{}", cluster.address())).await;
    let mut worker = connect(format!("http://{address}")).await;
    let command = json!({ "pipeline": { "source": { "range": 7 } }, "job": "mine" }).to_string();
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command)).await.unwrap().into_inner();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let text = String::from_utf8(ticket.ticket.to_vec()).unwrap();
    let changed = Ticket::new(text.replace("mine", "owned"));
    let e = worker.do_get(changed).await.expect_err("a changed ticket was accepted");
    assert_eq!(e.code(), Code::PermissionDenied, "{e}");
    let mut stream = worker.do_get(ticket).await.unwrap().into_inner();
    let first = stream.message().await.unwrap();
    assert!(first.is_some(), "the ticket itself reads its own job");
}

async fn strangers_calls(
    cluster: &Cluster,
    iteration_id: u64,
    task_id: u64,
    worker_id: u64,
    address: &str,
    clients: &[u64],
) {
    let mut rpc = DispatcherClient::connect(format!("http://{}", cluster.address())).await.unwrap();
    let all = || v1::SplitRows {
        split_index: 0,
        rows: vec![v1::RowRange { start: 0, end: 1 << 40 }],
        ..Default::default()
    };
    let received = || v1::LostTask {
        task_id,
        received: vec![all()],
        reason: "made up".into(),
        elements: 0,
        sizes: vec![],
    };
    let mut refused = 0;
    for client_id in clients {
        let beat = v1::ClientHeartbeatRequest {
            client_id: *client_id,
            iteration_id,
            ended_tasks: vec![task_id],
            taken_tasks: vec![task_id],
            lost_tasks: vec![received()],
            acknowledged: vec![all()],
            ..Default::default()
        };
        match rpc.client_heartbeat(beat).await {
            Ok(answer) => assert!(answer.into_inner().unknown, "client {client_id} is nobody"),
            Err(e) => {
                assert_eq!(e.code(), Code::PermissionDenied, "{e}");
                refused += 1;
            }
        }
        let close = v1::CloseClientRequest {
            client_id: *client_id,
            iteration_id,
            received: vec![received()],
            broken_off: vec![task_id],
            ..Default::default()
        };
        if let Err(e) = rpc.close_client(close).await {
            assert_eq!(e.code(), Code::PermissionDenied, "{e}");
            refused += 1;
        }
        let rounds = v1::NextRoundsRequest {
            client_id: *client_id,
            iteration_id,
            request_no: 1,
            position: 1 << 40,
            ended_tasks: vec![task_id],
            ..Default::default()
        };
        match rpc.next_rounds(rounds).await {
            Ok(answer) => assert!(answer.into_inner().unknown, "client {client_id} is nobody"),
            Err(e) => {
                assert_eq!(e.code(), Code::PermissionDenied, "{e}");
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 3, "one of them is the owner");
    let failure = Some(v1::Failure { kind: "data loss".into(), message: "made up".into() });
    let finish = v1::FinishTaskRequest { task_id, worker_id, failure, ..Default::default() };
    assert_eq!(rpc.finish_task(finish).await.unwrap_err().code(), Code::PermissionDenied);
    let done = v1::FinishTaskRequest { task_id, worker_id, counted: true, ..Default::default() };
    assert_eq!(rpc.finish_task(done).await.unwrap_err().code(), Code::PermissionDenied);
    let next = v1::NextSplitsRequest { task_id, worker_id, want: 1024, request_no: 99, ..Default::default() };
    assert_eq!(rpc.next_splits(next).await.unwrap_err().code(), Code::PermissionDenied);
    let get = v1::GetTaskRequest { task_id, worker_id, ..Default::default() };
    assert_eq!(rpc.get_task(get).await.unwrap_err().code(), Code::PermissionDenied);
    let lagging =
        v1::ServeLaggingRequest { task_id, worker_id, request_no: 1, elements: 9, ..Default::default() };
    assert_eq!(rpc.serve_behind(lagging).await.unwrap_err().code(), Code::PermissionDenied);
    let remainder = v1::AssignRemainderRequest { task_id, worker_id, elements: 9, ..Default::default() };
    assert_eq!(rpc.deal_tail(remainder).await.unwrap_err().code(), Code::PermissionDenied);
    let boundaries = v1::ReportBoundariesRequest { worker_id, dataset: "d".into(), ..Default::default() };
    assert_eq!(rpc.report_boundaries(boundaries).await.unwrap_err().code(), Code::PermissionDenied);
    let drain = v1::DrainWorkerRequest { worker_id, secret: vec![0; 16].into(), leaving: false };
    assert_eq!(rpc.drain_worker(drain).await.unwrap_err().code(), Code::PermissionDenied);
    let beat = v1::WorkerHeartbeatRequest { worker_id, address: address.to_string(), ..Default::default() };
    assert_eq!(rpc.worker_heartbeat(beat).await.unwrap_err().code(), Code::PermissionDenied);
    let register = v1::RegisterWorkerRequest { address: address.to_string(), ..Default::default() };
    let e = rpc.register_worker(register).await.unwrap_err();
    assert!(e.message().contains("is not given to another process"), "{e}");
    // A worker that was never registered says something about a task of the owner's.
    let report = v1::WorkerHeartbeatRequest {
        worker_id: 4242,
        address: "127.0.0.1:1".into(),
        tasks: vec![task_id],
        profiles: vec![v1::TaskProfile { task_id, ..Default::default() }],
        ..Default::default()
    };
    let answer = rpc.worker_heartbeat(report).await.unwrap().into_inner();
    assert!(answer.register_again && answer.decided.is_empty(), "{answer:?}");
    // A process that knows a job's name may join it, and one that reaches the dispatcher may register as a new worker: the port
    // is for trusted processes ("Who joins" in `docs/guarantees.md`). A reader that joins and vanishes is noticed
    // (`lost_readers.rs`).
    let status = format!("{:?}", rpc.get_status(v1::GetStatusRequest::default()).await.unwrap());
    let operator = std::fs::read_to_string(cluster.operator_secret_file()).unwrap();
    assert!(!status.contains(operator.trim()));
}

/// Calls that whoever reaches the port may make: they belong to no task and no reader.
const OPEN_CALLS: [&str; 7] = [
    "register_dataset",
    "get_dataset",
    "open_iteration",
    "start_save",
    "get_save",
    "get_status",
    "get_worker_status",
];

#[test]
fn every_call_of_the_protocol_is_tried_by_a_stranger_or_is_open() {
    let proto = include_str!("../../../proto/caju/v1/caju.proto");
    let calls = proto.lines().filter_map(|l| l.trim().strip_prefix("rpc ")?.split_once('('));
    let mut found = 0;
    for (name, _) in calls {
        let mut method = String::new();
        for c in name.chars() {
            if c.is_ascii_uppercase() && !method.is_empty() {
                method.push('_');
            }
            method.push(c.to_ascii_lowercase());
        }
        let is_tried = include_str!("hostile.rs").contains(&format!("rpc.{method}("));
        assert!(is_tried || OPEN_CALLS.contains(&method.as_str()), "no stranger tries {name}");
        found += 1;
    }
    assert!(found > 15, "{found}");
}
