//! The framed stream: how chunks get from a worker to a reader of ours.
//!
//! Any Arrow Flight client can read a task; our own client speaks this protocol on the same port. It differs
//! from Flight in three things. Columns are never copied on the way out, and land in one recycled, aligned
//! allocation on the way in ([`encode_chunk`], [`decode_chunk`], [`BufferPool`]). Rows carry their provenance
//! ([`crate::Run`]), so that a reader knows what it has (I3). And the reader bounds what is on its way in
//! bytes (I7), with credits.
//!
//! A connection reads one task:
//!
//! ```text
//! reader                                worker
//!   Open{task, client, window}   ->
//!                                <-     Schema
//!                                <-     Rows ... (Ping when there is nothing to send)
//!   Credit{bytes}                ->
//!                                <-     End, or Error
//!   Ack                          ->
//! ```
//!
//! A worker sends while fewer than `window` bytes are on their way or unused at the reader, so at least one
//! chunk always is, however large. `Ack` tells the worker that the reader has everything.

mod accept;
mod coalesce;
mod decode;
mod elements;
mod encode;
pub mod frame;
mod io;
mod link;
mod local;
mod pool;
mod queue;
mod schema;
#[cfg(test)]
mod tests;
mod transport;

pub use accept::{
    Admitted, ConnectionLimits, Gate, OpenCall, OpenCalls, Permit, Protocol, Silent, accept, admitted,
};
pub use coalesce::coalesce;
pub use decode::decode_chunk;
pub use elements::ElementCursor;
pub use encode::{OutFrame, Segment, encode_chunk};
pub use io::{FrameReader, FrameWriter, InFrame, looks_framed, tune};
pub use link::{Dispatcher, DispatcherLink, is_passing};
pub use local::{LocalTask, LocalWorker, LocalWorkers};
pub use pool::{Body, BufferPool};
pub use queue::ByteQueue;
pub use schema::{decode_schema, encode_schema, schema_from_ipc, schema_to_ipc};
pub use transport::{IN_PROCESS, Listener, Stream, connect, is_in_process, new_in_process_address};
