//! Sets whose rows come from nowhere else: those that stages chose in a random order, and those of `cache_only`.

use std::collections::VecDeque;

use caju_engine::SetPlan;
use caju_types::ErrorKind;

use super::{SHUFFLED, World, flip, sorted};
use crate::common::How;
use crate::rows::{Row, cache, place};

const CHOSEN: &str = "
source: { range: { start: 0, end: 9000, step: 1 } }
steps: [ { shuffle: 9000 }, { take: 2000 }, { autocache: s }, { batch: 10 } ]
";

const SAMPLED: &str = "
source: { sample: { datasets: [ { source: { range: 3000 } }, { source: { range: 6000 } } ], weights: [1, 1] } }
steps: [ { take: 2000 }, { autocache: s }, { batch: 10 } ]
";

fn cache_only(yaml: &str) -> String {
    format!("cache_only: true{yaml}")
}

/// Whatever epoch the set was stored in, this one may choose others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_of_an_epoch_whose_rows_a_set_chose_is_never_computed() {
    for yaml in [CHOSEN, SAMPLED] {
        let world = World::yaml(yaml).await;
        let (cache, how) = (cache(&place("sets")).await, How::default());
        world.store(&cache, how, "a").await;
        let plan = world.plan(Some(SetPlan::Read { id: world.id, attempt: String::new() }));
        for epoch in [0, 1] {
            let leases = world.dealt(&plan, 0, 1);
            let (rows, modes, failed) = world.run(&cache, How { epoch, ..how }, vec![leases]).await;
            let e = failed.expect("its splits have no part");
            assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
            assert!(e.message().contains("hint `s`") && e.message().contains("would be others"), "{e}");
            assert_eq!((rows.len(), modes.compute), (0, 0));
        }
    }
}

/// As after a lost task, and behind a state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_come_from_a_set_alone_are_read_again_without_those_that_readers_have() {
    let cases = [(CHOSEN, CHOSEN.to_owned(), 2000), (SAMPLED, SAMPLED.to_owned(), 2000)];
    for (stored, read, count) in cases.into_iter().chain([(SHUFFLED, cache_only(SHUFFLED), 9000)]) {
        let (first, world) = (World::yaml(stored).await, World::yaml(&read).await);
        assert_eq!(first.id, world.id);
        let cache = cache(&place("sets")).await;
        first.store(&cache, How { workers: 2, ..How::default() }, "a").await;
        let (set, how) = (world.set(&cache).await.unwrap(), How { epoch: 1, ..How::default() });
        let (whole, _, failed) = world.run(&cache, how, vec![world.shared(&set, 0, 1)]).await;
        assert!(failed.is_none(), "{failed:?}");
        assert_eq!(whole.len(), count);
        let is_left = |(_, row): (u64, u64)| row % 3 != 0;
        // The leases of each part come in another order.
        let mut leases: VecDeque<_> = world.shared(&set, 0, 1).into_iter().rev().collect();
        for ((split, row), _) in whole.iter().filter(|(of, _)| !is_left(*of)) {
            let lease = leases.iter_mut().find(|lease| lease.index == *split).unwrap();
            lease.done.insert(*row, row + 1);
        }
        let (left, modes, failed) = world.run(&cache, how, vec![leases]).await;
        assert!(failed.is_none(), "{failed:?}");
        let wanted: Vec<Row> = whole.into_iter().filter(|(of, _)| is_left(*of)).collect();
        assert!(!wanted.is_empty());
        assert_eq!(sorted(left), sorted(wanted), "of {read}");
        assert_eq!(modes.compute, 0);
    }
}

/// Its rows would be taken for those of other splits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_is_not_read_with_leases_of_another_one() {
    let world = World::yaml(&cache_only(SHUFFLED)).await;
    let cache = cache(&place("sets")).await;
    World::yaml(SHUFFLED).await.store(&cache, How { workers: 2, ..How::default() }, "a").await;
    let set = world.set(&cache).await.unwrap();
    assert_eq!(set.members.len(), 2);
    let mut leases = world.shared(&set, 0, 1);
    let last = leases.len() - 1;
    leases.swap(0, last);
    let (rows, _, failed) = world.run(&cache, How::default(), vec![leases]).await;
    let e = failed.expect("the leases are of two parts");
    assert_eq!((e.kind(), rows.len()), (ErrorKind::NotFound, 0), "{e}");
    assert!(e.message().contains("`cache_only`: rows stored at hint `s` cannot be read"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_part_ends_an_epoch_whose_rows_come_from_it_alone() {
    let cases = [
        (CHOSEN, CHOSEN.to_owned(), ErrorKind::FailedPrecondition),
        (SHUFFLED, cache_only(SHUFFLED), ErrorKind::NotFound),
    ];
    for (stored, read, kind) in cases {
        for thousandth in [5, 500] {
            let world = World::yaml(&read).await;
            let root = place("sets");
            World::yaml(stored).await.store(&cache(&root).await, How::default(), "a").await;
            flip(&root, thousandth).await;
            let cache = cache(&root).await;
            let set = world.set(&cache).await.unwrap();
            let (leases, how) = (world.shared(&set, 0, 1), How { epoch: 1, ..How::default() });
            let (_, modes, failed) = world.run(&cache, how, vec![leases]).await;
            let e = failed.expect("the part is damaged");
            assert_eq!((e.kind(), modes.compute), (kind, 0), "{e}");
            assert!(world.set(&cache).await.is_none(), "another epoch stores it again");
        }
    }
}
