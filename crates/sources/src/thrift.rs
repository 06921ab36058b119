//! Thrift's compact protocol, as far as the claims of Parquet's footers and page headers go.
//!
//! The `parquet` crate reserves what a list or a page says that it holds. This module parses the same bytes first.

/// Structures nest a few levels in Parquet.
const DEPTH: usize = 32;

/// What is found in a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    /// An integer.
    Integer(i64),
    /// The beginning of a value of another type, as the protocol numbers them.
    Other(u8),
    /// The end of a structure.
    End,
}

/// Called for each item, with the path of field numbers that leads to it: -1 for the values of a list or map.
type Each<'a> = dyn FnMut(&[i64], Item) + 'a;

/// A read position in Thrift bytes.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Types of fields, as the protocol numbers them.
pub(crate) mod kind {
    pub(crate) const TRUE: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const BYTE: u8 = 3;
    pub(crate) const I16: u8 = 4;
    pub(crate) const I32: u8 = 5;
    pub(crate) const I64: u8 = 6;
    pub(crate) const DOUBLE: u8 = 7;
    pub(crate) const BINARY: u8 = 8;
    pub(crate) const LIST: u8 = 9;
    pub(crate) const SET: u8 = 10;
    pub(crate) const MAP: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const UUID: u8 = 13;
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn skip_bytes(&mut self, n: u64) -> Option<()> {
        if n > self.left() {
            return None;
        }
        self.at += usize::try_from(n).ok()?;
        Some(())
    }

    /// Parses a structure and calls `each` for its items. None if a length exceeds the bytes that are left.
    pub(crate) fn structure(&mut self, path: &mut Vec<i64>, each: &mut Each<'_>) -> Option<()> {
        if path.len() > DEPTH {
            return None;
        }
        let mut field = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                each(path, Item::End);
                return Some(());
            }
            field = match head >> 4 {
                0 => zigzag(self.varint()?),
                delta => field.checked_add(i64::from(delta))?,
            };
            // Numbers of fields have 16 bits.
            i16::try_from(field).ok()?;
            path.push(field);
            match head & 0x0f {
                // A field's boolean is its type.
                kind @ (kind::TRUE | kind::FALSE) => each(path, Item::Other(kind)),
                kind => self.value(kind, path, each)?,
            }
            path.pop();
        }
    }

    fn value(&mut self, kind: u8, path: &mut Vec<i64>, each: &mut Each<'_>) -> Option<()> {
        if !matches!(kind, kind::I16 | kind::I32 | kind::I64) {
            each(path, Item::Other(kind));
        }
        match kind {
            kind::TRUE | kind::FALSE | kind::BYTE => self.skip_bytes(1),
            kind::I16 | kind::I32 | kind::I64 => {
                let value = zigzag(self.varint()?);
                each(path, Item::Integer(value));
                Some(())
            }
            kind::DOUBLE => self.skip_bytes(8),
            kind::UUID => self.skip_bytes(16),
            kind::BINARY => {
                let n = self.varint()?;
                self.skip_bytes(n)
            }
            kind::LIST | kind::SET => {
                let head = self.byte()?;
                let n = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                self.values(n, &[head & 0x0f], path, each)
            }
            kind::MAP => {
                let n = self.varint()?;
                let kinds = if n == 0 { 0 } else { self.byte()? };
                self.values(n, &[kinds >> 4, kinds & 0x0f], path, each)
            }
            kind::STRUCT => self.structure(path, each),
            _ => None,
        }
    }

    fn values(&mut self, n: u64, kinds: &[u8], path: &mut Vec<i64>, each: &mut Each<'_>) -> Option<()> {
        // A value takes a byte at least.
        if n > self.left() || path.len() > DEPTH {
            return None;
        }
        path.push(-1);
        for _ in 0..n {
            for kind in kinds {
                self.value(*kind, path, each)?;
            }
        }
        path.pop();
        Some(())
    }
}

fn zigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -(n & 1).cast_signed()
}

/// The claims of a page's header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub(crate) is_dictionary: bool,
    pub(crate) is_data: bool,
    pub(crate) unpacked_bytes: i64,
    pub(crate) packed_bytes: i64,
    pub(crate) values: i64,
    /// Where the page begins behind the header's first byte.
    pub(crate) length: usize,
}

impl PageHeader {
    /// Reads the header that `bytes` begin with; none if it makes no sense.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut header = Self::default();
        let mut cursor = Cursor::new(bytes);
        cursor.structure(&mut Vec::new(), &mut |path, item| match (path, item) {
            ([1], Item::Integer(value)) => {
                (header.is_data, header.is_dictionary) = (matches!(value, 0 | 3), value == 2);
            }
            ([2], Item::Integer(value)) => header.unpacked_bytes = value,
            ([3], Item::Integer(value)) => header.packed_bytes = value,
            // The number of values comes first in the headers of all kinds of pages.
            ([5 | 7 | 8, 1], Item::Integer(value)) => header.values = value,
            _ => {}
        })?;
        header.length = cursor.at();
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_and_lies_are_found() {
        // type = DATA_PAGE, 100 bytes of 50, a data page header with 7 values.
        let header = [0x15, 0, 0x15, 200, 1, 0x15, 100, 0x2c, 0x15, 14, 0, 0, 9, 9];
        let want = PageHeader {
            is_data: true,
            is_dictionary: false,
            unpacked_bytes: 100,
            packed_bytes: 50,
            values: 7,
            length: 12,
        };
        assert_eq!(PageHeader::read(&header), Some(want));
        for cut in 0..12 {
            assert_eq!(PageHeader::read(&header[..cut]), None, "{cut}");
        }
        // A list of 2^31 structures in three bytes; a string that is longer than what is left; endless nesting.
        for lie in [&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0, 0][..], &[0x18, 100, 0, 0], &[0x1c; 100]] {
            assert_eq!(Cursor::new(lie).structure(&mut Vec::new(), &mut |_, _| {}), None, "{lie:?}");
        }
    }
}
