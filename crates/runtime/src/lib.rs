//! The environment of a process, in one place: time, tasks, threads, memory, the process itself and object stores.
//!
//! Other crates get handles from here. A lint (`clippy.toml`) bans reading the clock, spawning tasks and opening unbounded
//! queues anywhere else, so that tests can be exact and shutdown complete.

mod channel;
mod clock;
mod condition;
mod copying;
mod cpu;
pub mod interrupt;
mod isolated;
mod mapped;
mod ordered;
mod panics;
mod private;
mod process;
mod random;
pub mod recycle;
pub mod sealed;
mod simulation;
pub mod stores;
mod tasks;
mod threads;

pub use caju_types::budget;
pub use caju_types::panic_text;
pub use channel::{Receiver, Sender, channel};
pub use clock::{Clock, SystemClock};
pub use condition::Condition;
pub use copying::copy_parts;
pub use cpu::{CpuPool, PoolTuner, PoolUsage, handover_cpu_time};
pub use isolated::{IsolatedThreads, on_isolated_thread};
pub use mapped::MappedFile;
pub use ordered::{LockRank, OrderedGuard, OrderedMutex, OrderedRwLock};
pub use panics::{Caught, catch, catch_out_of_range, caught};
pub use private::{PrivateFolder, private_cache};
pub use process::{
    ProcessIdentity, cpu_time, environment, peak_rss_bytes, rss_bytes, terminate, thread_blocks_read,
    thread_cpu_time, wanted_cpu_time_of,
};
pub use random::random_secret;
pub use simulation::{is_simulated, simulate};
pub use stores::{Access, CountingStore, IoCounters, IoSnapshot, Location, Stores};
pub use tasks::{Task, TaskName, Tasks, blocking, log_failure};
pub use threads::{Thread, at_low_priority, with_stack};
