//! One JSON object a line.

use std::io::Cursor;
use std::sync::Arc;

use arrow::json::ReaderBuilder;
use arrow::json::reader::infer_json_schema;
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_types::budget;

use crate::json_scan::{Expected, scan};
use crate::text::{INFER_ROWS, Text, shown, type_name};

/// JSON lines. A missing value is null. Keys without a column are skipped where a definition gives the columns.
#[derive(Debug, Clone)]
pub(crate) struct Json {
    /// Whether a definition gives the columns. An integer in a column of floats is an error where they were found in the rows,
    /// and is rounded where the definition asks for floats.
    pub(crate) is_given: bool,
    /// The most memory that the values of one line may take: `--chunk-memory`.
    pub(crate) memory: u64,
}

/// The memory of one value while a line is decoded: its place among the decoder's tokens, its text, and the column's value.
const VALUE_BYTES: u64 = 48;

impl Json {
    /// Refuses lines if the values of one of them could take more memory than a chunk may. Each line is checked by itself: the
    /// other lines of a batch do not matter.
    fn check_memory(&self, lines: &[u8]) -> Result<(), String> {
        if self.admits(lines) {
            return Ok(());
        }
        lines.split_inclusive(|b| *b == b'\n').try_for_each(|line| self.check_line(line))
    }

    /// Whether the values of a text fit, whatever they are: a value has at least two bytes.
    fn admits(&self, text: &[u8]) -> bool {
        (text.len() as u64 / 2).saturating_mul(VALUE_BYTES) <= self.memory
    }

    fn check_line(&self, line: &[u8]) -> Result<(), String> {
        if self.admits(line) {
            return Ok(());
        }
        let values = line.iter().filter(|b| matches!(b, b',' | b':' | b'[' | b'{')).count() as u64;
        let needed = values.saturating_mul(VALUE_BYTES);
        if needed <= self.memory {
            return Ok(());
        }
        Err(budget::too_much(&format_args!("a line of {values} values"), needed, self.memory).to_string())
    }

    /// What the decoder would not report. Keys without a column are errors if all columns are decoded and were found in the rows.
    fn scan(&self, schema: &SchemaRef, projection: &[usize], lines: &[u8]) -> Result<(), String> {
        let is_checked = |of: &DataType| of.is_numeric() || of.is_nested();
        let root = (!self.is_given || schema.fields().iter().any(|f| is_checked(f.data_type())))
            .then(|| DataType::Struct(projection.iter().map(|i| Arc::clone(&schema.fields()[*i])).collect()));
        let unknown_keys = self.is_given || projection.len() < schema.fields().len();
        scan(lines, root.as_ref().map(|of| Expected { of, unknown_keys, rounds: self.is_given }))
    }
}

fn read(schema: &SchemaRef, lines: &[u8], rows: usize) -> Result<Vec<RecordBatch>, String> {
    let mut decoder = ReaderBuilder::new(Arc::clone(schema))
        .with_batch_size(rows.max(1))
        .build_decoder()
        .map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    let mut rest = lines;
    while !rest.is_empty() {
        let n = decoder.decode(rest).map_err(|e| e.to_string())?;
        rest = &rest[n..];
        match decoder.flush().map_err(|e| e.to_string())? {
            Some(batch) => out.push(batch),
            None if n == 0 => break,
            None => {}
        }
    }
    Ok(out)
}

impl Text for Json {
    fn header(&self) -> bool {
        false
    }

    fn misread(&self, head: &[u8]) -> Option<&'static str> {
        match head.trim_ascii_start().first() {
            Some(b'[') => Some(
                "it is one JSON array, and JSON lines have one object a line; `jq -c '.[]' FILE > FILE.jsonl` converts it",
            ),
            _ => None,
        }
    }

    fn check_header(&self, _: &[u8], _: &Schema) -> Option<String> {
        None
    }

    fn decode(
        &self,
        schema: &SchemaRef,
        projection: &[usize],
        lines: &[u8],
        rows: usize,
    ) -> Result<Vec<RecordBatch>, String> {
        self.check_memory(lines)?;
        self.scan(schema, projection, lines)?;
        let none = projection.is_empty();
        let columns = if none { &[0] } else { projection };
        let picked = Arc::new(schema.project(columns).map_err(|e| e.to_string())?);
        let batches = read(&picked, lines, rows)?;
        if !none {
            return Ok(batches);
        }
        let empty = Arc::new(Schema::empty());
        batches
            .iter()
            .map(|b| {
                let options = RecordBatchOptions::new().with_row_count(Some(b.num_rows()));
                RecordBatch::try_new_with_options(Arc::clone(&empty), vec![], &options)
                    .map_err(|e| e.to_string())
            })
            .collect()
    }

    fn diagnose(&self, schema: &SchemaRef, projection: &[usize], line: &[u8]) -> Option<String> {
        let text = String::from_utf8_lossy(line);
        if let Err(why) = self.check_memory(line) {
            return Some(why);
        }
        let value = match caju_types::json::read(line, "it") {
            Ok(value) => value,
            // A number that is too large is one of the parser's reasons, too.
            Err(e) => {
                let not_json = || format!("it is not a JSON object: {e}: {}", shown(text.trim_end()));
                return Some(self.scan(schema, projection, line).err().unwrap_or_else(not_json));
            }
        };
        let Some(object) = value.as_object() else {
            return Some(format!("it is not a JSON object: {}", shown(text.trim_end())));
        };
        if let Err(why) = self.scan(schema, projection, line) {
            return Some(why);
        }
        let bad = projection.iter().map(|&i| schema.field(i)).find(|f| {
            let one = Arc::new(Schema::new(vec![f.as_ref().clone()]));
            read(&one, line, 1).is_err()
        })?;
        let value = object.get(bad.name()).map(ToString::to_string).unwrap_or_default();
        Some(format!(
            "column `{}`: {} is not of type {}",
            bad.name(),
            shown(&value),
            type_name(bad.data_type())
        ))
    }

    fn damage(&self, line: &[u8], _: &[u8]) -> Option<String> {
        scan(line, None).err()
    }

    fn infer(&self, lines: &[u8]) -> Result<Schema, String> {
        let (schema, _) =
            infer_json_schema(Cursor::new(lines), Some(INFER_ROWS)).map_err(|e| e.to_string())?;
        let plain = |f: &Field| match f.data_type() {
            DataType::Null => Field::new(f.name(), DataType::Utf8, true),
            _ => f.clone().with_nullable(true),
        };
        Ok(Schema::new(schema.fields().iter().map(|f| plain(f)).collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 60 MiB of `1,` took 1.4 GiB, whatever `--chunk-memory` said.
    #[test]
    fn a_dense_line_is_refused_before_it_takes_memory() {
        let json = Json { is_given: true, memory: 1 << 20 };
        let list = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
        let schema =
            Arc::new(Schema::new(vec![Field::new("l", list, true), Field::new("t", DataType::Utf8, true)]));
        let dense = |n: usize| format!("{{\"l\": [{}1]}}\n", "1,".repeat(n));
        let fine = json.decode(&schema, &[0], dense(20_000).as_bytes(), 1).unwrap();
        assert_eq!(fine[0].num_rows(), 1);
        let line = dense(30_000);
        let why = json.decode(&schema, &[0], line.as_bytes(), 1).unwrap_err();
        assert!(
            why.contains("a line of 30003 values needs 1.37 MiB") && why.contains("--chunk-memory"),
            "{why}"
        );
        // The other lines of a batch do not matter.
        let both = dense(1) + &line;
        assert_eq!(json.decode(&schema, &[0], both.as_bytes(), 2).unwrap_err(), why);
        assert_eq!(json.diagnose(&schema, &[0], line.as_bytes()), Some(why));
        // A long text is one value.
        let text = format!("{{\"t\": \"{}\"}}\n", "x".repeat(4 << 20));
        assert_eq!(json.decode(&schema, &[1], text.as_bytes(), 1).unwrap()[0].num_rows(), 1);
    }
}
