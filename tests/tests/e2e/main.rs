//! End to end: the real binary, seen from outside.
//!
//! Names that begin with an id such as `ops_02` hold a behaviour of docs/conformance.md.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod arrow_footers;
mod autoscaling;
mod bad_data;
mod bad_definitions;
mod bench;
mod bounds;
mod cache_commands;
mod cache_conformance;
mod cache_faults;
mod cache_safety;
mod cache_upkeep;
mod chaos;
mod command_line;
mod conformance;
mod consumers;
mod determinism;
mod embedded;
mod examples;
mod failing_disk;
mod faults;
mod hostile;
mod journals;
mod kubernetes;
mod learnt;
mod leaving;
mod lost_readers;
mod nobody_else;
mod options;
mod overload;
mod plan;
mod planning;
mod processes;
mod reading_on;
mod reorder;
mod restarts;
mod sample_data;
mod save_faults;
mod saves;
mod scale;
mod sets;
mod sharing;
mod silent_peers;
mod snapshots;
mod speed;
mod stragglers;
mod tuning;
mod up;
mod zombies;
