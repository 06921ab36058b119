//! Finding where records start inside a file, by their headers alone.
//!
//! A byte range is cut without looking at the file; the first record of a split is the first one that
//! starts in its range. Scanning for something that looks like a header could take a file inside a record
//! for records of its own, so a start counts only when a walk from the beginning of the file (or from a
//! start that an earlier walk reached) arrives at it.

use std::ops::Range;
use std::sync::Arc;

use caju_types::Result;

use super::cache::{FileStarts, Start};
use super::file::SourceFile;

/// How a walk goes on.
pub(super) enum Progress {
    /// These bytes are needed next.
    Need(Range<u64>),
    /// The first record that starts at or after the target; the end of the file if there is none.
    Done(Start),
}

/// A walk over the headers of one file.
pub(super) trait Walk: Send + 'static {
    /// Goes as far as the bytes at hand allow; `at` is the place of the first of them.
    fn step(&mut self, at: u64, bytes: &[u8]) -> Result<Progress>;
}

/// The first record that starts at or after `target`.
///
/// # Errors
/// A damaged header on the way, and what reading reports.
pub(super) async fn first_start<W: Walk>(
    file: &Arc<SourceFile>,
    starts: &FileStarts,
    target: u64,
    walk: impl FnOnce(Start) -> W,
) -> Result<Start> {
    if target == 0 {
        return Ok(Start::default());
    }
    let _one_walk = starts.walking.lock().await;
    let from = starts.before(target);
    let mut walk = walk(from);
    let found = if file.is_local() {
        file.with_local(move |f| {
            let (mut at, mut bytes) = (0, bytes::Bytes::new());
            loop {
                match walk.step(at, &bytes)? {
                    Progress::Done(start) => return Ok(start),
                    Progress::Need(range) => {
                        at = range.start;
                        bytes = f.read(range)?;
                    }
                }
            }
        })
        .await?
    } else {
        let (mut at, mut bytes) = (0, bytes::Bytes::new());
        loop {
            match walk.step(at, &bytes)? {
                Progress::Done(start) => break start,
                Progress::Need(range) => {
                    at = range.start;
                    bytes = file.read(range).await?;
                }
            }
        }
    };
    starts.learn(found);
    Ok(found)
}

/// How much to read at the next header, given the size of the last record: just the header where records
/// are large, a window over many of them where they are small.
pub(super) fn window(local: bool, header: u64, last_record: u64) -> u64 {
    match (local, last_record) {
        (true, n) if n > 16 << 10 => header,
        (true, _) => 128 << 10,
        (false, n) if n > 1 << 20 => header.max(4 << 10),
        (false, _) => 4 << 20,
    }
}
