//! `sample` with datasets that are repeated, some of them without end.

use std::collections::{BTreeMap, BTreeSet};

use caju_client::{ReadRequest, ReaderState};
use serde_json::{Value, json};

use crate::cluster::{Cluster, drain, range, request, take_of};

fn sample(datasets: &[Value], weights: &[f64], more: &Value) -> Value {
    let mut def = json!({"source": {"sample": {"datasets": datasets, "weights": weights}}});
    def.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    def
}

/// Three endless datasets with the ids 0 to 49, 1,000 to 1,006 and 2,000.
fn endless(more: &Value) -> Value {
    let of = |rows: u64, first: u64| {
        range(rows, &[json!({"map": {"id": format!("id + {first}")}}), json!({"repeat": null})])
    };
    sample(&[of(50, 0), of(7, 1000), of(1, 2000)], &[0.6, 0.3, 0.1], more)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_datasets_come_as_often_as_they_say_although_a_worker_dies() {
    let datasets =
        [range(5_000, &[json!({"repeat": 3})]), range(4_000, &[json!({"map": {"id": "id + 5000"}})])];
    let def = sample(&datasets, &[0.7, 0.3], &json!({"steps": [{"batch": 50}]}));
    let mut cluster = Cluster::start(3).await;
    let mut reader = cluster.read(&def).await;
    let mut all = take_of(&mut reader, 20).await;
    cluster.workers.remove(0).kill();
    all.extend(drain(&mut reader).await.unwrap());
    let mut rows: Vec<i64> = all.into_iter().flatten().collect();
    rows.sort_unstable();
    let want: Vec<i64> = (0..15_000).map(|i| i / 3).chain(5_000..9_000).collect();
    assert!(rows == want, "{} rows", rows.len());
}

/// The draws of a row depend on the repetition of its dataset, and on nothing that differs from run to run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_repetition_of_a_dataset_draws_for_itself() {
    let random = json!({"map": {"id": "random_int(0, 1000000000)"}});
    let datasets = [range(3, &[random, json!({"repeat": 40})]), range(5, &[])];
    let def = sample(&datasets, &[1.0, 1.0], &json!({"seed": 7}));
    let mut runs = Vec::new();
    for workers in [1, 3] {
        let cluster = Cluster::start(workers).await;
        let mut rows: Vec<i64> =
            drain(&mut cluster.read(&def).await).await.unwrap().into_iter().flatten().collect();
        rows.sort_unstable();
        runs.push(rows);
    }
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0].len(), 3 * 40 + 5);
    assert!(runs[0].iter().collect::<BTreeSet<_>>().len() > 115, "{:?}", runs[0]);
}

/// Readers of an endless sample with an order go on where a state was taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_sample_goes_on_from_a_state() {
    let def = endless(&json!({"deterministic": true, "steps": [{"shuffle": 20}, {"batch": 10}]}));
    let cluster = Cluster::start(3).await;
    let mut reader = cluster.read(&def).await;
    let before = take_of(&mut reader, 30).await;
    let state = ReaderState::from_json(&reader.state().unwrap().to_json().unwrap()).unwrap();
    let after = take_of(&mut reader, 40).await;
    reader.close().await;
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    before.iter().chain(&after).flatten().for_each(|id| *counts.entry(id / 1000).or_default() += 1);
    assert!(counts[&0] > counts[&1] && counts[&1] > counts[&2], "{counts:?}");
    let elsewhere = Cluster::start(2).await;
    let behind = ReadRequest { states: vec![state], ..request(&def, "") };
    let mut reader = elsewhere.client().await.read(behind).await.unwrap();
    assert_eq!(take_of(&mut reader, 40).await, after);
    reader.close().await;
}

/// Two readers share an endless sample: what they get does not overlap, so no row comes more often than any other of its
/// dataset, but for the splits that are on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_an_endless_sample_and_no_row_starves() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let def = endless(&json!({}));
    let mut one = client.read(request(&def, "shared")).await.unwrap();
    let mut other = client.read(request(&def, "shared")).await.unwrap();
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    while counts.values().sum::<u64>() < 20_000 {
        for reader in [&mut one, &mut other] {
            for id in take_of(reader, 5).await.into_iter().flatten() {
                *counts.entry(id).or_default() += 1;
            }
        }
    }
    assert_eq!(counts.len(), 50 + 7 + 1, "each row of each dataset came");
    let all: u64 = counts.values().sum();
    for (dataset, weight) in [(0, 0.6), (1, 0.3), (2, 0.1)] {
        let rows: u64 = counts.iter().filter(|(id, _)| *id / 1000 == dataset).map(|(_, n)| n).sum();
        let share = rows as f64 / all as f64;
        assert!((share - weight).abs() < 0.1, "dataset {dataset}: {share} of the rows");
    }
    one.close().await;
    other.close().await;
}
