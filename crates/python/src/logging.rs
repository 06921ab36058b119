//! What caju has to tell, on its way to Python's `logging`.
//!
//! Threads of caju never wait for the interpreter to say something: they leave events in a bounded list. Whoever
//! calls or waits in caju and has the interpreter anyway hands them over ([`deliver`]); so does a thread of Python's
//! while servers run in the process. Nothing of ours is locked meanwhile, so handlers may call caju again.

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

use crate::runtime::check_fork;

/// The most events that wait; those beyond are counted only.
const KEPT: usize = 1000;
/// Python's numbers for levels.
const DEBUG: u8 = 10;
const INFO: u8 = 20;
const WARNING: u8 = 30;
const ERROR: u8 = 40;

/// The lowest level that anybody wants, in Python's numbers.
static LEVEL: AtomicU8 = AtomicU8::new(WARNING);
/// Events in the list, so that looking costs nothing.
static PENDING: AtomicUsize = AtomicUsize::new(0);
static EVENTS: Mutex<Events> = Mutex::new(Events { list: VecDeque::new(), lost: 0, woken: false });
static ARRIVED: Condvar = Condvar::new();

/// Level, target, message and the time in seconds.
type Told = (u8, String, String, f64);

struct Events {
    list: VecDeque<Told>,
    lost: u64,
    woken: bool,
}

/// Makes this process's events ours, unless somebody has them already. Once.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The command line has a subscriber of its own, and then wants no other.
        drop(tracing::subscriber::set_global_default(Bridge(SystemClock::shared())));
    });
}

/// Hands waiting events over to `logging`.
///
/// # Errors
/// What a handler raises.
pub(crate) fn deliver(py: Python<'_>) -> PyResult<()> {
    if PENDING.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    py.import("caju._logging")?.call_method0("deliver").map(drop)
}

/// In a child after a fork: what waits is told by the parent.
pub(crate) fn forget() {
    PENDING.store(0, Ordering::Relaxed);
}

/// Sets the lowest level that is told, in Python's numbers.
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

/// The events that wait (level, target, message, seconds since 1970), and how many were lost.
#[pyfunction]
pub(crate) fn take_events() -> (Vec<Told>, u64) {
    if check_fork().is_err() {
        return (Vec::new(), 0);
    }
    let mut events = EVENTS.lock();
    PENDING.store(0, Ordering::Relaxed);
    (events.list.drain(..).collect(), std::mem::take(&mut events.lost))
}

/// Waits until there are events, or somebody calls `wake_events`, or so many seconds have gone by.
#[pyfunction]
pub(crate) fn wait_events(py: Python<'_>, seconds: f64) {
    if check_fork().is_err() {
        return;
    }
    let patience = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| {
        let mut events = EVENTS.lock();
        if events.list.is_empty() && !events.woken {
            ARRIVED.wait_for(&mut events, patience);
        }
        events.woken = false;
    });
}

/// Ends the present or the next `wait_events`.
#[pyfunction]
pub(crate) fn wake_events() {
    if check_fork().is_err() {
        return;
    }
    EVENTS.lock().woken = true;
    ARRIVED.notify_all();
}

/// Takes events of caju's own; spans and other libraries' words are passed over.
struct Bridge(Arc<dyn Clock>);

fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => ERROR,
        Level::WARN => WARNING,
        Level::INFO => INFO,
        Level::DEBUG => DEBUG,
        Level::TRACE => DEBUG / 2,
    }
}

impl Subscriber for Bridge {
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
        let told = (number(*metadata.level()), metadata.target().to_owned(), text.finish(), now);
        let mut events = EVENTS.lock();
        if events.list.len() < KEPT {
            events.list.push_back(told);
        } else {
            events.lost += 1;
        }
        PENDING.store(events.list.len(), Ordering::Relaxed);
        drop(events);
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

/// An event as one line: the message, then its fields.
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
