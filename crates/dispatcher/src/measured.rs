//! From what tasks measured to the planner's profile. Pure.

use caju_planner::{
    Budget, CacheStore, Cluster, Consumer, Encoding, Existing, Hint, Horizon, Profile, Source, SourceStore,
    Stage,
};
use caju_proto::v1;

use crate::state::{Dataset, Watch};

/// What is known of an iteration when somebody asks for a decision.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    /// One per task that was asked to profile, its latest word.
    pub(crate) tasks: Vec<v1::TaskProfile>,
    /// Workers that run such tasks.
    pub(crate) workers: u64,
    /// Splits that were handed out.
    pub(crate) splits_leased: u64,
    /// Splits in all; 0 while the listing goes on.
    pub(crate) splits_total: u64,
    /// *Delivered* rows per second that the clients would take, where they let it be seen.
    pub(crate) demand: Option<f64>,
    /// Epochs left, this one included.
    pub(crate) epochs: Option<u64>,
    /// Bytes that the cache may hold.
    pub(crate) budget: Option<u64>,
}

/// How tasks name the stage figures of hints.
const HINT: &str = ".autocache";

impl Measured {
    /// Wall time of the task that runs longest, in seconds.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.tasks.iter().map(|t| t.elapsed_s).fold(0.0, f64::max)
    }

    /// Rows that left the source.
    pub(crate) fn rows(&self) -> u64 {
        self.tasks.iter().filter_map(|t| t.stages.first()).map(|s| s.rows_out).sum()
    }

    /// The rate at which computing delivered rows so far, as [`Watch`] counts it; none where it cannot be told.
    pub(crate) fn delivered(&self) -> Option<u64> {
        if self.tasks.iter().any(|t| t.read > 0) {
            return None;
        }
        let rows: u64 = self.tasks.iter().filter_map(|t| t.stages.last()).map(|s| s.rows_out).sum();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, not negative")]
        let ms = (self.elapsed_s() * 1000.0) as u64;
        (rows > 0 && ms > 0).then(|| Watch::rate(rows, ms))
    }

    /// Whether every candidate encoding was tried.
    pub(crate) fn complete(&self) -> bool {
        self.tasks.iter().any(|t| t.complete)
    }

    /// Whether there is enough to weigh options by: every hint was probed, and existing parts were looked for.
    pub(crate) fn is_enough(&self, dataset: &Dataset) -> bool {
        let probed = |hint: &crate::state::Hint| {
            self.tasks.iter().any(|t| t.probes.iter().any(|p| p.hint == hint.name))
        };
        self.rows() > 0
            && self.tasks.iter().any(|t| t.looked)
            && dataset.hints.iter().filter(|h| h.behind.is_none()).all(probed)
    }

    /// The planner's profile.
    pub(crate) fn profile(&self, dataset: &Dataset) -> Profile {
        let sums = self.stages();
        let stages = stages(&sums, dataset);
        let mut hints = self.hints(&sums, &stages, dataset);
        let existing = self.existing(&hints);
        // Parts are read as they are: where a hint has some, their encoding is the hint's.
        for hint in &mut hints {
            if let Some(there) = existing.iter().find(|e| e.hint == hint.name) {
                hint.encodings.retain(|e| e.format == there.format && e.compression == there.compression);
            }
        }
        let rate = |f: fn(&v1::HintProbe) -> f64| {
            let rates = self.tasks.iter().map(|t| t.probes.iter().map(f).fold(0.0, f64::max));
            let sum: f64 = rates.sum();
            (sum > 0.0).then_some(sum)
        };
        let threads: f64 = self.tasks.iter().map(|t| t.threads).sum();
        let workers = self.workers.max(1);
        Profile {
            schema: caju_planner::Schema::V1,
            cluster: Cluster {
                workers,
                cores_per_worker: (threads / workers as f64).max(0.01),
                network_bytes_per_s_per_worker: None,
            },
            source_store: SourceStore::default(),
            cache_store: CacheStore {
                read_bytes_per_s: rate(|p| p.read_bytes_per_s),
                write_bytes_per_s: rate(|p| p.write_bytes_per_s),
            },
            consumer: Consumer { rows_per_s: self.demand },
            horizon: Horizon { epochs: self.epochs, jobs: None },
            budget: Budget { snapshot_bytes: self.budget.map(|b| b as f64) },
            source: Source { rows: self.source_rows() },
            existing,
            stages,
            hints,
            measured: Vec::new(),
        }
    }

    /// Rows of one epoch: exact if everything was handed out, else by the share of splits that was.
    fn source_rows(&self) -> u64 {
        let rows = self.rows();
        let computed: u64 = self.tasks.iter().map(|t| t.computed).sum();
        if computed == 0 || self.splits_total <= computed {
            return rows;
        }
        let scaled = u128::from(rows) * u128::from(self.splits_total) / u128::from(computed);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// The figures of all tasks, stage by stage.
    fn stages(&self) -> Vec<v1::StageStats> {
        let mut sums = Vec::new();
        for task in &self.tasks {
            crate::control::add_stages(&mut sums, &task.stages);
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
        let storable = dataset.hints.iter().zip(after).filter(|(h, _)| h.behind.is_none());
        let hint = |(hint, stage): (&crate::state::Hint, usize)| {
            let rows_per_row: f64 = stages[..=stage].iter().map(|s| s.out_rows_per_row).product();
            let encodings = self.encodings(&hint.name, rows_per_row);
            Hint {
                name: hint.name.clone(),
                after_stage: stages[stage].name.clone(),
                split_local: true,
                encodings,
            }
        };
        storable.map(hint).collect()
    }

    /// The encodings that were tried at a hint, by their mean cost per source row.
    fn encodings(&self, hint: &str, rows_per_row: f64) -> Vec<Encoding> {
        let mut sums: Vec<v1::HintProbe> = Vec::new();
        for probe in self.tasks.iter().flat_map(|t| &t.probes).filter(|p| p.hint == hint && p.rows > 0) {
            match sums.iter_mut().find(|s| s.encoding == probe.encoding) {
                Some(sum) => {
                    sum.rows += probe.rows;
                    sum.bytes += probe.bytes;
                    sum.encode_cpu_s += probe.encode_cpu_s;
                    sum.decode_cpu_s += probe.decode_cpu_s;
                }
                None => sums.push(probe.clone()),
            }
        }
        let encoding = |p: v1::HintProbe| {
            let (format, compression) = p.encoding.split_once('/')?;
            let per_row = |total: f64| total / p.rows as f64 * rows_per_row;
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

    /// Snapshots that are there, as shares of the splits. All tasks see the same parts: one speaks for all.
    fn existing(&self, hints: &[Hint]) -> Vec<Existing> {
        let Some(task) = self.tasks.iter().find(|t| t.looked) else { return Vec::new() };
        let all = self.splits_total.max(self.splits_leased).max(1);
        let known = |p: &&v1::HintParts| {
            let probed = |e: &Encoding| format!("{}/{}", e.format, e.compression) == p.encoding;
            hints.iter().any(|h| h.name == p.hint && h.encodings.iter().any(probed))
        };
        let existing = |p: &v1::HintParts| {
            let (format, compression) = p.encoding.split_once('/')?;
            Some(Existing {
                hint: p.hint.clone(),
                format: format.to_string(),
                compression: compression.to_string(),
                fraction: (p.parts as f64 / all as f64).min(1.0),
            })
        };
        // The most complete one of a hint: an option is one encoding.
        let mut found: Vec<Existing> = task.parts.iter().filter(known).filter_map(existing).collect();
        found.sort_by(|a, b| a.hint.cmp(&b.hint).then(b.fraction.total_cmp(&a.fraction)));
        found.dedup_by(|a, b| a.hint == b.hint);
        found
    }
}

/// The stages as the planner wants them: costs per source row, hints left out.
fn stages(sums: &[v1::StageStats], dataset: &Dataset) -> Vec<Stage> {
    let mut out: Vec<Stage> = Vec::new();
    // Rows that go into the next stage, and their bytes, per source row.
    let (mut rows, mut bytes) = (1.0, 0.0);
    for (i, sum) in sums.iter().filter(|s| !s.name.ends_with(HINT) && s.name != "output").enumerate() {
        let input = if i == 0 { sum.rows_out } else { sum.rows_in };
        let per_row = |total: f64| if input == 0 { 0.0 } else { total / input as f64 * rows };
        let ratio = if i == 0 || input == 0 { 1.0 } else { sum.rows_out as f64 / input as f64 };
        // Stages that only pass rows on count nothing.
        let out_bytes = if sum.rows_out == 0 { bytes } else { per_row(sum.bytes_out as f64) };
        let single = [".sleep", ".burn"].iter().any(|kind| sum.name.ends_with(kind));
        out.push(Stage {
            name: sum.name.clone(),
            io_bytes_per_row: if i == 0 { out_bytes } else { 0.0 },
            cpu_s_per_row: per_row(sum.cpu_s),
            service_s_per_row: per_row(sum.busy_s.max(sum.cpu_s)),
            max_parallelism: single.then_some(1.0),
            out_rows_per_row: ratio,
            out_bytes_per_row: out_bytes,
            random: dataset.random_stages.contains(&sum.name),
        });
        rows *= ratio;
        bytes = out_bytes;
    }
    out
}
