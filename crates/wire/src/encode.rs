//! A chunk as a frame, without copying its columns.
//!
//! The body is a list of pieces of the arrays' own buffers, written with one vectored write. An element that
//! was assembled from several batches goes out as one: the pieces of a fixed-width column simply follow
//! each other. Columns with offsets or nulls are concatenated first; what they cost is in their values, which
//! decoding dwarfs.

use std::io;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, make_array};
use arrow::compute::concat;
use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use arrow_schema::DataType;
use caju_runtime::sealed::SealedFile;
use caju_types::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::compression::{Codec, compress};
use crate::frame::{self, ALIGN, Kind, RowsHeader};
use crate::segment::{self, Segment};
use crate::{Chunk, Elements, SplitFacts};

/// A frame that is ready to be written: its headers, and the slices of memory that make up its body.
#[derive(Debug)]
pub struct OutFrame {
    /// Fixed and protobuf header.
    pub head: Vec<u8>,
    /// The body, in order, padding included.
    pub body: Vec<Segment>,
    /// Bytes of the body.
    pub body_len: u64,
    /// Bytes of the body before it was compressed: what it takes in memory.
    pub raw_len: u64,
    /// The body, where it travels as a file; then `body` is empty.
    pub file: Option<Arc<SealedFile>>,
}

impl OutFrame {
    /// The bytes of the whole frame, headers included.
    pub fn len(&self) -> u64 {
        self.head.len() as u64 + self.body_len
    }

    /// Never: a frame has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// A chunk as a frame.
///
/// # Errors
/// `Unimplemented` for types that cannot travel (the schema frame names the column before), `ResourceExhausted`
/// if a column in several pieces does not fit one Arrow array.
pub fn encode_chunk(chunk: &Chunk) -> Result<OutFrame> {
    encode_chunk_as(chunk, SplitFacts::default(), None)
}

/// A chunk as a frame, with what it says of splits, compressed where that helps.
///
/// # Errors
/// As [`encode_chunk`].
pub fn encode_chunk_as(chunk: &Chunk, facts: SplitFacts, codec: Option<Codec>) -> Result<OutFrame> {
    encode_rows(chunk, facts)?.inline(codec)
}

/// The rows of a chunk in the form in which they travel, with what the frame says of splits. No column was copied yet.
#[derive(Debug)]
pub struct EncodedRows {
    header: RowsHeader,
    body: Vec<Segment>,
    body_len: u64,
}

impl EncodedRows {
    /// Bytes of the body.
    pub fn body_len(&self) -> u64 {
        self.body_len
    }

    /// The parts of the body, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.body.iter().map(Segment::as_slice)
    }

    /// A hash of the bytes of the body. Equal bodies have equal ones, and others nearly never.
    pub fn hash(&self) -> u128 {
        let mut hasher = Xxh3::new();
        self.parts().for_each(|part| hasher.update(part));
        hasher.digest128()
    }

    /// A hash of where the bytes of the body lie in memory. It is computed without reading them. Bodies that are made of the same
    /// arrays have equal ones, and others nearly never, while the arrays are held.
    pub fn location_hash(&self) -> u128 {
        segment::location_hash(&self.body)
    }

    /// Whether the body has the bytes of these segments. What both have at one place in memory is not read.
    pub fn has_segments(&self, segments: &[Segment]) -> bool {
        segment::are_equal(&self.body, segments)
    }

    /// The segments of the body, which hold its arrays.
    pub fn segments(&self) -> Vec<Segment> {
        self.body.clone()
    }

    /// Whether the body has these bytes.
    pub fn has_body(&self, bytes: &[u8]) -> bool {
        let mut left = bytes;
        self.parts().all(|part| match left.split_at_checked(part.len()) {
            Some((first, rest)) => {
                left = rest;
                first == part
            }
            None => false,
        }) && left.is_empty()
    }

    /// A file in memory with the body. Blocking: the bytes are copied.
    ///
    /// # Errors
    /// Those of the system: no memory, no descriptor.
    pub fn write_file(&self) -> io::Result<SealedFile> {
        SealedFile::new(self.parts())
    }

    /// A frame that holds the rows, compressed where that helps.
    ///
    /// # Errors
    /// `ResourceExhausted` if the header is too long.
    pub fn inline(self, codec: Option<Codec>) -> Result<OutFrame> {
        let Self { mut header, mut body, body_len: raw_len } = self;
        let body_len = match codec {
            Some(codec) => compress(codec, &mut header, &mut body, raw_len)?,
            None => raw_len,
        };
        let head = frame::head(Kind::Rows, &header, body_len)?;
        Ok(OutFrame { head, body, body_len, raw_len, file: None })
    }

    /// A frame whose body is a file with the bytes of this one's body.
    ///
    /// # Errors
    /// `ResourceExhausted` if the header is too long, `Internal` if the file has another length.
    pub fn in_file(self, file: Arc<SealedFile>) -> Result<OutFrame> {
        if file.len() as u64 != self.body_len {
            return Err(Error::internal(format!(
                "a file of {} bytes for a body of {}",
                file.len(),
                self.body_len
            )));
        }
        let header = RowsHeader { file_bytes: self.body_len, file_id: file.id(), ..self.header };
        let head = frame::head(Kind::Rows, &header, 0)?;
        Ok(OutFrame { head, body: Vec::new(), body_len: 0, raw_len: self.body_len, file: Some(file) })
    }
}

/// A chunk in the form in which it travels.
///
/// # Errors
/// As [`encode_chunk`].
pub fn encode_rows(chunk: &Chunk, facts: SplitFacts) -> Result<EncodedRows> {
    let header = header_of(chunk).with_split_facts(facts);
    let mut out = EncodedRows { header, body: Vec::new(), body_len: 0 };
    let columns = chunk.pieces[0].num_columns();
    for c in 0..columns {
        let parts: Vec<ArrayData> = chunk
            .pieces
            .iter()
            .filter(|p| p.num_rows() > 0 || chunk.pieces.len() == 1)
            .map(|p| p.column(c).to_data())
            .collect();
        let parts = if parts.is_empty() { vec![chunk.pieces[0].column(c).to_data()] } else { parts };
        out.array(parts)?;
    }
    Ok(out)
}

fn header_of(chunk: &Chunk) -> RowsHeader {
    let (rows_are_elements, lengths) = match &chunk.elements {
        Elements::Rows => (true, Vec::new()),
        Elements::Lengths(l) => (false, l.clone()),
    };
    RowsHeader {
        rows: chunk.rows() as u64,
        run_split: chunk.runs.iter().map(|r| r.split).collect(),
        run_start: chunk.runs.iter().map(|r| r.start).collect(),
        run_len: chunk.runs.iter().map(|r| r.len).collect(),
        rows_are_elements,
        lengths,
        remainder: chunk.remainder,
        padding: chunk.is_padding(),
        bucket: chunk.round.bucket.map_or(0, |b| b.saturating_add(1)),
        remainder_round: chunk.round.remainder_round,
        ..RowsHeader::default()
    }
}

impl EncodedRows {
    /// One array, given as parts that follow each other.
    fn array(&mut self, parts: Vec<ArrayData>) -> Result<()> {
        let rows: usize = parts.iter().map(ArrayData::len).sum();
        let has_nulls = parts.iter().any(|p| p.null_count() > 0);
        let data_type = parts[0].data_type().clone();
        if parts.len() > 1 && (has_nulls || !gathers(&data_type)) {
            return self.array(vec![concatenated(&parts)?]);
        }
        self.header.node_rows.push(rows as u64);
        if !matches!(data_type, DataType::Null) {
            match parts[0].nulls().filter(|_| has_nulls) {
                Some(nulls) => self.buffer([nulls.inner().sliced()]),
                None => self.buffer([]),
            }
        }
        match &data_type {
            DataType::Null => {}
            DataType::Struct(fields) => {
                // Slicing a struct slices its children: their offsets are theirs alone.
                for i in 0..fields.len() {
                    self.array(parts.iter().map(|p| p.child_data()[i].slice(0, p.len())).collect())?;
                }
            }
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).unwrap_or(0);
                let children =
                    parts.iter().map(|p| p.child_data()[0].slice(p.offset() * size, p.len() * size));
                self.array(children.collect())?;
            }
            DataType::Boolean => self.buffer([parts[0].buffers()[0].bit_slice(parts[0].offset(), rows)]),
            DataType::Utf8 | DataType::Binary => self.bytes::<i32>(&parts[0])?,
            DataType::LargeUtf8 | DataType::LargeBinary => self.bytes::<i64>(&parts[0])?,
            DataType::Utf8View | DataType::BinaryView => self.views(&parts[0])?,
            DataType::List(_) | DataType::Map(..) => self.list::<i32>(&parts[0])?,
            DataType::LargeList(_) => self.list::<i64>(&parts[0])?,
            DataType::Dictionary(key, _) => {
                self.fixed(&parts, key.primitive_width().unwrap_or(0))?;
                self.array(vec![parts[0].child_data()[0].clone()])?;
            }
            DataType::FixedSizeBinary(n) => self.fixed(&parts, usize::try_from(*n).unwrap_or(0))?,
            other => match other.primitive_width() {
                Some(width) => self.fixed(&parts, width)?,
                None => {
                    return Err(Error::unimplemented(format!(
                        "columns of type {other} cannot be sent to a reader"
                    )));
                }
            },
        }
        Ok(())
    }

    /// One logical buffer, given as slices that follow each other, padded to the alignment.
    fn buffer(&mut self, slices: impl IntoIterator<Item = Buffer>) {
        let mut len = 0;
        for s in slices {
            if !s.is_empty() {
                len += s.len();
                self.body.push(Segment::Data(s));
            }
        }
        self.header.buffers.push(len as u64);
        let pad = len.next_multiple_of(ALIGN) - len;
        if pad > 0 {
            self.body.push(Segment::Zeros(pad));
        }
        self.body_len += (len + pad) as u64;
    }

    fn fixed(&mut self, parts: &[ArrayData], width: usize) -> Result<()> {
        let slices: Vec<Buffer> = parts
            .iter()
            .map(|p| cut(&p.buffers()[0], p.offset() * width, p.len() * width))
            .collect::<Result<_>>()?;
        self.buffer(slices);
        Ok(())
    }

    /// Offsets from zero, and where the values that they span begin and end.
    fn offsets<O: ArrowNativeType + std::ops::Sub<Output = O>>(
        &mut self,
        data: &ArrayData,
    ) -> Result<(usize, usize)> {
        if data.is_empty() {
            self.buffer([Buffer::from_slice_ref([O::default()])]);
            return Ok((0, 0));
        }
        let width = size_of::<O>();
        let raw = cut(&data.buffers()[0], data.offset() * width, (data.len() + 1) * width)?;
        let offsets = ScalarBuffer::<O>::new(raw.clone(), 0, data.len() + 1);
        let (first, last) = (offsets[0], offsets[data.len()]);
        if first.as_usize() == 0 {
            self.buffer([raw]);
        } else {
            let rebased: Vec<O> = offsets.iter().map(|o| *o - first).collect();
            self.buffer([Buffer::from_vec(rebased)]);
        }
        Ok((first.as_usize(), last.as_usize()))
    }

    fn bytes<O: ArrowNativeType + std::ops::Sub<Output = O>>(&mut self, data: &ArrayData) -> Result<()> {
        let (first, last) = self.offsets::<O>(data)?;
        let values = cut(&data.buffers()[1], first, last - first)?;
        self.buffer([values]);
        Ok(())
    }

    fn list<O: ArrowNativeType + std::ops::Sub<Output = O>>(&mut self, data: &ArrayData) -> Result<()> {
        let (first, last) = self.offsets::<O>(data)?;
        self.array(vec![data.child_data()[0].slice(first, last - first)])
    }

    fn views(&mut self, data: &ArrayData) -> Result<()> {
        let data = compact_views(data);
        self.fixed(std::slice::from_ref(&data), 16)?;
        let buffers = &data.buffers()[1..];
        self.header.variadic.push(u32::try_from(buffers.len()).unwrap_or(u32::MAX));
        for b in buffers {
            self.buffer([b.clone()]);
        }
        Ok(())
    }
}

/// Whether an array's parts can be sent one after another when none of them has nulls.
fn gathers(data_type: &DataType) -> bool {
    match data_type {
        DataType::FixedSizeList(..) | DataType::Struct(_) | DataType::FixedSizeBinary(_) | DataType::Null => {
            true
        }
        DataType::Dictionary(..) => false,
        other => other.primitive_width().is_some(),
    }
}

fn concatenated(parts: &[ArrayData]) -> Result<ArrayData> {
    let arrays: Vec<ArrayRef> = parts.iter().cloned().map(make_array).collect();
    let refs: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    let one = concat(&refs).map_err(|e| {
        Error::exhausted(format!(
            "the rows of a batch do not fit one Arrow array: {e}; use a smaller `batch`"
        ))
    })?;
    Ok(one.to_data())
}

/// A view array whose buffers hold few bytes that no view refers to.
fn compact_views(data: &ArrayData) -> ArrayData {
    let held: usize = data.buffers()[1..].iter().map(Buffer::len).sum();
    let array = make_array(data.clone());
    match data.data_type() {
        DataType::Utf8View => {
            let a = array.as_string_view();
            if held > 2 * a.total_buffer_bytes_used() { a.gc().into_data() } else { data.clone() }
        }
        _ => {
            let a = array.as_binary_view();
            if held > 2 * a.total_buffer_bytes_used() { a.gc().into_data() } else { data.clone() }
        }
    }
}

fn cut(buffer: &Buffer, offset: usize, len: usize) -> Result<Buffer> {
    if offset.checked_add(len).is_none_or(|end| end > buffer.len()) {
        return Err(Error::internal(format!(
            "an array's buffer of {} bytes is shorter than its rows need ({offset} + {len})",
            buffer.len()
        )));
    }
    Ok(buffer.slice_with_length(offset, len))
}
