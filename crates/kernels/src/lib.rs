//! Image, text and tabular functions over Arrow arrays, and the SQL expressions that call them.

mod bind;
pub mod image;
pub mod rng;

pub use bind::{BoundExprs, Limits, Registry, RowError};
