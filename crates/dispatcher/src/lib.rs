//! The dispatcher: caju's control plane.
//!
//! It knows datasets, jobs, their iterations, tasks on workers and the clients that read them; it leases
//! splits under `dynamic`, notices who is silent, and sees to it that every row reaches the user exactly once.
//! It moves no rows itself.
//!
//! - [`state`]: what it must not forget, pure; changed by [`state::Update`]s alone.
//! - [`journal`]: the updates, durable before their results are reported.
//! - `splits`: fresh splits, listed a little ahead, in the order of the epoch.
//! - `control`: what a call, a silence or a failure means, in terms of updates.
//! - `service`, `flight`, `server`: the wire.
//!
//! ```no_run
//! # async fn example(registry: caju_kernels::Registry, ctx: caju_sources::SourceContext)
//! # -> caju_types::Result<()> {
//! use std::sync::Arc;
//! use caju_dispatcher::{Dispatcher, DispatcherConfig, EngineCatalog};
//! let catalog = Arc::new(EngineCatalog::new(registry, ctx));
//! let config = DispatcherConfig { listen: "127.0.0.1:0".into(), ..Default::default() };
//! let dispatcher = Dispatcher::start(config, catalog).await?;
//! println!("caju dispatcher listening on {}", dispatcher.address());
//! dispatcher.shutdown().await;
//! # Ok(()) }
//! ```

mod calls;
mod catalog;
mod config;
mod control;
mod definition;
mod engine;
mod flight;
mod http;
pub mod journal;
mod keda;
mod locks;
mod metrics;
mod server;
mod service;
mod splits;
pub mod state;
#[cfg(test)]
mod tests;
mod workers;

pub use catalog::{Bound, Catalog, ListShards, ListSplits, ListedSplit, ShardListing, SplitShuffle};
pub use config::{DispatcherConfig, MemoryLimits, Timers};
pub use control::Saves;
pub use definition::Definition;
pub use engine::EngineCatalog;
pub use server::{Dispatcher, DispatcherHandle};
pub use workers::WorkerList;
