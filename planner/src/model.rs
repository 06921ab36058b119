//! The model: how fast each option would run, and what its horizon costs.
//!
//! A pipeline is overlapped, so its time per row is that of its slowest resource, not a sum. Everything is counted
//! in *seconds per source row*: the demand of a row on a resource divided by that resource's capacity. The
//! largest of them is the time per row, and the resource it belongs to is the bottleneck.
//!
//! Where jobs share rows ([`crate::Sharing`]), a row is one that each of these jobs gets. The stages that they have in common
//! run once for it, all others once per job. A stage with a bounded parallelism runs in each job by itself.

use std::collections::HashMap;

use crate::candidate::{Candidate, Limit, Obstacle, SnapshotOption, TimePerRow};
use crate::choice::Choice;
use crate::format;
use crate::profile::{DEFAULT_EPOCHS, DEFAULT_JOBS, Encoding, Hint, Measured, Profile};
use crate::span::Span;

/// What the rows of one epoch do, as fractions of all rows.
#[derive(Debug, Clone, Copy)]
struct Mix {
    /// Run the stages above the hint.
    computed: f64,
    /// Are read from the snapshot.
    read: f64,
    /// Are written to the snapshot.
    written: f64,
    /// Of those that are read, come from the workers' memory.
    near: f64,
}

/// Fractions of the rows that differ by less are the same option.
const EQUAL_FRACTION_TOLERANCE: f64 = 0.1;

/// The range of times per row, in seconds. Times outside it count as its ends; within it, nothing over- or underflows.
const TIME_PER_ROW_RANGE_S: (f64, f64) = (1e-12, 1e100);

/// Every option of a profile, evaluated.
///
/// Prefix sums over the stages make an option a constant amount of work, whatever the pipeline's length.
///
/// ```
/// # let text = include_str!("../../tests/golden_plans/design-example.profile.json");
/// use caju_planner::{Limit, Model, Profile};
/// let profile = Profile::from_json(text)?;
/// let model = Model::new(&profile);
/// let compute = &model.candidates()[0];
/// assert_eq!(compute.stored, None);
/// assert_eq!(compute.steady.limit, Limit::SourceStore);
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug)]
pub struct Model<'a> {
    profile: &'a Profile,
    /// Of the first `i` stages, and of all from the `i`-th on.
    prefix: Vec<Span>,
    suffix: Vec<Span>,
    /// Rows after the first `i` stages, per source row.
    multiplicity: Vec<f64>,
    /// Stages above each hint, by its position in the profile.
    above: Vec<usize>,
    /// Positions of the hints in the order of the pipeline.
    hints: Vec<usize>,
    /// Positions of the random stages.
    random: Vec<usize>,
    /// The number of first stages that run once for all jobs that share rows.
    shared: usize,
    /// The jobs that share rows.
    sharers: f64,
    candidates: Vec<Candidate>,
    /// How many times longer options that ran took than predicted, at worst; none while that is computed.
    worst_overrun: Option<f64>,
    visits: u64,
}

impl<'a> Model<'a> {
    /// Evaluates every option. The profile must be valid (see [`Profile::validate`]); the numbers of an
    /// invalid one mean nothing.
    pub fn new(profile: &'a Profile) -> Self {
        let n = profile.stages.len();
        let above = stages_above(profile);
        let mut hints: Vec<usize> = (0..above.len()).collect();
        hints.sort_by_key(|&h| above[h]);
        let mut model = Self {
            profile,
            prefix: vec![Span::default(); n + 1],
            suffix: vec![Span::default(); n + 1],
            multiplicity: vec![1.0; n + 1],
            above,
            hints,
            random: (0..n).filter(|&i| profile.stages[i].random).collect(),
            shared: profile.sharing.as_ref().map_or(0, |s| stages_up_to(profile, &s.after_stage)),
            sharers: sharers(profile),
            candidates: Vec::new(),
            worst_overrun: None,
            visits: 0,
        };
        model.sum_up();
        // First as predicted; then, if options ran, corrected by how wrong their predictions were.
        model.evaluate();
        if !profile.observed.is_empty() {
            model.worst_overrun = Some(model.worst_overrun());
            model.candidates.clear();
            model.evaluate();
        }
        model
    }

    /// The options: computing first, then by hint in the order of the pipeline, then by encoding. Of a
    /// partly stored snapshot the option that only reads it comes before the one that completes it.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The profile.
    pub fn profile(&self) -> &'a Profile {
        self.profile
    }

    /// Positions of the hints in [`Profile::hints`], in the order of the pipeline.
    pub fn hints(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.hints.iter().copied()
    }

    /// Epochs left in the whole horizon: epochs times jobs.
    #[expect(clippy::cast_precision_loss, reason = "counts of epochs are far below 2^53")]
    pub fn epochs(&self) -> f64 {
        let h = &self.profile.horizon;
        h.epochs.unwrap_or(DEFAULT_EPOCHS) as f64 * h.jobs.unwrap_or(DEFAULT_JOBS) as f64
    }

    /// Source rows of one epoch.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn rows(&self) -> f64 {
        self.profile.source.rows as f64
    }

    /// How often an epoch reads each row.
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    fn readings(&self) -> f64 {
        self.profile.source.readings.unwrap_or(1).max(1) as f64
    }

    /// The names of the random stages above a hint, whose draws a snapshot would freeze.
    pub fn random_above(&self, hint: usize) -> impl ExactSizeIterator<Item = &'a str> + '_ {
        let above = self.above(hint);
        let random = &self.random[..self.random.partition_point(|&i| i < above)];
        random.iter().map(|&i| self.profile.stages[i].name.as_str())
    }

    /// The number of stages above a hint.
    pub fn above(&self, hint: usize) -> usize {
        self.above.get(hint).copied().unwrap_or(0)
    }

    /// How many stages and options were evaluated, to compare the work with the size of the profile.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Per source row, the times of the stages below a hint one after the other (all of them for `None`),
    /// each at its own parallelism. A sum where a pipeline overlaps: only the policy `cachew` wants it.
    pub fn summed_s_below(&self, hint: Option<usize>) -> f64 {
        self.suffix[hint.map_or(0, |h| self.above(h))].summed_s
    }

    /// The size of one element at a hint, and how many there are per source row.
    pub fn element_at(&self, hint: usize) -> (f64, f64) {
        let above = self.above(hint);
        let rows = self.multiplicity[above];
        let bytes = above.checked_sub(1).map_or(0.0, |i| self.profile.stages[i].out_bytes_per_row);
        (if rows > 0.0 { bytes / rows } else { 0.0 }, rows)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
    fn workers(&self) -> f64 {
        self.profile.cluster.workers as f64
    }

    /// How often the stage with this position runs per row.
    fn times(&self, stage: usize) -> f64 {
        if stage < self.shared { 1.0 } else { self.sharers }
    }

    fn sum_up(&mut self) {
        let cluster = (self.workers(), self.profile.cluster.cores_per_worker);
        let stages = &self.profile.stages;
        for (i, s) in stages.iter().enumerate() {
            self.prefix[i + 1] = self.prefix[i].and(i, s, cluster, self.times(i));
            self.multiplicity[i + 1] = (self.multiplicity[i] * s.out_rows_per_row).clamp(0.0, 1e30);
        }
        for (i, s) in stages.iter().enumerate().rev() {
            self.suffix[i] = self.suffix[i + 1].and(i, s, cluster, self.times(i));
        }
        self.visits += 2 * stages.len() as u64;
    }

    fn evaluate(&mut self) {
        let compute = self.time_per_row(0, None, Mix { computed: 1.0, read: 0.0, written: 0.0, near: 0.0 });
        self.push(None, compute, compute, 0.0, None);
        let existing: HashMap<(&str, &str, &str), f64> = (self.profile.existing.iter())
            .map(|x| ((x.hint.as_str(), x.format.as_str(), x.compression.as_str()), x.fraction))
            .collect();
        for hint in self.hints.clone() {
            let above = self.above(hint);
            let h = &self.profile.hints[hint];
            for (i, e) in h.encodings.iter().enumerate() {
                let key = (h.name.as_str(), e.format.as_str(), e.compression.as_str());
                let stored = existing.get(&key).copied().unwrap_or(0.0);
                self.evaluate_encoding((hint, i, above), h, e, stored);
            }
        }
    }

    /// The options of one encoding: read what is stored, and store all that the budget holds.
    fn evaluate_encoding(&mut self, at: (usize, usize, usize), h: &Hint, e: &Encoding, existing: f64) {
        let (hint, encoding, above) = at;
        let readings = self.readings();
        let whole = e.bytes_per_row * self.rows() / readings;
        let fits = fraction_that_fits(whole, self.profile.budget.snapshot_bytes);
        let option = |fraction, existing| Some(SnapshotOption { hint, encoding, fraction, existing });
        if fits <= 0.0 || (fits < 1.0 && !h.split_local) {
            let obstacle = if fits <= 0.0 { Obstacle::NoBudget } else { Obstacle::NotWhole };
            let steady =
                self.time_per_row(above, Some(e), Mix { computed: 0.0, read: 1.0, written: 0.0, near: 0.0 });
            return self.push(option(1.0, existing), steady, steady, whole, Some(obstacle));
        }
        // A set is read completely or not at all, so a fraction of it cannot be used. Parts beyond the budget are evicted.
        let existing = if h.split_local || existing >= 1.0 { existing.min(fits) } else { 0.0 };
        if existing > 0.0 {
            let near = self.near(existing * whole);
            let mix = Mix { computed: 1.0 - existing, read: existing, written: 0.0, near };
            let steady = self.time_per_row(above, Some(e), mix);
            self.push(option(existing, existing), steady, steady, existing * whole, None);
        }
        if fits > existing {
            let missing = fits - existing;
            let near = self.near(fits * whole);
            let mix = Mix { computed: 1.0 - fits, read: fits, written: 0.0, near };
            let steady = self.time_per_row(above, Some(e), mix);
            let written = missing / readings;
            let mix = Mix { computed: 1.0 - existing, read: existing, written, near: 0.0 };
            let first = self.time_per_row(above, Some(e), mix);
            self.push(option(fits, existing), steady, first, fits * whole, None);
        }
    }

    /// The fraction of the given stored bytes that workers find in their memory, averaged over the epochs that read them. A
    /// worker caches a part of what it has read, and gets other splits in each epoch. In the first epoch nothing is cached
    /// yet.
    fn near(&self, stored: f64) -> f64 {
        let kept = self.profile.cache_store.memory_bytes_per_worker.filter(|_| stored > 0.0);
        let Some(kept) = kept else { return 0.0 };
        let (epochs, elsewhere) = ((self.epochs() - 1.0).max(1.0), 1.0 - 1.0 / self.workers());
        let read_before = 1.0 - (1.0 - elsewhere.powf(epochs)) / (epochs * (1.0 - elsewhere));
        read_before.min(kept / stored).clamp(0.0, 1.0)
    }

    /// The rate that an option had in epochs that ran.
    fn observed(&self, stored: Option<SnapshotOption>) -> Option<f64> {
        if self.profile.observed.is_empty() {
            return None;
        }
        let choice = self.choice(stored);
        let ran =
            |m: &Measured| m.choice.apart(&choice).is_some_and(|apart| apart < EQUAL_FRACTION_TOLERANCE);
        self.profile.observed.iter().rev().find(|m| ran(m)).map(|m| m.rows_per_s)
    }

    /// What a candidate is called in a decision.
    pub(crate) fn choice(&self, stored: Option<SnapshotOption>) -> Choice {
        let Some(s) = stored else { return Choice::Compute };
        let hint = &self.profile.hints[s.hint];
        let e = &hint.encodings[s.encoding];
        Choice::Materialize {
            hint: hint.name.clone(),
            format: e.format.clone(),
            compression: e.compression.clone(),
            fraction: s.fraction,
        }
    }

    fn worst_overrun(&self) -> f64 {
        let longer = |c: &Candidate| Some(c.predicted_times(self.observed(c.stored)?));
        self.candidates.iter().filter_map(longer).fold(1.0, f64::max)
    }

    /// The times per row of an option as far as experience corrects them.
    fn experienced(
        &self,
        stored: Option<SnapshotOption>,
        steady: TimePerRow,
        first: TimePerRow,
    ) -> (TimePerRow, TimePerRow) {
        let Some(worst_overrun) = self.worst_overrun else { return (steady, first) };
        let writes = stored.is_some_and(|s| s.fraction > s.existing);
        // Nobody has seen the epoch that writes either.
        let longer = |t: TimePerRow| (t.s_per_row * worst_overrun).min(TIME_PER_ROW_RANGE_S.1);
        let steady = match (self.observed(stored), stored) {
            (Some(rate), _) => {
                TimePerRow { s_per_row: (1.0 / rate).min(TIME_PER_ROW_RANGE_S.1), observed: true, ..steady }
            }
            (None, Some(_)) => TimePerRow { s_per_row: longer(steady), ..steady },
            (None, None) => steady,
        };
        let first = TimePerRow { s_per_row: longer(first), ..first };
        (steady, if writes { first } else { steady })
    }

    fn push(
        &mut self,
        stored: Option<SnapshotOption>,
        steady: TimePerRow,
        first: TimePerRow,
        bytes: f64,
        bar: Option<Obstacle>,
    ) {
        let (steady, first) = self.experienced(stored, steady, first);
        let epochs = self.epochs();
        let per_row = if epochs < 1.0 { 0.0 } else { first.s_per_row + (epochs - 1.0) * steady.s_per_row };
        let horizon_s = format::nine_digits(self.rows() * per_row);
        self.visits += 1;
        self.candidates.push(Candidate {
            stored,
            steady,
            first,
            horizon_s,
            snapshot_bytes: format::to_u64(bytes),
            obstacle: bar,
        });
    }

    /// The largest demand over capacity when the stages from `above` on run for every row, those above it
    /// only for the computed fraction.
    fn time_per_row(&self, above: usize, encoding: Option<&Encoding>, mix: Mix) -> TimePerRow {
        let p = self.profile;
        let (up, down) = (&self.prefix[above], &self.suffix[above]);
        let per = |demand: f64, capacity: Option<f64>| capacity.map_or(0.0, |c| demand / c);
        let (bytes, encode, decode) = encoding
            .map_or((0.0, 0.0, 0.0), |e| (e.bytes_per_row, e.encode_cpu_s_per_row, e.decode_cpu_s_per_row));

        // Rows of a part are decoded once for all jobs if they share rows further down. One job writes a part for all.
        let read = mix.read * self.times(above);
        let cpu = mix.computed * up.cpu_s + down.cpu_s + read * decode + mix.written * encode;
        let stall = if mix.computed * up.stall_s > down.stall_s {
            (mix.computed * up.stall_s, up.stall_stage)
        } else {
            (down.stall_s, down.stall_stage)
        };
        let io = mix.computed * up.io_bytes + down.io_bytes;
        let cache = per(read * (1.0 - mix.near) * bytes, p.cache_store.read_bytes_per_s)
            .max(per(mix.written * bytes, p.cache_store.write_bytes_per_s));
        let delivered = p.stages.last().map_or(0.0, |s| s.out_bytes_per_row);
        let network = p.cluster.network_bytes_per_s_per_worker.map(|b| b * self.workers());
        let rows = self.multiplicity[p.stages.len()];

        let mut time_per_row = TimePerRow {
            s_per_row: cpu / (self.workers() * p.cluster.cores_per_worker),
            limit: Limit::Cores,
            next: Limit::Consumer,
            next_s_per_row: 0.0,
            observed: false,
        };
        for (s_per_row, limit) in [
            (stall.0, Limit::Stage(stall.1)),
            (per(io, p.source_store.read_bytes_per_s), Limit::SourceStore),
            (cache, Limit::CacheStore),
            (per(delivered * self.sharers, network), Limit::Network),
            (per(rows, p.consumer.rows_per_s), Limit::Consumer),
            // Where no limit was measured, the consumer is the limit.
            (TIME_PER_ROW_RANGE_S.0, Limit::Consumer),
        ] {
            if s_per_row > time_per_row.s_per_row {
                let (next, next_s_per_row) = (time_per_row.limit, time_per_row.s_per_row);
                time_per_row = TimePerRow { s_per_row, limit, next, next_s_per_row, observed: false };
            } else if s_per_row > time_per_row.next_s_per_row {
                (time_per_row.next, time_per_row.next_s_per_row) = (limit, s_per_row);
            }
        }
        time_per_row.s_per_row = time_per_row.s_per_row.min(TIME_PER_ROW_RANGE_S.1);
        time_per_row
    }
}

/// Stages above each hint.
fn stages_above(profile: &Profile) -> Vec<usize> {
    let stages: HashMap<&str, usize> =
        profile.stages.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    profile.hints.iter().map(|h| stages.get(h.after_stage.as_str()).map_or(0, |i| i + 1)).collect()
}

/// The number of stages up to the one with this name; 0 if there is none.
fn stages_up_to(profile: &Profile, name: &str) -> usize {
    profile.stages.iter().position(|s| s.name == name).map_or(0, |at| at + 1)
}

/// The jobs that share rows; 1 without sharing.
#[expect(clippy::cast_precision_loss, reason = "counts of jobs are far below 2^53")]
pub(crate) fn sharers(profile: &Profile) -> f64 {
    profile.sharing.as_ref().map_or(1.0, |s| s.jobs as f64)
}

/// The fraction of a snapshot that a budget holds, rounded down to billionths, so that its bytes stay
/// within the budget.
fn fraction_that_fits(whole_bytes: f64, budget: Option<f64>) -> f64 {
    match budget {
        Some(b) if whole_bytes > b => (b / whole_bytes * 1e9).floor() / 1e9,
        _ => 1.0,
    }
}
