//! Comma-separated values.

use std::borrow::Cow;
use std::io::Cursor;
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format as CsvFormat;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::csv_rows;
use crate::text::{BOM, INFER_ROWS, Text, overflow, shown, type_name};

/// How a CSV file is written. An empty value is null.
#[derive(Debug, Clone)]
pub(crate) struct Csv {
    pub(crate) header: bool,
    pub(crate) delimiter: u8,
}

impl Csv {
    /// All rows of some lines. `rows` are expected; carriage returns may divide lines into more.
    fn read(
        &self,
        schema: &SchemaRef,
        projection: Option<Vec<usize>>,
        lines: &[u8],
        rows: usize,
    ) -> Result<Option<RecordBatch>, String> {
        let mut builder = ReaderBuilder::new(Arc::clone(schema))
            .with_delimiter(self.delimiter)
            .with_header(false)
            .with_batch_size(rows.max(1));
        if let Some(p) = projection {
            builder = builder.with_projection(p);
        }
        let mut decoder = builder.build_decoder();
        // The parser takes the mark off its input, and the mark of a file is off already: here it belongs to a value.
        let marked = lines.starts_with(BOM).then(|| [BOM, lines].concat());
        let lines = marked.as_deref().unwrap_or(lines);
        // A line feed marks the last row as complete.
        let end: &[u8] = if lines.last() == Some(&b'\n') { b"" } else { b"\n" };
        let mut batches = Vec::new();
        for mut rest in [lines, end] {
            while !rest.is_empty() {
                let n = decoder.decode(rest).map_err(|e| e.to_string())?;
                rest = &rest[n..];
                if decoder.capacity() == 0 {
                    batches.extend(decoder.flush().map_err(|e| e.to_string())?);
                } else if n == 0 {
                    return Err(format!("{} bytes of it are left over", rest.len()));
                }
            }
        }
        batches.extend(decoder.flush().map_err(|e| e.to_string())?);
        match &batches[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [first, ..] => concat_batches(&first.schema(), &batches).map(Some).map_err(|e| e.to_string()),
        }
    }

    /// The values of one line as text.
    fn values(&self, line: &[u8], columns: usize) -> Result<Vec<Option<String>>, String> {
        let fields =
            (0..columns).map(|i| Field::new(i.to_string(), DataType::Utf8, true)).collect::<Vec<_>>();
        let batch = self.read(&Arc::new(Schema::new(fields)), None, line, 1)?;
        Ok(batch.map_or_else(Vec::new, |b| {
            b.columns()
                .iter()
                .map(|c| c.as_string::<i32>().iter().next().flatten().map(str::to_string))
                .collect()
        }))
    }

    /// Why a value has no place in a column of floats, if one was read as an infinite number and is none.
    fn overflow(
        &self,
        schema: &SchemaRef,
        batch: &RecordBatch,
        columns: &[usize],
        lines: &[u8],
    ) -> Result<Option<String>, String> {
        for (array, &i) in batch.columns().iter().zip(columns) {
            let of = schema.field(i);
            if !has_infinite(array) {
                continue;
            }
            let mut fields = schema.fields().to_vec();
            fields[i] = Arc::new(Field::new(of.name(), DataType::Utf8, true));
            let text = self.read(&Arc::new(Schema::new(fields)), Some(vec![i]), lines, batch.num_rows())?;
            let text = text.iter().flat_map(|text| text.column(0).as_string::<i32>().iter().flatten());
            if let Some(why) = text.filter_map(|value| overflow(value, of.data_type())).next() {
                return Ok(Some(format!("column `{}`: {why}", of.name())));
            }
        }
        Ok(None)
    }

    /// The names in a header. A quote within a quoted name is written twice.
    fn names(&self, line: &[u8]) -> Vec<String> {
        let (mut names, mut quoted, mut name) = (Vec::new(), false, Vec::new());
        let mut bytes = line.iter().copied().peekable();
        while let Some(b) = bytes.next() {
            match b {
                b'"' if quoted && bytes.peek() == Some(&b'"') => name.extend(bytes.next()),
                b'"' => quoted = !quoted,
                b'\r' | b'\n' if !quoted => {}
                b if b == self.delimiter && !quoted => names.push(std::mem::take(&mut name)),
                b => name.push(b),
            }
        }
        names.push(name);
        names.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect()
    }
}

impl Text for Csv {
    fn header(&self) -> bool {
        self.header
    }

    fn goes_on(&self, line: &[u8], open: bool) -> bool {
        csv_rows::is_open(line, self.delimiter, open)
    }

    fn num_rows(&self, row: &[u8]) -> usize {
        csv_rows::rows(row, self.delimiter).count()
    }

    fn header_len(&self, line: &[u8]) -> usize {
        csv_rows::rows(line, self.delimiter).next().map_or(0, <[u8]>::len)
    }

    fn check_header(&self, line: &[u8], schema: &Schema) -> Option<String> {
        let names = self.names(line);
        let want: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        (names != want).then(|| {
            format!(
                "the header names the columns {}, but the source has {}",
                names.join(", "),
                want.join(", ")
            )
        })
    }

    fn decode(
        &self,
        schema: &SchemaRef,
        projection: &[usize],
        lines: &[u8],
        rows: usize,
    ) -> Result<Vec<RecordBatch>, String> {
        // A projection of nothing would lose the number of rows.
        let columns = if projection.is_empty() { vec![0] } else { projection.to_vec() };
        let lines = &*if schema.fields().len() == 1 {
            with_empty_values(lines, self.delimiter)
        } else {
            lines.into()
        };
        let batch = self.read(schema, Some(columns.clone()), lines, rows)?;
        if let Some(why) =
            batch.as_ref().map(|b| self.overflow(schema, b, &columns, lines)).transpose()?.flatten()
        {
            return Err(why);
        }
        let batch = match batch {
            Some(b) if projection.is_empty() => Some(b.project(&[]).map_err(|e| e.to_string())?),
            b => b,
        };
        Ok(batch.into_iter().collect())
    }

    fn diagnose(&self, schema: &SchemaRef, projection: &[usize], line: &[u8]) -> Option<String> {
        if self.num_rows(line) > 1 {
            let text = String::from_utf8_lossy(line);
            let text = shown(text.trim_end());
            return Some(format!("a carriage return within it ends a row, put the value in quotes: {text}"));
        }
        let columns = schema.fields().len();
        let Ok(values) = self.values(line, columns) else {
            let text = String::from_utf8_lossy(line);
            let found = self.names(line).len();
            if found != columns {
                return Some(uneven(found, columns, line));
            }
            let why = match std::str::from_utf8(line) {
                Err(_) => "it is not valid UTF-8",
                Ok(_) => "it cannot be divided into values",
            };
            return Some(format!("{why}: {}", shown(text.trim_end())));
        };
        let bad = projection.iter().copied().find(|&i| self.read(schema, Some(vec![i]), line, 1).is_err());
        let Some(bad) = bad else {
            let batch = self.read(schema, Some(projection.to_vec()), line, 1).ok()??;
            return self.overflow(schema, &batch, projection, line).ok()?;
        };
        let value = values.get(bad)?.clone().unwrap_or_default();
        let field = schema.field(bad);
        Some(format!(
            "column `{}`: {} is not of type {}",
            field.name(),
            shown(&value),
            type_name(field.data_type())
        ))
    }

    fn damage(&self, line: &[u8], first: &[u8]) -> Option<String> {
        let (found, columns) = (self.names(line).len(), self.names(first).len());
        (found != columns && !line.trim_ascii().is_empty()).then(|| uneven(found, columns, line))
    }

    fn infer(&self, lines: &[u8]) -> Result<Schema, String> {
        let format = CsvFormat::default().with_header(self.header).with_delimiter(self.delimiter);
        let (schema, _) =
            format.infer_schema(Cursor::new(lines), Some(INFER_ROWS)).map_err(|e| e.to_string())?;
        Ok(Schema::new(schema.fields().iter().map(|f| plain(f)).collect::<Vec<_>>()))
    }
}

/// Whether a column of floats has an infinite value.
fn has_infinite(array: &ArrayRef) -> bool {
    // Without a branch per value this is vectorised.
    match array.data_type() {
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().values().iter().fold(false, |any, v| any | v.is_infinite())
        }
        DataType::Float64 => {
            array.as_primitive::<Float64Type>().values().iter().fold(false, |any, v| any | v.is_infinite())
        }
        _ => false,
    }
}

/// The lines of a file of one column, with `""` on each line of which the value is left out: a null. The parser leaves such a
/// line out, and the row would be lost.
fn with_empty_values(lines: &[u8], delimiter: u8) -> Cow<'_, [u8]> {
    let is_empty = |row: &[u8]| row.iter().all(|b| matches!(b, b'\r' | b'\n'));
    if !lines.contains(&b'\r') && !lines.split_inclusive(|b| *b == b'\n').any(is_empty) {
        return lines.into();
    }
    let mut out = Vec::with_capacity(lines.len() + 2);
    for row in csv_rows::rows(lines, delimiter) {
        if is_empty(row) {
            out.extend_from_slice(b"\"\"");
        }
        out.extend_from_slice(row);
    }
    out.into()
}

fn uneven(found: usize, columns: usize, line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    format!("it has {found} values, but there are {columns} columns: {}", shown(text.trim_end()))
}

/// Dates and times stay text: a type that was inferred from the first rows could fail on a later one.
fn plain(field: &Field) -> Field {
    let t = match field.data_type() {
        t @ (DataType::Int64 | DataType::Float64 | DataType::Boolean) => t.clone(),
        _ => DataType::Utf8,
    };
    Field::new(field.name(), t, true)
}
