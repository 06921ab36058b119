//! What a worker and a client share: chunks of rows with their provenance, and how they travel.
//!
//! A [`Chunk`] is rows, the [`Run`]s that say which rows of which split they are, and the [`Elements`] that they
//! form. Chunks wait in queues that are bounded in bytes ([`ByteQueue`]), reach a reader in the same process
//! unchanged ([`LocalWorkers`]), and any other reader through the framed stream.
//!
//! # The framed stream
//!
//! Any Arrow Flight client can read a task; our own client speaks this protocol on the same port. It differs from
//! Flight in three things. Columns are never copied on the way out, and land in one recycled, aligned allocation
//! on the way in ([`encode_chunk`], [`decode_chunk`], [`BufferPool`]). Rows carry their provenance ([`Run`]), so
//! that a reader knows which rows it has received. And the reader bounds what is on its way in bytes, with
//! credits.
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
//! `Schema` says which columns the task was bound to. A reader refuses a task whose columns are not those of its epoch
//! ([`check_task_columns`]). A later `Schema` says how the next rows are encoded.
//!
//! A worker sends while fewer than `window` bytes are on their way or unused at the reader, so at least one chunk
//! always is, however large. `Ack` reports to the worker that the reader has everything.
//!
//! A reader may ask for compressed rows ([`Compression`]). Windows and credits count uncompressed bytes.
//!
//! # Shared memory
//!
//! A reader on the worker's host may ask for rows in shared memory. The worker answers `Open` with `Moved` and the name of
//! a Unix domain socket, where the reader opens the task again, with the same ticket. There a large body is a sealed file in
//! memory whose descriptor comes with its frame ([`PassedFiles`]). The reader maps it and builds its arrays over the map,
//! with the same checks as for bytes of a socket. Equal bodies of several readers can be one file ([`EncodedRows::in_file`]).
//! A reader that does not find the socket opens the task over TCP.

mod accept;
mod calls;
pub mod checksum;
mod chunk;
mod coalesce;
mod compression;
mod decode;
mod elements;
mod encode;
pub mod frame;
mod grpc_connection;
mod io;
mod link;
mod local;
mod open;
mod padding;
mod pool;
mod queue;
mod queue_memory;
mod same_host;
mod schema;
mod segment;
mod split_facts;
mod task_columns;
#[cfg(test)]
mod tests;
mod transport;

pub use accept::{ConnectionGate, ConnectionLimits, PendingConnection, Permit, Protocol, accept};
pub use calls::{CallLayer, CountedCalls, OpenCall, OpenCalls};
pub use chunk::{
    Chunk, Elements, RoundMark, Run, batch_bytes, part_bytes, plain_bytes, push_run, slice_runs,
};
pub use coalesce::coalesce;
pub use compression::{Codec, Compression, decompress};
pub use decode::decode_chunk;
pub use elements::ElementCursor;
pub use encode::{EncodedRows, OutFrame, encode_chunk, encode_chunk_as, encode_rows};
pub use grpc_connection::{GrpcConnection, grpc_connections};
pub use io::{FrameReader, FrameWriter, InFrame, begins_framed_stream};
pub use link::{Dispatcher, DispatcherLink, is_transient};
pub use local::{LocalTask, LocalWorker, LocalWorkers};
pub use open::OpenTimeouts;
pub use padding::{Padding, longer_than, pad_batch, pad_to_lengths};
pub use pool::{Body, BufferPool};
pub use queue::ByteQueue;
pub use queue_memory::{QueueBound, QueueMemory, QueueUse};
pub use same_host::{FileBody, PassedFiles, can_share_memory};
pub use schema::{decode_schema, encode_schema, schema_from_ipc, schema_to_ipc};
pub use segment::Segment;
pub use split_facts::SplitFacts;
pub use task_columns::check_task_columns;
pub use transport::{
    ByteStream, IN_PROCESS, Listener, Network, ReadHalf, SimulatedNetwork, SimulatedStream, Stream,
    WriteHalf, connect, connect_same_host, is_in_process, new_in_process_address, tune,
};
