//! The profile builder: from what tasks measured to the planner's profile.

use caju_planner::{
    Budget, CacheStore, Cluster, Consumer, Existing, Hint, Horizon, Prices, Profile, Schema, Sharing, Source,
    SourceStore, Stage,
};
use caju_types::TaskId;

use crate::coverage::{CoverageState, existing, usable};
use crate::encoding::Encoding;
use crate::facts::SharingFacts;
use crate::hint::HintDef;
use crate::probes;
use crate::report::{ProbeReport, StageKind, StageReport, TaskReport, add_stages};

/// How long a decision waits for the check of the storage, in seconds of the epoch. A large cache is listed within that.
const MAX_COVERAGE_WAIT_S: f64 = 20.0;

/// What a pipeline is to the profile builder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pipeline<'a> {
    /// Its hints, from the source down.
    pub(crate) hints: &'a [HintDef],
    /// The stages whose output differs from epoch to epoch, by the names of their reports.
    pub(crate) random_stages: &'a [String],
}

/// What is known of an iteration when a decision is tried.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measurements {
    /// The latest report of each task that profiles.
    pub(crate) tasks: Vec<TaskReport>,
    /// Workers that run such tasks.
    pub(crate) workers: u64,
    /// The number of splits as far as they are counted; 0 if the listing has not begun.
    pub(crate) splits_total: u64,
    /// *Delivered* rows per second that the clients would take, where that can be inferred.
    pub(crate) demand: Option<f64>,
    /// Epochs left, this one included.
    pub(crate) epochs: Option<u64>,
    /// Jobs that are expected to read these rows, this one included.
    pub(crate) jobs: Option<u64>,
    /// The jobs that share rows with this one.
    pub(crate) sharing: Option<SharingFacts>,
    /// Bytes that the cache may hold.
    pub(crate) budget: Option<u64>,
    /// Rows of an epoch. Present where the figures are of a sample window, from which the number cannot be computed.
    pub(crate) epoch_rows: Option<u64>,
    /// Tasks that have ended: no split of theirs is half read.
    pub(crate) ended: Vec<TaskId>,
    /// The only encoding that the job may store rows in, if it names one.
    pub(crate) encoding: Option<Encoding>,
    /// What is stored already.
    pub(crate) coverage: CoverageState,
}

impl Measurements {
    /// Wall time of the task that runs longest, in seconds.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.tasks.iter().map(|t| t.elapsed_s).fold(0.0, f64::max)
    }

    /// Rows that left the source.
    pub(crate) fn rows(&self) -> u64 {
        self.tasks.iter().filter_map(|t| t.stages.first()).map(|s| s.rows_out).sum()
    }

    /// The fraction of the epoch's splits that were begun; none while the listing continues.
    pub(crate) fn fraction_begun(&self) -> Option<f64> {
        let begun: u64 = self.tasks.iter().map(|t| t.splits_computed + t.splits_read).sum();
        (self.splits_total > 0).then(|| begun as f64 / self.splits_total as f64)
    }

    /// The sample window since an earlier observation: the figures as if there had been nothing before. None if a task has
    /// reported nothing new, or no row left the source. Of each probe's repetitions the newest counts.
    pub(crate) fn window_since(&self, earlier: &Self) -> Option<Self> {
        let before = |t: &TaskReport| earlier.tasks.iter().find(|e| e.task == t.task);
        if self.tasks.iter().any(|t| before(t).is_some_and(|e| e.elapsed_s >= t.elapsed_s)) {
            return None;
        }
        let difference = |t: &TaskReport| {
            let mut t = t.clone();
            t.probes = probes::newest(&t.probes);
            let Some(e) = before(&t) else { return t };
            t.elapsed_s -= e.elapsed_s;
            t.splits_computed = t.splits_computed.saturating_sub(e.splits_computed);
            t.splits_read = t.splits_read.saturating_sub(e.splits_read);
            t.source_bytes = t.source_bytes.saturating_sub(e.source_bytes);
            t.source_s -= e.source_s;
            t.sent_bytes = t.sent_bytes.saturating_sub(e.sent_bytes);
            t.sent_s -= e.sent_s;
            for (stage, earlier) in t.stages.iter_mut().zip(&e.stages) {
                stage.subtract(earlier);
            }
            t
        };
        let tasks = self.tasks.iter().map(difference).collect();
        let window = Self { tasks, epoch_rows: Some(self.source_rows()), ..self.clone() };
        (window.rows() > 0).then_some(window)
    }

    /// Whether every candidate encoding was tried.
    pub(crate) fn all_probed(&self) -> bool {
        self.tasks.iter().any(|t| t.all_probed)
    }

    /// Whether options can be weighed at all: rows left the source, and existing parts were looked for.
    pub(crate) fn can_be_weighed(&self) -> bool {
        let covered =
            matches!(self.coverage, CoverageState::Known(_)) || self.elapsed_s() >= MAX_COVERAGE_WAIT_S;
        self.rows() > 0 && covered && self.tasks.iter().any(|t| t.checked_parts)
    }

    /// Whether every storable hint was probed, and the store was measured, too.
    pub(crate) fn is_complete(&self, hints: &[HintDef]) -> bool {
        let probed = |hint: &HintDef| self.tasks.iter().any(|t| t.probes.iter().any(|p| p.hint == hint.name));
        let measured = |t: &TaskReport| t.probes.iter().any(|p| p.read_bytes_per_s > 0.0);
        let mut hints = hints.iter().filter(|h| h.is_storable()).peekable();
        let store_measured = hints.peek().is_none() || self.tasks.iter().any(measured);
        self.can_be_weighed() && store_measured && hints.all(probed)
    }

    /// The planner's profile.
    pub(crate) fn profile(&self, pipeline: Pipeline<'_>) -> Profile {
        let sums = self.stages();
        let stages = stage_costs(&sums, pipeline.random_stages);
        let mut hints = self.hints(&sums, &stages, pipeline.hints);
        let existing = usable(self.existing(&hints), &mut hints, self.encoding);
        // Tasks that have not measured the store are taken to have as much of it as the others.
        let of_all = |f: fn(&ProbeReport) -> f64| {
            let rates: Vec<f64> =
                self.tasks.iter().filter_map(|t| probes::median_rate(&t.probes, f)).collect();
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            (!rates.is_empty()).then_some(mean * self.tasks.len() as f64)
        };
        let threads: f64 = self.tasks.iter().map(|t| t.threads).sum();
        let workers = self.workers.max(1);
        Profile {
            schema: Schema::V1,
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
            sharing: self.sharing.as_ref().and_then(|facts| sharing(facts, &hints, &stages, &sums)),
            budget: Budget { snapshot_bytes: self.budget.map(|b| b as f64) },
            prices: Prices::default(),
            source: Source { rows: self.source_rows(), readings: self.readings().filter(|n| *n > 1) },
            existing,
            stages,
            hints,
            measured: Vec::new(),
            observed: Vec::new(),
        }
    }

    /// Bytes that a worker keeps in memory: the mean.
    fn memory_tier(&self) -> Option<f64> {
        let all: u64 = self.tasks.iter().map(|t| t.memory_tier_bytes).sum();
        (all > 0).then(|| all as f64 / self.tasks.len() as f64)
    }

    /// Bytes per second that the source's store gives the whole cluster: the rate of one request times the requests that
    /// may run at once. Where reading is the bottleneck that many run, so that the rate is exact there.
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
        let CoverageState::Known(coverage) = &self.coverage else { return None };
        self.splits_total.checked_div(coverage.splits?)
    }

    /// Rows of one epoch: exact if everything was handed out, else scaled by the fraction of splits that was. Splits that
    /// are being read count as half.
    fn source_rows(&self) -> u64 {
        if let Some(rows) = self.epoch_rows {
            return rows;
        }
        let rows = self.rows();
        let computed: u64 = self.tasks.iter().map(|t| t.splits_computed).sum();
        if computed == 0 || self.splits_total <= computed {
            return rows;
        }
        let open = |t: &TaskReport| match self.ended.contains(&t.task) {
            true => 0,
            false => t.splits_computed.min(t.source_requests_at_once),
        };
        let halves = 2 * computed - self.tasks.iter().map(open).sum::<u64>();
        let scaled = u128::from(rows) * 2 * u128::from(self.splits_total) / u128::from(halves.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// The figures of all tasks, stage by stage.
    fn stages(&self) -> Vec<StageReport> {
        let mut sums = Vec::new();
        for task in &self.tasks {
            add_stages(&mut sums, &task.stages);
        }
        sums
    }

    fn hints(&self, sums: &[StageReport], stages: &[Stage], defs: &[HintDef]) -> Vec<Hint> {
        // The reports of stages contain the hints, in pipeline order. A hint would store the output of the stage before it.
        let mut after = Vec::new();
        let mut last = None;
        for sum in sums {
            if sum.kind == StageKind::Hint {
                after.extend(last);
            } else {
                last = stages.iter().position(|s| s.name == sum.name).or(last);
            }
        }
        let storable = defs.iter().zip(after).filter(|(h, _)| h.is_storable());
        let hint = |(def, stage): (&HintDef, usize)| {
            let rows_per_row: f64 = stages[..=stage].iter().map(|s| s.out_rows_per_row).product();
            let bytes_per_row = stages[stage].out_bytes_per_row;
            let encodings = probes::encodings(&self.tasks, &def.name, rows_per_row, bytes_per_row);
            Hint {
                name: def.name.clone(),
                after_stage: stages[stage].name.clone(),
                split_local: !def.is_set(),
                encodings,
            }
        };
        storable.map(hint).collect()
    }

    /// Existing snapshots whose encodings were probed.
    fn existing(&self, hints: &[Hint]) -> Vec<Existing> {
        let coverage = self.coverage.so_far();
        let parts = coverage.parts.iter().map(|p| (p.hint.as_str(), p.encoding, p.fraction));
        let sets = coverage.sets.iter().map(|s| (s.hint.as_str(), s.encoding, 1.0));
        let is_probed = |(hint, encoding, _): &(&str, Encoding, f64)| {
            let named = |h: &Hint| h.encodings.iter().any(|e| encoding.is_named(&e.format, &e.compression));
            hints.iter().any(|h| h.name == *hint && named(h))
        };
        let stored = parts.chain(sets).filter(is_probed);
        stored.map(|(hint, encoding, fraction)| existing(hint, encoding, fraction)).collect()
    }
}

/// The jobs that share rows, with the last stage of the profile that they have in common; none if there is none. Reports of an
/// epoch may name other stages than the profile, where something was pushed into the source.
pub(crate) fn sharing(
    facts: &SharingFacts,
    hints: &[Hint],
    stages: &[Stage],
    sums: &[StageReport],
) -> Option<Sharing> {
    let after_stage = match &facts.hint {
        Some(name) => hints.iter().find(|h| h.name == *name)?.after_stage.clone(),
        None => {
            let local = sums.iter().take_while(|s| !s.kind.is_cross_split() && s.kind != StageKind::Output);
            local.filter(|s| stages.iter().any(|stage| stage.name == s.name)).last()?.name.clone()
        }
    };
    Some(Sharing { jobs: facts.jobs, after_stage })
}

/// The stages as the planner wants them: costs per source row, hints left out.
pub(crate) fn stage_costs(sums: &[StageReport], random_stages: &[String]) -> Vec<Stage> {
    let mut out: Vec<Stage> = Vec::new();
    // Rows that go into the next stage, and their bytes, per source row.
    let (mut rows, mut bytes) = (1.0, 0.0);
    let costs =
        |s: &&StageReport| s.kind != StageKind::Hint && (s.kind != StageKind::Output || s.cpu_s > 0.0);
    for (i, sum) in sums.iter().filter(costs).enumerate() {
        let is_cross_split = sum.kind.is_cross_split();
        let input = if i == 0 { sum.rows_out } else { sum.rows_in };
        let per_row = |total: f64| if input == 0 { 0.0 } else { total / input as f64 * rows };
        // What a cross-split stage holds back comes out in the end.
        let ratio =
            if i == 0 || input == 0 || is_cross_split { 1.0 } else { sum.rows_out as f64 / input as f64 };
        // Stages that only pass rows on count nothing.
        let out_bytes = match (sum.rows_out, is_cross_split) {
            (0, _) => bytes,
            (out, true) => sum.bytes_out as f64 / out as f64 * rows,
            (_, false) => per_row(sum.bytes_out as f64),
        };
        out.push(Stage {
            name: sum.name.clone(),
            io_bytes_per_row: if i == 0 { out_bytes } else { 0.0 },
            cpu_s_per_row: per_row(sum.cpu_s),
            service_s_per_row: per_row(sum.busy_s.max(sum.cpu_s)),
            max_parallelism: (is_cross_split || sum.kind == StageKind::Serial).then_some(1.0),
            out_rows_per_row: ratio,
            out_bytes_per_row: out_bytes,
            random: random_stages.contains(&sum.name),
        });
        rows *= ratio;
        bytes = out_bytes;
    }
    out
}

#[cfg(test)]
mod tests;
