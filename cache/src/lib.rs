//! Snapshots: the stored output of a dataset's prefix, shared by every job that has the prefix.
//!
//! A [`Cache`] is one process's handle on a cache root in an object store. A [`Snapshot`] is the stored output of one
//! prefix. It has at most one part per split. A part counts only when its commit record exists. The record is created
//! only if absent: before that no reader sees the part, and after that the part never changes. Every block is checked
//! before it is decoded. So a part is whole or absent, and at most one part per split is ever served, whatever
//! processes die or pause. The `layout` module has the names of the objects.
//!
//! Opening a root finds out whether its store honours conditional puts. On a store that ignores them, names are unique
//! per attempt and the oldest record wins. There, two writers of one split may both see themselves win for a moment;
//! readers agree as soon as both records are listed.
//!
//! An error of a cache never has to fail a job. `DataLoss` and `NotFound` of a part mean "compute this split". Any other
//! error means "continue without the cache for now".
//!
//! Modules build on one another in this order: `layout`, `record`, `store` (objects), `lease`, `tier`, `budget`
//! (one process's share), `context` (all of these for one root), `state` (what is known of each snapshot), `evict`,
//! `admission`, `cache`, `read`, `write`, `snapshot` (the handles), `admin` and `probe` (tools).

mod admin;
mod admission;
mod budget;
mod cache;
mod commit;
mod context;
mod evict;
mod layout;
mod lease;
mod listing;
mod locks;
mod manifest;
mod options;
mod plan_record;
mod probe;
mod read;
mod record;
mod retry;
mod save;
mod scan;
mod schema;
mod set;
mod snapshot;
mod state;
mod store;
mod tags;
mod tier;
mod verified;
mod write;

pub use caju_autocache::{Compression, Encoding, Format, SplitSetDigest};

pub use admin::{
    CollectReason, Collection, Damage, Dropped, Expired, Inspection, PartLine, SnapshotInfo, Usage,
    VerifyReport,
};
pub use cache::Cache;
pub use commit::Committed;
pub use evict::Eviction;
pub use listing::SourceListing;
pub use manifest::{DescriptionUpdate, SnapshotDescription};
pub use options::{CacheOptions, MIN_BUDGET_BYTES};
pub use plan_record::{read_plan_record, write_plan_record};
pub use probe::{Probe, ProbeTask};
pub use read::{PartReader, ReadOptions};
pub use record::{Block, PartFacts, PartMeta};
pub use save::{SaveDescription, SaveState};
pub use schema::schema_hash;
pub use set::{Member, SetOutcome, SetRecord, SplitName};
pub use snapshot::{PutOutcome, Snapshot};
pub use state::PartIndex;
pub use write::PartWriter;
