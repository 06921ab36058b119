//! The data plane end to end: dispatcher, workers and clients over real sockets in one process.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests")]

mod changed_columns;
mod cluster;
mod conformance;
mod consumer_states;
mod consumers;
mod flight;
mod given_back;
mod learnt;
mod membership;
mod mixing;
mod panics;
mod reading;
mod resume;
mod rounds;
mod same_host;
mod same_ids;
mod sharding;
mod sharing;
mod spill;
mod status;
mod trouble;
mod tuning;
mod waits;
