//! Reads epochs through a client, for `run`, `read`, `quickstart` and `bench`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use caju_client::{Balance, Client, DatasetRef, LostReaders, Monitor, ReadRequest, Reader, Sharing};
use caju_pipeline::DatasetDef;
use caju_planner::Policy;
use caju_proto::v1::{IoStats, JobStatus, TargetWorkers};
use caju_runtime::{CpuPool, IoCounters, cpu_time, peak_rss_bytes};
use caju_types::{Error, ErrorKind, Result};
use caju_wire::Chunk;
use caju_wire::checksum::RowsChecksum;
use caju_wire::{Segment, encode_chunk};
use caju_worker::Caches;
use futures::StreamExt;
use futures::stream::FuturesOrdered;

use super::announce::{Announce, DecisionAnnouncer, DecisionMoment};
use super::decision::{decision, is_undecided, policy};
use super::serve::Signals;
use super::setting::{Locations, elements};
use super::state_file::StateFile;
use super::tail::Tail;
use super::{boundaries, pipeline_file};
use crate::cli::EpochArgs;
use crate::progress::{Progress, State};
use crate::report::{EpochReport, RunReport, SharedReport, SplitsReport};

/// Checksums that are computed while the next rows are read. Each holds the rows of a chunk in memory.
const CHECKSUMS_IN_FLIGHT: usize = 4;

/// How long to wait for the workers' final reports after the last row.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The epochs of a job, and how to read them.
pub(crate) struct Epochs<'a> {
    pub(crate) client: &'a Client,
    pub(crate) def: &'a DatasetDef,
    /// The file of the definition, for errors; none if no file of the user has it.
    pub(crate) file: Option<&'a Path>,
    /// Not empty: the dispatcher forgets a job without a name with its last reader.
    pub(crate) job: String,
    pub(crate) args: &'a EpochArgs,
    pub(crate) quiet: bool,
    /// Where checksums are computed.
    pub(crate) pool: CpuPool,
    /// What is done with the rows.
    pub(crate) work: Consumer,
    /// How rows travel to it.
    pub(crate) transfer: caju_client::Transfer,
    /// Which consumer of the job this is.
    pub(crate) consumer: Option<caju_client::Consumer>,
    /// Whether the job shares computed rows with other jobs.
    pub(crate) sharing: caju_client::Sharing,
    /// The priority and the weight of the job, if they are given.
    pub(crate) precedence: (Option<i32>, Option<f64>),
    /// CPU time that this process used before the job.
    pub(crate) cpu_before: Duration,
    /// Counters of the workers of this process. Absent if the workers are elsewhere.
    pub(crate) io: Option<Meters>,
    /// What to do about rows that lost readers took.
    pub(crate) lost_readers: LostReaders,
    /// From which workers to read.
    pub(crate) target: TargetWorkers,
    /// What is done about each decision of the policy when it is made.
    pub(crate) announce: Announce,
    /// The launch that restores the state.
    pub(crate) attempt: Option<caju_client::Attempt>,
    /// The file of the reader's state.
    pub(crate) state_file: Option<StateFile<'a>>,
    pub(crate) on_signal: OnSignal,
}

/// What SIGTERM and Ctrl-C do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// What the process has set up for them.
    Default,
    /// The reader leaves its epoch: other readers of the job do not wait until it is missed.
    Leave,
    /// The only reader stops, and the epochs that it read are reported.
    Stop,
}

/// What a reader does with the rows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Consumer {
    /// Whether to copy every row, as a training job does on the way to its device. Otherwise rows are only counted.
    pub(crate) copies: bool,
    /// How long it works on each element.
    pub(crate) step: Duration,
}

/// What the workers of this process read and write, counted at the stores.
#[derive(Clone)]
pub(crate) struct Meters {
    pub(crate) source: Arc<IoCounters>,
    pub(crate) caches: Arc<Caches>,
}

impl Meters {
    fn now(&self) -> IoStats {
        let (source, cache) = (self.source.snapshot(), self.caches.io());
        IoStats {
            source_bytes_read: source.bytes_read,
            source_requests: source.reads + source.lists,
            cache_bytes_read: cache.bytes_read,
            cache_bytes_written: cache.bytes_written,
        }
    }
}

/// The result of a run, and the dispatcher's status of its last epoch.
pub(crate) struct Outcome {
    pub(crate) report: RunReport,
    pub(crate) job: Option<JobStatus>,
    pub(crate) elapsed: Duration,
    /// When the last decision was made. None if nothing was decided.
    pub(crate) decided: Option<DecisionMoment>,
    /// Why nothing was decided, under a policy that decides. None if something was, or if only the dispatcher knows.
    pub(crate) undecided: Option<String>,
    /// What the elements are called.
    pub(crate) elements: &'static str,
    /// Where the job reads and stores rows.
    pub(crate) locations: Locations,
    /// Whether the snapshots were in a private folder, which is removed after the run.
    pub(crate) private_cache: bool,
    /// Whether other text follows the summary and says where the rows are and what to do next.
    pub(crate) has_conclusion: bool,
    /// The folder of the rows that the job stored or read. None if there are none, or if the folder is not known.
    pub(crate) snapshot: Option<String>,
    /// The error of an incomplete last epoch. The report describes what is missing.
    pub(crate) failure: Option<Error>,
}

impl Epochs<'_> {
    /// Reads every epoch to its end, with progress.
    ///
    /// # Errors
    /// Those of [`Reader::next`].
    pub(crate) async fn read(self) -> Result<Outcome> {
        let start = Instant::now();
        let mut report = RunReport::new();
        let (mut job, mut failure, mut after) = (None, None, 0);
        let announcer = DecisionAnnouncer::new(self.client, &self.job, self.announce);
        // Before the first row can be asked for: a signal that comes before that has a state to write, too.
        let mut signals = (self.on_signal != OnSignal::Default).then(Signals::new).transpose()?;
        if let Some(file) = &self.state_file {
            file.check(self.client, self.def, self.args).await?;
        }
        for epoch in self.state_file.as_ref().map_or(0, StateFile::first_epoch)..self.args.epochs {
            let before = Instant::now();
            let opening = self.client.read(self.request(epoch, after));
            // With a state the epoch is opened first: there is a state to write then.
            let opened = match signals.as_mut().filter(|_| self.state_file.is_none()) {
                None => opening.await,
                Some(signals) => tokio::select! {
                    biased;
                    name = signals.next() => {
                        return Err(Error::cancelled(format!("{name}: epoch {epoch} was not opened")));
                    }
                    opened = opening => opened,
                },
            };
            let reader = match self.file {
                Some(file) => opened.map_err(pipeline_file::in_file(file))?,
                None => opened?,
            };
            if self.state_file.as_ref().is_some_and(|f| !f.states(epoch).is_empty()) {
                after = reader.iteration().0;
            }
            report.fingerprint = reader.fingerprint().to_string();
            if let Some(file) = &self.state_file {
                file.check_dataset(&report.fingerprint)?;
            }
            let expected = report.epochs.last().map(|e| e.rows);
            let (read, status, incomplete) =
                self.epoch(epoch, (reader, signals.as_mut()), before, expected, &announcer).await?;
            report.epochs.push(read);
            report.decision = status.as_ref().and_then(decision).or(report.decision);
            job = status;
            if incomplete.is_some() {
                failure = incomplete;
                break;
            }
        }
        report.boundaries = job.as_ref().map(boundaries::of_job).unwrap_or_default();
        report.not_stored = job.as_ref().and_then(|job| self.not_stored(job, &report.epochs));
        report.peak_rss_bytes = peak_rss_bytes();
        report.cpu_s = cpu_time().saturating_sub(self.cpu_before).as_secs_f64();
        let undecided = job.as_ref().and_then(|job| self.undecided(job));
        Ok(Outcome {
            report,
            job,
            elapsed: start.elapsed(),
            decided: announcer.last(),
            undecided,
            elements: elements(self.def),
            locations: Locations::of(self.def, None),
            private_cache: false,
            has_conclusion: false,
            snapshot: None,
            failure,
        })
    }

    /// Why nothing was decided, under a policy that decides. None if something was, or if only the dispatcher knows.
    fn undecided(&self, job: &JobStatus) -> Option<String> {
        if !is_undecided(job) {
            return None;
        }
        if self.def.hints().is_empty() {
            return Some("the pipeline has no `autocache`, so nothing can be stored".to_owned());
        }
        // The store of a cache that is elsewhere is not known here.
        let meters = self.io.as_ref()?;
        let why = match meters.caches.last_error() {
            Some(trouble) => format!("nothing could be stored: {}", trouble.message()),
            None => "the epochs ended before enough was measured, so nothing is stored".to_owned(),
        };
        Some(why)
    }

    /// Why nothing was stored, under a policy that names what to store.
    fn not_stored(&self, job: &JobStatus, epochs: &[EpochReport]) -> Option<String> {
        let decides = policy(job).is_none_or(|p| p == Policy::Compute || p.is_planned());
        let some = epochs.iter().any(|e| e.splits.put + e.splits.get > 0);
        if decides || some || job.caching.is_empty() || epochs.iter().all(|e| e.splits.compute == 0) {
            return None;
        }
        let trouble = self.io.as_ref().and_then(|meters| meters.caches.last_error());
        Some(trouble.map_or_else(
            || "the logs of the workers say why".to_owned(),
            |trouble| trouble.message().to_owned(),
        ))
    }

    /// `after`: the iteration of the first epoch, if it was opened behind a state; else 0.
    fn request(&self, epoch: u64, after: u64) -> ReadRequest {
        let dataset = DatasetRef::Definition(Box::new(self.def.clone()));
        ReadRequest {
            dataset,
            job: self.job.clone(),
            epoch,
            seed: self.args.seed,
            mode: self.args.processing_mode.to_proto(),
            policy: self.args.policy.clone().unwrap_or_default(),
            encoding: self.args.encoding.map(|e| e.to_string()).unwrap_or_default(),
            epochs: self.args.horizon.unwrap_or(0).max(self.args.epochs),
            save: None,
            lost_readers: self.lost_readers,
            target: self.target,
            states: self.state_file.as_ref().map(|f| f.states(epoch)).unwrap_or_default(),
            num_states: 0,
            states_of_all: false,
            // A later launch may have to read again what an earlier one had read to its end, in every further epoch.
            restored_beginning: self
                .state_file
                .as_ref()
                .is_some_and(|f| f.first_epoch() == epoch || after > 0 || self.attempt.is_some()),
            after_iteration: after,
            attempt: self.attempt.clone(),
            consumer: self.consumer,
            sharing: self.sharing.clone(),
            priority: self.precedence.0,
            weight: self.precedence.1,
            transfer: self.transfer,
        }
    }

    async fn epoch(
        &self,
        epoch: u64,
        (mut reader, signals): (Reader, Option<&mut Signals>),
        start: Instant,
        expected: Option<u64>,
        announcer: &DecisionAnnouncer<'_>,
    ) -> Result<(EpochReport, Option<JobStatus>, Option<Error>)> {
        let before = self.io.as_ref().map(Meters::now);
        let (monitor, opened) = (reader.monitor(), reader.iteration());
        let what = if self.args.epochs == 1 { "reading".to_string() } else { format!("epoch {epoch}") };
        let progress = Progress::new(what, self.quiet);
        let printer = progress.printer();
        let mut tail = Tail::from_now();
        let work = announcer.during(epoch, &printer, self.drain(&mut reader, &mut tail, signals));
        let drained = progress.watch(work, || state(&monitor, expected)).await;
        let tail = tail.ended();
        let incomplete = reader.incomplete();
        // A state of an epoch that lost rows with another reader needs that reader's state, too, which may not be there. The
        // state from before the epoch can be read on.
        if let Some(file) = self.state_file.as_ref().filter(|_| incomplete.as_ref().is_none_or(|i| !i.fatal))
        {
            file.write(&reader.state()?)?;
        }
        let (checksum, failure) = match drained {
            Ok(checksum) => (checksum, None),
            // The report says what is missing.
            Err(e) if incomplete.as_ref().is_some_and(|i| i.fatal) => (None, Some(e)),
            // A signal: the report says how far the epoch was read.
            Err(e) if e.kind() == ErrorKind::Cancelled => (None, Some(e)),
            Err(e) => return Err(e),
        };
        let wall_s = start.elapsed().as_secs_f64();
        let (stats, iteration) = (reader.stats(), reader.iteration());
        let began_again = iteration != opened;
        let shares = matches!(self.sharing, Sharing::Exact { .. } | Sharing::Relaxed { .. });
        let done = monitor.progress();
        reader.close().await;
        // Best effort: all rows are delivered, with or without the figures.
        let job = self.client.final_status(iteration, FINAL_REPORT_TIMEOUT).await;
        if let Some(job) = &job {
            announcer.announce(job, None, &printer);
        }
        // Workers of this process share their counters, which are exact. Others report at the ends of their tasks.
        let io = match (&self.io, before) {
            (Some(meters), Some(before)) => since(meters.now(), before),
            _ => job.as_ref().and_then(|j| j.io).unwrap_or_default(),
        };
        let leased = job.as_ref().map_or(done.splits_leased, |j| j.splits_leased.max(done.splits_leased));
        let is_in_rounds = self.consumer.is_some_and(|c| c.balance != Balance::None);
        let report = EpochReport {
            epoch,
            rows: stats.rows,
            batches: stats.elements,
            wall_s,
            rows_per_s: stats.rows as f64 / wall_s.max(1e-9),
            first_batch_s: stats.first_batch.as_secs_f64(),
            tail_s: tail.as_secs_f64(),
            wait_s: stats.wait.as_secs_f64(),
            rows_checksum: checksum.map(|c| c.hex()),
            source_bytes_read: io.source_bytes_read,
            cache_bytes_read: io.cache_bytes_read,
            cache_bytes_written: io.cache_bytes_written,
            splits: splits(job.as_ref(), leased),
            shared: SharedReport::at_end(job.as_ref(), shares, began_again),
            bytes: stats.bytes,
            received_bytes: stats.received_bytes,
            mapped_bytes: stats.mapped_bytes,
            padded_rows: stats.padded_rows,
            rounds: is_in_rounds.then_some(stats.elements),
            consumer_wait_s: is_in_rounds.then_some(stats.consumer_wait.as_secs_f64()),
            surplus_elements: job.as_ref().map_or(0, |j| j.surplus_elements),
            rows_skipped: job.as_ref().map_or(0, |j| j.rows_skipped),
            first_skips: job.as_ref().map(|j| j.first_skips.clone()).unwrap_or_default(),
            source_changed: job.as_ref().map(|j| j.source_changed.clone()).filter(|why| !why.is_empty()),
            incomplete: incomplete.map(Into::into),
        };
        Ok((report, job, failure))
    }

    /// Takes every row, and computes checksums on the CPU pool.
    async fn drain(
        &self,
        reader: &mut Reader,
        tail: &mut Tail,
        mut signals: Option<&mut Signals>,
    ) -> Result<Option<RowsChecksum>> {
        let mut sum = (!self.args.no_checksum).then(|| RowsChecksum::for_definition(self.def));
        let mut sums = FuturesOrdered::new();
        let mut staging = Staging::default();
        while let Some(chunk) = self.next_chunk(reader, signals.as_deref_mut()).await? {
            tail.record(chunk.rows());
            if self.work.copies {
                staging.copy(&chunk)?;
            }
            if !self.work.step.is_zero() {
                let elements = u32::try_from(chunk.num_elements()).unwrap_or(u32::MAX);
                tokio::time::sleep(self.work.step.saturating_mul(elements)).await;
            }
            // Padding is of the rows of another consumer, which counts them.
            let Some(total) = sum.as_mut().filter(|_| !chunk.is_padding()) else { continue };
            let part = total.empty();
            sums.push_back(self.pool.run(move || summed(part, &chunk.pieces)));
            if sums.len() >= CHECKSUMS_IN_FLIGHT
                && let Some(part) = sums.next().await
            {
                total.add(&part??);
            }
        }
        while let (Some(total), Some(part)) = (&mut sum, sums.next().await) {
            total.add(&part??);
        }
        Ok(sum)
    }

    /// The next chunk, unless a signal comes that ends the reading.
    async fn next_chunk(&self, reader: &mut Reader, signals: Option<&mut Signals>) -> Result<Option<Chunk>> {
        let Some(signals) = signals else { return reader.next_chunk().await };
        tokio::select! {
            biased;
            name = signals.next() => Err(self.stopped(name)),
            chunk = reader.next_chunk() => chunk,
        }
    }

    fn stopped(&self, signal: &str) -> Error {
        Error::cancelled(match self.on_signal {
            _ if self.state_file.is_some() => {
                format!("{signal}: the state is written; the same command reads on from it")
            }
            OnSignal::Default | OnSignal::Leave => format!(
                "{signal}: the reader has left the epoch, and what it had not taken goes to other readers of its job; with \
                 --state FILE it could be read on"
            ),
            OnSignal::Stop => {
                format!("{signal}: stopped; the last epoch of the report was not read to its end")
            }
        })
    }
}

/// A buffer of fixed size to which rows are copied, like the pinned memory of a device.
#[derive(Default)]
struct Staging(Vec<u8>);

impl Staging {
    /// Bytes of the buffer: 1 MiB fits in the cache of a core, so a copy costs the memory bandwidth of reading the rows once.
    const BYTES: usize = 1 << 20;

    fn copy(&mut self, chunk: &Chunk) -> Result<()> {
        self.0.resize(Self::BYTES, 0);
        for segment in encode_chunk(chunk)?.body {
            let Segment::Data(bytes) = segment else { continue };
            for part in bytes.as_slice().chunks(Self::BYTES) {
                self.0[..part.len()].copy_from_slice(part);
                std::hint::black_box(&self.0);
            }
        }
        Ok(())
    }
}

fn since(now: IoStats, before: IoStats) -> IoStats {
    IoStats {
        source_bytes_read: now.source_bytes_read - before.source_bytes_read,
        source_requests: now.source_requests - before.source_requests,
        cache_bytes_read: now.cache_bytes_read - before.cache_bytes_read,
        cache_bytes_written: now.cache_bytes_written - before.cache_bytes_written,
    }
}

/// The splits by execution mode, as reported by the ended tasks. Splits of other tasks count as computed.
fn splits(job: Option<&JobStatus>, leased: u64) -> SplitsReport {
    let modes = job.and_then(|j| j.modes).unwrap_or_default();
    let compute = leased.saturating_sub(modes.put + modes.get);
    SplitsReport {
        compute,
        put: modes.put,
        get: modes.get,
        fell_back: modes.fell_back,
        backfilled: modes.backfilled,
        kept: modes.backfilled,
    }
}

fn summed(mut sum: RowsChecksum, pieces: &[RecordBatch]) -> Result<RowsChecksum> {
    pieces.iter().try_for_each(|p| sum.update(p))?;
    Ok(sum)
}

/// The progress of an epoch. `expected` is the number of rows of the previous epoch; without it progress is estimated
/// from splits.
pub(super) fn state(monitor: &Monitor, expected: Option<u64>) -> State {
    let p = monitor.progress();
    let note = p.bottleneck.as_ref().map(|b| format!("bottleneck {b}")).unwrap_or_default();
    let (done, total) = match expected.filter(|n| *n > 0) {
        Some(rows) => (p.stats.rows, Some(rows)),
        None if p.splits_total == 0 => (0, None),
        None => (permille(&p), Some(1000)),
    };
    State { rows: p.stats.rows, bytes: p.stats.bytes, done, total, note, text: None }
}

/// The progress, in thousandths, of an epoch with an unknown number of rows: the fraction of leased splits, reduced by
/// the rows that are still between stages.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
fn permille(p: &caju_client::Progress) -> u64 {
    let mut fraction = p.splits_leased as f64 / p.splits_total as f64;
    for pair in p.stages.windows(2) {
        if pair[0].rows_out > 0 && pair[1].rows_in > 0 {
            fraction *= (pair[1].rows_in as f64 / pair[0].rows_out as f64).min(1.0);
        }
    }
    if let Some(last) = p.stages.last().filter(|s| s.rows_out > 0) {
        fraction *= (p.stats.rows as f64 / last.rows_out as f64).min(1.0);
    } else if p.stats.rows == 0 {
        fraction = 0.0;
    }
    // The last leased splits may be read only in part, so the estimate stays below the end.
    (fraction.clamp(0.0, 0.99) * 1000.0) as u64
}
