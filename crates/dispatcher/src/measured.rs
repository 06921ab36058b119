//! From what tasks measured to the planner's profile. Pure.

use std::collections::BTreeMap;

use caju_planner::{
    Budget, CacheStore, Cluster, Consumer, Encoding, Existing, Hint, Horizon, Profile, Source, SourceStore,
    Stage,
};
use caju_proto::v1;

use crate::state::Dataset;

/// What is known of an iteration when somebody asks for a decision.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    /// One per task that was asked to profile, its latest word.
    pub(crate) tasks: Vec<v1::TaskProfile>,
    /// Workers that run such tasks.
    pub(crate) workers: u64,
    /// Splits in all, as far as they are counted; 0 if nobody has begun.
    pub(crate) splits_total: u64,
    /// *Delivered* rows per second that the clients would take, where they let it be seen.
    pub(crate) demand: Option<f64>,
    /// Epochs left, this one included.
    pub(crate) epochs: Option<u64>,
    /// Jobs that are expected to read these rows, this one included.
    pub(crate) jobs: Option<u64>,
    /// Bytes that the cache may hold.
    pub(crate) budget: Option<u64>,
    /// Rows of an epoch, where these figures are of a stretch that cannot tell.
    pub(crate) epoch_rows: Option<u64>,
    /// Tasks that have ended: no split of theirs is half read.
    pub(crate) ended: Vec<u64>,
    /// The only encoding that the job may store rows in, if it has a say in that.
    pub(crate) encoding: Option<String>,
    /// Whole sets of parts that are stored behind stages that mix splits.
    pub(crate) sets: Vec<StoredSet>,
    /// What is stored split by split.
    pub(crate) stored: Stored,
}

/// What is known of an iteration's splits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stored {
    /// Somebody looks, and has counted so many splits.
    Awaited(u64),
    /// All that counts.
    Known(Found),
}

impl Default for Stored {
    fn default() -> Self {
        Self::Known(Found::default())
    }
}

impl Stored {
    /// Splits that were counted so far.
    pub(crate) fn splits(&self) -> u64 {
        match self {
            Self::Awaited(splits) => *splits,
            Self::Known(found) => found.splits.unwrap_or(0),
        }
    }
}

/// What was found out of an iteration's splits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Found {
    /// What is stored of them, split by split.
    pub(crate) parts: Vec<StoredParts>,
    /// How many there are, if that could be found out.
    pub(crate) splits: Option<u64>,
}

/// Parts at a hint in one encoding.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredParts {
    /// The hint's name.
    pub(crate) hint: String,
    /// How they are written.
    pub(crate) encoding: String,
    /// The share of the iteration's splits that have one.
    pub(crate) fraction: f64,
}

/// A set of which all parts are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredSet {
    /// The hint's name.
    pub(crate) hint: String,
    /// How its parts are written.
    pub(crate) encoding: String,
}

/// The tries of each encoding at each hint that tell most: of a few rows those are left out of which there are some with more.
fn telling(probes: &[v1::HintProbe]) -> impl Iterator<Item = &v1::HintProbe> {
    let mut most: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for p in probes {
        let rows = most.entry((&p.hint, &p.encoding)).or_default();
        *rows = p.rows.max(*rows);
    }
    probes.iter().filter(move |p| {
        most.get(&(p.hint.as_str(), p.encoding.as_str()))
            .is_some_and(|most| p.rows.saturating_mul(2) >= *most)
    })
}

/// The newest of these tries, with the store's rates by all of them: it is the same in every stretch.
fn newest(probes: &[v1::HintProbe]) -> Vec<v1::HintProbe> {
    let mut out: Vec<v1::HintProbe> = Vec::new();
    for probe in telling(probes) {
        match out.iter_mut().find(|p| p.hint == probe.hint && p.encoding == probe.encoding) {
            Some(old) => *old = probe.clone(),
            None => out.push(probe.clone()),
        }
    }
    out.iter_mut().for_each(|p| (p.read_bytes_per_s, p.write_bytes_per_s) = (0.0, 0.0));
    if let Some(first) = out.first_mut() {
        first.read_bytes_per_s = rate(probes, |p| p.read_bytes_per_s).unwrap_or(0.0);
        first.write_bytes_per_s = rate(probes, |p| p.write_bytes_per_s).unwrap_or(0.0);
    }
    out
}

/// The store's rate by those probes that weighed it: the median, since a busy worker makes single ones too high or too low.
fn rate(probes: &[v1::HintProbe], of: impl Fn(&v1::HintProbe) -> f64) -> Option<f64> {
    let mut rates: Vec<f64> = probes.iter().map(of).filter(|rate| *rate > 0.0).collect();
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    let low = middle - usize::from(rates.len().is_multiple_of(2) && middle > 0);
    Some((rates.get(low)? + rates.get(middle)?) / 2.0)
}

/// Takes earlier figures of a stage out of later ones.
fn less(stage: &mut v1::StageStats, was: &v1::StageStats) {
    stage.rows_in = stage.rows_in.saturating_sub(was.rows_in);
    stage.rows_out = stage.rows_out.saturating_sub(was.rows_out);
    stage.bytes_out = stage.bytes_out.saturating_sub(was.bytes_out);
    stage.cpu_s = (stage.cpu_s - was.cpu_s).max(0.0);
    stage.busy_s = (stage.busy_s - was.busy_s).max(0.0);
    stage.wait_in_s = (stage.wait_in_s - was.wait_in_s).max(0.0);
    stage.wait_out_s = (stage.wait_out_s - was.wait_out_s).max(0.0);
}

/// Parts of fewer splits are a rest of something: they are read where they are met, and bind nobody to their encoding.
pub(crate) const A_REST: f64 = 0.1;
/// Where a job says how its rows are written, parts in another encoding are an option if next to nothing has to be written
/// beside them.
const ALL_THERE: f64 = 0.9;
/// So long a decision waits to know how many splits there are, and what of them is stored, in seconds.
const LOOKING_S: f64 = 20.0;

/// What is stored at hints, as far as a plan can be made of it, and the hints' encodings left to those it is written in:
/// parts are read as they are.
pub(crate) fn usable(mut found: Vec<Existing>, hints: &mut [Hint], only: Option<&str>) -> Vec<Existing> {
    let name = |x: &Existing| format!("{}/{}", x.format, x.compression);
    found.retain(|x| x.fraction >= if only.is_none_or(|o| o == name(x)) { A_REST } else { ALL_THERE });
    // The most complete one of a hint: an option is one encoding.
    found.sort_by(|a, b| a.hint.cmp(&b.hint).then(b.fraction.total_cmp(&a.fraction)));
    found.dedup_by(|a, b| a.hint == b.hint);
    for hint in hints {
        let there = found.iter().find(|x| x.hint == hint.name).map(name);
        if let Some(only) = there.as_deref().or(only) {
            hint.encodings.retain(|e| named(e) == *only);
        }
    }
    found
}

/// How tasks name the stage figures of hints.
const HINT: &str = ".autocache";

/// Stages that see the rows of many splits as one stream: one chunk after the other, and what goes in comes out later.
const MIXING: [&str; 7] = ["shuffle", "take", "skip", "batch", "padded_batch", "bucket_by_length", "unbatch"];

/// Other stages that run one at a time on a worker.
const SINGLE: [&str; 2] = ["sleep", "burn"];

impl Measured {
    /// Wall time of the task that runs longest, in seconds.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.tasks.iter().map(|t| t.elapsed_s).fold(0.0, f64::max)
    }

    /// Rows that left the source.
    pub(crate) fn rows(&self) -> u64 {
        self.tasks.iter().filter_map(|t| t.stages.first()).map(|s| s.rows_out).sum()
    }

    /// The share of the epoch's splits that were begun; none while the listing goes on.
    pub(crate) fn share(&self) -> Option<f64> {
        let begun: u64 = self.tasks.iter().map(|t| t.computed + t.read).sum();
        (self.splits_total > 0).then(|| begun as f64 / self.splits_total as f64)
    }

    /// What was measured since an earlier look: the stretch in between as if there had been nothing else. None if
    /// a task has reported nothing new since, or nothing happened. Of each probe's repetitions the newest counts.
    pub(crate) fn since(&self, earlier: &Self) -> Option<Self> {
        let before = |t: &v1::TaskProfile| earlier.tasks.iter().find(|e| e.task_id == t.task_id);
        if self.tasks.iter().any(|t| before(t).is_some_and(|e| e.elapsed_s >= t.elapsed_s)) {
            return None;
        }
        let stretch = |t: &v1::TaskProfile| {
            let mut t = t.clone();
            t.probes = newest(&t.probes);
            let Some(e) = before(&t) else { return t };
            t.elapsed_s -= e.elapsed_s;
            t.computed = t.computed.saturating_sub(e.computed);
            t.read = t.read.saturating_sub(e.read);
            t.source_bytes = t.source_bytes.saturating_sub(e.source_bytes);
            t.source_s -= e.source_s;
            t.sent_bytes = t.sent_bytes.saturating_sub(e.sent_bytes);
            t.sent_s -= e.sent_s;
            for (stage, was) in t.stages.iter_mut().zip(&e.stages) {
                less(stage, was);
            }
            t
        };
        let tasks = self.tasks.iter().map(stretch).collect();
        let stretch = Self { tasks, epoch_rows: Some(self.source_rows()), ..self.clone() };
        (stretch.rows() > 0).then_some(stretch)
    }

    /// Whether every candidate encoding was tried.
    pub(crate) fn complete(&self) -> bool {
        self.tasks.iter().any(|t| t.complete)
    }

    /// How often each encoding was tried by the task that did so most, by hint and encoding: what one of them is wrong about,
    /// others with the first few rows are wrong about, too.
    pub(crate) fn tries(&self) -> BTreeMap<(&str, &str), usize> {
        let mut most = BTreeMap::new();
        for task in &self.tasks {
            let mut tries: BTreeMap<_, usize> = BTreeMap::new();
            for probe in &task.probes {
                *tries.entry((probe.hint.as_str(), probe.encoding.as_str())).or_default() += 1;
            }
            for (of, times) in tries {
                let most = most.entry(of).or_insert(0);
                *most = times.max(*most);
            }
        }
        most
    }

    /// Whether there is something to weigh options by: rows went by, and existing parts were looked for.
    pub(crate) fn is_something(&self) -> bool {
        let known = matches!(self.stored, Stored::Known(_)) || self.elapsed_s() >= LOOKING_S;
        self.rows() > 0 && known && self.tasks.iter().any(|t| t.looked)
    }

    /// Whether there is enough: every hint at which rows may be stored was probed, and the store weighed, too.
    pub(crate) fn is_enough(&self, dataset: &Dataset) -> bool {
        let probed = |hint: &crate::state::Hint| {
            self.tasks.iter().any(|t| t.probes.iter().any(|p| p.hint == hint.name))
        };
        let weighed = |t: &v1::TaskProfile| t.probes.iter().any(|p| p.read_bytes_per_s > 0.0);
        let mut hints = dataset.hints.iter().filter(|h| h.no_set.is_none()).peekable();
        let weighed = hints.peek().is_none() || self.tasks.iter().any(weighed);
        self.is_something() && weighed && hints.all(probed)
    }

    /// The planner's profile.
    pub(crate) fn profile(&self, dataset: &Dataset) -> Profile {
        let sums = self.stages();
        let stages = stages(&sums, dataset);
        let mut hints = self.hints(&sums, &stages, dataset);
        let existing = usable(self.existing(&hints), &mut hints, self.encoding.as_deref());
        // Those that have not weighed the store yet are taken to have as much of it as the others.
        let of_all = |f: fn(&v1::HintProbe) -> f64| {
            let rates: Vec<f64> = self.tasks.iter().filter_map(|t| rate(&t.probes, f)).collect();
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            (!rates.is_empty()).then_some(mean * self.tasks.len() as f64)
        };
        let threads: f64 = self.tasks.iter().map(|t| t.threads).sum();
        let workers = self.workers.max(1);
        Profile {
            schema: caju_planner::Schema::V1,
            cluster: Cluster {
                workers,
                cores_per_worker: (threads / workers as f64).max(0.01),
                network_bytes_per_s_per_worker: self.network(),
            },
            source_store: SourceStore { read_bytes_per_s: self.source_bandwidth() },
            cache_store: CacheStore {
                read_bytes_per_s: of_all(|p| p.read_bytes_per_s),
                write_bytes_per_s: of_all(|p| p.write_bytes_per_s),
                memory_bytes_per_worker: self.memory_tier(),
            },
            consumer: Consumer { rows_per_s: self.demand },
            horizon: Horizon { epochs: self.epochs, jobs: self.jobs.filter(|n| *n > 1) },
            budget: Budget { snapshot_bytes: self.budget.map(|b| b as f64) },
            source: Source { rows: self.source_rows(), readings: self.readings().filter(|n| *n > 1) },
            existing,
            stages,
            hints,
            measured: Vec::new(),
            observed: Vec::new(),
        }
    }

    /// Bytes that a worker keeps near: the mean.
    fn memory_tier(&self) -> Option<f64> {
        let all: u64 = self.tasks.iter().map(|t| t.memory_tier_bytes).sum();
        (all > 0).then(|| all as f64 / self.tasks.len() as f64)
    }

    /// Bytes per second that the source's store gives the whole cluster: what a request got, times the requests
    /// that there may be at once. Where reading is what holds things up, as many there are, so it is exact there.
    fn source_bandwidth(&self) -> Option<f64> {
        let measured = self.tasks.iter().filter(|t| t.source_s > 0.0 && t.source_bytes > 0);
        let rate =
            measured.map(|t| t.source_bytes as f64 / t.source_s * t.source_requests_at_once.max(1) as f64);
        let sum: f64 = rate.sum();
        (sum > 0.0).then_some(sum)
    }

    /// Bytes per second that the network takes from one worker; none where all readers are on the workers' hosts.
    fn network(&self) -> Option<f64> {
        let (bytes, time) = self.tasks.iter().fold((0, 0.0), |(b, s), t| (b + t.sent_bytes, s + t.sent_s));
        (bytes > 0 && time > 0.0).then(|| bytes as f64 / time)
    }

    /// How often an epoch reads each split, once they are counted.
    fn readings(&self) -> Option<u64> {
        let Stored::Known(found) = &self.stored else { return None };
        self.splits_total.checked_div(found.splits?)
    }

    /// Rows of one epoch: exact if everything was handed out, else by the share of splits that was. Those that are being
    /// read count as half.
    fn source_rows(&self) -> u64 {
        if let Some(rows) = self.epoch_rows {
            return rows;
        }
        let rows = self.rows();
        let computed: u64 = self.tasks.iter().map(|t| t.computed).sum();
        if computed == 0 || self.splits_total <= computed {
            return rows;
        }
        let open = |t: &v1::TaskProfile| match self.ended.contains(&t.task_id) {
            true => 0,
            false => t.computed.min(t.source_requests_at_once),
        };
        let halves = 2 * computed - self.tasks.iter().map(open).sum::<u64>();
        let scaled = u128::from(rows) * 2 * u128::from(self.splits_total) / u128::from(halves.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// The figures of all tasks, stage by stage.
    fn stages(&self) -> Vec<v1::StageStats> {
        let mut sums = Vec::new();
        for task in &self.tasks {
            caju_proto::add_stages(&mut sums, &task.stages);
        }
        sums
    }

    fn hints(&self, sums: &[v1::StageStats], stages: &[Stage], dataset: &Dataset) -> Vec<Hint> {
        // Hints stand among the stages' figures in their order; the stage in front of one is what it would store.
        let mut after = Vec::new();
        let mut last = None;
        for sum in sums {
            if sum.name.ends_with(HINT) {
                after.extend(last);
            } else {
                last = stages.iter().position(|s| s.name == sum.name).or(last);
            }
        }
        let storable = dataset.hints.iter().zip(after).filter(|(h, _)| h.no_set.is_none());
        let hint = |(hint, stage): (&crate::state::Hint, usize)| {
            let rows_per_row: f64 = stages[..=stage].iter().map(|s| s.out_rows_per_row).product();
            let encodings = self.encodings(&hint.name, rows_per_row, stages[stage].out_bytes_per_row);
            Hint {
                name: hint.name.clone(),
                after_stage: stages[stage].name.clone(),
                split_local: hint.behind.is_none(),
                encodings,
            }
        };
        storable.map(hint).collect()
    }

    /// The encodings that were tried at a hint, by their mean cost per source row: of so many bytes before they are encoded, as
    /// the mean of all rows so far has. The few that were tried may be larger or smaller than others.
    fn encodings(&self, hint: &str, rows_per_row: f64, bytes_per_row: f64) -> Vec<Encoding> {
        let mut sums: Vec<v1::HintProbe> = Vec::new();
        for probe in
            self.tasks.iter().flat_map(|t| telling(&t.probes)).filter(|p| p.hint == hint && p.rows > 0)
        {
            match sums.iter_mut().find(|s| s.encoding == probe.encoding) {
                Some(sum) => {
                    sum.rows += probe.rows;
                    sum.bytes += probe.bytes;
                    // Workers of an older version do not tell them.
                    sum.raw_bytes = match (sum.raw_bytes, probe.raw_bytes) {
                        (0, _) | (_, 0) => 0,
                        (a, b) => a + b,
                    };
                    sum.encode_cpu_s += probe.encode_cpu_s;
                    sum.decode_cpu_s += probe.decode_cpu_s;
                }
                None => sums.push(probe.clone()),
            }
        }
        // As they were tried at first, which is the cheapest one first.
        let tried = || self.tasks.iter().flat_map(|t| &t.probes);
        sums.sort_by_key(|sum| tried().position(|p| p.hint == hint && p.encoding == sum.encoding));
        let encoding = |p: v1::HintProbe| {
            let (format, compression) = p.encoding.split_once('/')?;
            let tried = match p.raw_bytes {
                raw if raw > 0 && bytes_per_row > 0.0 => raw as f64 / bytes_per_row,
                _ => p.rows as f64 / rows_per_row,
            };
            let per_row = |total: f64| total / tried;
            Some(Encoding {
                format: format.to_string(),
                compression: compression.to_string(),
                bytes_per_row: per_row(p.bytes as f64),
                encode_cpu_s_per_row: per_row(p.encode_cpu_s),
                decode_cpu_s_per_row: per_row(p.decode_cpu_s),
            })
        };
        sums.into_iter().filter_map(encoding).collect()
    }

    /// Snapshots that are there, in encodings that were tried.
    fn existing(&self, hints: &[Hint]) -> Vec<Existing> {
        let parts = match &self.stored {
            Stored::Known(found) => found.parts.as_slice(),
            Stored::Awaited(_) => &[],
        };
        let parts = parts.iter().map(|p| (&p.hint, &p.encoding, p.fraction));
        let sets = self.sets.iter().map(|s| (&s.hint, &s.encoding, 1.0));
        let tried = |(hint, encoding, _): &(&String, &String, f64)| {
            hints.iter().any(|h| h.name == **hint && h.encodings.iter().any(|e| named(e) == **encoding))
        };
        let existing =
            |(hint, encoding, fraction): (&String, &String, f64)| existing(hint, encoding, fraction);
        parts.chain(sets).filter(tried).filter_map(existing).collect()
    }
}

/// What is stored at a hint, in the planner's words.
pub(crate) fn existing(hint: &str, encoding: &str, fraction: f64) -> Option<Existing> {
    let (format, compression) = encoding.split_once('/')?;
    let (format, compression) = (format.to_string(), compression.to_string());
    Some(Existing { hint: hint.to_string(), format, compression, fraction })
}

/// An encoding by its name.
pub(crate) fn named(e: &Encoding) -> String {
    format!("{}/{}", e.format, e.compression)
}

/// The stages as the planner wants them: costs per source row, hints left out.
pub(crate) fn stages(sums: &[v1::StageStats], dataset: &Dataset) -> Vec<Stage> {
    let mut out: Vec<Stage> = Vec::new();
    // Rows that go into the next stage, and their bytes, per source row.
    let (mut rows, mut bytes) = (1.0, 0.0);
    let counts = |s: &&v1::StageStats| !s.name.ends_with(HINT) && (s.name != "output" || s.cpu_s > 0.0);
    let is = |sum: &v1::StageStats, kinds: &[&str]| {
        kinds.iter().any(|kind| sum.name.rsplit_once('.').is_some_and(|(_, name)| name == *kind))
    };
    for (i, sum) in sums.iter().filter(counts).enumerate() {
        let mixes = is(sum, &MIXING);
        let input = if i == 0 { sum.rows_out } else { sum.rows_in };
        let per_row = |total: f64| if input == 0 { 0.0 } else { total / input as f64 * rows };
        // What such a stage holds back comes out in the end.
        let ratio = if i == 0 || input == 0 || mixes { 1.0 } else { sum.rows_out as f64 / input as f64 };
        // Stages that only pass rows on count nothing.
        let out_bytes = match (sum.rows_out, mixes) {
            (0, _) => bytes,
            (out, true) => sum.bytes_out as f64 / out as f64 * rows,
            (_, false) => per_row(sum.bytes_out as f64),
        };
        out.push(Stage {
            name: sum.name.clone(),
            io_bytes_per_row: if i == 0 { out_bytes } else { 0.0 },
            cpu_s_per_row: per_row(sum.cpu_s),
            service_s_per_row: per_row(sum.busy_s.max(sum.cpu_s)),
            max_parallelism: (mixes || is(sum, &SINGLE)).then_some(1.0),
            out_rows_per_row: ratio,
            out_bytes_per_row: out_bytes,
            random: dataset.random_stages.contains(&sum.name),
        });
        rows *= ratio;
        bytes = out_bytes;
    }
    out
}

#[cfg(test)]
mod tests;
