//! Functions, and the results of calling them.

use std::ops::Range;
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

/// The result of a function for a batch, or for some rows of it.
#[derive(Debug, Clone)]
pub struct Output {
    /// The rows.
    pub batch: RecordBatch,
    /// The input row of each row, ascending; absent if there is one row per input row.
    pub rows: Option<Vec<u32>>,
    /// The input rows that the function ran over.
    pub ran: Range<usize>,
    /// How long the function took for these rows, without the start of its process.
    pub took: Duration,
}

/// What the caller of a function does while the call runs.
///
/// A call is slow if it takes longer than [`SLOW_CALL`](crate::SLOW_CALL). Rows of a slow call that are ready need not wait for
/// the row at which it is, and rows behind that one may be run by another process.
pub trait Caller {
    /// Whether rows of a slow call may be given back before its end.
    fn takes_back(&self) -> bool {
        false
    }

    /// The function has been seen to work at a row. Not called for calls that end before [`SLOW_CALL`](crate::SLOW_CALL).
    fn working(&mut self) {}

    /// The call is slow. `ready` are the rows of it that are ready, the first ones of the batch, perhaps none; the rows of the
    /// batch from `from` on are not begun, and the call does not run them any more. `took` is the time of the rows before
    /// `from`. At most once per call of a function.
    fn given_back(&mut self, ready: Option<Output>, from: usize, took: Duration);
}

/// A caller that waits for the whole batch.
#[derive(Debug, Clone, Copy)]
pub struct WaitForAll;

impl Caller for WaitForAll {
    fn given_back(&mut self, _: Option<Output>, _: usize, _: Duration) {}
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
