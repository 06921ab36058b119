//! Kinds of text with one row a line: CSV and JSON lines.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_pipeline::ColumnType;
use caju_types::{Error, Result, did_you_mean};

/// Rows of a file that a schema is inferred from.
pub(crate) const INFER_ROWS: usize = 1000;

/// One kind of text.
pub(crate) trait Text: Clone + Send + Sync + 'static {
    /// Whether the first line of a file is no row; it is then checked by [`Text::check_header`].
    fn header(&self) -> bool;

    /// Whether a row goes on behind a line, in a quoted value that holds the line's end. `open`: whether it did so before it.
    fn goes_on(&self, _line: &[u8], _open: bool) -> bool {
        false
    }

    /// How many rows a row has that ends at a line's end.
    fn num_rows(&self, _row: &[u8]) -> usize {
        1
    }

    /// What a file of another kind is, and what to do about it, by its first bytes.
    fn misread(&self, _head: &[u8]) -> Option<&'static str> {
        None
    }

    /// Why a header is not what the schema says, if so.
    fn check_header(&self, line: &[u8], schema: &Schema) -> Option<String>;

    /// The bytes of a header with its end, which may be a part of the first line.
    fn header_len(&self, line: &[u8]) -> usize {
        line.len()
    }

    /// Rows of whole lines. The columns are those of `projection`.
    fn decode(
        &self,
        schema: &SchemaRef,
        projection: &[usize],
        lines: &[u8],
        rows: usize,
    ) -> Result<Vec<RecordBatch>, String>;

    /// Why one line cannot be decoded: the column and the value.
    fn diagnose(&self, schema: &SchemaRef, projection: &[usize], line: &[u8]) -> Option<String>;

    /// Why no schema helps to read a line, if so. `first` is the first line of the file.
    fn damage(&self, line: &[u8], first: &[u8]) -> Option<String>;

    /// The schema of some whole lines, the header included.
    fn infer(&self, lines: &[u8]) -> Result<Schema, String>;
}

/// The mark of UTF-8 with which some files begin.
pub(crate) const BOM: &[u8] = b"\xef\xbb\xbf";

/// Text without its byte order mark.
pub(crate) fn strip_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix(BOM).unwrap_or(text)
}

/// The type as definitions name it.
pub(crate) fn type_name(t: &DataType) -> String {
    match t {
        DataType::Utf8 => "string".to_string(),
        DataType::Boolean => "bool".to_string(),
        other => other.to_string().to_lowercase(),
    }
}

/// The schema that a definition gives.
pub(crate) fn given_schema(columns: &[(String, ColumnType)], what: &str) -> Result<SchemaRef> {
    let fields = columns
        .iter()
        .map(|(name, t)| {
            let t = match t {
                ColumnType::Int64 => DataType::Int64,
                ColumnType::Int32 => DataType::Int32,
                ColumnType::Float32 => DataType::Float32,
                ColumnType::Float64 => DataType::Float64,
                ColumnType::String => DataType::Utf8,
                ColumnType::Bool => DataType::Boolean,
                ColumnType::Bytes => {
                    return Err(Error::invalid(format!(
                        "source {what}: column `{name}`: text files hold no bytes; use string"
                    )));
                }
            };
            Ok(Field::new(name, t, true))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

/// What to say of a name that a definition gives and the beginning of a file does not have, where the file has another one that
/// is spelt almost the same and is not given. A name that is like none of the file's may come later in it.
pub(crate) fn misspelt(url: &str, argument: &str, given: &[String], found: &[String]) -> Option<String> {
    let others: Vec<&String> = found.iter().filter(|name| !given.contains(name)).collect();
    for name in given.iter().filter(|name| !found.contains(name)) {
        let meant = did_you_mean(name, &others);
        if !meant.is_empty() && name.len() >= SHORTEST_COMPARED {
            return Some(format!(
                "{url}: no row at its beginning has `{name}`, which `{argument}` names{meant} It has: {}",
                found.join(", ")
            ));
        }
    }
    None
}

/// The shortest name that is compared, in bytes: names of one or two letters are all alike.
const SHORTEST_COMPARED: usize = 3;

/// Why a value has no place in a column of floats, if it is a finite number that would be read as an infinite one.
pub(crate) fn overflow(value: &str, of: &DataType) -> Option<String> {
    let value = value.trim();
    let is_infinite = match of {
        DataType::Float32 => value.parse::<f32>().is_ok_and(f32::is_infinite),
        DataType::Float64 => value.parse::<f64>().is_ok_and(f64::is_infinite),
        _ => false,
    };
    // The infinite values are words.
    (is_infinite && value.bytes().any(|b| b.is_ascii_digit()))
        .then(|| format!("the number {} does not fit {}", shown(value), type_name(of)))
}

/// A value for a message: not too long.
pub(crate) fn shown(value: &str) -> String {
    match value.char_indices().nth(60) {
        Some((i, _)) => format!("`{}...`", &value[..i]),
        None => format!("`{value}`"),
    }
}
