//! Caches on stores: parts, records, leases, budgets, and what faults and other caches do to them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod budget;
mod chunks;
mod description;
mod faults;
mod forged;
mod leases;
mod races;
mod repair;
mod requests;
mod round_trip;
mod shared;
mod sizes;
mod space;
mod wire;
