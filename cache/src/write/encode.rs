//! Encoders: from record batches to the bytes of an Arrow IPC or Parquet file.

use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_array::RecordBatch;
use arrow_schema::{DataType, IntervalUnit, SchemaRef};
use bytes::Bytes;
use caju_types::{Error, Result};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::sink::Sink;
use crate::record::Block;
use crate::schema::{cast_batch, file_schema, is_bulky, lists_narrow_structs};
use caju_autocache::{Compression, Encoding, Format};

/// Batches of fewer bytes are coalesced before they are written: every batch in a file has a fixed cost.
const MIN_BATCH_BYTES: usize = 256 << 10;
/// Batches of more bytes are cut, so that blocks stay small.
const MAX_BATCH_BYTES: usize = 8 << 20;
/// The bytes at which a Parquet row group is closed, about. A reader holds one row group.
const ROW_GROUP_BYTES: usize = 8 << 20;
/// The most rows that are coalesced, however few bytes they have.
const MAX_COALESCED_ROWS: usize = 8192;
/// Bytes that the header of a batch takes in an Arrow file, about.
const BATCH_HEADER_BYTES: usize = 4096;

enum Inner {
    Arrow(Box<FileWriter<Sink>>),
    Parquet(Box<ArrowWriter<Sink>>),
}

/// Encodes the batches of one part. All of it is CPU work.
pub(super) struct Encoder {
    inner: Inner,
    /// The schema of the file: that of the rows without dictionaries.
    plain: SchemaRef,
    pending: Vec<RecordBatch>,
    pending_bytes: usize,
    row_groups: usize,
    /// The bytes of a chunk, if the writer was asked for chunks.
    chunk_bytes: Option<usize>,
    /// The rows of each complete chunk.
    chunks: Vec<u64>,
}

/// The end of an encoded file.
pub(super) struct Encoded {
    pub(super) ready: Vec<Bytes>,
    pub(super) blocks: Vec<Block>,
    pub(super) checksum: u128,
    pub(super) chunks: Vec<u64>,
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::internal(format!("encoding a part: {e}"))
}

impl Encoder {
    /// An encoder whose file carries `tags` in its metadata, so that the file says which part it is.
    pub(super) fn new(
        schema: &SchemaRef,
        encoding: Encoding,
        block_bytes: usize,
        mut tags: Vec<(String, String)>,
    ) -> Result<Self> {
        let plain = file_schema(schema, encoding.format);
        restorable(&plain, schema)?;
        if &plain != schema {
            let original = serde_json::to_string(schema.as_ref()).map_err(failed)?;
            tags.push((crate::tags::SCHEMA.into(), original));
        }
        let inner = match encoding.format {
            Format::Arrow => {
                let compression = match encoding.compression {
                    Compression::Lz4 => Some(CompressionType::LZ4_FRAME),
                    Compression::Zstd => Some(CompressionType::ZSTD),
                    Compression::None | Compression::Snappy => None,
                };
                let options = IpcWriteOptions::default().try_with_compression(compression).map_err(failed)?;
                let sink = Sink::new(block_bytes, false);
                let mut writer = FileWriter::try_new_with_options(sink, &plain, options)
                    .map_err(|e| unsupported(encoding, &e))?;
                for (key, value) in tags {
                    writer.write_metadata(key, value);
                }
                Inner::Arrow(Box::new(writer))
            }
            Format::Parquet => {
                if plain.fields().is_empty() {
                    return Err(unsupported(encoding, &"there are no columns"));
                }
                for column in plain.fields() {
                    if let Some(kind) = unknown_to_parquet(column.data_type()) {
                        let why = format!(
                            "column `{}` is {kind} or holds one, and Parquet has none",
                            column.name()
                        );
                        return Err(unsupported(encoding, &why));
                    }
                }
                let properties = properties(&plain, encoding, tags)?;
                let sink = Sink::new(block_bytes, true);
                let writer = ArrowWriter::try_new(sink, std::sync::Arc::clone(&plain), Some(properties))
                    .map_err(|e| unsupported(encoding, &e))?;
                Inner::Parquet(Box::new(writer))
            }
        };
        Ok(Self {
            inner,
            plain,
            pending: Vec::new(),
            pending_bytes: 0,
            row_groups: 0,
            chunk_bytes: None,
            chunks: Vec::new(),
        })
    }

    /// Encodes a batch. Gives the blocks that are complete.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<Vec<Bytes>> {
        let batch = cast_batch(batch, &self.plain)?;
        let bytes = batch_bytes(&batch);
        if let Some(limit) = self.chunk_bytes {
            self.gather_chunks(&batch, bytes, limit)?;
        } else if batch.num_rows() > 0 {
            if bytes >= MIN_BATCH_BYTES && self.pending.is_empty() {
                self.write_sized(&batch, bytes)?;
            } else {
                self.pending_bytes += bytes;
                self.pending.push(batch);
                let rows: usize = self.pending.iter().map(RecordBatch::num_rows).sum();
                if self.pending_bytes >= MIN_BATCH_BYTES || rows >= MAX_COALESCED_ROWS {
                    self.flush_pending()?;
                }
            }
        }
        Ok(self.sink().take_ready())
    }

    pub(super) fn set_chunk_bytes(&mut self, bytes: usize) {
        self.chunk_bytes = Some(bytes.max(1));
    }

    /// Gathers rows until they fill a chunk. Bytes are estimated by the batch's average row.
    fn gather_chunks(&mut self, batch: &RecordBatch, bytes: usize, limit: usize) -> Result<()> {
        let per_row = bytes.div_ceil(batch.num_rows().max(1)).max(1);
        let mut at = 0;
        while at < batch.num_rows() {
            let fitting = limit.saturating_sub(self.pending_bytes) / per_row;
            let first = usize::from(self.pending.is_empty());
            let n = fitting.max(first).min(batch.num_rows() - at);
            if n > 0 {
                self.pending.push(batch.slice(at, n));
                self.pending_bytes += n * per_row;
                at += n;
            }
            if at < batch.num_rows() || self.pending_bytes >= limit {
                self.close_chunk()?;
            }
        }
        Ok(())
    }

    fn close_chunk(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.pending);
        let bytes = std::mem::take(&mut self.pending_bytes);
        let joined = match batches.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            many => arrow::compute::concat_batches(&self.plain, many).map_err(failed)?,
        };
        self.write_piece(&joined, bytes)?;
        if let Inner::Parquet(w) = &mut self.inner {
            w.flush().map_err(failed)?;
        }
        self.chunks.push(joined.num_rows() as u64);
        Ok(())
    }

    fn flush_pending(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.pending);
        let bytes = std::mem::take(&mut self.pending_bytes);
        match batches.as_slice() {
            [] => Ok(()),
            [one] => self.write_sized(one, bytes),
            many => {
                let joined = arrow::compute::concat_batches(&self.plain, many).map_err(failed)?;
                self.write_sized(&joined, bytes)
            }
        }
    }

    fn write_sized(&mut self, batch: &RecordBatch, bytes: usize) -> Result<()> {
        let pieces = bytes.div_ceil(MAX_BATCH_BYTES).clamp(1, batch.num_rows().max(1));
        let step = batch.num_rows().div_ceil(pieces).max(1);
        let mut at = 0;
        while at < batch.num_rows() {
            let n = step.min(batch.num_rows() - at);
            self.write_piece(&batch.slice(at, n), bytes / pieces)?;
            at += n;
        }
        Ok(())
    }

    fn write_piece(&mut self, batch: &RecordBatch, bytes: usize) -> Result<()> {
        match &mut self.inner {
            Inner::Arrow(w) => {
                w.get_mut().reserve(bytes + BATCH_HEADER_BYTES);
                w.write(batch).map_err(failed)?;
                w.get_mut().may_cut();
            }
            Inner::Parquet(w) => {
                w.write(batch).map_err(failed)?;
                if w.flushed_row_groups().len() > self.row_groups {
                    self.row_groups = w.flushed_row_groups().len();
                    // The row group's last block ends with it, so that no reader needs a block for two row groups.
                    w.sync().map_err(failed)?;
                    w.inner_mut().cut();
                }
            }
        }
        Ok(())
    }

    fn sink(&mut self) -> &mut Sink {
        match &mut self.inner {
            Inner::Arrow(w) => w.get_mut(),
            Inner::Parquet(w) => w.inner_mut(),
        }
    }

    /// Writes the footer as a block of its own.
    pub(super) fn finish(mut self) -> Result<Encoded> {
        match self.chunk_bytes {
            Some(_) => self.close_chunk()?,
            None => self.flush_pending()?,
        }
        match &mut self.inner {
            Inner::Arrow(w) => {
                w.get_mut().last_block();
                w.finish().map_err(failed)?;
            }
            Inner::Parquet(w) => {
                w.flush().map_err(failed)?;
                w.sync().map_err(failed)?;
                w.inner_mut().last_block();
                w.finish().map_err(failed)?;
            }
        }
        let sink = self.sink();
        sink.cut();
        let (blocks, checksum) = sink.totals();
        let ready = sink.take_ready();
        Ok(Encoded { ready, blocks, checksum, chunks: self.chunks })
    }
}

fn unsupported(encoding: Encoding, why: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("these columns cannot be stored as {encoding}: {why}; use arrow/none"))
}

/// Checks that a reader can make the columns of a file into those of the set: not all dictionaries can be rebuilt.
fn restorable(plain: &SchemaRef, schema: &SchemaRef) -> Result<()> {
    for (stored, wanted) in plain.fields().iter().zip(schema.fields()) {
        let empty = arrow_array::new_empty_array(stored.data_type());
        if stored.data_type() != wanted.data_type()
            && (lists_narrow_structs(wanted.data_type(), false)
                || arrow::compute::cast(&empty, wanted.data_type()).is_err())
        {
            return Err(Error::invalid(format!(
                "column `{}` of type {} cannot be stored: its dictionary could not be read back; make it plain values above \
                 the place where it is stored",
                wanted.name(),
                wanted.data_type()
            )));
        }
    }
    Ok(())
}

/// What a type is or holds that Parquet does not have. The writer of the library panics at a union, fails at the rows of others,
/// or writes plain values.
fn unknown_to_parquet(data_type: &DataType) -> Option<&'static str> {
    match data_type {
        DataType::Union(..) => Some("a union"),
        DataType::RunEndEncoded(..) => Some("a run-end encoded column"),
        DataType::Interval(IntervalUnit::MonthDayNano) => Some("an interval of months, days and nanoseconds"),
        DataType::FixedSizeBinary(0) => Some("bytes of length 0"),
        DataType::List(of)
        | DataType::LargeList(of)
        | DataType::FixedSizeList(of, _)
        | DataType::Map(of, _) => unknown_to_parquet(of.data_type()),
        DataType::Struct(fields) => fields.iter().find_map(|field| unknown_to_parquet(field.data_type())),
        DataType::Dictionary(_, values) => unknown_to_parquet(values),
        _ => None,
    }
}

fn properties(
    schema: &SchemaRef,
    encoding: Encoding,
    tags: Vec<(String, String)>,
) -> Result<WriterProperties> {
    let codec = match encoding.compression {
        Compression::None => Codec::UNCOMPRESSED,
        Compression::Snappy => Codec::SNAPPY,
        Compression::Lz4 => Codec::LZ4_RAW,
        Compression::Zstd => Codec::ZSTD(ZstdLevel::try_new(1).map_err(failed)?),
    };
    let tags = tags.into_iter().map(|(k, v)| KeyValue::new(k, v)).collect();
    let mut builder = WriterProperties::builder()
        .set_compression(codec)
        .set_key_value_metadata(Some(tags))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    let leaves = ArrowSchemaConverter::new().convert(schema).map_err(|e| unsupported(encoding, &e))?;
    for leaf in leaves.columns() {
        let root = leaf.path().parts().first().and_then(|name| schema.field_with_name(name).ok());
        if root.is_some_and(is_bulky) {
            builder = builder
                .set_column_dictionary_enabled(leaf.path().clone(), false)
                .set_column_statistics_enabled(leaf.path().clone(), EnabledStatistics::None);
        }
    }
    Ok(builder.build())
}

/// The bytes of the rows themselves, even where the batch is a slice of larger buffers.
fn batch_bytes(batch: &RecordBatch) -> usize {
    batch
        .columns()
        .iter()
        .map(|c| c.to_data().get_slice_memory_size().unwrap_or_else(|_| c.get_array_memory_size()))
        .sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{Field, Schema, UnionFields, UnionMode};

    use super::*;

    #[test]
    fn a_union_is_refused_as_parquet() {
        let members = [Arc::new(Field::new("a", DataType::Int32, true))];
        let union = DataType::Union(UnionFields::try_new([0], members).unwrap(), UnionMode::Sparse);
        let list = DataType::List(Arc::new(Field::new("item", union.clone(), true)));
        let parquet = Encoding { format: Format::Parquet, compression: Compression::None };
        for data_type in [union, list] {
            let schema = Arc::new(Schema::new(vec![
                Field::new("id", DataType::Int64, false),
                Field::new("u", data_type, true),
            ]));
            let error = Encoder::new(&schema, parquet, 1 << 20, Vec::new()).err().unwrap();
            assert!(error.message().contains("column `u` is a union or holds one"), "{error}");
            assert!(error.message().ends_with("use arrow/none"), "{error}");
        }
    }

    #[test]
    fn columns_that_no_reader_could_make_again_are_refused() {
        let one = |data_type: DataType| Arc::new(Schema::new(vec![Field::new("c", data_type, true)]));
        let dictionary = |values| DataType::Dictionary(Box::new(DataType::Int8), Box::new(values));
        let encode = |data_type, format| {
            let encoding = Encoding { format, compression: Compression::None };
            Encoder::new(&one(data_type), encoding, 1 << 20, Vec::new()).map(drop)
        };
        for values in [DataType::Boolean, DataType::List(Arc::new(Field::new("item", DataType::Int64, true)))]
        {
            let error = encode(dictionary(values), Format::Arrow).unwrap_err();
            assert!(error.message().contains("column `c` of type Dictionary"), "{error}");
        }
        assert!(encode(dictionary(DataType::Utf8), Format::Arrow).is_ok());
        let structs = dictionary(DataType::Struct(vec![Field::new("a", DataType::Int64, true)].into()));
        assert!(encode(structs.clone(), Format::Arrow).is_ok());
        let error = encode(DataType::new_list(structs, true), Format::Arrow).unwrap_err();
        assert!(error.message().contains("its dictionary could not be read back"), "{error}");
        let ends = Field::new("run_ends", DataType::Int32, false);
        let runs =
            DataType::RunEndEncoded(Arc::new(ends), Arc::new(Field::new("values", DataType::Utf8, true)));
        for (data_type, kind) in [
            (runs, "run-end"),
            (DataType::Interval(IntervalUnit::MonthDayNano), "interval"),
            (DataType::FixedSizeBinary(0), "bytes of length 0"),
        ] {
            let error = encode(data_type.clone(), Format::Parquet).unwrap_err();
            assert!(error.message().contains(kind), "{error}");
            assert!(encode(data_type, Format::Arrow).is_ok());
        }
    }
}
