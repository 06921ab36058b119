//! A reader that stood still for too long is expelled. When it wakes up it cannot take, acknowledge or finish anything,
//! and the readers that are left get what it had not taken.

use std::time::Instant;

use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_tests::cluster::Cluster;
use caju_tests::frames::{ERROR, VERSION, answer, open_frame};
use caju_tests::pipeline::{Pipeline, Report};
use caju_tests::process::TEST_TIMEOUT;
use serde_json::{Value, json};
use tonic::Code;

const ROWS: u64 = 200_000;

/// Rows that cost CPU time, in many splits: some seconds of two workers.
fn steps() -> Value {
    json!([{ "burn": { "per_row": "50us" } }, { "batch": 100 }])
}

fn cluster() -> Cluster {
    Cluster::start_with(2, &["--client-timeout", "2s"], &[])
}

fn readers(cluster: &Cluster, n: u64) {
    cluster.wait_for_status("the number of readers", |s| {
        (s["jobs"].as_array()?.first()?["clients"] == n).then_some(())
    });
}

/// A reader that wakes up while the others still read.
#[test]
fn a_reader_that_wakes_up_in_the_middle_of_the_epoch_disturbs_nobody() {
    let cluster = cluster();
    let p = Pipeline::of(json!({ "range": ROWS }), steps());
    let start = |report: &str| cluster.start_read(&p, &["--job", "train", "--report", report]);
    let (sleeper, other) = (start("sleeper.json"), start("other.json"));
    readers(&cluster, 2);
    cluster.wait_for_status("rows", |s| {
        let rows = s["jobs"][0]["stages"].as_array()?.last()?["rows_out"].as_u64()?;
        (rows > 10_000).then_some(())
    });
    sleeper.signal("STOP");
    readers(&cluster, 1);
    sleeper.signal("CONT");
    sleeper.wait().expect_code(3).expect_error(&["client timeout of 2"]);
    let other = other.wait();
    other.expect_code(3).expect_error(&["incomplete", "vanished after its user had taken"]);
    let report = Report::load(&p.folder().join("other.json"));
    let incomplete = &report.epochs("incomplete")[0];
    let number = |key: &str| incomplete[key].as_u64().unwrap();
    let (missing, taken) = (number("rows_missing"), number("rows_taken_by_lost_readers"));
    assert!(missing > 0 && missing < ROWS);
    assert_eq!(
        (report.rows()[0] + missing, missing),
        (ROWS, taken),
        "what it had taken by then, and no more"
    );
    cluster.stop();
}

/// The same with everything that a waking reader could say, in its own name and with its own secrets.
#[test]
fn the_secrets_of_an_expelled_reader_open_nothing() {
    let cluster = cluster();
    let definition = json!({ "source": { "range": ROWS }, "steps": steps() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let opened = runtime.block_on(async {
        let mut rpc = DispatcherClient::connect(format!("http://{}", cluster.address())).await.unwrap();
        let open = v1::OpenIterationRequest {
            definition_json: definition.to_string(),
            job: "train".into(),
            ..Default::default()
        };
        rpc.open_iteration(open).await.unwrap().into_inner()
    });
    assert_eq!((opened.tasks.len(), opened.client_secret.len()), (2, 16));
    let p = Pipeline::new(&definition);
    let reader = cluster.start_read(&p, &["--job", "train", "--report", "r.json"]);
    readers(&cluster, 2);
    readers(&cluster, 1);
    runtime.block_on(everything_that_a_reader_can_do(&cluster, &opened));
    for task in &opened.tasks {
        let frame = open_frame(VERSION, task.task_id, opened.client_id, &task.ticket);
        // Its worker hears with the next heartbeat that the task is fenced. Rows of a fenced task are not delivered.
        let asked = Instant::now();
        while answer(&task.address, &frame).0 != ERROR {
            assert!(
                asked.elapsed() < TEST_TIMEOUT,
                "the worker at {} still serves an expelled reader",
                task.address
            );
        }
    }
    reader.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    let whole = Pipeline::of(json!({ "range": ROWS }), json!([{ "batch": 100 }])).report(&[]);
    assert_eq!((report.rows(), report.checksums()), (vec![ROWS], whole.checksums()));
    drop(runtime);
    cluster.stop();
}

async fn everything_that_a_reader_can_do(cluster: &Cluster, me: &v1::OpenIterationResponse) {
    let mut rpc = DispatcherClient::connect(format!("http://{}", cluster.address())).await.unwrap();
    let (client_id, iteration_id) = (me.client_id, me.iteration_id);
    let tasks: Vec<u64> = me.tasks.iter().map(|t| t.task_id).collect();
    let all = |split_index| v1::SplitRows {
        split_index,
        rows: vec![v1::RowRange { start: 0, end: 1 << 40 }],
        ..Default::default()
    };
    let all: Vec<v1::SplitRows> = (0..100).map(all).collect();
    let received = |task_id: &u64| v1::LostTask {
        task_id: *task_id,
        received: all.clone(),
        reason: "asleep".into(),
        elements: 0,
        sizes: vec![],
    };
    let lost: Vec<v1::LostTask> = tasks.iter().map(received).collect();
    let beat = v1::ClientHeartbeatRequest {
        client_id,
        iteration_id,
        ended_tasks: tasks.clone(),
        taken_tasks: tasks.clone(),
        lost_tasks: lost.clone(),
        acknowledged: all.clone(),
        acknowledged_all: true,
        secret: me.client_secret.clone(),
        ..Default::default()
    };
    let answer = rpc.client_heartbeat(beat).await.unwrap().into_inner();
    let why = answer.failure.unwrap().message;
    assert!(answer.unknown && answer.tasks.is_empty() && why.contains("client timeout of 2"), "{why}");
    let close = v1::CloseClientRequest {
        client_id,
        iteration_id,
        received: lost,
        broken_off: tasks,
        returned: all,
        secret: me.client_secret.clone(),
        ..Default::default()
    };
    rpc.close_client(close).await.unwrap();
    let join = v1::OpenIterationRequest {
        job: "train".into(),
        definition_json: me.definition_json.clone(),
        client_id,
        client_secret: me.client_secret.clone(),
        ..Default::default()
    };
    let refused = rpc.open_iteration(join).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("open the epoch as a new client"), "{refused}");
}

#[test]
fn another_version_of_the_framed_stream_is_refused_with_a_reason() {
    let cluster = Cluster::start(1);
    for version in [0, VERSION + 1, u16::MAX] {
        let (kind, says) = answer(&cluster.workers[0].address, &open_frame(version, 1, 1, &[0; 16]));
        let (theirs, ours) =
            (format!("the peer speaks version {version} "), format!("speaks version {VERSION}"));
        assert!(kind == ERROR && says.contains(&theirs) && says.contains(&ours), "{kind}: {says}");
    }
    let p = Pipeline::of(json!({ "range": 1000 }), json!([]));
    assert_eq!(cluster.report(&p, &[]).rows(), [1000], "the worker serves whoever speaks its own");
    cluster.stop();
}
