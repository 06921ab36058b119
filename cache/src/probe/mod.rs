//! Probes: the costs of storing rows, measured by storing a few of them.

mod decode;
mod run;
mod store;
mod task;
mod timing;

pub use task::{Probe, ProbeTask};
