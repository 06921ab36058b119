//! A frame as a chunk, without copying its columns, and without believing the peer.
//!
//! Everything that a header claims is checked against the body before it is used, and arrays are built with
//! Arrow's own validation (buffer sizes, offsets, UTF-8). For fixed-width columns, which carry nearly all
//! bytes, that costs nothing.

use std::sync::Arc;

use arrow::array::{ArrayData, make_array};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_schema::{DataType, SchemaRef};
use caju_types::Result;

use crate::chunk::push_run;
use crate::frame::{ALIGN, RowsHeader, damaged};
use crate::{Chunk, Elements, RoundMark, Run};

/// More rows than this in one frame are not believed.
const MAX_ROWS: u64 = 1 << 31;

/// The chunk in a frame. The body must be aligned to [`ALIGN`] for columns not to be copied.
///
/// # Errors
/// `DataLoss` if header, schema and body do not agree.
pub fn decode_chunk(header: RowsHeader, schema: &SchemaRef, body: Buffer) -> Result<Chunk> {
    let rows = rows(header.rows)?;
    let runs = runs_of(&header)?;
    let mut decoder = Decoder { header: &header, body: &body, at: 0, node: 0, buffer: 0, variadic: 0 };
    let columns = schema
        .fields()
        .iter()
        .map(|f| {
            let data = decoder.array(f.data_type())?;
            if data.len() != rows {
                return Err(damaged(format!("column `{}` has {} rows, not {rows}", f.name(), data.len())));
            }
            Ok(make_array(data))
        })
        .collect::<Result<Vec<_>>>()?;
    decoder.finish()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(damaged)?;
    let elements = if header.rows_are_elements {
        Elements::Rows
    } else {
        let sum: u64 = header.lengths.iter().map(|l| u64::from(*l)).sum();
        if sum != header.rows {
            return Err(damaged(format!("elements of {sum} rows in a chunk of {rows}")));
        }
        Elements::Lengths(header.lengths)
    };
    let round = RoundMark { bucket: header.bucket.checked_sub(1), remainder_round: header.remainder_round };
    Ok(Chunk { pieces: vec![batch], runs, elements, remainder: header.remainder, round })
}

fn rows(claimed: u64) -> Result<usize> {
    usize::try_from(claimed)
        .ok()
        .filter(|_| claimed <= MAX_ROWS)
        .ok_or_else(|| damaged(format!("{claimed} rows in one frame")))
}

fn runs_of(header: &RowsHeader) -> Result<Vec<Run>> {
    let n = header.run_split.len();
    if header.run_start.len() != n || header.run_len.len() != n {
        return Err(damaged("the runs' splits, starts and lengths differ in number"));
    }
    let mut runs = Vec::with_capacity(n);
    let mut sum = 0u64;
    for i in 0..n {
        let run = Run { split: header.run_split[i], start: header.run_start[i], len: header.run_len[i] };
        sum = sum.saturating_add(run.len);
        if run.start.checked_add(run.len).is_none() || sum > header.rows {
            return Err(damaged("the runs have more rows than the chunk"));
        }
        push_run(&mut runs, run);
    }
    // Rows without runs belong to no split: a reader could neither detect that they came twice, nor acknowledge them.
    // Padding is acknowledged by the consumer that it is copied from.
    let is_padding = header.padding && sum == 0;
    if sum != header.rows && !is_padding {
        return Err(damaged(format!("runs of {sum} rows in a chunk of {}", header.rows)));
    }
    Ok(runs)
}

/// Bits of one value of a type without offsets.
fn bits_of(data_type: &DataType) -> Result<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(n) => usize::try_from(*n).ok().and_then(|n| n.checked_mul(8)),
        other => other.primitive_width().map(|n| n * 8),
    }
    .ok_or_else(|| damaged(format!("columns of type {data_type} do not travel")))
}

struct Decoder<'a> {
    header: &'a RowsHeader,
    body: &'a Buffer,
    at: usize,
    node: usize,
    buffer: usize,
    variadic: usize,
}

impl Decoder<'_> {
    fn array(&mut self, data_type: &DataType) -> Result<ArrayData> {
        let len = self.next_node()?;
        let mut builder = ArrayData::builder(data_type.clone()).len(len);
        if !matches!(data_type, DataType::Null) {
            builder = builder.nulls(self.next_nulls(len)?);
        }
        builder = match data_type {
            DataType::Null => builder,
            DataType::Struct(fields) => {
                for f in fields {
                    let child = self.child(f.data_type(), Some(len))?;
                    builder = builder.add_child_data(child);
                }
                builder
            }
            DataType::FixedSizeList(f, size) => {
                let want = usize::try_from(*size).ok().and_then(|s| s.checked_mul(len));
                let want = want.ok_or_else(|| damaged("a fixed-size list is too long"))?;
                builder.add_child_data(self.child(f.data_type(), Some(want))?)
            }
            DataType::List(f) | DataType::LargeList(f) | DataType::Map(f, _) => {
                let offsets = self.next_offsets(data_type, len)?;
                builder.add_buffer(offsets).add_child_data(self.child(f.data_type(), None)?)
            }
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => {
                let offsets = self.next_offsets(data_type, len)?;
                builder.add_buffer(offsets).add_buffer(self.next_buffer()?)
            }
            DataType::Utf8View | DataType::BinaryView => {
                let mut builder = builder.add_buffer(self.exact(len, 128)?);
                for _ in 0..self.next_variadic()? {
                    builder = builder.add_buffer(self.next_buffer()?);
                }
                builder
            }
            DataType::Dictionary(key, values) => {
                let keys = self.exact(len, bits_of(key)?)?;
                builder.add_buffer(keys).add_child_data(self.child(values, None)?)
            }
            other => builder.add_buffer(self.exact(len, bits_of(other)?)?),
        };
        builder.build().map_err(damaged)
    }

    fn child(&mut self, data_type: &DataType, len: Option<usize>) -> Result<ArrayData> {
        let child = self.array(data_type)?;
        match len {
            Some(len) if child.len() != len => {
                Err(damaged(format!("a nested array has {} rows, not {len}", child.len())))
            }
            _ => Ok(child),
        }
    }

    fn next_node(&mut self) -> Result<usize> {
        let claimed = *self.header.node_rows.get(self.node).ok_or_else(|| damaged("an array is missing"))?;
        self.node += 1;
        // A nested array may have more rows than the chunk, but no more than the body has bits for.
        usize::try_from(claimed)
            .ok()
            .filter(|n| *n <= (1 << 48))
            .ok_or_else(|| damaged(format!("an array of {claimed} rows")))
    }

    fn next_variadic(&mut self) -> Result<u32> {
        let n = self
            .header
            .variadic
            .get(self.variadic)
            .ok_or_else(|| damaged("a count of buffers is missing"))?;
        self.variadic += 1;
        Ok(*n)
    }

    fn next_buffer(&mut self) -> Result<Buffer> {
        let claimed = *self.header.buffers.get(self.buffer).ok_or_else(|| damaged("a buffer is missing"))?;
        self.buffer += 1;
        let room = self.body.len() - self.at;
        let len = usize::try_from(claimed)
            .ok()
            .filter(|l| *l <= room)
            .ok_or_else(|| damaged(format!("a buffer of {claimed} bytes where the body has {room} left")))?;
        let slice = self.body.slice_with_length(self.at, len);
        self.at += len.next_multiple_of(ALIGN).min(room);
        Ok(slice)
    }

    fn next_nulls(&mut self, len: usize) -> Result<Option<NullBuffer>> {
        let bits = self.next_buffer()?;
        if bits.is_empty() {
            return Ok(None);
        }
        if bits.len() < len.div_ceil(8) {
            return Err(damaged(format!("a validity buffer of {} bytes for {len} rows", bits.len())));
        }
        Ok(Some(NullBuffer::new(BooleanBuffer::new(bits, 0, len))))
    }

    /// A buffer of exactly `len` values. Arrow's own checks assume whole values.
    fn exact(&mut self, len: usize, bits: usize) -> Result<Buffer> {
        let buffer = self.next_buffer()?;
        let want = len.checked_mul(bits).map(|b| b.div_ceil(8));
        if want != Some(buffer.len()) {
            return Err(damaged(format!(
                "a buffer of {} bytes for {len} values of {bits} bits",
                buffer.len()
            )));
        }
        Ok(buffer)
    }

    fn next_offsets(&mut self, data_type: &DataType, len: usize) -> Result<Buffer> {
        let wide = matches!(data_type, DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_));
        self.exact(len + 1, if wide { 64 } else { 32 })
    }

    fn finish(&self) -> Result<()> {
        let used = self.node == self.header.node_rows.len()
            && self.buffer == self.header.buffers.len()
            && self.variadic == self.header.variadic.len()
            && self.at == self.body.len();
        if used { Ok(()) } else { Err(damaged("a frame holds more than its schema says")) }
    }
}
