//! Files made by hand, whole and damaged, so that a fault of a writer does not hide the same fault of its reader.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use parquet::arrow::ArrowWriter;

/// The masked CRC-32C of the TFRecord format.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A TFRecord file of these records.
pub fn tfrecord<T: AsRef<[u8]>>(records: impl IntoIterator<Item = T>) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        let record = record.as_ref();
        let length = (record.len() as u64).to_le_bytes();
        out.extend(length);
        out.extend(masked_crc(&length).to_le_bytes());
        out.extend(record);
        out.extend(masked_crc(record).to_le_bytes());
    }
    out
}

/// A field of a protocol buffer that is a length and bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 128 {
        out.push((length % 128) as u8 | 128);
        length /= 128;
    }
    out.push(length as u8);
    out.extend(bytes);
    out
}

/// A tf.train.Example of one bytes feature, `image`, and one integer below 128, `label`.
pub fn example(image: &[u8], label: u8) -> Vec<u8> {
    assert!(label < 128);
    let bytes_list = field(1, &field(1, image));
    let int64_list = field(3, &field(1, &[label]));
    let entry =
        |name: &str, feature: &[u8]| field(1, &[field(1, name.as_bytes()), field(2, feature)].concat());
    field(1, &[entry("image", &bytes_list), entry("label", &int64_list)].concat())
}

/// The first bytes of a PNG that says to be so large: signature and header chunk. Decoding it needs its
/// pixels in memory, reading its header does not.
pub fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut header = b"IHDR".to_vec();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    out.extend((header.len() as u32 - 4).to_be_bytes());
    out.extend(&header);
    out.extend(crc32(&header).to_be_bytes());
    out
}

/// The CRC of the PNG format (IEEE 802.3).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 })
    };
    !bytes.iter().fold(!0, step)
}

/// Writes a Parquet file of these columns.
pub fn parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// An array of int64.
pub fn ints(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(arrow_array::Int64Array::from_iter_values(values))
}

/// An array of strings.
pub fn strings<'a>(values: impl IntoIterator<Item = &'a str>) -> ArrayRef {
    Arc::new(arrow_array::StringArray::from_iter_values(values))
}

/// The paths of all files below a folder, sorted; none if there is no such folder.
pub fn below(folder: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            out.extend(below(&path));
        } else {
            out.push(path.display().to_string());
        }
    }
    out.sort();
    out
}

/// Bytes compressed by gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}
