//! Log records of caju for Python's `logging`.
//!
//! Threads of caju never wait for the interpreter to log: they append to a bounded queue. A thread that calls caju, or waits
//! in it, and has the interpreter anyway delivers them ([`deliver`]); while servers run in the process, a Python thread does.
//! No lock is held during delivery, so handlers may call caju.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use caju_runtime::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::fork::check_fork;

/// Log records that wait for delivery. Further ones are dropped and counted: at about 200 bytes each, this bounds the queue
/// to a fraction of a MB while no thread delivers them.
const MAX_PENDING: usize = 1000;
// Python's numbers for levels.
const DEBUG: u8 = 10;
const INFO: u8 = 20;
const WARNING: u8 = 30;
const ERROR: u8 = 40;

/// The lowest level that a logger accepts, in Python's numbers.
static LEVEL: AtomicU8 = AtomicU8::new(WARNING);
/// The length of the queue, readable without its lock.
static PENDING: AtomicUsize = AtomicUsize::new(0);
static QUEUE: Mutex<Queue> = Mutex::new(Queue { records: VecDeque::new(), dropped: 0, woken: false });
static ARRIVED: Condvar = Condvar::new();

/// Level, target, message, and the time in seconds since 1970.
type LogRecord = (u8, String, String, f64);

struct Queue {
    records: VecDeque<LogRecord>,
    dropped: u64,
    woken: bool,
}

/// Installs the subscriber of this process, once, unless there is one.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The command line has a subscriber of its own.
        drop(tracing::subscriber::set_global_default(Forwarder(SystemClock::shared())));
    });
}

/// Delivers pending records to `logging`.
///
/// # Errors
/// The exception of a handler.
pub(crate) fn deliver(py: Python<'_>) -> PyResult<()> {
    if PENDING.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    py.import("caju._logging")?.call_method0("deliver").map(drop)
}

/// In a child after a fork: the parent delivers what is pending.
pub(crate) fn discard_pending() {
    PENDING.store(0, Ordering::Relaxed);
}

/// Sets the lowest level that is recorded, in Python's numbers.
#[pyfunction]
pub(crate) fn log_level(level: i64) {
    if check_fork().is_err() {
        return;
    }
    let level = u8::try_from(level.clamp(0, 100)).unwrap_or(WARNING);
    if LEVEL.swap(level, Ordering::Relaxed) != level {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Removes the pending records (level, target, message, seconds since 1970), and says how many were dropped.
#[pyfunction]
pub(crate) fn take_records() -> (Vec<LogRecord>, u64) {
    if check_fork().is_err() {
        return (Vec::new(), 0);
    }
    let mut queue = QUEUE.lock();
    PENDING.store(0, Ordering::Relaxed);
    (queue.records.drain(..).collect(), std::mem::take(&mut queue.dropped))
}

/// Waits until a record is pending, or `wake_log` is called, or the given number of seconds has passed.
#[pyfunction]
pub(crate) fn wait_log(py: Python<'_>, seconds: f64) {
    if check_fork().is_err() {
        return;
    }
    let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| {
        let mut queue = QUEUE.lock();
        if queue.records.is_empty() && !queue.woken {
            ARRIVED.wait_for(&mut queue, timeout);
        }
        queue.woken = false;
    });
}

/// Ends the current `wait_log`, or the next one.
#[pyfunction]
pub(crate) fn wake_log() {
    if check_fork().is_err() {
        return;
    }
    QUEUE.lock().woken = true;
    ARRIVED.notify_all();
}

/// Records events of caju; spans and events of other libraries are ignored.
struct Forwarder(Arc<dyn Clock>);

fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => ERROR,
        Level::WARN => WARNING,
        Level::INFO => INFO,
        Level::DEBUG => DEBUG,
        Level::TRACE => DEBUG / 2,
    }
}

impl Subscriber for Forwarder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("caju")
            && number(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let level = LEVEL.load(Ordering::Relaxed);
        [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR]
            .into_iter()
            .find(|l| number(*l) >= level)
            .map_or(Some(LevelFilter::OFF), |l| Some(LevelFilter::from_level(l)))
    }

    fn event(&self, event: &Event<'_>) {
        if check_fork().is_err() {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let now = self.0.unix_time().as_secs_f64();
        let metadata = event.metadata();
        let record = (number(*metadata.level()), metadata.target().to_owned(), text.finish(), now);
        let mut queue = QUEUE.lock();
        if queue.records.len() < MAX_PENDING {
            queue.records.push_back(record);
        } else {
            queue.dropped += 1;
        }
        PENDING.store(queue.records.len(), Ordering::Relaxed);
        drop(queue);
        ARRIVED.notify_one();
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event as a line of text: the message, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }

    fn field(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        match field.name() {
            "message" => self.message.push_str(&value.to_string()),
            name => self.fields.push_str(&format!(" {name}={value}")),
        }
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, format_args!("{value}"));
    }
}
