//! Functions, and the results of calling them.

use std::time::Duration;

use arrow_array::RecordBatch;
use caju_types::Error;

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
