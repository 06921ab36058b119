//! What is drawn for a split is drawn under one plan, however often it is begun.

use caju_autocache::Document;
use serde_json::json;

use super::fake::{World, indices, lost, run};
use crate::state::Update;

#[test]
fn a_split_of_which_rows_were_delivered_goes_on_under_its_plan() {
    run(async {
        let world = World::new();
        let worker = world.worker("w:1").await;
        let opened = world.open(&json!({"splits": 2}), "j").await;
        let (client, iteration) = (opened.client_id, opened.iteration_id);
        let task = opened.tasks[0].task_id;
        let first = world.next(task, worker, 1, 2).await.unwrap();
        assert_eq!(indices(&first), [0, 1]);
        assert!(first.splits.iter().all(|s| s.cache.is_empty()));
        let plan = |text: &str| Update::Planned {
            iteration: caju_types::IterationId(iteration),
            plan: Some(Document::from_text(text)),
        };
        for text in ["one", "two"] {
            world
                .core
                .context
                .commit(|txn| {
                    txn.apply(plan(text));
                    Ok(())
                })
                .await
                .unwrap();
        }
        // Asked again, the same answer: what was handed out is run as it was handed out.
        let again = world.next(task, worker, 1, 2).await.unwrap();
        assert_eq!(again, first);
        world.beat(client, iteration, &[], &[lost(task, &[(1, 0, 3)])]).await;
        let view = world.beat(client, iteration, &[], &[]).await;
        let next = view.tasks.iter().find(|t| t.task_id != task).unwrap().task_id;
        let requeued = world.next(next, worker, 1, 2).await.unwrap();
        let plans: Vec<_> = requeued.splits.iter().map(|s| (s.index, s.cache.as_str())).collect();
        assert_eq!(
            plans,
            [(0, "two"), (1, "")],
            "of split 1 rows were delivered that were drawn under no plan"
        );
    });
}
