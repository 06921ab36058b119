//! Checks of the sizes that batches of an Arrow part claim, made before memory is allocated for them.
//!
//! The decoder allocates memory by the lengths in the file: a compressed buffer begins with its decompressed length, and
//! misaligned buffers are copied. A failed allocation ends the process, so that no decoder can turn a false length into an
//! error.

use arrow::ipc::{Block, MessageHeader, RecordBatch, root_as_message};

/// The first bytes of a message, in files since version 0.15 of the format.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The length in front of a buffer that is stored uncompressed in a compressed batch.
const NOT_COMPRESSED: i64 = -1;
/// Bytes of the length in front of a compressed buffer.
const PREFIX: usize = 8;
/// The most rows of a batch. It bounds batches whose columns take no bytes; for others bytes are the bound.
const MAX_ROWS: i64 = 1 << 30;

/// Checks the batch at `block`, where `message` begins. Its decompressed buffers may have `max_bytes` together.
///
/// # Errors
/// What is wrong with the batch, in words.
pub(super) fn check(message: &[u8], block: &Block, max_bytes: u64) -> Result<(), String> {
    let cut = || "one of its batches is cut".to_string();
    let head = usize::try_from(block.metaDataLength()).map_err(|_| cut())?;
    let body_bytes = usize::try_from(block.bodyLength()).map_err(|_| cut())?;
    let end = head.checked_add(body_bytes).ok_or_else(cut)?;
    let body = message.get(head..end).ok_or_else(cut)?;
    let start = if message.starts_with(&CONTINUATION) { 8 } else { 4 };
    let head = message.get(start..head).ok_or_else(cut)?;
    let head = root_as_message(head).map_err(|e| e.to_string())?;
    if head.header_type() != MessageHeader::RecordBatch {
        return Err("one of its batches is another kind of message".into());
    }
    let batch = head.header_as_record_batch().ok_or_else(cut)?;
    let rows = batch.length();
    if !(0..=MAX_ROWS).contains(&rows) {
        return Err(format!("one of its batches claims {rows} rows"));
    }
    let bytes = decompressed_bytes(&batch, body)?;
    if bytes > max_bytes {
        return Err(format!(
            "one of its batches claims {bytes} bytes once it is decompressed, and {max_bytes} are the most that is read at once"
        ));
    }
    Ok(())
}

fn decompressed_bytes(batch: &RecordBatch<'_>, body: &[u8]) -> Result<u64, String> {
    let compressed = batch.compression().is_some();
    let mut sum = 0u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let outside = || "one of its buffers is out of bounds".to_string();
        let start = usize::try_from(buffer.offset()).map_err(|_| outside())?;
        let length = usize::try_from(buffer.length()).map_err(|_| outside())?;
        let end = start.checked_add(length).ok_or_else(outside)?;
        let stored = body.get(start..end).ok_or_else(outside)?;
        let bytes = match stored.first_chunk::<PREFIX>().map(|n| i64::from_le_bytes(*n)) {
            _ if !compressed || length == 0 => length as u64,
            Some(NOT_COMPRESSED) => length as u64,
            Some(n) => u64::try_from(n).map_err(|_| format!("one of its buffers claims {n} bytes"))?,
            None => return Err("one of its buffers is cut".into()),
        };
        sum = sum.saturating_add(bytes);
    }
    Ok(sum)
}
