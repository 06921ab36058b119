//! Users' Python functions, run over record batches by a pool of processes.
//!
//! A [`Pool`] has Python processes, each of which runs one call at a time. Rows are passed both ways as Arrow IPC through
//! files in memory, and a line of JSON in each direction names the files. A call blocks its thread, so it belongs on a
//! thread of the CPU pool, whose core the process then uses.
//!
//! An exception of a function is returned with the row and the traceback. A process that dies or hangs is replaced, and the
//! call is run once more. If the second run fails, too, the error names the function and the row at which it stopped.
//! Functions that draw random numbers from `caju.rng()` alone give the same rows in the second run.
//!
//! A process writes the row at which it works to a file in memory. It hangs if it stays at one row for longer than the
//! function's timeout, however long the whole batch takes. For functions over batches the timeout is for the batch.

mod pool;
mod process;

use std::time::Duration;

use arrow_array::RecordBatch;
use caju_types::Error;

pub use pool::Pool;

/// The environment variables that the processes of functions inherit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Environment {
    /// All variables: the functions belong to the user of this process.
    Inherited,
    /// The variables that an interpreter needs to start, and these. The functions come from clients, which must not see
    /// credentials and settings of the server.
    Clean(Vec<String>),
}

/// Variables of a clean environment: paths of programs, libraries and home, languages, and time zones.
const CLEAN_VARIABLES: [&str; 11] = [
    "PATH",
    "HOME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONHASHSEED",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
];

impl Environment {
    /// Whether processes inherit a variable.
    fn passes(&self, name: &str) -> bool {
        match self {
            Environment::Inherited => true,
            Environment::Clean(more) => {
                CLEAN_VARIABLES.contains(&name) || name.starts_with("LC_") || more.iter().any(|m| m == name)
            }
        }
    }
}

/// The settings of a pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The interpreter. It needs the package `caju`.
    pub python: String,
    /// The most processes that work at once. They are started when they are needed.
    pub processes: usize,
    /// Bounds the processes that exist, including idle ones: at most this many times `processes`.
    pub definitions: usize,
    /// The idle time after which a process is ended.
    pub idle: Duration,
    /// The environment variables that its processes inherit.
    pub environment: Environment,
    /// The module path for functions' imports; empty for the interpreter's own.
    pub path: Vec<String>,
    /// The time that a function may take for one row, or for a batch if it takes batches. A function may have its own.
    pub timeout: Duration,
    /// The time that a process may take to start.
    pub start_timeout: Duration,
}

impl PoolConfig {
    /// Settings for up to `processes` working processes of `python`, in a clean environment, with a minute per row.
    pub fn new(python: impl Into<String>, processes: usize) -> Self {
        Self {
            python: python.into(),
            processes: processes.max(1),
            definitions: 4,
            idle: Duration::from_secs(60),
            environment: Environment::Clean(Vec::new()),
            path: Vec::new(),
            timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
        }
    }
}

/// The kind of a function: what it makes from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One row per row.
    Map,
    /// Whether to keep the row.
    Filter,
    /// Any number of rows per row.
    FlatMap,
}

impl Kind {
    /// The name of the kind in messages and definitions.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Map => "map",
            Kind::Filter => "filter",
            Kind::FlatMap => "flat_map",
        }
    }
}

/// A function as its definition carries it.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its name in the user's code, for messages.
    pub name: String,
    /// Its code and closure, as the Python package `caju` packs them.
    pub payload: Vec<u8>,
    /// What it makes from a row.
    pub kind: Kind,
    /// Whether it takes a dict of arrays instead of a dict per row.
    pub batched: bool,
    /// The time that it may take for one row, or for a batch if it takes batches; the pool's timeout if absent.
    pub timeout: Option<Duration>,
}

/// The result of a function for a batch.
#[derive(Debug, Clone)]
pub struct Output {
    /// The rows.
    pub batch: RecordBatch,
    /// The input row of each row, ascending; absent if there is one row per input row.
    pub rows: Option<Vec<u32>>,
}

/// The error of a call.
#[derive(Debug, Clone)]
pub struct FunctionError {
    /// The row of the batch at which it failed, if known.
    pub row: Option<usize>,
    /// The error, with the user's traceback.
    pub error: Error,
}

impl From<Error> for FunctionError {
    fn from(error: Error) -> Self {
        Self { row: None, error }
    }
}
