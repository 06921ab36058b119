//! Binding of expressions to a schema.

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use arrow::datatypes::{Fields, SchemaRef};
use caju_types::{Error, Result};

/// What the functions refuse to exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most pixels of an image that `decode_image` accepts.
    pub max_pixels: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_pixels: 100_000_000 }
    }
}

/// An error of [`BoundExprs::evaluate`].
#[derive(Debug, Clone)]
pub struct RowError {
    /// The row of the batch, where it is known.
    pub row: Option<usize>,
    /// What happened.
    pub error: Error,
}

/// The functions that expressions may call.
#[derive(Debug, Clone)]
pub struct Registry {
    _limits: Limits,
}

impl Registry {
    /// All functions.
    pub fn new(limits: Limits) -> Self {
        Self { _limits: limits }
    }

    /// Binds one stage's expressions.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn bind(&self, place: &str, _exprs: &[(String, String)], _input: &SchemaRef) -> Result<BoundExprs> {
        Err(Error::unimplemented(place))
    }

    /// Binds a predicate.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn bind_predicate(&self, place: &str, _sql: &str, _input: &SchemaRef) -> Result<BoundExprs> {
        Err(Error::unimplemented(place))
    }
}

/// Expressions of one stage, bound to its input.
#[derive(Debug, Clone)]
pub struct BoundExprs {
    fields: Fields,
}

impl BoundExprs {
    /// The columns computed.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Whether keys are needed.
    pub fn is_random(&self) -> bool {
        false
    }

    /// The input columns read, sorted.
    pub fn columns(&self) -> &[usize] {
        &[]
    }

    /// Computes the columns for the rows of `batch`.
    ///
    /// # Errors
    /// The first failing row.
    pub fn evaluate(&self, _batch: &RecordBatch, _keys: Option<&UInt64Array>) -> Result<Vec<ArrayRef>, RowError> {
        Err(RowError { row: None, error: Error::unimplemented("evaluate") })
    }
}
