//! Generated pipelines under every way to use the cache.
//!
//! `CAJU_DIFFERENTIAL_SEED=N` runs the one case of that seed.

use std::sync::Arc;

use caju_cache::CacheOptions;
use caju_engine::{CachePlan, SplitModes};
use caju_runtime::Stores;
use object_store::ObjectStoreExt;

use crate::common::How;
use crate::generated::{Case, Draw, case};
use crate::rows::{Hint, Pair, Row, cache, cache_with, place};

const ENCODINGS: [&str; 7] = [
    "arrow/none",
    "arrow/lz4",
    "arrow/zstd",
    "parquet/none",
    "parquet/snappy",
    "parquet/lz4",
    "parquet/zstd",
];

/// Cases of one test; four run side by side.
const CASES: u64 = 75;

fn some_how(draw: &mut Draw, case: &Case) -> How {
    How {
        workers: draw.pick(&[1, 2, 3]),
        threads: draw.pick(&[1, 2]),
        batch_rows: draw.pick(&[7, 100, 8192]),
        batch_bytes: draw.pick(&[900, 2 << 20]),
        seed: 3,
        epoch: 0,
        deterministic: case.def.options.deterministic,
        undecided: false,
    }
}

/// One pipeline with what is expected of it.
struct Check<'a> {
    seed: u64,
    case: &'a Case,
    pair: &'a Pair,
    /// Rows without a cache, by epoch.
    want: [Vec<Row>; 2],
}

impl Check<'_> {
    #[track_caller]
    fn same(&self, what: &str, got: &[Row], epoch: usize) {
        let want = &self.want[epoch];
        if got == want {
            return;
        }
        let first = got.iter().zip(want).position(|(g, w)| g != w);
        panic!(
            "seed {}: {what}: {} rows instead of {}; the first that differs: {:?}\n{}",
            self.seed,
            got.len(),
            want.len(),
            first.map(|i| (&got[i], &want[i])),
            self.case.yaml
        );
    }

    async fn hint(&self, hint: &Hint, draw: &mut Draw) {
        // Repetitions share the parts of their splits, and so the draws in them.
        if hint.random && self.case.yaml.contains("repeat") {
            return;
        }
        let encoding = draw.pick(&ENCODINGS);
        let root = place("cache");
        let plan = hint.plan(encoding);
        let label = |what: &str| format!("{what} at `{}` as {encoding}", hint.name);
        // Later epochs read what this one drew.
        let later = usize::from(!hint.random);
        let how = |draw: &mut Draw, epoch: usize| How { epoch: epoch as u64, ..some_how(draw, self.case) };

        let first = cache(&root).await;
        let (rows, modes) = self.pair.with(&first, how(draw, 0), &plan).await;
        self.same(&label("put"), &rows, 0);
        let cut = self.case.yaml.contains("take:");
        let distinct = self.distinct();
        if !cut {
            assert_eq!(
                modes.put,
                distinct,
                "seed {}: {modes:?} {}\n{}",
                self.seed,
                label("put"),
                self.case.yaml
            );
        }

        let again = cache(&root).await;
        let before = self.pair.io.snapshot().bytes_read;
        let (rows, modes) = self.pair.with(&again, how(draw, later), &plan).await;
        self.same(&label("get"), &rows, later);
        if !cut {
            let all = self.pair.splits.len() as u64;
            assert_eq!(modes, SplitModes { get: all, ..SplitModes::default() }, "{}", self.case.yaml);
            assert_eq!(
                self.pair.io.snapshot().bytes_read,
                before,
                "seed {}: source bytes in an all-get epoch",
                self.seed
            );
        }

        let undecided = How { undecided: true, ..how(draw, later) };
        let (rows, _) = self.pair.planned(&again, undecided, |_, _| None).await;
        self.same(&label("undecided"), &rows, later);

        self.decided_late(hint, &plan, draw).await;

        let snapshot = again.snapshot(&hint.prefix);
        for (_, meta) in snapshot.index().await.unwrap().iter() {
            if draw.one_in(2) {
                snapshot.discard(meta, "a test").await.unwrap();
            }
        }
        let mut only_read = plan.clone();
        only_read.put = false;
        let (rows, _) = self.pair.with(&again, how(draw, later), &only_read).await;
        self.same(&label("partly get"), &rows, later);

        let damaged = self.damage(&root, draw).await;
        let fresh = cache(&root).await;
        let (rows, _) = self.pair.with(&fresh, how(draw, later), &plan).await;
        self.same(&label(&format!("{damaged} parts damaged")), &rows, later);
        let fresh = cache(&root).await;
        let (rows, _) = self.pair.with(&fresh, how(draw, later), &plan).await;
        self.same(&label("after damage"), &rows, later);
    }

    /// The plan comes in the middle of the epoch, for splits that have begun too.
    async fn decided_late(&self, hint: &Hint, plan: &CachePlan, draw: &mut Draw) {
        let memory_tier_bytes = draw.pick(&[1 << 10, 16 << 10, 256 << 20]);
        let cache =
            cache_with(&place("cache"), CacheOptions { memory_tier_bytes, ..CacheOptions::default() }).await;
        let from = draw.below(self.pair.splits.len() as u64 + 1);
        let late = Arc::new(plan.clone());
        let how = How { undecided: true, ..some_how(draw, self.case) };
        let (rows, modes) =
            self.pair.planned(&cache, how, |index, _| (index >= from).then(|| Arc::clone(&late))).await;
        let what = format!("decided at split {from} for `{}`", hint.name);
        self.same(&what, &rows, 0);
        let all_kept =
            how.workers == 1 && memory_tier_bytes > 1 << 20 && from < self.pair.splits.len() as u64;
        if all_kept && !self.case.yaml.contains("take:") {
            assert_eq!(
                modes.put,
                self.distinct(),
                "seed {}: {what}: {modes:?}\n{}",
                self.seed,
                self.case.yaml
            );
        }
        let later = usize::from(!hint.random);
        let (rows, _) =
            self.pair.with(&cache, How { epoch: later as u64, ..some_how(draw, self.case) }, plan).await;
        self.same(&format!("{what}, the epoch after that"), &rows, later);
        assert!(cache.verify(None).await.unwrap().is_clean());
    }

    /// The plan changes between leases: to another hint, to computing, to reading only.
    async fn switches(&self, draw: &mut Draw) {
        let mut plans: Vec<Option<Arc<CachePlan>>> = vec![None];
        for hint in &self.pair.hints {
            let mut plan = hint.plan(draw.pick(&ENCODINGS));
            plans.push(Some(Arc::new(plan.clone())));
            plan.put = false;
            plans.push(Some(Arc::new(plan)));
        }
        let random = self.pair.hints.iter().any(|h| h.random);
        if random && self.case.yaml.contains("repeat") {
            return;
        }
        let cache = cache(&place("cache")).await;
        for round in 0..2 {
            let epoch = if random { 0 } else { round };
            let how = How { epoch: epoch as u64, ..some_how(draw, self.case) };
            let salt = draw.below(u64::MAX);
            let plan = |index: u64, _: &_| {
                plans[(caju_types::mix64(salt, index) % plans.len() as u64) as usize].clone()
            };
            let (rows, _) = self.pair.planned(&cache, how, plan).await;
            self.same(&format!("a plan that changes, round {round}"), &rows, epoch);
        }
    }

    /// Splits with keys of their own; repetitions share theirs.
    fn distinct(&self) -> u64 {
        let keys: std::collections::HashSet<_> = self.pair.splits.iter().map(|s| s.key).collect();
        keys.len() as u64
    }

    /// Changes a byte of some parts, cuts others, and deletes one.
    async fn damage(&self, root: &str, draw: &mut Draw) -> usize {
        let at = Stores::default().resolve(root).unwrap();
        let objects: Vec<_> =
            futures::TryStreamExt::try_collect::<Vec<_>>(at.store.list(Some(&at.path))).await.unwrap();
        let parts = objects.into_iter().filter(|o| {
            let name = o.location.as_ref();
            name.ends_with(".arrow") || name.ends_with(".parquet")
        });
        let mut count = 0;
        for part in parts {
            if draw.one_in(3) {
                continue;
            }
            count += 1;
            let bytes = at.store.get(&part.location).await.unwrap().bytes().await.unwrap();
            let mut bytes = bytes.to_vec();
            let place = draw.below(bytes.len() as u64) as usize;
            match draw.below(4) {
                0 => bytes.truncate(place),
                1 => {
                    at.store.delete(&part.location).await.unwrap();
                    continue;
                }
                _ => bytes[place] ^= 1 << draw.below(8),
            }
            at.store.put(&part.location, bytes.into()).await.unwrap();
        }
        count
    }
}

async fn check(seed: u64) {
    let case = case(seed).await;
    let pair = Pair::bind(&case.def).await.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.yaml));
    let how = How { seed: 3, deterministic: case.def.options.deterministic, ..How::default() };
    let want = [pair.computed(how).await, pair.computed(How { epoch: 1, ..how }).await];
    let check = Check { seed, case: &case, pair: &pair, want };
    let mut draw = Draw(caju_types::mix64(seed, 5));
    for hint in &pair.hints {
        check.hint(hint, &mut draw).await;
    }
    check.switches(&mut draw).await;
}

async fn cases(from: u64) {
    if let Some(one) =
        std::env::var_os("CAJU_DIFFERENTIAL_SEED").map(|s| s.to_str().unwrap().parse().unwrap())
    {
        return check(one).await;
    }
    for seed in from..from + CASES {
        let limit = std::time::Duration::from_secs(60);
        tokio::time::timeout(limit, check(seed)).await.unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caching_is_invisible_first_quarter() {
    cases(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caching_is_invisible_second_quarter() {
    cases(CASES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caching_is_invisible_third_quarter() {
    cases(2 * CASES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caching_is_invisible_fourth_quarter() {
    cases(3 * CASES).await;
}
