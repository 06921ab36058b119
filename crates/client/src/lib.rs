//! Reads an iteration: opens its tasks at all workers, bounds the bytes in flight, delivers every row exactly once, and
//! merges the short batches at the ends of tasks.
//!
//! [`Client::connect`] finds the dispatcher, [`Client::read`] opens one epoch of a job, and [`Reader::next`] gives its elements
//! one by one ([`Reader::next_chunk`] in bulk). Inside, a session exchanges heartbeats with the dispatcher, and one connection
//! per task puts chunks into a queue. Receipts record which rows were received, so that the remaining rows of a lost worker
//! come from others, and no row comes twice. [`Reader::state`] says which rows the user got, and [`ReadRequest::states`]
//! reads the remaining rows of the epoch.

mod acks;
mod assembly;
mod client;
mod config;
mod credit;
mod deadlines;
mod delivered;
mod delivery;
mod element_count;
mod epoch_columns;
mod exact;
mod follow;
mod gate;
mod heartbeat;
mod merge;
mod reader;
mod reattach;
mod receipts;
mod rounds;
mod session;
mod shared;
mod slot_rotation;
mod stall;
mod state;
mod stats;
mod taken;
mod target;
mod task;
mod tasks;
mod transfer;

pub use caju_types::{Balance, Uneven};
pub use caju_wire::Compression;
pub use client::Client;
pub use config::{
    Attempt, ClientConfig, Consumer, DatasetRef, EventFn, LostReaders, ReadRequest, ReaderEvent, SaveTo,
    Sharing, target_workers,
};
pub use heartbeat::heartbeat_wait;
pub use reader::{Element, Monitor, Reader};
pub use state::ReaderState;
pub use stats::{Incomplete, Progress, ReaderStats};
pub use transfer::{Transfer, TransferProtocol};
