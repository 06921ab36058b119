//! Image, text and tabular functions over Arrow arrays, and the SQL expressions that call them.
//!
//! A stage's expressions are bound once against the schema of its input ([`Registry::bind`]) and evaluated
//! over its batches ([`BoundExprs::evaluate`]). DataFusion plans and evaluates; our kernels are functions to
//! it, nested image operations one function together. Random kernels get the key of their row as a column
//! (invariant I2 of the design), so that they too are pure functions.
//!
//! Errors of binding name the place in the pipeline and in the text. Errors of evaluation name the row.

mod bind;
mod catalog;
mod common;
mod eval;
mod functions;
mod guard;
mod image_udf;
mod sql;
mod tensor;
mod udf;
mod versions;

pub use bind::{Limits, Registry};
pub use catalog::reference_markdown;
pub use eval::{BoundExprs, RowError};
pub use tensor::fixed_shape;
pub use versions::ENGINES;

#[cfg(test)]
mod tests;
