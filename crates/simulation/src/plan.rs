//! What a run does, drawn from its seed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::counting::Counting;
use crate::faults::Fault;
use crate::pipe::Quality;
use crate::random::Random;
use crate::sharing::Sharing;

/// Rows of a split: the least that a `range` makes.
pub(crate) const SPLIT_ROWS: u64 = 1024;
/// Rows in the buffer of a `shuffle`.
const SHUFFLE_ROWS: u64 = 500;
/// Bytes of a row: two columns of 64-bit integers, and where jobs share two more columns.
const ROW_BYTES: u64 = 16;
const SHARED_ROW_BYTES: u64 = 32;
/// Bytes of a row that one more column belongs to, whose expression fails for bad rows.
const COUNTED_ROW_BYTES: u64 = 24;
/// Bytes of a row with a list of at most 13 integers.
const LIST_ROW_BYTES: u64 = 136;
/// The most items of the list of a row that is read in rounds.
pub(crate) const MAX_ITEMS: u64 = 13;
/// The first lengths of the classes of rows that are read in rounds, but for the first class.
const CLASSES: [i64; 2] = [4, 8];
/// Rows from which boundaries of classes are learnt.
const LEARNING_ROWS: u64 = 500;
/// Rows after which a reader's user works on them for a while.
pub(crate) const ROWS_PER_PAUSE: usize = 64;
/// How long the dispatcher waits for a worker that does not report.
pub(crate) const WORKER_TIMEOUT: Duration = Duration::from_secs(3);

/// The length of a row that is read in rounds, as an expression.
const LENGTH: &str = "id * 7919 % 13";

/// How rows are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Every row is computed.
    Compute,
    /// Rows are stored in the first epoch and read in the second one.
    PutGet,
}

/// Who gets which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Division {
    /// Splits are leased; readers share elements as they come.
    Dynamic,
    /// Each worker of a list has a shard of the rows.
    ByRow,
    /// Splits are leased; every reader gets equally many elements. With `pads` some are repeated, else some dropped.
    Consumers { pads: bool },
}

/// What runs are about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// One job with several readers.
    #[default]
    OneJob,
    /// Several jobs that share the rows they compute.
    Sharing,
    /// Consumers, most of which read in rounds. They are killed, and continue from their states.
    Rounds,
    /// One job with several readers that stand still, and a dispatcher that loses its state.
    Absences,
    /// One job whose pipeline counts rows, repeats them or skips bad ones.
    Counting,
}

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) rows: u64,
    pub(crate) workers: usize,
    pub(crate) readers: usize,
    pub(crate) caching: Caching,
    pub(crate) division: Division,
    /// Consumers get their elements in one order of rounds.
    pub(crate) is_in_rounds: bool,
    /// The rows of a round's elements are packed by their numbers of items.
    pub(crate) packs: bool,
    /// The boundaries of the classes are learnt from the first rows.
    pub(crate) learns: bool,
    /// Consumers save their states, and continue from them.
    pub(crate) saves_states: bool,
    /// Every reader stops after this number of rows, and others read on from their states.
    pub(crate) resumes_after: Option<u64>,
    /// Readers that read on say that they belong to one attempt.
    pub(crate) names_attempt: bool,
    /// Consumers say their ranks with it, as programs in Python do.
    pub(crate) names_ranks: bool,
    pub(crate) is_deterministic: bool,
    pub(crate) shuffles: bool,
    pub(crate) filters: bool,
    pub(crate) batch: Option<u64>,
    /// How long a row takes on a worker.
    pub(crate) row_us: u64,
    /// How long the user of a reader works on an element, at most.
    pub(crate) pace: Duration,
    pub(crate) batch_rows: usize,
    pub(crate) quality: Quality,
    pub(crate) buffer_bytes: usize,
    pub(crate) prefetch_bytes: usize,
    /// The reader that has a worker in its own process, which no other reader reads.
    pub(crate) colocated: Option<usize>,
    /// Stages that count rows, repeat them or skip bad ones.
    pub(crate) counting: Option<Counting>,
    /// The jobs that share rows; none: all readers belong to one job.
    pub(crate) sharing: Option<Sharing>,
    /// Faults, with the time of each since the beginning of the first epoch.
    pub(crate) faults: Vec<(Duration, Fault)>,
}

impl Plan {
    /// The plan of a seed.
    pub(crate) fn of(seed: u64, scenario: Scenario) -> Self {
        let shares = scenario == Scenario::Sharing;
        let is_of_consumers = scenario == Scenario::Rounds;
        let purpose = match scenario {
            Scenario::OneJob => 10,
            Scenario::Sharing => 11,
            Scenario::Rounds => 12,
            Scenario::Absences => 13,
            Scenario::Counting => 14,
        };
        let mut r = Random::new(seed, purpose);
        let workers = usize::try_from(r.between(1, 5)).unwrap_or(1);
        let readers = usize::try_from(r.between(if is_of_consumers { 2 } else { 1 }, 5)).unwrap_or(1);
        let splits = r.between(3, if shares { 12 } else { 21 });
        let division = match r.between(0, 10) {
            _ if shares || scenario == Scenario::Counting => Division::Dynamic,
            _ if is_of_consumers => Division::Consumers { pads: r.permille(500) },
            0 => Division::ByRow,
            1 => Division::Consumers { pads: r.permille(500) },
            _ => Division::Dynamic,
        };
        let is_dynamic = division == Division::Dynamic;
        let caching = if r.permille(250) && (is_dynamic || is_of_consumers) {
            Caching::PutGet
        } else {
            Caching::Compute
        };
        let resumes = r.permille(150) && is_dynamic && caching == Caching::Compute;
        let mut plan = Self {
            rows: splits * SPLIT_ROWS - r.between(0, SPLIT_ROWS),
            workers,
            readers,
            caching,
            division,
            // Not drawn, so that what is drawn for a seed stays.
            is_in_rounds: matches!(division, Division::Consumers { .. })
                && if is_of_consumers { !seed.is_multiple_of(6) } else { seed % 2 == 1 },
            packs: is_of_consumers && seed % 3 == 1,
            learns: is_of_consumers && matches!(seed % 12, 5 | 8),
            saves_states: is_of_consumers,
            resumes_after: resumes.then(|| r.between(1, splits * SPLIT_ROWS)),
            // A reader with a worker of its own, or one that takes rows of another job, may read all that is left before the other
            // one comes: then only an attempt says that they belong together (`docs/guarantees.md`).
            names_attempt: is_of_consumers
                || scenario == Scenario::Counting
                || resumes && ((seed / 2).is_multiple_of(2) || seed % 5 == 2 || shares),
            names_ranks: is_of_consumers && seed % 2 == 1,
            // Not drawn for consumers, so that what is drawn for a seed stays.
            is_deterministic: r.permille(150) && is_dynamic || is_of_consumers && seed % 7 == 3,
            shuffles: r.permille(250),
            filters: r.permille(250),
            batch: (r.permille(800) || !is_dynamic).then(|| r.between(8, 200)),
            row_us: r.pick(&[0, 50, 200, 500]).unwrap_or(0),
            pace: r.ms(10, 120),
            batch_rows: usize::try_from(r.between(16, 600)).unwrap_or(64),
            quality: Quality {
                delay_us: (r.between(50, 500), r.between(600, 30_000)),
                loss_permille: r.pick(&[0, 0, 5, 20]).unwrap_or(0),
            },
            buffer_bytes: usize::try_from(r.between(4 << 10, 256 << 10)).unwrap_or(64 << 10),
            prefetch_bytes: usize::try_from(r.between(4 << 10, 256 << 10)).unwrap_or(64 << 10),
            // Not drawn, so that what is drawn for a seed stays.
            colocated: (is_dynamic && !shares && seed % 5 == 2)
                .then(|| usize::try_from(seed / 5).unwrap_or(0) % readers),
            counting: None,
            sharing: None,
            faults: Vec::new(),
        };
        if shares {
            let sharing = Sharing::draw(
                &mut r,
                (plan.rows, SPLIT_ROWS),
                caching == Caching::PutGet,
                !plan.is_deterministic,
            );
            // Each job has a reader at least.
            plan.readers = sharing.jobs.len() + usize::try_from(r.between(0, 3)).unwrap_or(0);
            plan.sharing = Some(sharing);
        }
        if scenario == Scenario::Counting {
            plan.counting = Some(Counting::draw(&mut r, plan.rows));
        }
        plan.draw_faults(&mut r);
        match scenario {
            Scenario::Rounds => plan.draw_losses_of_consumers(&mut r),
            Scenario::Absences => plan.draw_absences(&mut r),
            _ => {}
        }
        if seed % 4 == 1 {
            // Not drawn, so that what is drawn for a seed stays.
            let back = Duration::from_millis(200 + seed % 1_000);
            let after = seed / 4 % (plan.readers as u64 * 2);
            plan.faults.insert(0, (Duration::ZERO, Fault::LoseOpen { after, back }));
        }
        if plan.learns {
            // While boundaries are learnt. Not drawn either.
            let (at, back) =
                (Duration::from_millis(30 + seed % 300), Duration::from_millis(100 + seed % 2_000));
            let worker = usize::try_from(seed).unwrap_or(0) % plan.workers;
            let fault = match seed % 12 {
                5 => Fault::KillWorker { worker, is_silent: seed % 24 == 5, back },
                _ => Fault::KillDispatcher { back },
            };
            plan.faults.push((at, fault));
            plan.faults.sort_by_key(|(at, _)| *at);
        }
        plan
    }

    /// Whether some fault is of a kind.
    pub(crate) fn has(&self, kind: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(|(_, fault)| kind(fault))
    }

    /// Whether the dispatcher loses its state.
    pub(crate) fn loses_state(&self) -> bool {
        self.has(|f| matches!(f, Fault::LoseState { .. }))
    }

    /// Whether a reader stands still for so long that the dispatcher expels it.
    pub(crate) fn expels(&self, reader: usize) -> bool {
        self.has(|f| f.expels_reader() && matches!(f, Fault::PauseReader { reader: of, .. } if *of == reader))
    }

    /// About how long an epoch lasts without faults, in milliseconds.
    pub(crate) fn expected_ms(&self) -> u64 {
        let (workers, readers) = (self.workers as u64, self.readers as u64);
        let rows = match self.counting {
            Some(_) => self.expected().into_values().map(u64::from).sum(),
            None => self.rows,
        };
        let computing = rows * self.row_us / 1000 / workers;
        let pace = u64::try_from(self.pace.as_millis()).unwrap_or(0);
        let taking = rows / ROWS_PER_PAUSE as u64 * pace / 2 / readers;
        computing.max(taking) + 200
    }

    /// The pipeline of a reader.
    pub(crate) fn definition(&self, reader: usize) -> Value {
        let mut steps = vec![json!({ "with_columns": { "x": "id * 3 + 1" } })];
        if self.filters {
            steps.push(json!({ "filter": "id % 3 <> 0" }));
        }
        if let Some(counting) = &self.counting {
            steps.extend(counting.fallible_step());
        }
        if self.caching == Caching::PutGet {
            steps.push(json!({ "autocache": "stored" }));
        }
        if let Some(counting) = &self.counting {
            steps.extend(counting.steps());
        }
        if self.row_us > 0 {
            steps.push(json!({ "sleep": { "per_row": format!("{}us", self.row_us) } }));
        }
        match &self.sharing {
            Some(sharing) => steps.extend(sharing.steps_of(reader, self.shuffle())),
            None if self.is_in_rounds => {
                steps
                    .push(json!({ "with_columns": { "tokens": format!("array_repeat(id, {LENGTH} + 1)") } }));
                steps.extend(self.shuffle());
                let size = self.batch.unwrap_or(1);
                let boundaries = match self.learns {
                    true => json!({ "quantiles": CLASSES.len() + 1, "rows": LEARNING_ROWS }),
                    false => json!(CLASSES),
                };
                steps.push(match self.packs {
                    true => json!({ "batch": size }),
                    false => json!({ "bucket_by_length": {
                        "length": LENGTH, "boundaries": boundaries, "batch_sizes": size, "pad": true,
                    } }),
                });
            }
            None => {
                steps.extend(self.shuffle());
                steps.extend(self.batch.map(|size| json!({ "batch": size })));
            }
        }
        let mut definition = json!({ "source": { "range": self.rows }, "steps": steps, "deterministic": self.is_deterministic });
        if let Some(on_error) = self.counting.as_ref().and_then(Counting::on_error) {
            definition["on_error"] = on_error;
        }
        definition
    }

    /// The `shuffle` stage, if there is one.
    fn shuffle(&self) -> Option<Value> {
        self.shuffles.then(|| json!({ "shuffle": { "buffer": SHUFFLE_ROWS, "seed": 7 } }))
    }

    /// When a reader begins, and how long its user works on an element at most.
    pub(crate) fn times_of(&self, reader: usize) -> (Duration, Duration) {
        self.sharing.as_ref().map_or((Duration::ZERO, self.pace), |sharing| sharing.times_of(reader))
    }

    /// Whether two readers belong to one job.
    pub(crate) fn are_of_one_job(&self, one: usize, other: usize) -> bool {
        self.sharing.as_ref().is_none_or(|sharing| sharing.job_of(one) == sharing.job_of(other))
    }

    /// Whether the job of a reader skips rows that have left the window.
    pub(crate) fn is_relaxed(&self, reader: usize) -> bool {
        self.sharing.as_ref().and_then(|sharing| sharing.of(reader)).is_some_and(|job| job.is_relaxed)
    }

    /// The number of jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.sharing.as_ref().map_or(1, |sharing| sharing.jobs.len())
    }

    /// The most tasks of an epoch: workers that are lost and come again have others.
    pub(crate) fn most_tasks(&self) -> usize {
        let more = |f: &&(Duration, Fault)| {
            f.1.may_lose_a_worker() || matches!(f.1, Fault::AddWorker | Fault::LoseState { .. })
        };
        self.workers + self.faults.iter().filter(more).count()
    }

    /// The number of classes of elements. The last elements, of rows that fill no batch of one worker, are of no class: they count as
    /// one more.
    pub(crate) fn classes(&self) -> usize {
        if self.is_in_rounds && !self.packs { CLASSES.len() + 2 } else { 1 }
    }

    /// The class of lengths of a row that is read in rounds. Of classes whose boundaries are learnt the lengths of padded lists are
    /// compared alone.
    pub(crate) fn class_of(&self, id: i64) -> usize {
        if self.learns { 0 } else { CLASSES.partition_point(|first| *first <= id * 7919 % 13) }
    }

    /// The values of `id` that the readers of an epoch get, with how often they get them.
    pub(crate) fn expected(&self) -> BTreeMap<i64, u32> {
        let ids = (0..i64::try_from(self.rows).unwrap_or(0)).filter(|id| !self.filters || id % 3 != 0);
        match &self.counting {
            Some(counting) => counting.expected(&ids.collect::<Vec<_>>()),
            None => ids.map(|id| (id, 1)).collect(),
        }
    }

    /// The most bytes that wait in one task of a worker: its buffer, and the chunk that was computed when there was space
    /// in it. How large a chunk is shows only when it is computed.
    pub(crate) fn max_task_bytes(&self) -> usize {
        let row_bytes = match &self.sharing {
            Some(_) => SHARED_ROW_BYTES,
            None if self.counting.is_some() => COUNTED_ROW_BYTES,
            None if self.is_in_rounds => LIST_ROW_BYTES,
            None => ROW_BYTES,
        };
        let rows = self.max_chunk_rows() + self.packed_rows();
        self.buffer_bytes + usize::try_from(rows * row_bytes).unwrap_or(usize::MAX)
    }

    /// Rows that wait until eight rounds are there, which are packed together.
    fn packed_rows(&self) -> u64 {
        if self.packs { 8 * self.readers as u64 * self.batch.unwrap_or(1) } else { 0 }
    }

    /// Rows of the largest chunk. Batches of the engine grow from `batch_rows` to eight times that where rows cost little, so
    /// a chunk may have all rows of a split. A `shuffle` empties its buffer in one chunk, and a `batch` joins chunks.
    fn max_chunk_rows(&self) -> u64 {
        let shuffled = if self.shuffles { SHUFFLE_ROWS } else { 0 };
        SPLIT_ROWS.max(shuffled).max(self.batch.unwrap_or(1))
    }

    pub(crate) fn epochs(&self) -> u64 {
        if self.caching == Caching::PutGet { 2 } else { 1 }
    }

    /// The number of the worker in the process of a reader.
    pub(crate) fn colocated_worker(&self) -> Option<usize> {
        self.colocated.map(|_| self.workers)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows, {} workers, {} readers", self.rows, self.workers, self.readers)?;
        if self.caching == Caching::PutGet {
            f.write_str(", put and get")?;
        }
        if self.division != Division::Dynamic {
            write!(f, ", {:?}", self.division)?;
        }
        let resumes = self.resumes_after.is_some();
        for (says, word) in [
            (self.is_deterministic, "deterministic"),
            (self.shuffles, "shuffle"),
            (self.filters, "filter"),
            (resumes, "resumes"),
            (self.is_in_rounds, "in rounds"),
            (self.packs, "packed"),
            (self.learns, "learnt boundaries"),
        ] {
            if says {
                write!(f, ", {word}")?;
            }
        }
        if let Some(reader) = self.colocated {
            write!(f, ", reader-{reader} has a worker of its own")?;
        }
        if let Some(counting) = &self.counting {
            write!(f, "{counting}")?;
        }
        if let Some(sharing) = &self.sharing {
            write!(f, ", sharing: {sharing}")?;
        }
        for (at, fault) in &self.faults {
            write!(f, "; {} ms: {fault:?}", at.as_millis())?;
        }
        Ok(())
    }
}
