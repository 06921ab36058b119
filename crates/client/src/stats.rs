//! The statistics of a reader.

use std::time::{Duration, Instant};

use caju_proto::v1::{self, StageStats};
use caju_types::{Error, format_count};
use parking_lot::Mutex;

use crate::acks::ChunkRemainder;

/// What a reader has delivered so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReaderStats {
    /// Rows.
    pub rows: u64,
    /// Elements: rows, or batches after `batch`.
    pub elements: u64,
    /// Bytes of the rows.
    pub bytes: u64,
    /// Bytes of rows that came over sockets, as they came: compressed ones count by their compressed size.
    pub received_bytes: u64,
    /// Bytes of rows that came in memory that the reader shares with a worker of its host. They were not copied for it.
    pub mapped_bytes: u64,
    /// Time that the user waited for rows.
    pub wait: Duration,
    /// From opening the reader to its first rows; zero until then.
    pub first_batch: Duration,
    /// Since the reader was opened, until now or its end.
    pub elapsed: Duration,
    /// Duplicate rows that were skipped.
    pub duplicate_rows: u64,
    /// Elements of those that repeat what another consumer of the job got, so that all have equally many.
    pub padded_elements: u64,
    /// Rows of these.
    pub padded_rows: u64,
    /// Of a consumer that reads in rounds: time that the user waited for an element that had arrived, because other
    /// consumers did not have theirs of the same round. It is part of `wait`.
    pub consumer_wait: Duration,
}

/// A snapshot of an iteration's progress.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// What was delivered.
    pub stats: ReaderStats,
    /// Splits in all; 0 while the listing continues.
    pub splits_total: u64,
    /// Splits that were handed out.
    pub splits_leased: u64,
    /// Tasks that are being read.
    pub tasks: usize,
    /// Bytes that wait to be taken.
    pub buffered_bytes: usize,
    /// The current bottleneck: `consumer`, or a stage as the engine names it (`source`, `2.map`).
    pub bottleneck: Option<String>,
    /// What every stage has done, over all workers.
    pub stages: Vec<StageStats>,
}

/// Rows of an epoch that no reader of its job has, or that readers took before they vanished.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Incomplete {
    /// Rows that are missing for this reader's job.
    pub rows_missing: u64,
    /// Splits with rows that were sent and acknowledged by no reader.
    pub splits: u64,
    /// The reasons, for people.
    pub why: String,
    /// Rows that the users of vanished readers had taken.
    pub rows_taken_by_lost_readers: u64,
    /// Whether the epoch ends with an error for it.
    pub fatal: bool,
    /// Whether more rows may be missing, or come twice: which rows a vanished reader took is not known.
    pub rows_unknown: bool,
}

impl Incomplete {
    /// The error of a reader whose epoch is not whole.
    pub(crate) fn error(&self) -> Error {
        let accept = match self.rows_unknown {
            true => "or continue with the next epoch",
            false => {
                "continue with the next epoch, or accept it with --lost-readers allow (Python: lost_readers=\"allow\")"
            }
        };
        let rows = match self.rows_unknown {
            true => "an unknown number of rows of this epoch are missing or came twice".to_string(),
            false => format!("{} rows of this epoch are missing", format_count(self.rows_missing)),
        };
        Error::failed_precondition(format!(
            "incomplete: {rows}: {}; read it again under another job name, {accept}",
            self.why
        ))
    }
}

impl From<&v1::Incomplete> for Incomplete {
    fn from(i: &v1::Incomplete) -> Self {
        Self {
            rows_missing: i.rows_missing,
            splits: i.splits,
            why: i.why.clone(),
            rows_taken_by_lost_readers: i.rows_taken_by_lost_readers,
            fatal: i.fatal,
            rows_unknown: i.rows_unknown,
        }
    }
}

impl ReaderStats {
    /// Rows per second, and the fraction of the time that the user waited.
    pub(crate) fn rates(&self) -> (f64, f64) {
        let elapsed_s = self.elapsed.as_secs_f64().max(1e-9);
        (self.rows as f64 / elapsed_s, (self.wait.as_secs_f64() / elapsed_s).min(1.0))
    }

    /// Without what the user has not got of a chunk.
    pub(crate) fn leave_out(&mut self, rest: ChunkRemainder) {
        self.rows = self.rows.saturating_sub(rest.rows);
        self.elements = self.elements.saturating_sub(rest.elements);
        self.bytes = self.bytes.saturating_sub(rest.bytes);
        if rest.is_padding {
            self.padded_rows = self.padded_rows.saturating_sub(rest.rows);
            self.padded_elements = self.padded_elements.saturating_sub(rest.elements);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    opened: Instant,
    ended: Option<Instant>,
    stats: ReaderStats,
    splits: (u64, u64),
    tasks: usize,
    stages: Vec<StageStats>,
    bottleneck: Option<String>,
    /// When the stages were last reported, and how long the user had waited by then.
    reported: (Instant, Duration),
    /// Since when the user waits, if at present.
    waiting: Option<Instant>,
    incomplete: Option<Incomplete>,
    /// The consumer that holds up the others and what it has taken, and since when that is so.
    slowest: (String, tokio::time::Instant),
    /// Rows that the user had taken, and when that was first seen.
    taken: (u64, Instant),
    /// Until when the time that the user waited for other consumers is counted.
    waited_for_others_until: Instant,
}

impl Inner {
    /// The wait so far, the present one included.
    fn wait(&self) -> Duration {
        self.stats.wait + self.waiting.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Measures the user's wait for rows until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Recorder);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut s = self.0.inner.lock();
        s.stats.wait = s.wait();
        s.waiting = None;
    }
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            inner: Mutex::new(Inner {
                opened: now,
                ended: None,
                stats: ReaderStats::default(),
                splits: (0, 0),
                tasks: 0,
                stages: Vec::new(),
                bottleneck: None,
                reported: (now, Duration::ZERO),
                waiting: None,
                incomplete: None,
                slowest: (String::new(), tokio::time::Instant::now()),
                taken: (0, now),
                waited_for_others_until: now,
            }),
        }
    }

    /// A chunk is handed to the user.
    pub(crate) fn delivered(&self, rows: u64, elements: u64, bytes: u64) {
        let mut s = self.inner.lock();
        if s.stats.rows == 0 {
            s.stats.first_batch = s.opened.elapsed();
        }
        s.stats.rows += rows;
        s.stats.elements += elements;
        s.stats.bytes += bytes;
    }

    /// The user does not get the rest of a chunk: it comes again.
    pub(crate) fn returned(&self, rest: ChunkRemainder) {
        self.inner.lock().stats.leave_out(rest);
    }

    /// A chunk that is handed to the user is padding.
    pub(crate) fn padded(&self, rows: u64, elements: u64) {
        let mut s = self.inner.lock();
        s.stats.padded_rows += rows;
        s.stats.padded_elements += elements;
    }

    /// An element that arrived at this time is the user's: until now other consumers did not have theirs.
    pub(crate) fn waited_for_others(&self, arrived: Instant) {
        let mut s = self.inner.lock();
        let now = Instant::now();
        if let Some(since) = s.waiting {
            // Several elements may come in one wait: no time counts twice.
            let since = since.max(arrived).max(s.waited_for_others_until);
            s.stats.consumer_wait += now.saturating_duration_since(since);
            s.waited_for_others_until = now;
        }
    }

    /// The dispatcher says who holds up the others.
    pub(crate) fn waits_for(&self, slowest: String) {
        let mut s = self.inner.lock();
        if s.slowest.0 != slowest {
            s.slowest = (slowest, tokio::time::Instant::now());
        }
    }

    /// The consumer that holds up the others; empty if the job has none.
    pub(crate) fn slowest(&self) -> String {
        self.inner.lock().slowest.0.clone()
    }

    /// For how long it has been that one, and has taken no further element.
    pub(crate) fn slowest_for(&self) -> Duration {
        self.inner.lock().slowest.1.elapsed()
    }

    /// The user waits from now on, until the answer is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.inner.lock().waiting = Some(Instant::now());
        Waiting(self)
    }

    /// Rows came over a socket.
    pub(crate) fn received(&self, bytes: u64) {
        self.inner.lock().stats.received_bytes += bytes;
    }

    /// Rows came in shared memory.
    pub(crate) fn mapped(&self, bytes: u64) {
        self.inner.lock().stats.mapped_bytes += bytes;
    }

    pub(crate) fn duplicates(&self, rows: u64) {
        self.inner.lock().stats.duplicate_rows += rows;
    }

    pub(crate) fn tasks(&self, open: usize) {
        self.inner.lock().tasks = open;
    }

    pub(crate) fn ended(&self) {
        let mut s = self.inner.lock();
        s.ended.get_or_insert(Instant::now());
    }

    /// Takes the dispatcher's report of missing rows; whether it changed.
    pub(crate) fn incomplete(&self, found: Option<&v1::Incomplete>) -> bool {
        let mut s = self.inner.lock();
        let news = found.is_some() && s.incomplete.is_none();
        s.incomplete = found.map(Into::into);
        news
    }

    /// The missing rows, as far as they are known.
    pub(crate) fn is_incomplete(&self) -> Option<Incomplete> {
        self.inner.lock().incomplete.clone()
    }

    /// Takes the dispatcher's report of progress.
    pub(crate) fn reported(&self, total: u64, leased: u64, stages: Vec<StageStats>) {
        let mut s = self.inner.lock();
        s.splits = (total, leased);
        let (since, waited) = s.reported;
        let span = since.elapsed();
        if span >= Duration::from_millis(500) && !stages.is_empty() {
            let starved = (s.wait() - waited).as_secs_f64() / span.as_secs_f64();
            s.bottleneck = bottleneck(&s.stages, &stages, starved);
            s.stages = stages;
            s.reported = (Instant::now(), s.wait());
        }
    }

    /// How long the user has not taken further rows; zero while it waits for some. `taken` are the rows that it has taken by
    /// now.
    pub(crate) fn user_busy(&self, taken: u64, now: Instant) -> Duration {
        let mut s = self.inner.lock();
        if s.waiting.is_some() || s.taken.0 != taken {
            s.taken = (taken, now);
        }
        now.saturating_duration_since(s.taken.1)
    }

    /// The figures so far, with the whole of the chunk that the user is handed now.
    pub(crate) fn stats(&self) -> ReaderStats {
        let s = self.inner.lock();
        let elapsed = s.ended.unwrap_or_else(Instant::now).saturating_duration_since(s.opened);
        ReaderStats { elapsed, wait: s.wait(), ..s.stats.clone() }
    }

    pub(crate) fn progress(&self, stats: ReaderStats, buffered_bytes: usize) -> Progress {
        let s = self.inner.lock();
        Progress {
            stats,
            splits_total: s.splits.0,
            splits_leased: s.splits.1,
            tasks: s.tasks,
            buffered_bytes,
            bottleneck: s.bottleneck.clone(),
            stages: s.stages.clone(),
        }
    }
}

/// A reader that waits for less than this fraction of the time is the bottleneck itself.
const STARVED: f64 = 0.1;

/// The bottleneck between two reports: the reader if it waited less than a tenth of the time, otherwise the stage with the
/// most busy time.
fn bottleneck(before: &[StageStats], now: &[StageStats], starved: f64) -> Option<String> {
    if starved < STARVED {
        return Some("consumer".to_string());
    }
    let busy = |s: &&StageStats| {
        let was = before.iter().find(|b| b.name == s.name).map_or(0.0, |b| b.busy_s.max(b.cpu_s));
        s.busy_s.max(s.cpu_s) - was
    };
    now.iter().filter(|s| busy(s) > 0.0).max_by(|a, b| busy(a).total_cmp(&busy(b))).map(|s| s.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_busy_until_it_takes_rows_or_waits() {
        let (recorder, now, second) = (Recorder::new(), Instant::now(), Duration::from_secs(1));
        assert!(recorder.user_busy(3, now).is_zero());
        assert_eq!(recorder.user_busy(3, now + 5 * second), 5 * second);
        assert!(recorder.user_busy(4, now + 6 * second).is_zero(), "it has taken a row");
        let waiting = recorder.wait();
        assert!(recorder.user_busy(4, now + 9 * second).is_zero(), "it waits for rows");
        drop(waiting);
        assert_eq!(recorder.user_busy(4, now + 11 * second), 2 * second);
    }

    #[test]
    fn the_busiest_stage_is_the_bottleneck_unless_the_reader_is() {
        let stage =
            |name: &str, busy_s| StageStats { name: name.to_string(), busy_s, ..StageStats::default() };
        let before = [stage("source", 5.0), stage("0.map", 1.0)];
        let now = [stage("source", 5.5), stage("0.map", 2.0)];
        assert_eq!(bottleneck(&before, &now, 0.9).as_deref(), Some("0.map"));
        assert_eq!(bottleneck(&before, &now, 0.01).as_deref(), Some("consumer"));
        assert_eq!(bottleneck(&now, &now, 0.9), None);
    }
}
