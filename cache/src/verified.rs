//! Blocks of mapped files that this process has checked, so that no reader checks one twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::record::Block;

/// Mapped files whose checks are remembered. The least used ones beyond that are checked again when they are read.
const MAX_FILES: u64 = 4096;

/// Checks of the blocks of one mapped file, by block number. Readers of the same file share them.
pub(crate) type FileChecks = Arc<Vec<BlockChecks>>;

/// What has been checked of one block of a mapped file.
#[derive(Debug, Default)]
pub(crate) struct BlockChecks {
    checksum: AtomicBool,
    validated: AtomicBool,
}

impl BlockChecks {
    /// Whether the block was found to match its checksum.
    pub(crate) fn has_checksum(&self) -> bool {
        self.checksum.load(Ordering::Relaxed)
    }

    /// Records that the block matches its checksum.
    pub(crate) fn set_checksum(&self) {
        self.checksum.store(true, Ordering::Relaxed);
    }

    /// Whether all batches of the block were decoded with validation.
    pub(crate) fn is_validated(&self) -> bool {
        self.validated.load(Ordering::Acquire)
    }

    /// Records that all batches of the block were decoded with validation.
    pub(crate) fn set_validated(&self) {
        self.validated.store(true, Ordering::Release);
    }
}

/// A file as it was when it was mapped. Anybody but root who changes or replaces the file gives it another version.
/// A file is remembered only when a later change would show in its times.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileVersion {
    /// The blocks by the part's record: where they begin, and their checksums.
    pub(crate) blocks: Vec<Block>,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Length, modification time and change time.
    pub(crate) version: (u64, i64, i64),
}

/// The checks of mapped files, by file version.
#[derive(Debug, Clone)]
pub(crate) struct VerifiedFiles(moka::sync::Cache<FileVersion, FileChecks>);

impl VerifiedFiles {
    pub(crate) fn new() -> Self {
        Self(moka::sync::Cache::new(MAX_FILES))
    }

    /// The checks of a file version; those that `init` gives if there are none yet.
    pub(crate) fn get_or_insert(&self, file: FileVersion, init: impl FnOnce() -> FileChecks) -> FileChecks {
        self.0.get_with(file, init)
    }
}
