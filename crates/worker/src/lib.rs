//! Runs tasks, and serves their elements.
//!
//! A worker registers with the dispatcher and reports to it. A task starts when its first reader comes: the
//! worker asks the dispatcher what the task is, binds its pipeline, leases splits and runs it; the output
//! waits in a queue bounded in bytes, which all readers of the task share. One port serves two protocols: the
//! framed stream of our own client (`caju_wire`), and Arrow Flight for all other clients. Readers in the same
//! process get chunks without a socket, through [`caju_wire::LocalWorkers`].
//!
//! ```no_run
//! # async fn example() -> caju_types::Result<()> {
//! use std::sync::Arc;
//! use caju_worker::{Worker, WorkerConfig};
//! let config = WorkerConfig::new("127.0.0.1:7070", Arc::new(caju_runtime::Stores::default()));
//! let worker = Worker::start(config).await?;
//! println!("caju worker listening on {}", worker.address());
//! worker.drain(std::time::Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```

mod attachment;
mod body_files;
mod caches;
mod config;
mod emitted_rows;
mod feed;
mod finishing;
mod flight;
mod flow;
mod framed;
mod identity;
mod lagging;
mod last_batch;
mod learning;
mod listing;
mod local;
mod manager;
mod outgoing;
mod packing;
mod pipelines;
mod profiling;
mod readers;
mod round_robin;
mod rounds;
mod running;
mod server;
mod sizes;
mod starting;
mod task_output;
mod tasks;
mod tuning;
mod worker;

pub use caches::Caches;
pub use config::{TunedNumbers, WorkerConfig};
pub use worker::{Worker, WorkerHandle};
