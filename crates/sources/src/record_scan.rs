//! Finding where records start inside a file, by their headers alone.
//!
//! A byte range is cut without looking at the file; the first record of a split is the first one that starts in its
//! range. A search for bytes that look like a header could take a file inside a record for records of its own. So an
//! offset counts as a record start only if a scan over the headers reaches it, from the beginning of the file or from a
//! start that an earlier scan reached.

use std::ops::Range;
use std::sync::Arc;

use caju_types::Result;

use crate::caches::{RecordIndex, RecordStart};
use crate::feed::{Codec, Feed};
use crate::file::SourceFile;

/// What a scan needs next.
pub(crate) enum Progress {
    /// These bytes are needed next.
    Need(Range<u64>),
    /// The first record that starts at or after the target; the end of the file if there is none.
    Done(RecordStart),
}

/// A scan over the headers of one file.
pub(crate) trait RecordScan: Send + 'static {
    /// Scans as far as `bytes` allow; `at` is the file offset of the first of them.
    fn step(&mut self, at: u64, bytes: &[u8]) -> Result<Progress>;
}

/// The first record that starts at or after `target`.
///
/// # Errors
/// A damaged header before the target, and the errors of reading the file.
async fn find_record_start<S: RecordScan>(
    file: &Arc<SourceFile>,
    index: &RecordIndex,
    target: u64,
    scan: impl FnOnce(RecordStart) -> S,
) -> Result<RecordStart> {
    if target == 0 {
        return Ok(RecordStart::default());
    }
    let _one_scan = index.scanning.lock().await;
    let from = index.last_at_or_before(target);
    let mut scan = scan(from);
    let found = if file.is_local() {
        file.with_local(move |f| {
            let (mut at, mut bytes) = (0, bytes::Bytes::new());
            loop {
                match scan.step(at, &bytes)? {
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
            match scan.step(at, &bytes)? {
                Progress::Done(start) => break start,
                Progress::Need(range) => {
                    at = range.start;
                    bytes = file.read(range).await?;
                }
            }
        }
    };
    index.insert(found);
    Ok(found)
}

/// The first record that starts in a range of bytes, and the bytes of the file from there on. A compressed file is read from
/// its beginning, decompressed.
///
/// # Errors
/// A damaged header before the range, and the errors of reading the file.
pub(crate) async fn open_records<S: RecordScan>(
    file: &Arc<SourceFile>,
    index: &RecordIndex,
    codec: Codec,
    (start, end): (u64, u64),
    scan: impl FnOnce(RecordStart) -> S,
) -> Result<(RecordStart, Feed)> {
    if codec != Codec::Plain {
        return Ok((RecordStart::default(), Feed::whole(file, codec)));
    }
    let here = find_record_start(file, index, start, scan).await?;
    Ok((here, Feed::range(file, here.at, end.max(here.at))))
}

/// Bytes to read at the next header, given the size of the last record: the header alone where records are large, a
/// window over many records where they are small.
pub(crate) fn read_window(local: bool, header: u64, last_record: u64) -> u64 {
    match (local, last_record) {
        (true, n) if n > 16 << 10 => header,
        (true, _) => 128 << 10,
        (false, n) if n > 1 << 20 => header.max(4 << 10),
        (false, _) => 4 << 20,
    }
}
