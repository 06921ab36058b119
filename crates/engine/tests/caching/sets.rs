//! Hints behind cross-split stages: what is stored there is read as a whole, by any number of workers, or not
//! at all, and shows no more than other parts do.
//!
//! `CAJU_SETS_SEED=N` runs the one case of that seed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use caju_cache::{Cache, SetRecord, Snapshot, SplitSetDigest};
use caju_engine::TaskOptions;
use caju_engine::{
    CachePlan, GroupLease, LeasedSplit, SetPlan, SetTarget, SplitModes, name_in_set, run_task, set_id,
};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, Stores, SystemClock};
use caju_sources::Split;
use caju_types::{Error, ErrorKind, Fingerprint, RowRanges, mix64};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use crate::common::{Fixed, How, bound};
use crate::generated::{Draw, mixed_case, put};
use crate::rows::{Hint, Pair, Row, cache, place, rows_of};

mod alone;

/// Cases of one test.
const CASES: u64 = 75;

/// A pipeline with one hint behind cross-split stages, as the dispatcher sees it.
struct World {
    pair: Pair,
    hint: Hint,
    whole: SplitSetDigest,
    id: Fingerprint,
    /// The numbers of rows of splits that tasks reported, with one entry for each report.
    sizes: Mutex<Vec<(u64, u64)>>,
}

impl World {
    async fn bind(def: &DatasetDef, seed: u64) -> Self {
        let pair = Pair::bind(def).await.unwrap();
        let hint = pair.hints[0].clone();
        let whole = SplitSetDigest::of(pair.splits.iter().map(name_in_set));
        let id = set_id(hint.base.as_ref().unwrap().seeded(seed), whole);
        Self { pair, hint, whole, id, sizes: Mutex::default() }
    }

    async fn yaml(yaml: &str) -> Self {
        Self::bind(&DatasetDef::from_yaml(yaml, None).unwrap(), 0).await
    }

    fn plan(&self, set: Option<SetPlan>) -> Arc<CachePlan> {
        Arc::new(CachePlan { set, ..self.hint.plan("arrow/none") })
    }

    fn write(&self, attempt: &str) -> Arc<CachePlan> {
        let target = SetTarget { id: self.id, attempt: attempt.into(), whole: self.whole };
        self.plan(Some(SetPlan::Write(target)))
    }

    /// Whether stages choose the rows of the set in an order that each epoch draws for itself.
    fn is_chosen(&self) -> bool {
        let kept = &self.pair.kept;
        kept.chooses_in_drawn_order(kept.def().hints()[0].stage_index)
    }

    fn workers(&self, how: How) -> usize {
        if self.pair.kept.single_task() { 1 } else { how.workers }
    }

    fn lease(&self, index: usize, plan: &Arc<CachePlan>) -> LeasedSplit {
        let split: Split = self.pair.splits[index].clone();
        LeasedSplit { cache: Some(Arc::clone(plan)), ..LeasedSplit::new(index as u64, split) }
    }

    /// The leases of one of several workers, split by split.
    fn dealt(&self, plan: &Arc<CachePlan>, worker: usize, workers: usize) -> VecDeque<LeasedSplit> {
        (worker..self.pair.splits.len()).step_by(workers).map(|i| self.lease(i, plan)).collect()
    }

    /// The leases of one of several workers, part by part.
    fn shared(&self, set: &SetRecord, worker: usize, workers: usize) -> VecDeque<LeasedSplit> {
        let plan = self.plan(Some(SetPlan::Read { id: self.id, attempt: String::new() }));
        let mut places: BTreeMap<u128, Vec<usize>> = BTreeMap::new();
        for (i, split) in self.pair.splits.iter().enumerate().rev() {
            places.entry(name_in_set(split)).or_default().push(i);
        }
        let mut out = VecDeque::new();
        for (m, member) in set.members.iter().enumerate() {
            let of = member.covers.len() as u32;
            for (at, name) in (0..).zip(&member.covers) {
                let i = places.get_mut(&name.0).unwrap().pop().unwrap();
                if m % workers == worker {
                    let (set, part, attempt) = (self.id, member.part, member.attempt.clone());
                    let rows = member.rows_of(at);
                    let group = Some(GroupLease { set, part, attempt, at, of, rows });
                    out.push_back(LeasedSplit { group, ..self.lease(i, &plan) });
                }
            }
        }
        out
    }

    /// Runs the tasks one after another; what they sent, and how the last one ended.
    async fn run(
        &self,
        cache: &Arc<Cache>,
        how: How,
        tasks: Vec<VecDeque<LeasedSplit>>,
    ) -> (Vec<Row>, SplitModes, Option<Error>) {
        let (mut rows, mut modes, mut failed) = (Vec::new(), SplitModes::default(), None);
        for leases in tasks.into_iter().filter(|l| !l.is_empty()) {
            let mut options = TaskOptions::new(CpuPool::new(how.threads).unwrap(), SystemClock::shared());
            (options.batch_rows, options.batch_bytes) = (how.batch_rows, how.batch_bytes);
            (options.seed, options.epoch) = (how.seed, how.epoch);
            (options.deterministic, options.cache) = (how.deterministic, Some(Arc::clone(cache)));
            let mut task = run_task(&self.pair.kept, Box::new(Fixed(leases)), options);
            while let Some(chunk) = task.next().await {
                match chunk {
                    Ok(chunk) => rows.extend(rows_of(&chunk)),
                    Err(e) => {
                        failed = Some(e);
                        break;
                    }
                }
            }
            self.sizes.lock().unwrap().extend(task.take_sized());
            let m = task.modes();
            modes.compute += m.compute;
            modes.put += m.put;
            modes.fell_back += m.fell_back;
            modes.backfilled += m.backfilled;
            modes.get += m.get;
        }
        (rows, modes, failed)
    }

    async fn store(&self, cache: &Arc<Cache>, how: How, attempt: &str) -> (Vec<Row>, SplitModes) {
        let (plan, n) = (self.write(attempt), self.workers(how));
        let tasks = (0..n).map(|w| self.dealt(&plan, w, n)).collect();
        let (rows, modes, failed) = self.run(cache, how, tasks).await;
        assert!(failed.is_none(), "{failed:?}");
        (rows, modes)
    }

    /// An epoch on what is stored, as the dispatcher would run it: rows that an abandoned task has not sent are
    /// computed by another.
    async fn read(&self, cache: &Arc<Cache>, how: How) -> (Vec<Row>, SplitModes) {
        let set = self.set(cache).await.expect("a whole set");
        let (mut rows, mut modes) = (Vec::new(), SplitModes::default());
        let n = self.workers(how);
        for worker in 0..n {
            let leases = self.shared(&set, worker, n);
            let mine: Vec<usize> = leases.iter().map(|l| l.index as usize).collect();
            let (mut some, m, failed) = self.run(cache, how, vec![leases]).await;
            modes.compute += m.compute;
            modes.get += m.get;
            if let Some(e) = failed {
                assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}");
                let plan = self.plan(Some(SetPlan::Read { id: self.id, attempt: String::new() }));
                let mut done: BTreeMap<u64, RowRanges> = BTreeMap::new();
                for ((split, row), _) in &some {
                    done.entry(*split).or_default().insert(*row, row + 1);
                }
                let mut again: Vec<_> = mine.iter().map(|i| self.lease(*i, &plan)).collect();
                again.sort_by_key(|l| l.index);
                for lease in &mut again {
                    lease.done = done.remove(&lease.index).unwrap_or_default();
                }
                let (rest, m, failed) = self.run(cache, how, vec![again.into()]).await;
                assert!(failed.is_none(), "{failed:?}");
                modes.compute += m.compute;
                some.extend(rest);
            }
            rows.extend(some);
        }
        (rows, modes)
    }

    /// The numbers of rows that tasks reported since the last call.
    fn take_sizes(&self) -> BTreeMap<u64, u64> {
        let all = std::mem::take(&mut *self.sizes.lock().unwrap());
        let by_split: BTreeMap<u64, u64> = all.iter().copied().collect();
        assert_eq!(by_split.len(), all.len(), "each is reported once");
        by_split
    }

    fn snapshot(&self, cache: &Arc<Cache>) -> Snapshot {
        cache.snapshot(&self.id)
    }

    async fn set(&self, cache: &Arc<Cache>) -> Option<SetRecord> {
        let set = self.snapshot(cache).set().await.unwrap()?;
        set.is_in(&self.snapshot(cache).index().await.unwrap()).then_some(set)
    }
}

/// The objects below a root whose names have this in them.
async fn objects(root: &str, text: &str) -> Vec<String> {
    let at = Stores::default().resolve(root).unwrap();
    let all: Vec<_> = at.store.list(Some(&at.path)).try_collect().await.unwrap();
    all.into_iter().map(|o| o.location.to_string()).filter(|l| l.contains(text)).collect()
}

async fn flip(root: &str, thousandth: usize) {
    let at = Stores::default().resolve(root).unwrap();
    for name in objects(root, ".arrow").await {
        let path = object_store::path::Path::from(name);
        let mut bytes = at.store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        let place = (bytes.len() * thousandth / 1000).min(bytes.len() - 1);
        bytes[place] ^= 16;
        at.store.put(&path, bytes.into()).await.unwrap();
    }
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort();
    rows
}

async fn check(seed: u64) {
    let case = mixed_case(seed).await;
    let (job, mut draw) = (3, Draw(mix64(seed, 6)));
    let world = World::bind(&case.def, job).await;
    if world.hint.no_set.is_some() {
        return;
    }
    let how = |draw: &mut Draw, epoch: u64| How {
        workers: draw.pick(&[1, 2, 3]),
        threads: draw.pick(&[1, 2]),
        batch_rows: draw.pick(&[7, 100, 8192]),
        batch_bytes: draw.pick(&[900, 2 << 20]),
        seed: job,
        epoch,
        deterministic: case.def.options.deterministic,
        undecided: false,
    };
    let above = case.yaml.split("autocache").next().unwrap();
    // What is drawn above the hint is drawn as in epoch 0; what is drawn below is drawn again. A `take` of what is
    // shuffled is another one each epoch.
    let frozen = ["uniform", "random"].iter().any(|f| above.contains(f))
        || above.contains("shuffle") && case.yaml.contains("take");
    let later = u64::from(!frozen);
    // The order counts where it is promised, and is that of the epoch that stored the rows.
    let in_order = case.def.options.deterministic && (later == 0 || !above.contains("shuffle"));
    let arranged = |rows| if in_order { rows } else { sorted(rows) };
    let plain = How { seed: job, deterministic: case.def.options.deterministic, ..How::default() };
    let want = arranged(world.pair.computed(plain).await);
    let want_later = arranged(world.pair.computed(How { epoch: later, ..plain }).await);
    let label = format!("seed {seed}\n{}", case.yaml);

    let root = place("sets");
    let (rows, modes) = world.store(&cache(&root).await, how(&mut draw, 0), "a").await;
    assert_eq!(arranged(rows), want, "put: {label}");
    if world.pair.splits.is_empty() {
        return;
    }
    let cut_below = case.yaml.ends_with("- take: 90\ndeterministic: true\n")
        || case.yaml.ends_with("- take: 90\ndeterministic: false\n");
    if cut_below && world.set(&cache(&root).await).await.is_none() {
        return;
    }
    assert_eq!(modes.compute, 0, "put: {modes:?} {label}");
    assert!(objects(&root, "/sets/").await.is_empty(), "{label}");
    let counted = world.take_sizes();

    let before = world.pair.io.snapshot().bytes_read;
    let (rows, modes) = world.read(&cache(&root).await, how(&mut draw, later)).await;
    assert_eq!(arranged(rows), want_later, "get: {label}");
    assert_eq!(modes.compute, 0, "get: {label}");
    assert_eq!(world.pair.io.snapshot().bytes_read, before, "source bytes: {label}");
    for (split, rows) in world.take_sizes() {
        assert_eq!(counted.get(&split), Some(&rows), "the size of split {split}: {label}");
    }

    let thousandth = draw.below(1000) as usize;
    flip(&root, thousandth).await;
    let damaged = how(&mut draw, later);
    if world.is_chosen() {
        let set = world.set(&cache(&root).await).await.expect("a whole set");
        let tasks = vec![world.shared(&set, 0, 1)];
        let (_, modes, failed) = world.run(&cache(&root).await, damaged, tasks).await;
        let e = failed.unwrap_or_else(|| panic!("damaged at {thousandth}/1000: {label}"));
        assert_eq!((e.kind(), modes.compute), (ErrorKind::FailedPrecondition, 0), "{e}: {label}");
    } else {
        let (rows, _) = world.read(&cache(&root).await, damaged).await;
        assert_eq!(sorted(rows), sorted(want_later.clone()), "damaged at {thousandth}/1000: {label}");
    }
    world.sizes.lock().unwrap().clear();
    let shaken = cache(&root).await;
    assert!(world.set(&shaken).await.is_none(), "a damaged set does not count: {label}");
    let (rows, _) = world.store(&shaken, how(&mut draw, 0), "b").await;
    assert_eq!(arranged(rows), want, "put again: {label}");
    world.sizes.lock().unwrap().clear();
    let (rows, modes) = world.read(&cache(&root).await, how(&mut draw, later)).await;
    assert_eq!(arranged(rows), want_later, "healed: {label}");
    assert_eq!(modes.compute, 0, "healed: {label}");
}

async fn cases(from: u64) {
    if let Some(one) = std::env::var_os("CAJU_SETS_SEED").map(|s| s.to_str().unwrap().parse().unwrap()) {
        return check(one).await;
    }
    for seed in from..from + CASES {
        let limit = std::time::Duration::from_secs(60);
        tokio::time::timeout(limit, check(seed)).await.unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_are_invisible_first_half() {
    cases(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_are_invisible_second_half() {
    cases(CASES).await;
}

const SHUFFLED: &str = "
source: { range: { start: 0, end: 9000, step: 1 } }
steps: [ { shuffle: 500 }, { autocache: s }, { batch: 10 } ]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_covered_once_does_not_count() {
    let world = World::yaml(SHUFFLED).await;
    let (root, how) = (place("sets"), How::default());
    let cache = cache(&root).await;
    assert!(world.pair.splits.len() > 4);
    // One of two workers is lost; the other one continues its splits, and stores nothing more.
    let (writes, not) = (world.write("a"), world.plan(None));
    world.run(&cache, how, vec![world.dealt(&writes, 0, 2)]).await;
    let mut second = world.dealt(&writes, 1, 2);
    for lease in second.iter_mut().skip(1) {
        lease.cache = Some(Arc::clone(&not));
    }
    world.run(&cache, how, vec![second]).await;
    assert!(world.set(&cache).await.is_none());
    // Rows of a split were delivered by somebody else already.
    let mut both: Vec<_> = (0..2).map(|w| world.dealt(&world.write("b"), w, 2)).collect();
    both[1][0].done.insert(0, 1);
    world.run(&cache, how, both).await;
    assert!(world.set(&cache).await.is_none());
    // A split that is stored twice.
    let mut both: Vec<_> = (0..2).map(|w| world.dealt(&world.write("c"), w, 2)).collect();
    both[1].push_back(world.lease(0, &world.write("c")));
    world.run(&cache, how, both).await;
    assert!(world.set(&cache).await.is_none());
    // In the end one attempt is whole, and everything of the others goes.
    let (_, modes) = world.store(&cache, How { workers: 2, ..how }, "d").await;
    assert_eq!(modes.put, world.pair.splits.len() as u64);
    assert_eq!(world.set(&cache).await.unwrap().members.len(), 2);
    assert_eq!(objects(&root, ".arrow").await.len(), 2);
    assert!(objects(&root, "/sets/").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_attempts_one_wins_and_the_other_leaves_nothing() {
    let world = World::yaml(SHUFFLED).await;
    let (root, how) = (place("sets"), How { workers: 2, ..How::default() });
    let (ours, theirs) = (cache(&root).await, cache(&root).await);
    let writes = world.write("ours");
    world.run(&ours, how, vec![world.dealt(&writes, 0, 2)]).await;
    world.store(&theirs, how, "theirs").await;
    world.run(&ours, how, vec![world.dealt(&writes, 1, 2)]).await;
    let set = world.set(&cache(&root).await).await.unwrap();
    assert_eq!((set.attempt.as_str(), set.members.len()), ("theirs", 2));
    assert_eq!(objects(&root, ".arrow").await.len(), 2);
    assert!(objects(&root, "/sets/").await.is_empty());
    assert!(cache(&root).await.verify(None).await.unwrap().is_clean());
}

/// Some splits have no row.
const FILTERED: &str = "
source: { range: { start: 0, end: 9000, step: 1 } }
steps: [ { filter: \"id >= 3000\" }, { shuffle: 500 }, { autocache: s }, { batch: 10 } ]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_knows_how_many_rows_its_splits_have() {
    let world = World::yaml(FILTERED).await;
    let (cache, how) = (cache(&place("sets")).await, How { workers: 2, ..How::default() });
    world.store(&cache, how, "a").await;
    let counted = world.take_sizes();
    assert_eq!((counted.len(), counted.values().sum::<u64>()), (world.pair.splits.len(), 6000));
    assert!(counted.values().any(|rows| *rows == 0), "{counted:?}");
    let set = world.set(&cache).await.unwrap();
    assert!(set.members.iter().all(|m| m.rows.len() == m.covers.len()), "{set:?}");
    for epoch in [0, 1] {
        let (rows, modes) = world.read(&cache, How { epoch, ..how }).await;
        assert_eq!((rows.len(), modes.compute), (6000, 0));
        assert_eq!(world.take_sizes(), counted, "of epoch {epoch}");
    }
    // Records of older versions do not say it.
    let mut leases = world.shared(&set, 0, 2);
    leases.iter_mut().flat_map(|l| &mut l.group).for_each(|group| group.rows = None);
    let (rows, _, failed) = world.run(&cache, how, vec![leases]).await;
    assert!(failed.is_none() && !rows.is_empty(), "{failed:?}");
    assert!(world.take_sizes().is_empty());
}

/// A number that is too small would lose rows: a state would name the split as taken before they came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_with_more_rows_of_a_split_than_its_record_says_is_damaged() {
    let world = World::yaml(SHUFFLED).await;
    let (cache, how) = (cache(&place("sets")).await, How::default());
    world.store(&cache, how, "a").await;
    let set = world.set(&cache).await.unwrap();
    let mut leases = world.shared(&set, 0, 1);
    let rows = leases[3].group.as_mut().and_then(|group| group.rows.as_mut()).unwrap();
    *rows -= 1;
    let (_, _, failed) = world.run(&cache, how, vec![leases]).await;
    let e = failed.unwrap();
    assert_eq!(e.kind(), ErrorKind::Cancelled, "another task computes what is left: {e}");
    assert!(e.message().contains("more rows of split"), "{e}");
    assert!(world.set(&cache).await.is_none());
}

/// There the rows of splits are counted below the hint, by what this pipeline does with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_behind_a_planned_take_does_not_say_how_many_rows_its_splits_have() {
    let steps = "[ { take: 5000 }, { autocache: s }, { filter: \"id % 2 = 0\" }, { batch: 10 } ]";
    let yaml = format!("source: {{ range: {{ start: 0, end: 9000, step: 1 }} }}\nsteps: {steps}\n");
    let world = World::yaml(&yaml).await;
    let (cache, how) = (cache(&place("sets")).await, How::default());
    world.store(&cache, how, "a").await;
    assert_eq!(world.take_sizes().values().sum::<u64>(), 2500);
    let set = world.set(&cache).await.unwrap();
    assert!(set.members.iter().all(|m| m.rows.is_empty()), "{set:?}");
    let (rows, modes) = world.read(&cache, how).await;
    assert_eq!((rows.len(), modes.compute), (2500, 0));
    assert!(world.take_sizes().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_listing_finds_nothing() {
    let folder = place("grown");
    let yaml = |steps: &str| {
        format!(
            "source: {{ json: {{ path: '{folder}/*.json', schema: {{ id: int64 }} }} }}\nsteps: [ {steps} ]\n"
        )
    };
    put(&format!("{folder}/1.json"), b"{\"id\": 1}\n".to_vec()).await;
    let world = World::yaml(&yaml("{ shuffle: 5 }, { autocache: s }")).await;
    let again = World::yaml(&yaml("{ shuffle: 5 }, { autocache: other }, { batch: 3 }")).await;
    assert_eq!(world.id, again.id, "names and what is below are no difference");
    let batches = World::yaml(&yaml("{ batch: 5 }, { autocache: s }")).await;
    let cut = World::yaml(&yaml("{ batch: 5 }, { autocache: s }, unbatch")).await;
    assert_eq!(batches.hint.prefix, cut.hint.prefix);
    assert_ne!(batches.id, cut.id, "the short batches at the ends of tasks are others");
    put(&format!("{folder}/2.json"), b"{\"id\": 2}\n".to_vec()).await;
    let grown = World::yaml(&yaml("{ shuffle: 5 }, { autocache: s }")).await;
    assert_eq!(world.hint.prefix, grown.hint.prefix, "the prefix is the same");
    assert_ne!(world.id, grown.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_can_be_stored_it_is_said_why() {
    let why = async |steps: &str| {
        let yaml = format!("source: {{ range: {{ start: 0, end: 9, step: 1 }} }}\nsteps: [ {steps} ]\n");
        let pipeline = bound(&yaml).await.unwrap();
        let stage = pipeline.def().hints()[0].stage_index;
        pipeline.no_set(stage).unwrap_or_default()
    };
    assert_eq!(why("{ shuffle: 5 }, { autocache: s }").await, "");
    assert_eq!(why("{ autocache: s }, repeat").await, "");
    assert!(
        why("{ batch: 5 }, { autocache: s }, { repeat: 2 }").await.contains("between `batch` and `repeat`")
    );
    assert!(
        why("{ batch: 5 }, { autocache: s }, { shuffle: 5 }, { take: 1 }")
            .await
            .contains("another order each epoch")
    );
}
