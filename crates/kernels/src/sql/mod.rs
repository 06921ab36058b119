//! From SQL text to expressions that DataFusion can plan.
//!
//! The text is parsed, and every call of one of our functions is taken out of it: its constant arguments
//! become part of a function made for this call, which the planner finds under an internal name. What is
//! left of the call are the arguments that differ from row to row, and for random functions the key
//! column. So DataFusion sees pure functions of their inputs; it may move them, fold them over literals or
//! evaluate two equal ones once, and the values stay what they are.

pub(crate) mod builtins;
mod call;
mod canonical;
mod constant;
mod context;
mod parse;
mod rewrite;
mod stack;

pub(crate) use call::{Call, resolve};
pub(crate) use canonical::canonical;
pub(crate) use constant::Const;
pub(crate) use context::{Builtins, Planner};
pub(crate) use parse::{at, parse};
pub(crate) use rewrite::{KEY_COLUMN, Rewrite, Rewritten};
pub(crate) use stack::{STACK_BYTES, roomy};
