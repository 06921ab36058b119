//! Image, text and tabular functions over Arrow arrays, and the SQL expressions that call them.
//!
//! A stage's expressions are bound once against the schema of its input ([`Registry::bind`]), and evaluated over its batches
//! ([`BoundExprs::evaluate`]). DataFusion plans and evaluates. Our kernels are scalar functions to it. Nested image
//! operations become one function. Random kernels get the key of their row as a column, so that they are pure
//! functions, too.
//!
//! Modules build on one another in this order: `limits`, `constant`, `syntax` (text to tree), `signature`, `call` (the
//! arguments of a call), `kernel`, `tensor`, `guard`, `udf` (the kernels), `image_udf`, `catalog` (all functions), `sql`
//! (expressions to DataFusion's plans), `registry`, `eval`, `bind`; and on its own `columns` (names and types of rows).
//!
//! Errors of binding name the place in the pipeline and in the text. Errors of evaluation name the row.

mod bind;
mod call;
mod catalog;
mod columns;
mod constant;
mod cse;
mod dialect;
mod eval;
mod functions;
mod guard;
mod image_udf;
mod infallible;
mod kernel;
mod limits;
mod plan_error;
mod registry;
mod short_circuit;
mod signature;
mod sql;
mod syntax;
mod tensor;
mod udf;
mod versions;

pub use catalog::reference_markdown;
pub use columns::{check_columns, too_deep};
pub use eval::{BoundExprs, RowError};
pub use limits::Limits;
pub use registry::Registry;
pub use tensor::{differing_tensors, fixed_shape};
pub use versions::ENGINES;

#[cfg(test)]
mod tests;
