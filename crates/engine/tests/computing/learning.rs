//! Boundaries that are learnt depend on the definition and the data alone.

use std::sync::Arc;

use caju_engine::{TaskOptions, bind, learn_boundaries};
use caju_kernels::{Limits, Registry};
use caju_pipeline::{DatasetDef, LearntBoundaries};
use caju_runtime::{CpuPool, SystemClock};
use caju_types::Result;

fn options(threads: usize) -> TaskOptions {
    TaskOptions::new(CpuPool::new(threads).unwrap(), SystemClock::shared())
}

async fn learnt_with(steps: &str, options: &TaskOptions) -> Result<Vec<LearntBoundaries>> {
    let yaml = format!("{{ source: {{ range: 1000 }}, steps: [{steps}], seed: 5 }}");
    let def = DatasetDef::from_yaml(&yaml, None)?;
    learn_boundaries(&def, &Registry::new(Limits::default()), &crate::common::context(), None, options).await
}

async fn learnt(steps: &str) -> Vec<LearntBoundaries> {
    learnt_with(steps, &options(2)).await.unwrap()
}

/// A stage that learns by this length.
fn bucket(length: &str, rows: u64) -> String {
    format!(
        "bucket_by_length: {{ length: \"{length}\", boundaries: {{ quantiles: 4, rows: {rows} }}, batch_sizes: 3, pad: false }}"
    )
}

fn of(stage: usize, boundaries: &[i64], rows: u64) -> LearntBoundaries {
    LearntBoundaries { stage, boundaries: boundaries.to_vec(), rows }
}

#[tokio::test]
async fn boundaries_are_quantiles_of_the_first_rows_in_the_order_of_the_source() {
    assert_eq!(learnt(&bucket("id + 1", 400)).await, [of(0, &[101, 201, 301], 400)]);
    // Fewer rows than asked for.
    assert_eq!(learnt(&bucket("id + 1", 4096)).await, [of(0, &[251, 501, 751], 1000)]);
    assert_eq!(learnt(&format!("take: 8, {}", bucket("id", 4096))).await, [of(1, &[2, 4, 6], 8)]);
}

#[tokio::test]
async fn stages_above_that_only_order_or_repeat_rows_change_nothing() {
    let plain = learnt(&format!("filter: \"id > 99\", {}", bucket("id", 400))).await;
    assert_eq!(plain, [of(1, &[200, 300, 400], 400)]);
    let above = "filter: \"id > 99\", shuffle: 50, autocache: here, repeat, prefetch: 3";
    let ordered = learnt(&format!("{above}, {}", bucket("id", 400))).await;
    assert_eq!(ordered, [of(5, &[200, 300, 400], 400)]);
}

#[tokio::test]
async fn no_rows_equal_lengths_and_nulls_have_boundaries_too() {
    assert_eq!(learnt(&format!("filter: \"false\", {}", bucket("id", 9))).await, [of(1, &[1], 0)]);
    assert_eq!(learnt(&bucket("id * 0 + 7", 100)).await, [of(0, &[8], 100)]);
    assert_eq!(learnt(&bucket("nullif(id, id)", 100)).await, [of(0, &[1], 100)]);
}

#[tokio::test]
async fn random_stages_above_draw_the_same_in_every_run() {
    let steps = format!("filter: \"random_int(0, 2) = 0\", {}", bucket("id", 200));
    let first = learnt_with(&steps, &options(1)).await.unwrap();
    for threads in [1, 4] {
        let other = TaskOptions { seed: 9, epoch: 3, batch_rows: 7, slot: Some(2), ..options(threads) };
        assert_eq!(learnt_with(&steps, &other).await.unwrap(), first);
    }
}

#[tokio::test]
async fn each_of_two_stages_learns_behind_the_other() {
    let steps = format!("{}, unbatch, filter: \"id >= 100\", {}", bucket("id", 400), bucket("id", 4096));
    let both = learnt(&steps).await;
    assert_eq!(both[0], of(0, &[100, 200, 300], 400));
    assert_eq!((both[1].stage, both[1].rows), (3, 900));
}

#[tokio::test]
async fn what_is_wrong_above_names_the_stage_that_learns() {
    let steps = format!("with_columns: {{ x: \"1 / (id - 5)\" }}, {}", bucket("x", 50));
    let e = learnt_with(&steps, &options(2)).await.unwrap_err().to_string();
    assert!(e.starts_with("steps[1].bucket_by_length: its boundaries could not be learnt: steps[0]"), "{e}");
    let e = learnt_with(&bucket("idd", 50), &options(2)).await.unwrap_err().to_string();
    assert!(e.contains("steps[0].bucket_by_length: its boundaries could not be learnt"), "{e}");
}

#[tokio::test]
async fn a_definition_without_its_boundaries_has_a_schema_and_does_not_run() {
    let yaml = format!("{{ source: {{ range: 10 }}, steps: [{}] }}", bucket("id", 5));
    let def = DatasetDef::from_yaml(&yaml, None).unwrap();
    let pipeline = Arc::new(
        bind(&def, &Registry::new(Limits::default()), &crate::common::context(), None).await.unwrap(),
    );
    assert_eq!(pipeline.schema().fields().len(), 1);
    let leases = (0u64..).zip(crate::common::splits(&pipeline).await.unwrap());
    let leases = leases.map(|(i, split)| caju_engine::LeasedSplit::new(i, split)).collect();
    let e =
        crate::common::run(&pipeline, leases, crate::common::How::default()).await.unwrap_err().to_string();
    assert!(e.contains("steps[0].bucket_by_length: its boundaries are not learnt yet"), "{e}");
}
