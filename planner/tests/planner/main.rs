//! The planner from outside: golden plans, properties, malformed input, Figure 7, the size of the work,
//! numbers of workers.

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
mod scaling;
mod scaling_cases;
mod scaling_loop;
mod scaling_properties;
mod scaling_rules;
mod strategies;
