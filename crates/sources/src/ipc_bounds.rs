//! Checks the sizes that an Arrow IPC message claims, before it is decoded.
//!
//! The decoder of the `arrow` crate allocates what a compressed buffer's length prefix says, and what a message says
//! about its body: one changed byte would end the process. So every claim is compared with the bytes that exist and
//! with a bound. The decoder also ignores columns of a batch that its schema does not have: a changed byte in the schema
//! would lose them, and a batch without columns may claim two billion rows.

use arrow::ipc::{CompressionType, Field, Message, MessageHeader, RecordBatch, Schema, root_as_message};
use caju_kernels::too_deep;
use caju_runtime::budget;
use caju_types::{Error, Result, format_bytes};

/// The length of a compressed buffer precedes it; -1 says that it is not compressed after all.
const PREFIX: usize = 8;
/// A block of zstd makes 128 KiB of four bytes at most.
const ZSTD_RATIO: u64 = 128 << 10 >> 2;
/// The most bytes that LZ4 makes of one.
const LZ4_RATIO: u64 = 255;
/// Arrow's own bound: lists and offsets count in 31 bits.
const MAX_ROWS: i64 = i32::MAX as i64;

/// The error of a schema that the verifier of flatbuffers refuses for its depth, by the verifier's message: such a file is not
/// damaged. None for other messages.
pub(crate) fn depth_error(place: &str, message: &str) -> Option<Error> {
    let is_depth =
        ["Nested table depth limit reached", "DepthLimitReached"].iter().any(|m| message.contains(m));
    is_depth.then(|| Error::invalid(format!("{place}: the type of a column is {}", too_deep())))
}

/// The columns of a schema, nested ones included: a record batch has a node for each.
pub(crate) fn num_nodes(schema: &Schema<'_>) -> usize {
    let fields = schema.fields();
    fields.iter().flatten().map(|field| nodes_of(&field)).sum()
}

/// The values of a dictionary are in a batch of their own. The verifier of flatbuffers bounds the depth.
fn nodes_of(field: &Field<'_>) -> usize {
    let children = field.children().filter(|_| field.dictionary().is_none());
    1 + children.iter().flatten().map(|child| nodes_of(&child)).sum::<usize>()
}

/// Refuses a schema whose values have the bytes of each number in another order than this machine's: the decoder does not swap
/// them, and would read other numbers.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_byte_order(schema: &Schema<'_>) -> Result<()> {
    if schema.endianness().equals_to_target_endianness() {
        return Ok(());
    }
    Err(Error::invalid(
        "its numbers have their bytes in the order of other machines (the schema says big-endian), which is not read; write it \
         again with pyarrow, which reads both orders",
    ))
}

/// Checks one block of a file: metadata of `metadata_bytes`, then the body. `most` bounds what the whole block may
/// become in memory, and `nodes` is [`num_nodes`] of the file's schema.
///
/// # Errors
/// `DataLoss` for claims that cannot be true, `ResourceExhausted` for those above the bound.
pub(crate) fn check_block(block: &[u8], metadata_bytes: usize, most: u64, nodes: usize) -> Result<()> {
    let (metadata, body) =
        block.split_at_checked(metadata_bytes).ok_or_else(|| damaged("a block is cut off"))?;
    // A continuation marker, then the length; old files have the length alone.
    let skip = if metadata.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = root_as_message(metadata.get(skip..).unwrap_or(&[])).map_err(damaged)?;
    check_message(&message, body, most, Some(nodes))
}

/// Checks all messages of a stream. Anything else is left to the decoder.
///
/// # Errors
/// As [`check_block`].
pub(crate) fn check_stream(stream: &[u8], most: u64) -> Result<()> {
    let (mut rest, mut nodes) = (stream, None);
    while let Some((length, behind)) = message_length(rest) {
        let Some((metadata, body)) = behind.split_at_checked(length) else { return Ok(()) };
        let Ok(message) = root_as_message(metadata) else { return Ok(()) };
        let body_bytes = usize::try_from(message.bodyLength()).map_err(damaged)?;
        let Some((body, next)) = body.split_at_checked(body_bytes) else {
            return Err(damaged(format_args!(
                "a message has a body of {body_bytes} bytes, and {} are left",
                body.len()
            )));
        };
        if let Some(schema) = message.header_as_schema() {
            check_byte_order(&schema)?;
            nodes = nodes.or(Some(num_nodes(&schema)));
        }
        check_message(&message, body, most, nodes)?;
        rest = next;
    }
    Ok(())
}

/// The length of the next metadata of a stream, and the bytes behind the length; none at the end.
fn message_length(stream: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = stream.split_first_chunk::<4>()?;
    let (length, rest) = if *first == [0xff; 4] { rest.split_first_chunk::<4>()? } else { (first, rest) };
    let length = usize::try_from(i32::from_le_bytes(*length)).ok().filter(|n| *n > 0)?;
    Some((length, rest))
}

fn check_message(message: &Message<'_>, body: &[u8], most: u64, nodes: Option<usize>) -> Result<()> {
    match message.header_type() {
        MessageHeader::RecordBatch => match message.header_as_record_batch() {
            Some(batch) => {
                let found = batch.nodes().map_or(0, |n| n.len());
                if let Some(nodes) = nodes.filter(|nodes| *nodes != found) {
                    return Err(damaged(format_args!(
                        "a record batch has {found} columns, and the schema has {nodes}, nested ones included"
                    )));
                }
                check_batch(&batch, body, most)
            }
            None => Err(damaged("a record batch has no header")),
        },
        MessageHeader::DictionaryBatch => match message.header_as_dictionary_batch().and_then(|d| d.data()) {
            Some(batch) => check_batch(&batch, body, most),
            None => Err(damaged("a dictionary has no values")),
        },
        _ => Ok(()),
    }
}

fn check_batch(batch: &RecordBatch<'_>, body: &[u8], most: u64) -> Result<()> {
    if !(0..=MAX_ROWS).contains(&batch.length()) {
        return Err(damaged(format_args!("a record batch has {} rows", batch.length())));
    }
    for node in batch.nodes().iter().flatten() {
        if node.length() < 0 || node.null_count() < 0 || node.null_count() > node.length() {
            return Err(damaged(format_args!(
                "a column has {} values and {} nulls",
                node.length(),
                node.null_count()
            )));
        }
    }
    let codec = batch.compression().map(|c| c.codec());
    let mut needed = 0u64;
    for buffer in batch.buffers().iter().flatten() {
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let bytes = range.and_then(|(at, n)| body.get(at..at.checked_add(n)?));
        let Some(bytes) = bytes else {
            return Err(damaged(format_args!(
                "a buffer of {} bytes at {} lies outside of its block",
                buffer.length(),
                buffer.offset()
            )));
        };
        if let Some(codec) = codec {
            needed = needed.saturating_add(unpacked_bytes(bytes, codec)?);
        }
    }
    if needed > most {
        return Err(budget::too_much(&"a compressed record batch", needed, most));
    }
    Ok(())
}

/// The most memory that a compressed buffer can take.
fn unpacked_bytes(buffer: &[u8], codec: CompressionType) -> Result<u64> {
    let Some((prefix, packed)) = buffer.split_first_chunk::<PREFIX>() else {
        return if buffer.is_empty() { Ok(0) } else { Err(damaged("a compressed buffer has no length")) };
    };
    let claimed = i64::from_le_bytes(*prefix);
    if claimed == -1 {
        return Ok(0);
    }
    let claimed = u64::try_from(claimed).map_err(|_| impossible(claimed, packed.len()))?;
    // An unknown codec is refused by the decoder, before it reads the length.
    let possible = match codec {
        CompressionType::LZ4_FRAME => lz4_bytes(packed),
        _ => (packed.len() as u64).saturating_mul(ZSTD_RATIO),
    };
    if claimed > possible {
        return Err(impossible(claimed, packed.len()));
    }
    // The decoder of LZ4 writes what the frame holds, whatever the prefix says.
    Ok(if codec == CompressionType::LZ4_FRAME { possible } else { claimed })
}

const LZ4_MAGIC: [u8; 4] = 0x184D_2204u32.to_le_bytes();

/// The most that LZ4 frames can hold, by their blocks.
fn lz4_bytes(mut frames: &[u8]) -> u64 {
    let mut bytes = 0u64;
    while let Some(blocks) = frames.strip_prefix(&LZ4_MAGIC) {
        let Some((held, rest)) = lz4_frame(blocks) else {
            // Truncated or damaged: the decoder fails, and writes no more than this before.
            return bytes.saturating_add((frames.len() as u64).saturating_mul(LZ4_RATIO));
        };
        bytes = bytes.saturating_add(held);
        frames = rest;
    }
    bytes
}

/// The most bytes that the frame behind its magic decompresses to, and the bytes behind the frame.
fn lz4_frame(frame: &[u8]) -> Option<(u64, &[u8])> {
    let [flags, descriptor, ..] = *frame else { return None };
    let block_max = match descriptor >> 4 & 7 {
        4 => 64u64 << 10,
        5 => 256 << 10,
        6 => 1 << 20,
        7 => 4 << 20,
        _ => return None,
    };
    let flag = |bit: u8| usize::from(flags >> bit & 1);
    // Flags and descriptor, the size of the content, a dictionary's name, a checksum of the header.
    let mut rest = frame.get(2 + 8 * flag(3) + 4 * flag(0) + 1..)?;
    let mut bytes = 0u64;
    loop {
        let (size, behind) = rest.split_first_chunk::<4>()?;
        let size = u32::from_le_bytes(*size);
        if size == 0 {
            // A checksum of the content.
            return Some((bytes, behind.get(4 * flag(2)..)?));
        }
        let stored = size >> 31 == 1;
        let length = (size & 0x7fff_ffff) as usize;
        let held = if stored { length as u64 } else { (length as u64).saturating_mul(LZ4_RATIO) };
        bytes = bytes.saturating_add(held.min(block_max));
        rest = behind.get(length.checked_add(4 * flag(4))?..)?;
    }
}

fn impossible(claimed: impl std::fmt::Display, packed: usize) -> Error {
    let packed = format_bytes(packed as u64);
    damaged(format_args!("a compressed buffer of {packed} claims to hold {claimed} bytes"))
}

fn damaged(why: impl std::fmt::Display) -> Error {
    Error::data_loss(why.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use caju_types::ErrorKind;

    use super::*;

    fn stream(codec: CompressionType) -> Vec<u8> {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..10_000).map(|i| i / 100)));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["same"; 10_000]));
        let batch = RecordBatch::try_from_iter([("id", ids), ("text", text)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    /// Types with children, with a dictionary of structs, without buffers and without columns.
    #[test]
    fn batches_have_as_many_columns_as_their_schema() {
        let nested = |fields: Vec<arrow_schema::Field>| arrow_schema::DataType::Struct(fields.into());
        let field = |name: &str, of: arrow_schema::DataType| arrow_schema::Field::new(name, of, true);
        let pair =
            nested(vec![field("a", arrow_schema::DataType::Int8), field("b", arrow_schema::DataType::Null)]);
        let list = arrow_schema::DataType::new_list(pair.clone(), true);
        let key = Box::new(arrow_schema::DataType::Int32);
        let dictionary = arrow_schema::DataType::Dictionary(key, Box::new(arrow_schema::DataType::Utf8));
        let columns = [pair, list, dictionary, arrow_schema::DataType::Null];
        for count in 0..=columns.len() {
            let fields: Vec<_> = columns.iter().take(count).map(|of| field("x", of.clone())).collect();
            let schema = Arc::new(arrow_schema::Schema::new(fields));
            let arrays =
                schema.fields().iter().map(|f| arrow_array::new_null_array(f.data_type(), 3)).collect();
            let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(3));
            let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &options).unwrap();
            let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap();
            check_stream(&writer.into_inner().unwrap(), 1 << 20).unwrap();
        }
    }

    /// The schema lost its columns: 24 rows of five columns were read as 855,638,040 rows without columns.
    #[test]
    fn a_batch_with_columns_that_its_schema_lacks_is_refused() {
        let bytes = include_bytes!("../../../fuzz/corpus/memory/schema-lost-its-columns");
        let e = check_stream(bytes, 1 << 30).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss);
        assert!(e.message().contains("has 5 columns, and the schema has 0"), "{e}");
    }

    #[test]
    fn what_writers_write_passes_and_needs_what_it_holds() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let bytes = stream(codec);
            check_stream(&bytes, 1 << 20).unwrap();
            let e = check_stream(&bytes, 100_000).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
        }
    }

    /// Each byte of the stream changed: an error, or no more memory than the bound.
    #[test]
    fn no_changed_byte_asks_for_more_than_the_bound() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let bytes = stream(codec);
            let mut refused = 0;
            for at in 0..bytes.len() {
                for flip in [0x40, 0x80, 0x01] {
                    let mut changed = bytes.clone();
                    changed[at] ^= flip;
                    refused += usize::from(check_stream(&changed, 1 << 20).is_err());
                }
            }
            assert!(refused > 10, "{codec:?}: {refused}");
        }
    }
}
