//! Checks the sizes that Parquet's footers and pages claim, before they are read or decoded.
//!
//! The decoder of the `parquet` crate reserves memory for as many row groups as a footer says that there are, and for as
//! many bytes as a page says that it holds. It asks for the column chunks of a row group all at once.

use std::sync::Arc;

use caju_kernels::too_deep;
use caju_pipeline::MAX_TYPE_LEVELS;
use caju_runtime::budget;
use caju_types::{Error, ErrorKind, Result, format_count};
use parquet::arrow::ProjectionMask;
use parquet::basic::Compression;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use crate::thrift::{Cursor, Item, PageHeader, kind};

/// Where the footer begins, by the length behind it.
pub(crate) fn footer_start(tail: &[u8], size: u64) -> Option<u64> {
    let (_, end) = tail.split_last_chunk::<8>()?;
    let [a, b, c, d, ..] = *end;
    size.checked_sub(8)?.checked_sub(u64::from(u32::from_le_bytes([a, b, c, d])))
}

/// Refuses a footer whose lists claim more than the footer holds, and one whose schema is nested too deep, if `bytes`, which
/// begin at `at`, are the footer: the decoder would reserve that much, and builds a schema by recursion.
pub(crate) fn check_footer(url: &str, start: Option<u64>, size: u64, at: u64, bytes: &[u8]) -> Result<()> {
    let Some(start) = start.filter(|s| *s >= at) else { return Ok(()) };
    let (Ok(from), Ok(length)) = (usize::try_from(start - at), usize::try_from(size - 8 - start)) else {
        return Ok(());
    };
    let Some(footer) = bytes.get(from..).and_then(|b| b.get(..length)) else { return Ok(()) };
    let mut levels = SchemaLevels::default();
    match Cursor::new(footer).structure(&mut Vec::new(), &mut |path, item| levels.visit(path, item)) {
        Some(()) if levels.is_too_deep => {
            Err(Error::invalid(format!("{url}: the type of a column is {}", too_deep())))
        }
        // Each element but the root is a child of another one.
        Some(()) if !levels.is_senseless && levels.claimed < levels.elements => Ok(()),
        _ => Err(Error::data_loss(format!("{url}: the file is damaged: its footer makes no sense"))),
    }
}

/// The most levels of groups of a schema: two for each list and map, and the root.
const MAX_SCHEMA_LEVELS: usize = 2 * MAX_TYPE_LEVELS + 1;

/// The levels of a footer's schema: a list of elements, each of which says how many of the next ones are its children.
#[derive(Debug, Default)]
struct SchemaLevels {
    /// For each group around the next element: how many of its children are still to come.
    open: Vec<i32>,
    /// The number of children of the present element.
    children: i32,
    /// The elements so far, and all children that they claim.
    elements: u64,
    claimed: u64,
    is_too_deep: bool,
    /// A value is not of the type that the decoder takes it for.
    is_senseless: bool,
}

impl SchemaLevels {
    fn visit(&mut self, path: &[i64], item: Item) {
        /// The field of the footer with the schema, and its elements.
        const SCHEMA: i64 = 2;
        match (path, item) {
            ([SCHEMA, -1], Item::End) => self.element(),
            ([SCHEMA, -1, 5], Item::Integer(n)) => match i32::try_from(n).ok().filter(|n| *n >= 0) {
                Some(n) => self.children = n,
                None => self.is_senseless = true,
            },
            ([SCHEMA], Item::Other(kind::LIST))
            | ([SCHEMA, -1], Item::Other(kind::STRUCT))
            | ([SCHEMA, -1, 4], Item::Other(kind::BINARY))
            | ([SCHEMA, -1, 10], Item::Other(kind::STRUCT) | Item::End)
            | ([SCHEMA, -1, 1..=3 | 6..=9], Item::Integer(_)) => {}
            ([SCHEMA] | [SCHEMA, -1] | [SCHEMA, -1, 1..=10], _) => self.is_senseless = true,
            _ => {}
        }
    }

    /// The end of an element.
    fn element(&mut self) {
        while self.open.last() == Some(&0) {
            self.open.pop();
        }
        if let Some(left) = self.open.last_mut() {
            *left -= 1;
        }
        let children = std::mem::take(&mut self.children);
        self.elements += 1;
        self.claimed += u64::from(children.unsigned_abs());
        if children > 0 && self.open.len() == MAX_SCHEMA_LEVELS {
            self.is_too_deep = true;
        } else if children > 0 {
            self.open.push(children);
        }
    }
}

/// The most bytes of a footer, whatever the limit of a chunk is.
const MAX_FOOTER_BYTES: u64 = 256 << 20;

/// Refuses a footer of more bytes than a chunk of work may take (`chunk_bytes`) or than [`MAX_FOOTER_BYTES`], before it is
/// read. `read_bytes` of the file's end were read anyway: a footer within them is accepted.
pub(crate) fn check_footer_length(url: &str, length: u64, read_bytes: u64, chunk_bytes: u64) -> Result<()> {
    let most = chunk_bytes.min(MAX_FOOTER_BYTES).max(read_bytes);
    if length <= most {
        return Ok(());
    }
    let way_out = if chunk_bytes < MAX_FOOTER_BYTES { ", or raise --chunk-memory" } else { "" };
    Err(Error::new(
        ErrorKind::ResourceExhausted,
        format!(
            "{url}: the end of the file says that its footer has {length} bytes, more than the {most} allowed; the file is \
             damaged, or has too many columns and row groups: write it as several files{way_out}"
        ),
    ))
}

/// Refuses a footer whose number of rows is not that of its row groups: a list of row groups that lost some would lose
/// their rows.
pub(crate) fn check_rows(url: &str, footer: &ParquetMetaData) -> Result<()> {
    let claimed = i128::from(footer.file_metadata().num_rows());
    let found: i128 = footer.row_groups().iter().map(|group| i128::from(group.num_rows())).sum();
    if claimed == found {
        return Ok(());
    }
    Err(Error::data_loss(format!(
        "{url}: the file is damaged: its footer says that it has {claimed} rows, and its row groups have {found}; write the \
         file again, or leave it out of `path`"
    )))
}

/// The bytes of a column chunk, of a file of `size` bytes. A chunk that does not lie within the file has none: the reader refuses
/// the damaged file instead of reading that chunk.
fn readable_bytes(chunk: &ColumnChunkMetaData, size: u64) -> u64 {
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let (Ok(start), Ok(length)) = (u64::try_from(start), u64::try_from(chunk.compressed_size())) else {
        return 0;
    };
    if start.checked_add(length).is_some_and(|end| end <= size) { length } else { 0 }
}

/// The limits on the row groups that a reader asks for, and on what their pages claim.
pub(crate) struct ReadBounds {
    pub(crate) footer: Arc<ParquetMetaData>,
    /// What a page may become in memory.
    pub(crate) page_bytes: u64,
    /// The most bytes of the column chunks of a row group that are read.
    pub(crate) row_group_bytes: u64,
}

impl ReadBounds {
    /// Refuses a row group that has more bytes in `columns` than a reader may hold, before any of them is read. `size` is the
    /// file's, and `groups` are the row groups of a split. With `trim`, `(skip, take)`, row groups of which no row is taken may be
    /// of any size: they are not read.
    pub(crate) fn check_groups(
        &self,
        url: &str,
        size: u64,
        groups: &[usize],
        trim: Option<(u64, u64)>,
        columns: &ProjectionMask,
    ) -> Result<()> {
        let (skip, take) = trim.unwrap_or((0, u64::MAX));
        let mut first = 0u64;
        for &index in groups {
            let group = self.footer.row_group(index);
            let rows = group.num_rows().max(0).cast_unsigned();
            let is_taken = first < skip.saturating_add(take) && first.saturating_add(rows) > skip;
            first = first.saturating_add(rows);
            let chunks = group.columns().iter().enumerate().filter(|(leaf, _)| columns.leaf_included(*leaf));
            let bytes = chunks.map(|(_, chunk)| readable_bytes(chunk, size)).fold(0, u64::saturating_add);
            if is_taken && bytes > self.row_group_bytes {
                return Err(Error::exhausted(format!(
                    "{url}: row group {index}, of {} rows, has {} bytes in the columns that are read, more than the {} that a \
                     reader may hold; write the file with smaller row groups (`row_group_size` of pyarrow), read fewer \
                     columns, or raise --row-group-memory",
                    format_count(rows),
                    format_count(bytes),
                    format_count(self.row_group_bytes)
                )));
            }
        }
        Ok(())
    }

    /// Checks the pages of the column chunk that `bytes`, from `at` on, are; other bytes pass.
    pub(crate) fn check_pages(&self, url: &str, at: u64, bytes: &[u8]) -> Result<()> {
        let chunk = self.footer.row_groups().iter().flat_map(RowGroupMetaData::columns).find(|c| {
            let start = c.dictionary_page_offset().unwrap_or_else(|| c.data_page_offset());
            u64::try_from(start) == Ok(at) && u64::try_from(c.compressed_size()) == Ok(bytes.len() as u64)
        });
        let Some(chunk) = chunk else { return Ok(()) };
        let packed = chunk.compression() != Compression::UNCOMPRESSED;
        let (mut rest, mut values, mut place) = (bytes, 0i64, at);
        while values < chunk.num_values() {
            // The decoder itself refuses invalid headers.
            let Some(page) = PageHeader::read(rest) else { return Ok(()) };
            let bad = |what: String| {
                Err(Error::data_loss(format!("{url}: the file is damaged: the page at byte {place} {what}")))
            };
            let (Ok(unpacked), Ok(length)) =
                (u64::try_from(page.unpacked_bytes), usize::try_from(page.packed_bytes))
            else {
                return bad("has a size below 0".to_owned());
            };
            let left = rest.len() - page.length;
            if length > left {
                return bad(format!("has {length} bytes, and its column chunk has {left} left"));
            }
            let possible = if packed { (length as u64).saturating_mul(PACKED_RATIO) } else { unpacked };
            if unpacked > possible {
                return bad(format!("of {length} bytes claims to hold {unpacked}"));
            }
            // Uncompressed pages are not copied.
            if packed && unpacked > self.page_bytes {
                let what = format_args!("{url}: the page at byte {place}");
                return Err(budget::too_much(&what, unpacked, self.page_bytes));
            }
            // A value of a dictionary takes a byte at least; one of another page may take none.
            let most = if page.is_dictionary { page.unpacked_bytes } else { chunk.num_values() };
            if !(0..=most).contains(&page.values) {
                return bad(format!("claims to hold {} values", page.values));
            }
            values += if page.is_data { page.values } else { 0 };
            if page.length + length == 0 {
                return Ok(());
            }
            place += (page.length + length) as u64;
            rest = &rest[page.length + length..];
        }
        Ok(())
    }
}

/// The highest compression ratio of all codecs.
const PACKED_RATIO: u64 = 1 << 17;

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::basic::ZstdLevel;
    use parquet::file::metadata::ParquetMetaDataReader;
    use parquet::file::properties::WriterProperties;

    use super::*;

    fn file() -> Vec<u8> {
        let text = StringArray::from_iter_values((0..5000).map(|i| format!("text {}", i % 1000)));
        let batch = RecordBatch::try_from_iter([("text", Arc::new(text) as ArrayRef)]).unwrap();
        let zstd = Compression::ZSTD(ZstdLevel::default());
        let properties = WriterProperties::builder().set_compression(zstd).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }

    /// The file's bounds with the place of its column chunk.
    fn bounds(file: &[u8], page_bytes: u64) -> (ReadBounds, usize, usize) {
        let footer = ParquetMetaDataReader::new().parse_and_finish(&Bytes::copy_from_slice(file)).unwrap();
        let (start, length) = footer.row_group(0).column(0).byte_range();
        let bounds = ReadBounds { footer: Arc::new(footer), page_bytes, row_group_bytes: u64::MAX };
        (bounds, usize::try_from(start).unwrap(), usize::try_from(length).unwrap())
    }

    #[test]
    fn pages_that_claim_too_much_are_refused() {
        let file = file();
        let (bounds, start, length) = bounds(&file, 1 << 20);
        let chunk = &file[start..start + length];
        bounds.check_pages("f", start as u64, chunk).unwrap();
        let small = ReadBounds { page_bytes: 100, ..bounds };
        let e = small.check_pages("f", start as u64, chunk).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(e.message().starts_with("f: the page at byte 4 needs "), "{e}");
        // Every changed byte of the first header: an error, or a page within the bound.
        let bounds = ReadBounds { page_bytes: 1 << 20, ..small };
        let mut refused = 0;
        for at in 0..30 {
            for flip in [1, 0x20, 0x80] {
                let mut changed = chunk.to_vec();
                changed[at] ^= flip;
                refused += usize::from(bounds.check_pages("f", start as u64, &changed).is_err());
            }
        }
        assert!(refused > 5, "{refused}");
    }

    #[test]
    fn the_length_of_a_footer_is_bounded() {
        let check = |length, chunk| check_footer_length("f", length, 64 << 10, chunk);
        check(64 << 10, 100).unwrap();
        check(1 << 20, 1 << 20).unwrap();
        check(MAX_FOOTER_BYTES, 1 << 40).unwrap();
        for (length, chunk, most, way_out) in [
            ((64 << 10) + 1, 100, 64 << 10, true),
            ((1 << 20) + 1, 1 << 20, 1 << 20, true),
            (u64::from(u32::MAX), 1 << 40, MAX_FOOTER_BYTES, false),
        ] {
            let e = check(length, chunk).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
            let want = format!(
                "f: the end of the file says that its footer has {length} bytes, more than the {most} allowed"
            );
            assert!(e.message().starts_with(&want), "{e}");
            assert_eq!(e.message().contains("--chunk-memory"), way_out, "{e}");
        }
    }

    #[test]
    fn a_footer_that_claims_too_many_row_groups_is_refused() {
        let file = file();
        let size = file.len() as u64;
        let start = footer_start(&file, size);
        check_footer("f", start, size, 0, &file).unwrap();
        // Field 4 of the file, a list of one structure: as many as fit five bytes of a number.
        let from = usize::try_from(start.unwrap()).unwrap();
        let list = from + file[from..].windows(3).position(|w| w == [0x19, 0x1c, 0x19]).unwrap();
        let mut lie = file[..=list].to_vec();
        lie.extend([0xfc, 0xff, 0xff, 0xff, 0xff, 0x07]);
        lie.extend(&file[list + 2..file.len() - 8]);
        let length = u32::try_from(lie.len() - from).unwrap();
        lie.extend(length.to_le_bytes());
        lie.extend(b"PAR1");
        let size = lie.len() as u64;
        let e = check_footer("f", footer_start(&lie, size), size, 0, &lie).unwrap_err();
        assert_eq!(
            (e.kind(), e.message()),
            (ErrorKind::DataLoss, "f: the file is damaged: its footer makes no sense")
        );
    }

    /// The decoder reserves memory for as many children as an element says that it has.
    #[test]
    fn elements_that_claim_too_many_children_are_refused() {
        let file = file();
        let size = file.len() as u64;
        let start = footer_start(&file, size);
        let from = usize::try_from(start.unwrap()).unwrap();
        // The root: its name, and one child.
        let root = from + file[from..].windows(8).position(|w| w == b"\x0carrow_s").unwrap();
        let child = root + file[root..].windows(3).position(|w| w == [0x15, 2, 0]).unwrap() + 1;
        for children in [4, 3, 1] {
            let mut lie = file.clone();
            lie[child] = children;
            let e = check_footer("f", start, size, 0, &lie).unwrap_err();
            assert!(e.message().ends_with("its footer makes no sense"), "{children}: {e}");
        }
    }
}
