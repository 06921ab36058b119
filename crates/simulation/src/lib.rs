//! Simulates clusters: a dispatcher, workers and readers with their real code, on one thread, on a network and a disk that
//! fail as a seed says, and on a clock that runs as fast as there is something to do.
//!
//! A seed determines a run, to the last event: [`run`] gives the same digest each time. Everything that is checked is in
//! `run` (rows, acknowledgements, memory, ends), `disk` (leases) and `tap` (acknowledgements as they come).
//!
//! ```sh
//! cargo run -p caju-simulation -- --seeds 10000      # many seeds, each in a process of its own
//! cargo run -p caju-simulation -- --seed 4711        # one seed, with every event
//! cargo run -p caju-simulation -- --scenario sharing # several jobs that share rows
//! cargo run -p caju-simulation -- --scenario rounds  # consumers that are killed and go on from their states
//! cargo run -p caju-simulation -- --scenario absences # readers that stand still, a dispatcher that loses its state
//! cargo run -p caju-simulation -- --scenario counting # stages that count rows, repeat them or skip bad ones
//! ```
//!
//! # Why not `turmoil`
//!
//! `turmoil` is the library of the field. It needs the sockets of every crate replaced by its own at compile time, and moves
//! time in steps of a millisecond for each host. Lost segments of its TCP never arrive, as if a network lost packets and TCP did not
//! send them again. It leaves the order of hash maps and the choices of `select!` to chance. Here the crates take a
//! network as a setting ([`caju_wire::Network`]), time jumps from timer to timer, and the C library's functions for time
//! and randomness are replaced (`ambient`).

mod ambient;
mod consumers;
mod counting;
mod disk;
mod fault_draws;
mod faults;
mod gate;
mod inflict;
mod launches;
mod log;
mod network;
mod pipe;
mod plan;
mod random;
mod reader;
mod reader_record;
mod requests;
mod run;
mod sharing;
mod tap;
mod world;

pub use plan::Scenario;
pub use run::{Report, run};
pub use tap::Spoil;
