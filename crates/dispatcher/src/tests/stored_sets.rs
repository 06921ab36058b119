//! Epochs whose rows come from a stored set, and from nowhere else.

use caju_autocache::{CachePlan, Encoding, GroupLease, HintDef, SetPlan};
use caju_types::{EpochDraws, Fingerprint, IterationId, SplitKey, TaskId};
use serde_json::json;

use super::fake::{World, indices, lost, run};
use crate::state::{Dataset, FeedId, Iteration, Resume, SplitRecord, Update};

const HINT: Fingerprint = Fingerprint(7);
const SET: Fingerprint = Fingerprint(9);

fn plan(set: Option<SetPlan>, set_only: bool) -> CachePlan {
    CachePlan { set, set_only, ..CachePlan::whole("h", HINT, Encoding::default()) }
}

fn reads() -> Option<SetPlan> {
    Some(SetPlan::Read { id: SET, attempt: "set-1".into() })
}

/// A split of a part of two splits.
fn of_part(index: u64, part: u128, at: u32) -> SplitRecord {
    let lease = GroupLease { set: SET, part: SplitKey(part), attempt: "set-1".into(), at, of: 2, rows: None };
    let group = Some(serde_json::to_string(&lease).unwrap().into());
    SplitRecord { index, split: json!({ "i": index }).to_string().into(), group, after: None, whole: None }
}

/// A reader has three rows of split 0 when their task is lost.
#[test]
fn splits_that_come_from_a_set_alone_come_back_part_by_part() {
    run(async {
        for set_only in [true, false] {
            let mut w = World::new();
            let worker = w.worker("w:1").await;
            let open = w.open(&json!({"splits": 4}), "j").await;
            let (task, id) = (open.tasks[0].task_id, IterationId(open.iteration_id));
            let planned =
                |plan: Option<CachePlan>| Update::Planned { iteration: id, plan: plan.map(Into::into) };
            let fresh = vec![of_part(3, 70, 0), of_part(0, 70, 1), of_part(2, 71, 0), of_part(1, 71, 1)];
            let given = w.core.context.commit(|txn| {
                txn.apply(planned(Some(plan(reads(), set_only))));
                txn.apply(Update::Leased {
                    task: TaskId(task),
                    request_no: 1,
                    fresh,
                    requeued: Vec::new(),
                    end: false,
                    asks_for_lagging: false,
                });
                txn.apply(Update::FeedExhausted {
                    iteration: id,
                    feed: FeedId(0),
                    listing: None,
                    source_changed: None,
                });
                // Whatever is decided since, they are read under the plan that names the set.
                txn.apply(planned(None));
                Ok(())
            });
            given.await.unwrap();
            w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[(0, 0, 3)])]).await;
            let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
            let next = view.tasks.iter().find(|t| !t.lost && t.task_id != task).unwrap().task_id;
            w.restart();
            if set_only {
                let first = w.next(next, worker, 1, 1).await.unwrap();
                assert_eq!(indices(&first), [3, 0], "a whole part, in its order");
                assert!(first.splits.iter().all(|s| s.group.contains("set-1")), "{first:?}");
                assert!(first.splits.iter().all(|s| s.cache.contains("set_only")), "{first:?}");
                let done: Vec<_> = first.splits.iter().map(|s| s.done.len()).collect();
                assert_eq!(done, [0, 1]);
                assert_eq!((first.splits[1].done[0].start, first.splits[1].done[0].end), (0, 3));
                let second = w.next(next, worker, 2, 1).await.unwrap();
                assert_eq!(indices(&second), [2, 1]);
            } else {
                let all = w.next(next, worker, 1, 4).await.unwrap();
                assert_eq!(indices(&all), [0, 1, 2, 3], "in the order of the epoch");
                assert!(all.splits.iter().all(|s| s.group.is_empty()), "they are computed: {all:?}");
            }
        }
    });
}

/// A state of computed rows, and one of rows that the set chose.
#[test]
fn a_state_goes_on_from_a_set_where_its_rows_come_from_nowhere_else() {
    run(async {
        let w = World::new();
        let open = w.open(&json!({"splits": 1}), "j").await;
        let id = IterationId(open.iteration_id);
        let chosen = EpochDraws {
            frozen_at: "h".into(),
            permille: CachePlan::ALL,
            chosen_by_set: true,
            set_attempt: String::new(),
        };
        for (draws, set_only, goes_on) in
            [(None, false, false), (None, true, true), (Some(chosen), false, true)]
        {
            for set in [Some(SetPlan::Open), reads()] {
                let mut state = w.core.snapshot();
                let resume = Resume { draws: draws.clone().map(Box::new), ..Resume::default() };
                state.iterations.get_mut(&id).unwrap().resume = Some(Box::new(resume));
                let planned = Some(plan(set.clone(), set_only).into());
                state.apply(&Update::Planned { iteration: id, plan: planned });
                let known = state.iterations[&id].plan.clone().unwrap();
                let known = known.value().unwrap();
                assert_eq!((&known.set, known.put), (&set.filter(|_| goes_on), !goes_on));
                assert_eq!(known.set_only, set_only && goes_on);
            }
        }
    });
}

fn draws(iteration: &mut Iteration, dataset: &Dataset, set: Option<SetPlan>) -> Option<EpochDraws> {
    iteration.plan = Some(plan(set, false).into());
    iteration.draws(dataset)
}

/// A later epoch may have stored the set: what it chose is not what epoch 0 computes.
#[test]
fn states_of_epoch_0_name_the_set_that_chose_its_rows() {
    run(async {
        let w = World::new();
        let open = w.open(&json!({"splits": 1}), "j").await;
        let mut state = w.core.snapshot();
        let mut dataset = state.datasets.values().next().unwrap().clone();
        dataset.hints = vec![HintDef {
            name: "h".into(),
            prefix: HINT,
            random: true,
            chooses: true,
            cross_split_stage: Some("shuffle".into()),
            not_storable: None,
        }];
        let iteration = state.iterations.get_mut(&IterationId(open.iteration_id)).unwrap();
        iteration.caching = true;
        assert_eq!(draws(iteration, &dataset, Some(SetPlan::Open)), None, "there may be no set");
        assert_eq!(draws(iteration, &dataset, None), None);
        let known = draws(iteration, &dataset, reads()).unwrap();
        assert_eq!((known.chosen_by_set, known.set_attempt.as_str()), (true, "set-1"));
        iteration.resume = Some(Box::new(Resume { draws: Some(Box::new(known)), ..Resume::default() }));
        let opened = draws(iteration, &dataset, Some(SetPlan::Open)).unwrap();
        assert!(opened.chosen_by_set, "it goes on from a set, or fails");
        dataset.hints[0].chooses = false;
        assert_eq!(draws(iteration, &dataset, reads()), None);
    });
}
