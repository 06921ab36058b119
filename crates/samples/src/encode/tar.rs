//! WebDataset: tar files in which adjacent members with the same stem form one sample.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use caju_types::{Error, Result};

use super::encoder::{Encoded, Encoder, int_column};

const BLOCK: usize = 512;

/// Members `000017.jpg` (or `.txt`) and `000017.cls`.
pub(super) struct Tar;

impl Encoder for Tar {
    fn push(&mut self, rows: &RecordBatch, encoded: &mut Encoded) -> Result<()> {
        let (ids, labels) = (int_column(rows, "id")?, int_column(rows, "label")?);
        for i in 0..rows.num_rows() {
            let key = format!("{:06}", ids.value(i));
            let (extension, payload) = payload(rows, i)?;
            member(&format!("{key}.{extension}"), payload, &mut encoded.bytes);
            member(&format!("{key}.cls"), labels.value(i).to_string().as_bytes(), &mut encoded.bytes);
        }
        Ok(())
    }

    fn finish(&mut self, encoded: &mut Encoded) -> Result<()> {
        encoded.bytes.resize(encoded.bytes.len() + 2 * BLOCK, 0);
        Ok(())
    }
}

fn payload(rows: &RecordBatch, i: usize) -> Result<(&'static str, &[u8])> {
    if let Some(images) = rows.column_by_name("image").and_then(|c| c.as_binary_opt::<i32>()) {
        return Ok(("jpg", images.value(i)));
    }
    rows.column_by_name("text")
        .and_then(|c| c.as_string_opt::<i32>())
        .map(|texts| ("txt", texts.value(i).as_bytes()))
        .ok_or_else(|| Error::internal("sample rows have neither images nor text"))
}

/// One member: a POSIX ustar header, the content, and zeros up to a whole block.
fn member(name: &str, content: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + BLOCK, 0);
    let header = &mut out[start..];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(content);
    out.resize(start + BLOCK + content.len().next_multiple_of(BLOCK), 0);
}
