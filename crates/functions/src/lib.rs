//! Functions of users, written in Python, run over record batches by a pool of processes.
//!
//! A [`Pool`] keeps some Python processes, each of which runs one call at a time: rows go there and back as Arrow
//! IPC through files in memory, and a line of JSON each way says where they are. A call blocks, so it belongs on
//! a thread that computes, whose core the process then uses.
//!
//! What a user's code may do to a process is part of the plan: an exception comes back with the row and the
//! traceback; a process that dies, or hangs, is replaced and the call run once more. Rows whose second run fails as
//! well are an error that names the function and the row at which it stood. Functions that keep to `caju.rng()` for
//! randomness give the same rows the second time.
//!
//! Hanging is judged by progress: a process marks the row at which it works, in a file in memory, and only one that
//! stays at one row for longer than the function may take hangs, however long the batch takes as a whole. Functions
//! over batches have one step, the batch.

mod pool;
mod process;

use std::time::Duration;

use arrow_array::RecordBatch;
use caju_types::Error;

pub use pool::Pool;

/// What a function's process gets of the environment of the process that starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Environment {
    /// Everything: the functions are those of whoever runs the process.
    Inherited,
    /// What an interpreter needs to start, and these variables: the functions are somebody else's, to whom credentials
    /// and settings of the server are no business.
    Clean(Vec<String>),
}

/// Variables that a clean environment has: where programs, libraries and a home are, languages, and time zones.
const KEPT: [&str; 11] = [
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
    /// Whether a variable is passed on.
    fn keeps(&self, name: &str) -> bool {
        match self {
            Environment::Inherited => true,
            Environment::Clean(more) => {
                KEPT.contains(&name) || name.starts_with("LC_") || more.iter().any(|m| m == name)
            }
        }
    }
}

/// What a pool is started with.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The interpreter, which has the package `caju`.
    pub python: String,
    /// The most processes at work at once; they are started when they are needed.
    pub processes: usize,
    /// Definitions whose processes are kept: at most this many times `processes` are there, idle ones included.
    pub definitions: usize,
    /// A process that was idle for so long is ended.
    pub idle: Duration,
    /// What its processes get of the environment.
    pub environment: Environment,
    /// The module path of whoever starts the pool, for functions that import from it; empty: what is installed.
    pub path: Vec<String>,
    /// How long a function may take for one row, or for a batch if it takes batches, unless it says so itself.
    pub timeout: Duration,
    /// How long a process may take to start.
    pub start_timeout: Duration,
}

impl PoolConfig {
    /// Up to `processes` processes of `python` at work, in a clean environment, with a minute for a row.
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

/// What a function makes of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One row of each.
    Map,
    /// Whether to keep each.
    Filter,
    /// Any number of rows of each.
    FlatMap,
}

impl Kind {
    /// The word for it in messages and definitions.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Map => "map",
            Kind::Filter => "filter",
            Kind::FlatMap => "flat_map",
        }
    }
}

/// A function, as its definition carries it.
#[derive(Debug, Clone)]
pub struct Function {
    /// For messages: the name that it has in the user's code.
    pub name: String,
    /// Its code and what it closes over, as `caju` in Python packs them.
    pub payload: Vec<u8>,
    /// What it makes of rows.
    pub kind: Kind,
    /// Whether it takes a dict of arrays, not a dict per row.
    pub batched: bool,
    /// How long it may take for one row, or for a batch if it takes batches; the pool's own patience if absent.
    pub timeout: Option<Duration>,
}

/// What a function made of a batch.
#[derive(Debug, Clone)]
pub struct Output {
    /// The rows.
    pub batch: RecordBatch,
    /// The input row of each, ascending; absent: one row of each.
    pub rows: Option<Vec<u32>>,
}

/// Why a call failed.
#[derive(Debug, Clone)]
pub struct FunctionError {
    /// The row of the batch, where one is to blame.
    pub row: Option<usize>,
    /// What happened, with the user's traceback.
    pub error: Error,
}

impl From<Error> for FunctionError {
    fn from(error: Error) -> Self {
        Self { row: None, error }
    }
}
