//! What happened in a run, in order.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ambient;

/// The events of a run. Clones share them. The events themselves are only kept on demand; their digest always is.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventLog(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    digest: u64,
    count: u64,
    prints: bool,
    violations: Vec<String>,
}

impl EventLog {
    /// A log that prints every event, or none.
    pub(crate) fn new(prints: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner { prints, ..Inner::default() })))
    }

    /// Records an event at the present time.
    pub(crate) fn event(&self, what: fmt::Arguments<'_>) {
        let line = format!("{:>10.3} ms  {what}", ambient::elapsed().as_secs_f64() * 1e3);
        let mut inner = self.0.lock();
        let hash = caju_types::hash128(line.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "half of a hash")]
        let low = hash as u64;
        inner.digest = caju_types::mix64(inner.digest, low);
        inner.count += 1;
        if inner.prints {
            eprintln!("{line}");
        }
    }

    /// Records that something happened which must not.
    pub(crate) fn violation(&self, what: impl Into<String>) {
        let what = what.into();
        self.event(format_args!("VIOLATION: {what}"));
        let mut inner = self.0.lock();
        // The first ones say what is wrong; a run that is off the rails would give thousands.
        if inner.violations.len() < 8 {
            inner.violations.push(what);
        }
    }

    /// The digest of all events and their number.
    pub(crate) fn digest(&self) -> (u64, u64) {
        let inner = self.0.lock();
        (inner.digest, inner.count)
    }

    /// What must not have happened.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }
}
