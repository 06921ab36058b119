//! What a task puts out does not depend on how it is run, and elements are what the definition says.

use crate::common::{Fixed, How, bound, chunks, rows, run, sorted, splits, task};
use caju_engine::{LeasedSplit, TaskOptions, TaskRun, run_task};
use caju_runtime::{CpuPool, SystemClock};
use caju_types::{ErrorKind, RowRanges};
use caju_wire::{Chunk, Elements};

/// Random stages above and below filters, unnest, and a stream stage in between.
const RANDOM: &str = "
source: { range: { start: 0, end: 9000, step: 1 } }
steps:
  - with_columns: { a: 'uniform(0.0, 1.0)', b: 'uniform(0.0, 1.0)' }
  - filter: 'a < 0.7'
  - with_columns: { c: 'random_int(0, 1000000)', d: \"random_int(0, 1000000, key => 'k')\", e: \"random_int(0, 1000000, key => 'k')\" }
  - flat_map: { name: f, expr: '[id, id + 1]' }
  - with_columns: { g: 'random_int(0, 1000000)' }
  - shuffle: { buffer: 500 }
  - with_columns: { h: 'random_int(0, 1000000)' }
  - filter: 'h % 10 <> 3'
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_do_not_depend_on_workers_threads_or_batches() {
    let reference = sorted(rows(&chunks(RANDOM, How::default()).await.unwrap()));
    assert!(reference.len() > 10_000);
    let variants = [
        How { workers: 2, ..How::default() },
        How { workers: 5, threads: 1, batch_rows: 700, ..How::default() },
        How { workers: 1, threads: 3, batch_rows: 37, ..How::default() },
        How { workers: 2, batch_bytes: 1000, deterministic: true, ..How::default() },
    ];
    for how in variants {
        let got = sorted(rows(&chunks(RANDOM, how).await.unwrap()));
        assert_eq!(got.len(), reference.len());
        for (g, r) in got.iter().zip(&reference) {
            assert_eq!(g, r);
        }
    }
    for how in [How { epoch: 1, ..How::default() }, How { seed: 1, ..How::default() }] {
        assert_ne!(
            sorted(rows(&chunks(RANDOM, how).await.unwrap())),
            reference,
            "a new epoch or seed draws again"
        );
    }
}

/// `prefetch` computes up to its number of elements before the reader asks for them, within its bytes.
#[tokio::test]
async fn prefetch_computes_elements_ahead_of_the_consumer() {
    let yaml = "
source: { range: { start: 0, end: 100000 } }
steps:
  - batch: 3000
  - prefetch: 4
";
    // Small batches share a chunk, which is computed as a whole; these have one each.
    let pipeline = bound(yaml).await.unwrap();
    for (buffer_bytes, ahead) in [(64 << 20, 4), (1, 1)] {
        let leases = splits(&pipeline).await.unwrap();
        let leases = leases.into_iter().enumerate().map(|(i, s)| LeasedSplit::new(i as u64, s)).collect();
        let mut options = TaskOptions::new(CpuPool::new(1).unwrap(), SystemClock::shared());
        options.buffer_bytes = buffer_bytes;
        let mut task = run_task(&pipeline, Box::new(Fixed(leases)), options);
        let elements =
            |task: &TaskRun| task.stats().iter().find(|s| s.name == "1.prefetch").unwrap().rows_out / 3000;
        assert_eq!(elements(&task), 0, "nothing is computed before the first element is asked for");
        for consumed in 1..20 {
            assert_eq!(task.next().await.unwrap().unwrap().rows(), 3000);
            let filled = async {
                while elements(&task) < consumed + ahead {
                    tokio::task::yield_now().await;
                }
            };
            let waited = tokio::time::timeout(std::time::Duration::from_secs(20), filled).await;
            assert!(waited.is_ok(), "{} of {} elements", elements(&task), consumed + ahead);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(elements(&task), consumed + ahead, "no more than the stage's number");
        }
    }
}

/// An error above `prefetch` comes after the elements before it, and once.
#[tokio::test]
async fn errors_pass_prefetch_in_their_place() {
    let yaml = "
source: { range: { start: 0, end: 1000 } }
steps:
  - batch: 10
  - prefetch: 2
  - unbatch
  - prefetch: 100
  - with_columns: { x: '1000 / (id - 500)' }
";
    let pipeline = bound(yaml).await.unwrap();
    let leases = splits(&pipeline).await.unwrap();
    let leases = leases.into_iter().enumerate().map(|(i, s)| LeasedSplit::new(i as u64, s)).collect();
    let mut task = crate::common::task(&pipeline, leases, &How::default());
    let mut rows = 0;
    let error = loop {
        match task.next().await.expect("the stream has an error before its end") {
            Ok(chunk) => rows += chunk.rows(),
            Err(e) => break e,
        }
    };
    assert!(error.message().contains("steps[4].with_columns"), "{error}");
    assert!(rows <= 500, "{rows}");
}

/// Handing a batch over costs the same whatever is in it: narrow rows come to go in larger ones. Rows that swell do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_grow_where_little_is_done_with_their_rows() {
    let largest = async |stage: &str| {
        let yaml = format!(
            "source: {{ range: {{ start: 0, end: 1000000 }} }}\nsteps:\n  - with_columns: {{ x: {stage} }}\n"
        );
        let chunks = chunks(&yaml, How { batch_rows: 256, ..How::default() }).await.unwrap();
        assert_eq!(chunks.iter().map(Chunk::rows).sum::<usize>(), 1_000_000);
        (chunks[0].rows(), chunks.iter().map(Chunk::rows).max().unwrap())
    };
    let (first, grown) = largest("id * 3 + 1").await;
    assert_eq!(first, 256, "nothing is known yet");
    assert!((257..=8 * 256).contains(&grown), "{grown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cross_split_stages_count_what_they_do() {
    let yaml = "
source: { range: { start: 0, end: 300000 } }
steps:
  - shuffle: { buffer: 5000 }
  - batch: 100
";
    let pipeline = bound(yaml).await.unwrap();
    let leases = splits(&pipeline).await.unwrap();
    let leases = leases.into_iter().enumerate().map(|(i, s)| LeasedSplit::new(i as u64, s)).collect();
    let mut task = crate::common::task(&pipeline, leases, &How::default());
    while let Some(chunk) = task.next().await {
        chunk.unwrap();
    }
    let stats = task.stats();
    let of = |name: &str| stats.iter().find(|s| s.name == name).unwrap();
    for name in ["0.shuffle", "1.batch"] {
        let s = of(name);
        assert_eq!((s.rows_in, s.rows_out, s.bytes_out), (300_000, 300_000, 8 * 300_000), "{name}");
        assert!(s.busy_s > 0.0 && s.cpu_s > 0.0 && s.at_once == 1, "{s:?}");
    }
    assert!(of("0.shuffle").cpu_s > of("1.batch").cpu_s, "{stats:?}");
    assert!(of("output").cpu_s > 0.0, "what moving rows costs is counted: {stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_draw_apart_unless_they_share_a_key() {
    let all = rows(&chunks(RANDOM, How::default()).await.unwrap());
    let column =
        |i: usize| all.iter().map(|(_, t)| t.split('|').nth(i).unwrap().to_string()).collect::<Vec<_>>();
    assert_ne!(column(1), column(2), "two calls in one stage");
    assert_eq!(column(4), column(5), "two calls with one key");
    assert_ne!(column(3), column(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deterministic_means_the_same_order_too() {
    let how = How { deterministic: true, ..How::default() };
    let a = rows(&chunks(RANDOM, how).await.unwrap());
    let b = rows(&chunks(RANDOM, How { threads: 3, batch_rows: 91, ..how }).await.unwrap());
    assert_eq!(a, b);
    let plain = "
source: { range: { start: 0, end: 5000, step: 1 } }
steps: [ { filter: 'id % 3 = 0' } ]
";
    let ids: Vec<String> = rows(&chunks(plain, how).await.unwrap()).into_iter().map(|r| r.1).collect();
    assert_eq!(ids, (0..5000).filter(|i| i % 3 == 0).map(|i| i.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_readers_have_are_not_sent_again() {
    let pipeline = bound(RANDOM).await.unwrap();
    let all = splits(&pipeline).await.unwrap();
    let lease = |done: RowRanges| {
        (0u64..)
            .zip(all.clone())
            .map(|(index, split)| LeasedSplit { done: done.clone(), ..LeasedSplit::new(index, split) })
            .collect()
    };
    let whole = sorted(rows(&run(&pipeline, lease(RowRanges::default()), How::default()).await.unwrap()));
    let done: RowRanges = [(0, 100), (150, 151), (4000, 6000)].into_iter().collect();
    let rest = sorted(rows(&run(&pipeline, lease(done.clone()), How::default()).await.unwrap()));
    let want: Vec<_> = whole.into_iter().filter(|((_, o), _)| !done.contains(*o)).collect();
    assert_eq!(rest, want);
}

async fn lengths(steps: &str, how: How) -> (Vec<u32>, Vec<String>) {
    let yaml = format!("source: {{ range: {{ start: 0, end: 1000, step: 1 }} }}\nsteps: {steps}\n");
    let out = chunks(&yaml, how).await.unwrap();
    let mut l = Vec::new();
    for c in &out {
        match &c.elements {
            Elements::Lengths(n) => l.extend(n),
            Elements::Rows => l.extend(std::iter::repeat_n(1, c.rows())),
        }
    }
    (l, rows(&out).into_iter().map(|r| r.1).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_are_what_the_stages_say() {
    let d = How { deterministic: true, batch_rows: 77, ..How::default() };
    let ids = |r: std::ops::Range<i64>| r.map(|i| i.to_string()).collect::<Vec<_>>();
    assert_eq!(lengths("[ { batch: 300 } ]", d).await, (vec![300, 300, 300, 100], ids(0..1000)));
    assert_eq!(lengths("[ { take: 10 } ]", d).await, (vec![1; 10], ids(0..10)));
    assert_eq!(lengths("[ { skip: 990 } ]", d).await, (vec![1; 10], ids(990..1000)));
    assert_eq!(
        lengths("[ { skip: 100 }, { take: 50 }, { batch: 20 } ]", d).await,
        (vec![20, 20, 10], ids(100..150))
    );
    // Counting below a filter needs one task in order; the short batch is then a batch like any other.
    let (l, r) = lengths("[ { filter: 'id % 2 = 0' }, { take: 7 }, { batch: 4 } ]", d).await;
    assert_eq!((l, r), (vec![4, 3], [0, 2, 4, 6, 8, 10, 12].map(|i| i.to_string()).to_vec()));
    let (l, _) = lengths("[ { batch: { size: 300, drop_remainder: true } }, { take: 9 } ]", d).await;
    assert_eq!(l, vec![300, 300, 300]);
    assert_eq!(lengths("[ { batch: 64 }, unbatch ]", d).await, (vec![1; 1000], ids(0..1000)));
    let (l, r) = lengths("[ { take: 5 }, { repeat: 3 }, { batch: 4 } ]", d).await;
    assert_eq!(l, vec![4, 4, 4, 3]);
    assert_eq!(r, [ids(0..5), ids(0..5), ids(0..5)].concat());
    // Each repetition counts by itself, also where a filter above has to be counted on one task.
    let even = |r: std::ops::Range<i64>| r.map(|i| (2 * i).to_string()).collect::<Vec<_>>();
    let evens = |steps: &str| format!("[ {{ filter: 'id % 2 = 0' }}, {steps} ]");
    let (_, r) = lengths(&evens("{ take: 3 }, { repeat: 2 }"), d).await;
    assert_eq!(r, [even(0..3), even(0..3)].concat());
    let (_, r) = lengths(&evens("{ skip: 497 }, { repeat: 2 }"), d).await;
    assert_eq!(r, [even(497..500), even(497..500)].concat());
    let (_, r) = lengths("[ { shuffle: { buffer: 2000, seed: 1 } }, { repeat: 2 } ]", d).await;
    assert_eq!(sorted(r[..1000].to_vec()), sorted(ids(0..1000)), "each repetition is whole");
    assert_ne!(r[..1000], r[1000..], "and shuffled again");
    let (l, _) = lengths("[ { batch: 100 }, { shuffle: 4 }, { with_columns: { x: 'id * 2' } } ]", d).await;
    assert_eq!(l, vec![100; 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_between_two_repeats_count_in_all_that_the_upper_one_gives() {
    let d = How { deterministic: true, batch_rows: 77, ..How::default() };
    let ids = |r: std::ops::Range<i64>| r.map(|i| (i % 1000).to_string()).collect::<Vec<_>>();
    let rows = async |steps: &str| lengths(&format!("[ {steps} ]"), d).await.1;
    let twice = |rows: Vec<String>| [rows.clone(), rows].concat();
    assert_eq!(rows("{ repeat: 3 }, { take: 2500 }, { repeat: 2 }").await, twice(ids(0..2500)));
    assert_eq!(rows("{ repeat: 3 }, { skip: 1500 }, { repeat: 2 }").await, twice(ids(1500..3000)));
    assert_eq!(rows("{ take: 10 }, { repeat: 3 }, { take: 20 }, { repeat: 2 }").await.len(), 40);
    let shard: Vec<_> = ids(0..3000).into_iter().step_by(7).collect();
    let steps = "{ repeat: 3 }, { shard: { num_shards: 7, index: 0 } }, { repeat: 2 }";
    assert_eq!(rows(steps).await, twice(shard));
    let steps = "{ repeat: 2 }, { take: 1500 }, { repeat: 2 }, { take: 2900 }, { repeat: 2 }";
    assert_eq!(rows(steps).await, twice([ids(0..1500), ids(0..1400)].concat()));
    let (l, _) = lengths("[ { repeat: 3 }, { batch: 700 }, { repeat: 2 } ]", d).await;
    assert_eq!(l, [700, 700, 700, 700, 200].repeat(2));
    let (l, _) = lengths("[ { batch: 700 }, { repeat: 3 }, { take: 5 }, { repeat: 2 } ]", d).await;
    assert_eq!(l, [700, 300, 700, 300, 700].repeat(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_repetition_draws_again() {
    let yaml = "
source: { range: { start: 0, end: 10, step: 1 } }
steps: [ { with_columns: { a: 'random_int(0, 1000000000)' } }, { repeat: 2 } ]
";
    let how = How { deterministic: true, ..How::default() };
    let texts: Vec<_> = rows(&chunks(yaml, how).await.unwrap()).into_iter().map(|r| r.1).collect();
    assert_eq!(texts.len(), 20);
    assert_ne!(texts[..10], texts[10..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn combinators_of_datasets() {
    let d = How { deterministic: true, ..How::default() };
    let yaml = "
source:
  concatenate:
    - { source: { range: { start: 0, end: 100, step: 1 } } }
    - { source: { range: { start: 100, end: 200, step: 1 } }, steps: [ { filter: 'id < 150' } ] }
steps: [ { with_columns: { x: 'id + 1' } } ]
";
    let got: Vec<_> = rows(&chunks(yaml, d).await.unwrap()).into_iter().map(|r| r.1).collect();
    assert_eq!(got, (0..150).map(|i| format!("{i}|{}", i + 1)).collect::<Vec<_>>());
    // A column may have nulls if it may in one of the datasets, whichever it is.
    let nullable = "{ source: { range: 4 }, steps: [ { map: { id: 'nullif(id, 2)' } } ] }";
    for datasets in [[nullable, "{ source: { range: 3 } }"], ["{ source: { range: 3 } }", nullable]] {
        for combined in [
            format!("concatenate: [{}]", datasets.join(", ")),
            format!("sample: {{ weights: [1, 1], datasets: [{}] }}", datasets.join(", ")),
        ] {
            let yaml =
                format!("source: {{ {combined} }}\nsteps: [ {{ map: {{ id: 'coalesce(id, 9)' }} }} ]\n");
            let got: Vec<i64> =
                rows(&chunks(&yaml, d).await.unwrap()).into_iter().map(|r| r.1.parse().unwrap()).collect();
            assert_eq!(sorted(got), [0, 0, 1, 1, 2, 3, 9], "{combined}");
        }
    }
    let yaml = "
source:
  zip:
    - { source: { range: { start: 0, end: 100, step: 1 } }, steps: [ { map: { a: id } } ] }
    - { source: { range: { start: 1000, end: 1100, step: 1 } }, steps: [ { map: { b: 'id * 2' } } ] }
";
    let got: Vec<_> = rows(&chunks(yaml, d).await.unwrap()).into_iter().map(|r| r.1).collect();
    assert_eq!(got, (0..100).map(|i| format!("{i}|{}", 2000 + 2 * i)).collect::<Vec<_>>());
    let yaml = "
source:
  sample:
    weights: [0.8, 0.2]
    datasets:
      - { source: { range: { start: 0, end: 1000, step: 1 } } }
      - { source: { range: { start: 5000, end: 6000, step: 1 } } }
";
    let got: Vec<i64> =
        rows(&chunks(yaml, d).await.unwrap()).into_iter().map(|r| r.1.parse().unwrap()).collect();
    let first = got[..500].iter().filter(|&&i| i < 5000).count();
    assert!((360..440).contains(&first), "{first} of 500 by weight 0.8");
    assert_eq!(sorted(got), (0..1000).chain(5000..6000).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_rows_name_their_place_or_are_skipped() {
    let yaml = |on_error: &str| {
        format!(
            "
on_error: {on_error}
source: {{ range: {{ start: 0, end: 100, step: 1 }} }}
steps:
  - with_columns: {{ x: \"decode_image(arrow_cast(cast(id as varchar), 'Binary'))\" }}
"
        )
    };
    let e = chunks(&yaml("fail"), How::default()).await.unwrap_err();
    assert!(e.message().contains("steps[0].with_columns") && e.message().contains("row 0"), "{e}");
    assert_eq!(rows(&chunks(&yaml("{ skip: { limit: 100 } }"), How::default()).await.unwrap()).len(), 0);
    let e = chunks(&yaml("{ skip: { limit: 99 } }"), How::default()).await.unwrap_err();
    assert!(e.message().contains("more than 99 bad rows"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_definitions_are_refused_where_they_are_bound() {
    for (steps, words) in [
        ("[ { select: [idd] } ]", "did you mean `id`"),
        (
            "[ { parse_example: { features: { a: int64 } } } ]",
            "unknown column `record`; the row has: id; parse_example reads the tf.train.Example records of TFRecord \
             files: remove it for other formats",
        ),
        ("[ { unnest: { column: id } } ]", "not a list"),
        ("[ { batch: 4 }, { flat_map: { name: f, expr: '[id]' } } ]", ""),
        ("[ { inflate: { column: id, factor: 2 } } ]", "inflate works on"),
    ] {
        let yaml = format!("source: {{ range: {{ start: 0, end: 10, step: 1 }} }}\nsteps: {steps}\n");
        let e = bound(&yaml).await.unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::InvalidArgument, "{e}");
        assert!(e.message().contains(words), "{e}");
    }
}

/// A feed that breaks down after its first split.
struct Broken(Option<LeasedSplit>, bool);

#[async_trait::async_trait]
impl caju_engine::SplitFeed for Broken {
    async fn next(&mut self, _: usize) -> caju_types::Result<Option<Vec<LeasedSplit>>> {
        match self.0.take() {
            Some(split) => Ok(Some(vec![split])),
            None if self.1 => panic!("the feed broke down"),
            None => Err(caju_types::Error::unavailable("the feed is away")),
        }
    }
}

/// Whatever ends before its time is an error, in order and out of order, and stays one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_ends_only_when_it_was_said_that_no_split_is_left() {
    let yaml = "source: { range: { start: 0, end: 300000 } }\nsteps: [ { batch: 100 } ]\n";
    let pipeline = bound(yaml).await.unwrap();
    let split = splits(&pipeline).await.unwrap().swap_remove(0);
    for (panics, deterministic) in [(true, false), (true, true), (false, false), (false, true)] {
        let pool = caju_runtime::CpuPool::new(2).unwrap();
        let mut options = caju_engine::TaskOptions::new(pool, caju_runtime::SystemClock::shared());
        options.deterministic = deterministic;
        let feed = Broken(Some(LeasedSplit::new(0, split.clone())), panics);
        let mut task = caju_engine::run_task(&pipeline, Box::new(feed), options);
        let e = loop {
            match task.next().await {
                Some(Ok(_)) => {}
                Some(Err(e)) => break e,
                None => panic!("a feed that breaks down is no end (panics: {panics})"),
            }
        };
        let want = if panics { "the feed broke down" } else { "the feed is away" };
        assert!(e.message().contains(want), "{e}");
        assert_eq!(task.next().await.unwrap().unwrap_err().message(), e.message(), "and never ends");
    }
}

/// Rows of a split: an earlier run under one definition is compared with a later one under another, as if one definition
/// had a function that is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_that_is_run_again_must_give_the_rows_that_it_gave_before() {
    let yaml = |x: &str, keep: &str| {
        format!(
            "source: {{ range: {{ start: 0, end: 200000, step: 1 }} }}\n\
             steps: [ {{ with_columns: {{ x: '{x}' }} }}, {{ filter: '{keep}' }}, {{ batch: 7 }} ]"
        )
    };
    let first = bound(&yaml("id * 2", "id % 3 = 0")).await.unwrap();
    let split = splits(&first).await.unwrap().remove(0);
    let mut run_once = task(&first, [LeasedSplit::new(5, split.clone())].into(), &How::default());
    while let Some(chunk) = run_once.next().await {
        chunk.unwrap();
    }
    let checks = run_once.row_checks().take();
    let ordinals: Vec<u64> = sorted(checks.iter().map(|c| c.ordinal).collect());
    assert_eq!(ordinals[..6], [0, 1, 2, 4, 8, 16], "and so on: {ordinals:?}");
    assert!(checks.iter().all(|c| c.split == 5) && run_once.row_checks().take().is_empty(), "taken once");

    let done: RowRanges = [(0, 40)].into_iter().collect();
    let checksums: Vec<_> =
        checks.iter().filter(|c| c.ordinal < 40).map(|c| (c.ordinal, c.checksum)).collect();
    let again = async |yaml: String, how: How| {
        let lease = LeasedSplit {
            done: done.clone(),
            checksums: checksums.clone(),
            ..LeasedSplit::new(5, split.clone())
        };
        run(&bound(&yaml).await.unwrap(), [lease].into(), how).await
    };
    let other_batches = How { threads: 3, batch_rows: 91, ..How::default() };
    again(yaml("id * 2", "id % 3 = 0"), other_batches).await.unwrap();
    for (x, keep) in [("id * 2 + 1", "id % 3 = 0"), ("id * 2", "id % 3 = 0 and id <> 33")] {
        let e = again(yaml(x, keep), How::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss);
        let named = e.message().contains("steps[0].with_columns or steps[1].filter gave another output");
        assert!(named && e.message().contains("run again"), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_that_take_turns_do_not_stop_each_other() {
    // A stage between the two does not poll the upper one while its output waits for the lower one.
    let yaml = "
source: { range: 3000 }
steps:
  - burn: { per_row: 100ns }
  - filter: 'id % 7 <> 2'
  - burn: { per_row: 100ns }
  - filter: 'id % 5 <> 2'
  - burn: { per_row: 100ns }
";
    let how = How { batch_rows: 50, ..How::default() };
    for round in 0..60 {
        let ran = tokio::time::timeout(std::time::Duration::from_secs(30), chunks(yaml, how)).await;
        let rows = rows(&ran.unwrap_or_else(|_| panic!("round {round} hangs")).unwrap());
        assert_eq!(rows.len(), (0..3000).filter(|i| i % 7 != 2 && i % 5 != 2).count());
    }
}

/// A split that is leased again, of which readers have all rows by now, is left out: here every row that is computed is an error.
/// Where elements are counted below, its rows pass again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_of_which_readers_have_all_rows_is_not_computed_again() {
    let run_with = async |more: &str, rows: Option<u64>, done: u64| {
        let yaml = format!(
            "source: {{ range: 40 }}\nsteps: [ {{ map: {{ x: \"cast('no' || id as bigint)\" }} }}{more} ]\n"
        );
        let pipeline = bound(&yaml).await.unwrap();
        let split = splits(&pipeline).await.unwrap().remove(0);
        let done: RowRanges = [(0, done)].into_iter().collect();
        let lease = LeasedSplit { done, rows, ..LeasedSplit::new(7, split) };
        run(&pipeline, [lease].into(), How::default()).await
    };
    assert!(run_with("", Some(40), 40).await.unwrap().is_empty());
    assert!(run_with(", { batch: 8 }", Some(40), 40).await.unwrap().is_empty());
    for (more, rows, done) in
        [("", Some(40), 39), ("", None, 40), (", { filter: 'x > 0' }, { take: 3 }", Some(40), 40)]
    {
        assert!(run_with(more, rows, done).await.is_err(), "{more} {rows:?} {done}");
    }
}

/// A zip pairs rows by their numbers. A row that one of its datasets left out would pair all rows behind it wrongly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_inside_of_a_zip_are_not_skipped() {
    let zipped = |above: &str, below: &str| {
        format!(
            "
source:
  zip:
    - {{ source: {{ range: 20 }}, steps: [ {{ map: {{ a: 'id{above}' }} }} ] }}
    - {{ source: {{ range: 20 }}, steps: [ {{ map: {{ b: id }} }} ] }}
steps: [ {{ with_columns: {{ c: 'a{below}' }} }} ]
on_error: skip
"
        )
    };
    let fails = " + 0 * (1 / (id % 10))";
    let e = chunks(&zipped(fails, ""), How::default()).await.unwrap_err();
    assert!(e.message().contains("rows inside of a zip are not skipped"), "{e}");
    // Below it both sides lose the row.
    let all = chunks(&zipped("", " + 0 * (1 / (b % 10))"), How::default()).await.unwrap();
    assert_eq!(rows(&all).len(), 18);
}

/// The right side of `and` and `or` is computed for the rows that need it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expression_fails_only_where_a_row_alone_does() {
    let yaml = |filter: &str| format!("source: {{ range: 3000 }}\nsteps: [ {{ filter: '{filter}' }} ]");
    let count = async |filter: &str| chunks(&yaml(filter), How::default()).await.map(|all| rows(&all).len());
    assert_eq!(count("id % 7 <> 1 and 100 / (id % 7 - 1) > 0").await.unwrap(), 3000 / 7 * 5 + 2);
    assert_eq!(count("id % 7 = 1 or 100 / (id % 7 - 1) > 0").await.unwrap(), 3000 / 7 * 6 + 3);
    let e = count("id % 7 <> 2 and 100 / (id % 7 - 1) > 0").await.unwrap_err();
    assert!(e.message().contains("(row ") && e.message().ends_with("Divide by zero error"), "{e}");
}

/// A `case` makes a struct null and leaves its fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fields_of_a_struct_that_was_made_null_are_null() {
    let yaml = "
source: { range: 100 }
steps:
  - map: { id: id, st: \"case when id > 9 then named_struct('x', id) end\" }
  - filter: 'st.x is null'
";
    assert_eq!(rows(&chunks(yaml, How::default()).await.unwrap()).len(), 10);
}

/// A stage that sees many rows at once names the row that it cannot take, and leaves out no other one.
#[tokio::test]
async fn a_bad_row_of_a_batching_stage_is_named_or_skipped() {
    let yaml = |steps: &str, on_error: &str| {
        format!("source: {{ range: {{ start: 0, end: 100 }} }}\nsteps: [ {steps} ]\non_error: {on_error}\n")
    };
    let bucket =
        "bucket_by_length: { length: '100 / (id - 40)', boundaries: [1, 5], batch_sizes: 7, pad: false }";
    let padded = "with_columns: { l: 'case when id = 40 then [1, 2, 3] else [1] end' }, padded_batch: { size: 7, lengths: { l: 2 } }";
    let padded = padded.replacen(", padded", " }, { padded", 1);
    for (steps, what) in [
        (
            format!("{{ {bucket} }}"),
            "steps[0].bucket_by_length: source rows 0..100 (row 40 of it): column `length`: Divide by zero",
        ),
        (
            format!("{{ shuffle: {{ buffer: 10 }} }}, {{ {bucket} }}"),
            "steps[1].bucket_by_length: source rows 0..100 (row 40 of it): column `length`: Divide by zero",
        ),
        (
            format!("{{ {padded} }}"),
            "steps[1].padded_batch: source rows 0..100 (row 40 of it): padded_batch: a value of `l` has 3 items",
        ),
    ] {
        let e = chunks(&yaml(&steps, "fail"), How::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(e.message().contains(what), "{e}");
        for deterministic in [false, true] {
            let how = How { deterministic, batch_rows: 9, ..How::default() };
            let out = rows(&chunks(&yaml(&steps, "skip"), how).await.unwrap());
            let id = |text: &str| text.split('|').next().and_then(|id| id.parse().ok()).unwrap();
            let mut got: Vec<i64> = out.iter().map(|(_, text)| id(text)).collect();
            got.sort_unstable();
            assert_eq!(got, (0..100).filter(|id| *id != 40).collect::<Vec<_>>(), "{steps}");
        }
        let e = chunks(&yaml(&steps, "{ skip: { limit: 0 } }"), How::default()).await.unwrap_err();
        assert!(e.message().contains("(row 40 of it)"), "{e}");
    }
}

/// Who lists the splits of a definition lets other tasks of its thread run, whatever the definition skips.
#[tokio::test]
async fn a_listing_that_skips_without_end_holds_up_nobody() {
    let numbers = "range: { start: 0, end: 4611686018427387904 }";
    for steps in
        ["skip: 4503599627370496", "shard: { num_shards: 9007199254740992, index: 9007199254740991 }"]
    {
        let pipeline = bound(&format!("source: {{ {numbers} }}\nsteps: [ {{ {steps} }} ]")).await.unwrap();
        let mut splits = pipeline.splits();
        let first = futures::StreamExt::next(&mut splits);
        let waited = tokio::time::timeout(std::time::Duration::from_millis(50), first).await;
        assert!(waited.is_err(), "{steps}: no split has rows of it soon");
    }
}
