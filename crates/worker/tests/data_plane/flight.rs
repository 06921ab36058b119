//! Foreign clients: plain Arrow Flight.

use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightClient, FlightDescriptor};
use futures::{FutureExt, StreamExt, TryStreamExt};
use serde_json::json;
use tonic::transport::Channel;

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, ids, range};

pub(crate) async fn connect(address: &str) -> FlightClient {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let inner = FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    FlightClient::new_from_inner(inner)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_client_reads_an_epoch_endpoint_by_endpoint() {
    let cluster = Cluster::start(2).await;
    let def = range(20_000, &[json!({"batch": {"size": 700, "drop_remainder": false}})]);
    let command = json!({"pipeline": def, "job": "flight", "epoch": 0});
    let mut dispatcher = connect(&cluster.address()).await;
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command.to_string())).await.unwrap();
    assert_eq!(info.endpoint.len(), 2);
    let mut elements = Vec::new();
    for endpoint in info.endpoint {
        let address = endpoint.location[0].uri.strip_prefix("grpc+tcp://").unwrap().to_string();
        let mut worker = connect(&address).await;
        let batches = worker.do_get(endpoint.ticket.unwrap()).await.unwrap();
        let batches: Vec<_> = batches.try_collect().await.unwrap();
        elements.extend(batches.iter().map(ids));
    }
    assert!(elements.iter().filter(|e| e.len() != 700).count() <= 2, "one batch on the wire per element");
    assert_once(elements, 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_client_waits_for_boundaries_that_are_learnt() {
    let cluster = Cluster::start(2).await;
    let bucket = json!({"length": "id", "boundaries": {"quantiles": 2, "rows": 1000}, "batch_sizes": 10, "pad": false});
    let def = range(2_000, &[json!({"bucket_by_length": bucket})]);
    let command = json!({"pipeline": def, "job": "flight", "epoch": 0});
    let mut dispatcher = connect(&cluster.address()).await;
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command.to_string())).await.unwrap();
    let mut elements = Vec::new();
    for endpoint in info.endpoint {
        let address = endpoint.location[0].uri.strip_prefix("grpc+tcp://").unwrap().to_string();
        let batches = connect(&address).await.do_get(endpoint.ticket.unwrap()).await.unwrap();
        elements.extend(batches.try_collect::<Vec<_>>().await.unwrap().iter().map(ids));
    }
    assert!(elements.iter().all(|e| e.iter().all(|id| (*id < 500) == (e[0] < 500))), "one class each");
    assert_once(elements, 2_000);
}

/// The error of a stream that waits for boundaries, which take 8 s at least to learn. Each number of rows is another dataset.
async fn error_of(cluster: &Cluster, rows: i64) -> String {
    let bucket = json!({"length": "id", "boundaries": {"quantiles": 2, "rows": rows}, "batch_sizes": 10, "pad": false});
    let def = range(5_000, &[json!({"sleep": {"per_row": "2ms"}}), json!({"bucket_by_length": bucket})]);
    let command = json!({"pipeline": def, "job": format!("flight-{rows}"), "epoch": 0});
    let mut dispatcher = connect(&cluster.address()).await;
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command.to_string())).await.unwrap();
    let mut worker = connect(cluster.workers[0].address()).await;
    match worker.do_get(info.endpoint[0].ticket.clone().unwrap()).await {
        Err(e) => e.to_string(),
        Ok(_) => panic!("the boundaries are known"),
    }
}

/// The first error of several such streams.
async fn first_error(cluster: &Cluster, streams: i64) -> String {
    let opened = (0..streams).map(|n| error_of(cluster, 4096 - n).boxed_local());
    let first = tokio::time::timeout(TEST_TIMEOUT, futures::future::select_all(opened));
    first.await.expect("an error in time").0
}

/// `--flight-stall-timeout` and `--flight-open-timeout`: how long boundaries may take, and how long until a worker learns them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_client_waits_for_boundaries_no_longer_than_is_set() {
    let mut cluster = Cluster::start(0).await;
    cluster.add(|c| c.flight_stall_timeout = Duration::from_secs(1)).await;
    let error = first_error(&cluster, 1).await;
    assert!(error.contains("has not learnt its boundaries within 1"), "{error}");
    let mut cluster = Cluster::start(0).await;
    cluster.add(|c| c.flight_open_timeout = Duration::from_secs(1)).await;
    // A worker learns four at a time.
    let error = first_error(&cluster, 5).await;
    assert!(error.contains("no worker learns its boundaries"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_are_never_cut_and_bad_tickets_are_refused() {
    let cluster = Cluster::start(1).await;
    // 8 MB in one element, beyond gRPC's usual bound of a message.
    let def = range(1_000_000, &[json!({"batch": {"size": 1_000_000, "drop_remainder": false}})]);
    let command = json!({"pipeline": def, "job": "big", "epoch": 0});
    let mut dispatcher = connect(&cluster.address()).await;
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command.to_string())).await.unwrap();
    let mut worker = connect(cluster.workers[0].address()).await;
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let batches: Vec<_> = worker.do_get(ticket).await.unwrap().try_collect().await.unwrap();
    assert_eq!(batches.len(), 1);
    assert_once(batches.iter().map(ids), 1_000_000);
    // Tickets that the dispatcher has not signed for this worker.
    for bad in ["{}", "nonsense", r#"{"worker": 999999, "pipeline": {}}"#] {
        let e = match worker.do_get(arrow_flight::Ticket::new(bad.to_string())).await {
            Err(e) => e.to_string(),
            Ok(_) => panic!("{bad} was taken"),
        };
        assert!(e.contains("ticket"), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_client_that_leaves_ends_its_task() {
    let cluster = Cluster::start(1).await;
    let def = range(1_000_000, &[json!({"batch": {"size": 100, "drop_remainder": false}})]);
    let command = json!({"pipeline": def, "job": "left", "epoch": 0});
    let mut dispatcher = connect(&cluster.address()).await;
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command.to_string())).await.unwrap();
    let mut worker = connect(cluster.workers[0].address()).await;
    let mut batches = worker.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    assert_eq!(batches.next().await.unwrap().unwrap().num_rows(), 100);
    assert_eq!(cluster.workers[0].tasks().len(), 1);
    drop(batches);
    tokio::time::timeout(TEST_TIMEOUT, cluster.workers[0].idle())
        .await
        .expect("the task ends with its reader");
    // The rows that the Flight reader has are not known, so the epoch cannot be continued.
    let mut again = connect(cluster.workers[0].address()).await;
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command.to_string())).await.unwrap();
    let rest = match again.do_get(info.endpoint[0].ticket.clone().unwrap()).await {
        Ok(rest) => rest.try_collect::<Vec<_>>().await.map(|b| b.iter().map(|b| b.num_rows()).sum::<usize>()),
        Err(e) => Err(e),
    };
    assert!(!matches!(rest, Ok(n) if n > 0 && n < 1_000_000), "never a silently short epoch: {rest:?}");
}
