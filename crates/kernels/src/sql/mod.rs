//! From SQL text to expressions that DataFusion can plan.
//!
//! The text is parsed, and every call of one of our functions is replaced. Its constant arguments become part of a function
//! that is created for this call, which the planner finds under an internal name. The new call has the arguments that differ
//! from row to row and, for random functions, the key column. So DataFusion sees pure functions of their inputs. It may move
//! them, fold them over literals or evaluate two equal ones once, without changing values.

mod bounds;
pub(crate) mod builtins;
mod canonical;
mod context;
mod decimals;
mod lists;
mod names;
mod rewrite;
mod stack;

pub(crate) use canonical::canonical;
pub(crate) use context::{Builtins, Planner};
pub(crate) use decimals::exact_decimals;
pub(crate) use names::KEY_COLUMN;
pub(crate) use rewrite::{Rewrite, Rewritten};
pub(crate) use stack::{STACK_BYTES, with_stack};
