//! `tokenize`: the matches of a regular expression as a list.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use caju_types::{Error, Result};
use regex::Regex;

use crate::kernel::{Fault, Inputs, Kernel, any_null, internal, plain_type};

/// The kernel of `tokenize`.
#[derive(Debug)]
pub(crate) struct Tokenize {
    regex: Regex,
}

impl Tokenize {
    pub(crate) fn new(regex: &str) -> Result<Self> {
        Regex::new(regex).map(|regex| Self { regex }).map_err(|e| {
            Error::invalid(format!("`{regex}` is not a regular expression: {}", last_line(&e.to_string())))
        })
    }
}

/// The last line of the parser's message, which names the error. The lines before it show its position.
fn last_line(text: &str) -> &str {
    let line = text.lines().last().unwrap_or(text);
    line.strip_prefix("error: ").unwrap_or(line)
}

fn item() -> FieldRef {
    Arc::new(Field::new("item", DataType::Utf8, false))
}

impl Kernel for Tokenize {
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        match plain_type(&inputs[0]) {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => {
                Ok(Field::new("tokenize", DataType::List(item()), any_null(inputs)))
            }
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                Err("takes a string, not bytes; cast(x as varchar) first".into())
            }
            t => Err(format!("takes a string, not {t}")),
        }
    }

    fn run(&self, inputs: &Inputs<'_>, _: &Field) -> Result<ArrayRef, Fault> {
        let input = inputs.array(0)?;
        let mut out = Tokens::new(input.len());
        match input.data_type() {
            DataType::Utf8 => input.as_string::<i32>().iter().for_each(|t| out.row(&self.regex, t)),
            DataType::LargeUtf8 => input.as_string::<i64>().iter().for_each(|t| out.row(&self.regex, t)),
            DataType::Utf8View => input.as_string_view().iter().for_each(|t| out.row(&self.regex, t)),
            DataType::Null => (0..input.len()).for_each(|_| out.row(&self.regex, None)),
            other => return Err(internal(format!("no tokens of {other}"))),
        }
        out.finish(&input)
    }
}

/// The builder of the list. Lengths are checked once at the end, when they become offsets.
struct Tokens {
    text: Vec<u8>,
    ends: Vec<usize>,
    rows: Vec<usize>,
}

impl Tokens {
    fn new(rows: usize) -> Self {
        let mut starts = Vec::with_capacity(rows + 1);
        starts.push(0);
        Self { text: Vec::new(), ends: vec![0], rows: starts }
    }

    fn row(&mut self, regex: &Regex, text: Option<&str>) {
        for m in text.iter().flat_map(|t| regex.find_iter(t)) {
            self.text.extend_from_slice(m.as_str().as_bytes());
            self.ends.push(self.text.len());
        }
        self.rows.push(self.ends.len() - 1);
    }

    fn finish(self, input: &ArrayRef) -> Result<ArrayRef, Fault> {
        let ends = offsets(&self.ends)?;
        let tokens = StringArray::try_new(ends, Buffer::from_vec(self.text), None).map_err(internal)?;
        let rows = offsets(&self.rows)?;
        let list = ListArray::try_new(item(), rows, Arc::new(tokens), input.logical_nulls());
        Ok(Arc::new(list.map_err(internal)?))
    }
}

/// Converts ends to the offsets of an array.
///
/// # Errors
/// `ResourceExhausted` if they exceed 2^31: the values do not fit one batch.
pub(crate) fn offsets(ends: &[usize]) -> Result<OffsetBuffer<i32>, Fault> {
    if ends.last().is_some_and(|last| i32::try_from(*last).is_err()) {
        return Err(
            Error::exhausted("a batch's result is above 2 GiB; make the engine's batches smaller").into()
        );
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "the last one is the largest"
    )]
    let ends: ScalarBuffer<i32> = ends.iter().map(|e| *e as i32).collect();
    Ok(OffsetBuffer::new(ends))
}
