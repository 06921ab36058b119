//! Pipelines without caches, from definition to rows: binding, tasks, order, and rows that wait.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod binding;
mod busy;
mod dictionaries;
mod draws;
mod learning;
mod pushdown;
mod reorder;
mod tasks;
mod waiting;
