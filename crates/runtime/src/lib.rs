//! Everything ambient, in one place: time, tasks, threads, the process and object stores.
//!
//! Other rooms get these handed in. A lint (`clippy.toml`) bans reading the clock, spawning tasks and
//! opening unbounded queues anywhere else, so that tests can be exact and shutdown complete.

mod clock;
mod cpu;
mod private;
mod process;
pub mod recycle;
pub mod stores;
mod tasks;

pub use clock::{Clock, SystemClock};
pub use cpu::{CpuPool, handing_over};
pub use private::{PrivateFolder, private_cache};
pub use process::{cpu_time, environment, peak_rss_bytes, rss_bytes, thread_blocks_read, thread_cpu_time};
pub use stores::{Access, CountingStore, IoCounters, IoSnapshot, Location, Stores};
pub use tasks::Tasks;
