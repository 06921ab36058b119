use caju_types::ErrorKind;
use futures::{FutureExt, StreamExt};
use proptest::prelude::*;

use super::*;
use crate::Tasks;

#[tokio::test]
async fn the_end_comes_when_every_sender_has_finished() {
    let (a, mut receiver) = channel("a", 4);
    let b = a.another("b");
    a.send(1).await.unwrap();
    a.finish();
    assert_eq!(receiver.recv().await.unwrap().unwrap(), 1);
    assert!(receiver.recv().now_or_never().is_none(), "b may send more");
    b.send(2).await.unwrap();
    b.finish();
    assert_eq!(receiver.recv().await.unwrap().unwrap(), 2);
    assert!(receiver.recv().await.is_none());
}

#[tokio::test]
async fn a_sender_that_is_dropped_fails_the_receiver_though_others_go_on() {
    let (a, mut receiver) = channel("reader of a.parquet", 4);
    let b = a.another("reader of b.parquet");
    a.send(1).await.unwrap();
    drop(a);
    assert_eq!(receiver.recv().await.unwrap().unwrap(), 1, "what was sent before comes first");
    let e = receiver.recv().await.unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Internal);
    assert!(e.message().contains("reader of a.parquet"), "{e}");
    assert!(receiver.recv().await.is_none());
    assert_eq!(b.send(2).await.unwrap_err().kind(), ErrorKind::Cancelled, "nobody listens after an error");
}

#[tokio::test]
async fn a_receiver_that_waits_notices_a_sender_that_breaks() {
    let (a, mut receiver) = channel::<u8>("a", 1);
    let b = a.another("b");
    let (first, ()) = tokio::join!(receiver.recv(), async {
        tokio::task::yield_now().await;
        drop(a);
    });
    assert!(first.unwrap().unwrap_err().message().starts_with("a "));
    b.finish();
}

#[tokio::test]
async fn a_failure_comes_behind_what_was_sent() {
    let (a, mut receiver) = channel("a", 1);
    let sending = async {
        a.send(1).await.unwrap();
        a.end(Err(Error::data_loss("x.csv: damaged"))).await;
    };
    let receiving = async {
        assert_eq!(receiver.recv().await.unwrap().unwrap(), 1);
        assert_eq!(receiver.recv().await.unwrap().unwrap_err().kind(), ErrorKind::DataLoss);
        assert!(receiver.recv().await.is_none());
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn panics_aborts_and_stops_of_the_sending_task_are_errors() {
    let tasks = Tasks::new();
    let (sender, mut receiver) = channel::<u8>("a reader", 1);
    let task = tasks.spawn("a reader", async move {
        let _sender = sender;
        if true {
            panic!("boom");
        }
    });
    assert!(receiver.recv().await.unwrap().unwrap_err().message().contains("a reader panicked"));
    let e = task.await.unwrap_err();
    assert!(e.message().contains("boom"), "{e}");

    let (sender, mut receiver) = channel::<u8>("a reader", 1);
    let task = tasks.spawn("a reader", async move {
        let _sender = sender;
        std::future::pending::<()>().await;
    });
    drop(task);
    assert!(receiver.recv().await.unwrap().unwrap_err().message().contains("a reader was stopped"));

    let (sender, mut receiver) = channel::<u8>("a reader", 1);
    let _task = tasks.spawn("a reader", async move {
        let _sender = sender;
        std::future::pending::<()>().await;
    });
    tasks.stop();
    assert!(receiver.recv().await.unwrap().is_err());
}

/// How a sender ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finish,
    Fail,
    Drop,
    Panic,
    Abort,
}

async fn send_all(sender: Sender<(usize, u32)>, which: usize, items: u32, end: End) {
    for i in 0..items {
        sender.send((which, i)).await.ok();
        if i % 3 == 0 {
            tokio::task::yield_now().await;
        }
    }
    match end {
        End::Finish => sender.finish(),
        End::Fail => sender.fail(Error::data_loss(format!("failed: sender {which}"))).await,
        End::Drop => drop(sender),
        End::Panic => panic!("of sender {which}"),
        End::Abort => std::future::pending().await,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the senders do: either all items arrive in each sender's order, and then the end, or an error names a sender
    /// that did not finish.
    #[test]
    fn an_end_means_that_everything_was_sent(
        senders in proptest::collection::vec(
            (0u32..20, prop_oneof![
                4 => Just(End::Finish), 1 => Just(End::Fail), 1 => Just(End::Drop), 1 => Just(End::Panic), 1 => Just(End::Abort)
            ]),
            1..6,
        ),
        capacity in 1usize..8,
        threads in 1usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap();
        let (received, error) = runtime.block_on(async {
            let tasks = Tasks::new();
            let (first, mut receiver) = channel("first", capacity);
            let mut running = Vec::new();
            for (which, (items, end)) in senders.iter().copied().enumerate() {
                let sender = first.another(format!("sender {which}"));
                running.push((end, tasks.spawn("sending", send_all(sender, which, items, end))));
            }
            first.finish();
            // Aborted tasks end at their next await.
            running.retain(|(end, _)| *end != End::Abort);
            let (mut received, mut error) = (Vec::new(), None);
            while let Some(item) = receiver.next().await {
                match item {
                    Ok(item) => received.push(item),
                    Err(e) => error = Some(e),
                }
            }
            (received, error)
        });
        for which in 0..senders.len() {
            let got: Vec<u32> = received.iter().filter(|(w, _)| *w == which).map(|(_, i)| *i).collect();
            prop_assert_eq!(&got, &(0..u32::try_from(got.len()).unwrap()).collect::<Vec<_>>());
        }
        match error {
            None => {
                prop_assert!(senders.iter().all(|(_, end)| *end == End::Finish));
                prop_assert_eq!(received.len(), senders.iter().map(|(n, _)| *n as usize).sum::<usize>());
            }
            Some(e) => {
                let named = senders.iter().enumerate().any(|(which, (_, end))| {
                    *end != End::Finish && e.message().contains(&format!("sender {which}"))
                });
                prop_assert!(named, "{}", e);
            }
        }
    }
}
