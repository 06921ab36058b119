//! The settings of a window.

use std::time::Duration;

use caju_types::{Error, Result, did_you_mean};

/// What happens to a job that falls behind a full window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SharingLag {
    /// The oldest rows leave the window. The job computes their splits itself.
    #[default]
    Drop,
    /// The other jobs wait for it before they begin a further split, for [`SharingSettings::wait`] at most.
    Throttle,
    /// Rows that it needs and that do not fit are written to files, within [`SharingSettings::spill_bytes`], and it reads them
    /// there. What does not fit in these either is dropped as under [`SharingLag::Drop`].
    Spill,
}

impl SharingLag {
    /// The setting of a name: `drop`, `throttle` or `spill`.
    ///
    /// # Errors
    /// `InvalidArgument` for another word.
    ///
    /// ```
    /// use caju_engine::SharingLag;
    /// assert_eq!(SharingLag::from_name("spill").unwrap(), SharingLag::Spill);
    /// assert!(SharingLag::from_name("spil").unwrap_err().message().contains("did you mean `spill`"));
    /// ```
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "drop" => Ok(SharingLag::Drop),
            "throttle" => Ok(SharingLag::Throttle),
            "spill" => Ok(SharingLag::Spill),
            other => {
                let hint = did_you_mean(other, ["drop", "throttle", "spill"]);
                Err(Error::invalid(format!("sharing lag `{other}`{hint}: say `drop`, `throttle` or `spill`")))
            }
        }
    }
}

/// How a worker shares computed rows among jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingSettings {
    /// The most bytes of rows in the window; 0: no rows are shared.
    pub window_bytes: u64,
    /// Of these the most bytes of rows that every running task of the jobs that share has had: for a job that begins later.
    pub backlog_bytes: u64,
    /// What happens to a job that falls behind.
    pub lag: SharingLag,
    /// Under [`SharingLag::Spill`] the most bytes of files.
    pub spill_bytes: u64,
    /// How long a task waits for rows that another task computes before it computes them itself. Under
    /// [`SharingLag::Throttle`] also how long it waits for jobs that are behind, and how long rows are held when the last task
    /// that shares them has left.
    pub wait: Duration,
}

/// The default size of a window in bytes: it bounds how far jobs may be apart. A quarter of the default memory tier of the
/// cache would be 256 MiB; decoded images take four times the bytes of stored ones.
const DEFAULT_WINDOW_BYTES: u64 = 1 << 30;

/// The default of [`SharingSettings::backlog_bytes`]: as much as a task buffers for its readers. A job that runs alone then
/// needs little more memory, and no more time, than a job that does not share.
const DEFAULT_BACKLOG_BYTES: u64 = 64 << 20;

/// The default of [`SharingSettings::spill_bytes`]: four windows. A folder for temporary files has that much space on most
/// machines, and a job that is further behind is mostly one whose user makes no progress.
const DEFAULT_SPILL_BYTES: u64 = 4 << 30;

/// The default of [`SharingSettings::wait`]: longer than a chunk takes to compute, except of the slowest stages, and short
/// enough that a job loses little time when the job that it waits for makes no progress.
const DEFAULT_WAIT: Duration = Duration::from_secs(2);

impl Default for SharingSettings {
    fn default() -> Self {
        Self {
            window_bytes: DEFAULT_WINDOW_BYTES,
            backlog_bytes: DEFAULT_BACKLOG_BYTES,
            lag: SharingLag::default(),
            spill_bytes: DEFAULT_SPILL_BYTES,
            wait: DEFAULT_WAIT,
        }
    }
}
