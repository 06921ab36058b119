//! Elements that the user could not use, and gave back: no state counts them.

use caju_client::{Client, ReadRequest, ReaderState};
use caju_dispatcher::WorkerList;
use caju_proto::v1::ProcessingMode;
use caju_types::ErrorKind;
use serde_json::json;

use crate::cluster::{Cluster, assert_once, drain, ids, range, request, take_of};

const ROWS: i64 = 60_000;

/// What is left of an epoch behind a state.
async fn rest(client: &Client, request: ReadRequest, state: ReaderState) -> Vec<Vec<i64>> {
    let mut reader = client.read(ReadRequest { states: vec![state], ..request }).await.unwrap();
    drain(&mut reader).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_element_that_is_given_back_is_in_no_state() {
    let def = range(ROWS as u64, &[json!({"batch": 7})]);
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    for (used, whole) in [(0, false), (1, false), (40, false), (0, true), (5, true)] {
        let mut reader = client.read(request(&def, "")).await.unwrap();
        let mut elements = take_of(&mut reader, used).await;
        if whole {
            while let Some(element) = reader.try_next().unwrap() {
                elements.push(ids(&element.batch));
            }
            // The last call gave nothing.
            reader.give_back();
        }
        let counted = (elements.len() as u64, elements.concat().len() as u64);
        let state = reader.state().unwrap();
        assert_eq!((state.elements, state.rows), counted);
        match whole {
            true => assert!(reader.next_chunk().await.unwrap().is_some()),
            false => assert!(reader.next().await.unwrap().is_some()),
        }
        assert!(reader.state().unwrap().elements > counted.0);
        reader.give_back();
        reader.give_back();
        let state = reader.state().unwrap();
        assert_eq!((state.elements, state.rows), counted);
        assert_eq!(reader.next().await.unwrap_err().kind(), ErrorKind::Cancelled, "it gives nothing more");
        if !whole {
            assert_eq!((reader.stats().elements, reader.stats().rows), counted);
        }
        reader.close().await;
        elements.extend(rest(&client, request(&def, ""), state).await);
        assert_once(elements, ROWS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_turn_of_an_element_that_is_given_back_comes_again() {
    let cluster = Cluster::start_with(3, |c| c.workers = WorkerList::first(3)).await;
    let client = cluster.client().await;
    let mut def = range(3_000, &[json!({"batch": 10})]);
    def["deterministic"] = json!(true);
    let request = || ReadRequest { mode: ProcessingMode::Data, ..request(&def, "") };
    let whole = drain(&mut client.read(request()).await.unwrap()).await.unwrap();
    for used in [0, 1, 2, 7] {
        let mut reader = client.read(request()).await.unwrap();
        let mut elements = take_of(&mut reader, used).await;
        assert!(reader.next().await.unwrap().is_some());
        reader.give_back();
        let state = reader.state().unwrap();
        reader.close().await;
        elements.extend(rest(&client, request(), state).await);
        assert_eq!(elements, whole, "after {used} elements");
    }
}
