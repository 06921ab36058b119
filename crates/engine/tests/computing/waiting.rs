//! What a definition asks for is bounded: the rows that wait in a stage, and repetitions without rows.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{How, context, splits};
use caju_engine::{LeasedSplit, SplitFeed, TaskOptions, bind, run_task};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, SystemClock};
use caju_sources::Split;
use caju_types::{Error, ErrorKind, Result};
use caju_wire::Chunk;
use futures::StreamExt;
use futures::stream::BoxStream;

/// Runs a definition with a memory limit of one chunk, and returns its chunks.
async fn within(yaml: &str, chunk_bytes: u64) -> Result<Vec<Chunk>> {
    let def = DatasetDef::from_yaml(yaml, None)?;
    let limits = Limits { chunk_bytes, ..Limits::default() };
    let pipeline = Arc::new(bind(&def, &Registry::new(limits), &context(), None).await?);
    let leases = splits(&pipeline).await?.into_iter().enumerate();
    crate::common::run(
        &pipeline,
        leases.map(|(i, s)| LeasedSplit::new(i as u64, s)).collect(),
        How::default(),
    )
    .await
}

/// Rows of 1000 bytes each, about 20 MB together, in the last stage.
fn texts(stage: &str) -> String {
    format!(
        "
source: {{ range: 20000 }}
steps:
  - map: {{ id: id, s: \"repeat('x', 1000)\", l: '[id]' }}
  - {stage}
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_wait_for_a_batch_fit_the_memory_of_a_chunk() {
    let bucket = "bucket_by_length: { length: id % 10, boundaries: [3, 6], batch_sizes: 2000000000 }";
    for (stage, place) in [
        ("batch: 2000000000", "steps[1].batch: "),
        ("padded_batch: 2000000000", "steps[1].padded_batch: "),
        (bucket, "steps[1].bucket_by_length: "),
        ("shuffle: { buffer: 1000000000, max_bytes: 4MiB }", "steps[1].shuffle: "),
    ] {
        let e = within(&texts(stage), 4 << 20).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
        assert!(e.message().starts_with(place), "{e}");
        let rows: usize = within(&texts(stage).replace("4MiB", "1GiB"), 64 << 20)
            .await
            .unwrap()
            .iter()
            .map(Chunk::rows)
            .sum();
        assert_eq!(rows, 20_000, "within the bound");
    }
    // Batches that fit pass with any number of them.
    assert_eq!(within(&texts("batch: 2000"), 4 << 20).await.unwrap().len(), 10);
}

/// Padding asks for its memory before it takes it.
#[tokio::test]
async fn a_padded_batch_that_does_not_fit_the_memory_of_a_chunk_names_its_stage() {
    let yaml = "
source: { range: 20000 }
steps:
  - map: { l: 'CASE WHEN id = 0 THEN range(0, 5000) ELSE [id] END' }
  - padded_batch: 20000
";
    let e = within(yaml, 8 << 20).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
    assert!(e.message().starts_with("steps[1].padded_batch: padded_batch: 20000 lists of `l`"), "{e}");
}

/// Leases splits one by one, as long as there are any.
struct Endless(BoxStream<'static, Result<Split>>, u64);

#[async_trait::async_trait]
impl SplitFeed for Endless {
    async fn next(&mut self, _: usize) -> Result<Option<Vec<LeasedSplit>>> {
        let Some(split) = self.0.next().await.transpose()? else { return Ok(None) };
        self.1 += 1;
        Ok(Some(vec![LeasedSplit::new(self.1 - 1, split)]))
    }
}

/// The rows of a task that sees all splits, or its error; none if it does not end.
async fn rows_of(steps: &str) -> Option<Result<usize>> {
    let yaml = format!("source: {{ range: 10 }}\nsteps: {steps}\n");
    let pipeline = crate::common::bound(&yaml).await.unwrap();
    assert!(pipeline.single_task());
    let options = TaskOptions::new(CpuPool::new(1).unwrap(), SystemClock::shared());
    let mut task = run_task(&pipeline, Box::new(Endless(pipeline.splits(), 0)), options);
    let all = async {
        let mut rows = 0;
        while let Some(chunk) = task.next().await {
            rows += chunk?.rows();
        }
        Ok::<_, Error>(rows)
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_repeat_of_nothing_is_an_error() {
    for (steps, place) in [
        ("[{ filter: 'id > 100' }, repeat, { take: 5 }]", "steps[1].repeat"),
        ("[{ filter: 'id > 100' }, { take: 3 }, repeat, { batch: 2 }, { take: 5 }]", "steps[2].repeat"),
        ("[{ batch: { size: 20, drop_remainder: true } }, repeat, { take: 5 }]", "steps[1].repeat"),
    ] {
        let e = rows_of(steps).await.expect("the task ends").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.message().starts_with(&format!("{place}: the pipeline above it gives no row")), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_of_few_rows_is_no_error() {
    for steps in [
        "[{ filter: 'id = 7' }, repeat, { take: 5 }]",
        // Most repetitions have no row.
        "[{ filter: 'uniform(0.0, 1.0) < 0.005' }, repeat, { take: 5 }]",
        "[repeat, { filter: 'id = 7' }, { take: 5 }]",
        "[{ filter: 'id > 2' }, { skip: 3 }, repeat, { take: 5 }]",
        "[{ filter: 'id > 2' }, { take: 3 }, repeat, { take: 5 }]",
    ] {
        assert_eq!(rows_of(steps).await.expect("the task ends").unwrap(), 5, "{steps}");
    }
}
