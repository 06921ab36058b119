//! TFRecord files of `tf.train.Example`. The messages are few and small, so no protobuf library is needed.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, SchemaRef};
use caju_types::{Error, Result};

use super::encoder::{Encoded, Encoder};
use crate::Kind;

/// One Example per row. A null is an absent feature.
pub(super) struct TfRecord {
    /// Feature name of each column.
    names: Vec<String>,
    example: Vec<u8>,
    entry: Vec<u8>,
}

impl TfRecord {
    pub(super) fn new(kind: Kind, schema: &SchemaRef) -> Self {
        let names = schema
            .fields()
            .iter()
            .map(|f| match (kind, f.name().as_str()) {
                (Kind::Images, "image") => "image/encoded".to_string(),
                (Kind::Images, "label") => "image/class/label".to_string(),
                (Kind::Images, "height" | "width") => format!("image/{}", f.name()),
                (_, name) => name.to_string(),
            })
            .collect();
        Self { names, example: Vec::new(), entry: Vec::new() }
    }
}

impl Encoder for TfRecord {
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()> {
        for row in 0..rows.num_rows() {
            self.example.clear();
            for (name, column) in self.names.iter().zip(rows.columns()) {
                if column.is_valid(row) {
                    self.entry.clear();
                    entry(name, column, row, &mut self.entry)?;
                    field(1, &self.entry, &mut self.example);
                }
            }
            // Example { features = 1: Features { feature = 1: map entries } }
            let length = self.example.len();
            let mut prefix = vec![0x0A];
            varint(length as u64, &mut prefix);
            frame(&prefix, &self.example, &mut encoded.bytes);
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Encoded) -> Result<()> {
        Ok(())
    }
}

/// A map entry: the feature's name (1) and the feature (2).
fn entry(name: &str, column: &ArrayRef, row: usize, out: &mut Vec<u8>) -> Result<()> {
    field(1, name.as_bytes(), out);
    let mut list = Vec::new();
    let mut feature = Vec::new();
    match column.data_type() {
        // Feature { int64_list = 3: { value = 1, packed } }
        DataType::Int64 => packed(column.as_primitive::<Int64Type>().value(row), &mut list),
        DataType::Int32 => packed(column.as_primitive::<Int32Type>().value(row).into(), &mut list),
        // Feature { bytes_list = 1: { value = 1 } }
        DataType::Binary => field(1, column.as_binary::<i32>().value(row), &mut list),
        DataType::Utf8 => field(1, column.as_string::<i32>().value(row).as_bytes(), &mut list),
        other => return Err(Error::internal(format!("no tf.train.Feature for column `{name}` of {other}"))),
    }
    let number = if column.data_type().is_integer() { 3 } else { 1 };
    field(number, &list, &mut feature);
    field(2, &feature, out);
    Ok(())
}

fn packed(value: i64, out: &mut Vec<u8>) {
    let mut bytes = Vec::with_capacity(10);
    varint(value.cast_unsigned(), &mut bytes);
    field(1, &bytes, out);
}

/// A length-delimited protobuf field.
fn field(number: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A record: length, masked CRC-32C of the length, content (in two pieces), masked CRC-32C of the content.
fn frame(head: &[u8], tail: &[u8], out: &mut Vec<u8>) {
    let length = ((head.len() + tail.len()) as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked(crc32c::crc32c(&length)));
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    out.extend_from_slice(&masked(crc32c::crc32c_append(crc32c::crc32c(head), tail)));
}

fn masked(crc: u32) -> [u8; 4] {
    crc.rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}
