//! The journal: updates, durable before any answer says what they changed.
//!
//! A journal holds *groups*: the updates of one decision, all of them or none. It is expendable (the truth
//! about snapshots is in object storage), so what cannot be read is set aside, never repaired and never a
//! reason not to start.

mod codec;
mod memory;
mod records;
mod redb;
mod sled;
mod state_dir;
#[cfg(test)]
mod tests;
mod writer;

use caju_types::Result;

pub use codec::{EncodedGroup, FORMER_SCHEMAS, SCHEMA};
pub use memory::MemoryJournal;
pub use redb::RedbJournal;
pub use sled::SledJournal;
pub use state_dir::{JournalKind, OpenedJournal, open_state_dir};
pub(crate) use writer::JournalWriter;

use crate::state::Update;

/// A store of updates.
pub trait Journal: Send {
    /// Every group ever appended, or since the journal was last compacted, in order.
    ///
    /// # Errors
    /// `DataLoss` if what is stored is not what was written.
    fn replay(&mut self) -> Result<Vec<Vec<Update>>>;

    /// Adds groups; they are durable when this returns. Returns their size in bytes as written.
    ///
    /// # Errors
    /// If they cannot be made durable. Then some of them may be stored and others not, in order.
    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64>;

    /// Everything that is stored now, for another thread: groups can be appended meanwhile.
    ///
    /// # Errors
    /// Those of the database.
    fn stored(&self) -> Result<Box<dyn StoredGroups>>;

    /// What it is and where, for people.
    fn describe(&self) -> String;
}

/// What a journal held at one moment: at least one group. Groups that were appended since are not part of it.
pub trait StoredGroups: Send {
    /// The groups, in order. Threads of low priority call this, so it holds no lock for long that [`Journal::append`] takes.
    ///
    /// # Errors
    /// `DataLoss` if what is stored is not what was written.
    fn read(&mut self) -> Result<Vec<Vec<Update>>>;

    /// Replaces all groups by one that contains their state and depends on none of them. If the process dies meanwhile, the
    /// journal has both. Returns the group's size in bytes as written.
    ///
    /// The caller encodes the group beforehand: a database may let no group be appended during this call.
    ///
    /// # Errors
    /// If it cannot be made durable; then the old content remains.
    fn replace(&mut self, group: &EncodedGroup) -> Result<u64>;
}
