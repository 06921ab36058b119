//! The planner from outside: golden plans, properties, malformed input, Figure 7, the size of the work.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails")]

mod cases;
mod corpus;
mod figure7;
mod golden;
mod large;
mod malformed;
mod naive;
mod observed;
mod policies;
mod properties;
mod regret;
mod strategies;
