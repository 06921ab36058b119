//! Tests of the provider.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caju_types::ErrorKind;
use futures::StreamExt as _;

use super::{Issued, SkippedSplits, SplitOrder, SplitProvider};
use crate::catalog::ListedSplit;
use crate::state::{FeedId, SplitRecord, next_digest};

/// Takes everything, `step` at a time, yielding in between; what was listed at most ahead.
async fn drain(
    n: u64,
    order: Option<SplitOrder>,
    issued: Issued,
    step: usize,
) -> (Vec<u64>, Arc<SplitProvider>, usize) {
    let listed = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&listed);
    let splits = futures::stream::iter(0..n).map(move |i| {
        theirs.fetch_add(1, Ordering::Relaxed);
        Ok(ListedSplit::from_json(format!("split {i}")))
    });
    let provider = Arc::new(SplitProvider::default());
    let filler = Arc::clone(&provider);
    let fill = async move {
        filler.fill(FeedId(0), order, splits.boxed(), (issued, SkippedSplits::default()), || {}).await
    };
    let (mut seen, mut ahead) = (Vec::new(), 0);
    let take = async {
        while provider.end().is_none() {
            let taken = provider.take(step);
            ahead = ahead.max(listed.load(Ordering::Relaxed) - seen.len());
            let position = |(at, r): (usize, &SplitRecord)| {
                assert_eq!(r.index, issued.count + at as u64, "positions are those of the order");
                r.split.strip_prefix("split ").unwrap().parse::<u64>().unwrap()
            };
            let before = seen.len();
            seen.extend(taken.iter().enumerate().map(|(i, r)| position((before + i, r))));
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(fill, take);
    (seen, provider, ahead)
}

fn run<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test)
}

const FRESH: Issued = Issued { count: 0, digest: 0 };

#[test]
fn canonical_order_is_listed_a_little_ahead() {
    run(async {
        let (seen, provider, ahead) = drain(5_000, None, FRESH, 3).await;
        assert_eq!(seen, (0..5_000).collect::<Vec<_>>());
        assert_eq!((provider.total(), provider.left()), (Some(5_000), Some(0)));
        assert!(ahead <= 1024 + 2 * 64, "{ahead} listed ahead");
    });
}

#[test]
fn a_shuffled_order_is_the_same_for_every_pace() {
    run(async {
        let order = Some(SplitOrder::new(1, 2, None));
        let (a, _, ahead) = drain(20_000, order, FRESH, 7).await;
        let (b, _, _) = drain(20_000, order, FRESH, 1000).await;
        assert_eq!(a, b);
        assert!(a[..128].iter().all(|i| *i < 128), "the first window is small");
        assert!(ahead <= 3 * 4096, "{ahead} listed ahead");
        let mut sorted = a.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20_000).collect::<Vec<_>>());
    });
}

#[test]
fn after_a_restart_it_goes_on_behind_what_was_issued() {
    run(async {
        for order in [None, Some(SplitOrder::new(5, 0, Some(2)))] {
            let (all, _, _) = drain(1_000, order, FRESH, 50).await;
            for cut in [1usize, 127, 128, 129, 500, 1_000] {
                let digest = all[..cut].iter().fold(0, |d, i| next_digest(d, &format!("split {i}")));
                let issued = Issued { count: cut as u64, digest };
                let (rest, provider, _) = drain(1_000, order, issued, 50).await;
                assert_eq!(rest, all[cut..]);
                assert_eq!(provider.total(), Some(1_000));
                let wrong = Issued { digest: digest ^ 1, ..issued };
                let (_, provider, _) = drain(1_000, order, wrong, 50).await;
                let e = provider.end().unwrap().unwrap_err();
                assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
            }
            let shorter = Issued { count: 2_000, digest: 1 };
            let (_, provider, _) = drain(1_000, order, shorter, 50).await;
            assert!(provider.end().unwrap().is_err(), "files vanished");
        }
    });
}

#[test]
fn splits_that_share_a_part_are_given_together_whatever_is_asked_for() {
    run(async {
        let record = |index: u64| SplitRecord {
            index,
            split: format!("split {index}").into(),
            // Not JSON: the size of a group is not parsed out of it.
            group: Some("part".into()),
            after: None,
            whole: None,
        };
        let groups = vec![vec![record(0), record(1), record(2)], vec![record(3)], vec![record(4), record(5)]];
        let provider = Arc::new(SplitProvider::default());
        let filler = Arc::clone(&provider);
        let fill = async move { filler.fill_groups(groups, FRESH, || {}).await };
        let mut sizes = Vec::new();
        let take = async {
            while provider.end().is_none() {
                let taken = provider.take(2);
                sizes.extend((!taken.is_empty()).then_some(taken.len()));
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(fill, take);
        assert_eq!(sizes, [3, 1, 2]);
    });
}
