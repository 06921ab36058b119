//! `tokenize`: the matches of a regular expression as a list.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use caju_types::{Error, Result};
use regex::Regex;

use crate::guard::MatchTime;
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
        let texts = texts(&input)?;
        let searched = texts.iter().flatten().copied();
        let mut time = MatchTime::of_all(self.regex.as_str(), searched, &"`tokenize`")?;
        let mut out = Tokens::new(texts.len());
        texts.iter().try_for_each(|text| out.row(&self.regex, *text, &mut time))?;
        out.finish(&input).map_err(|fault| Fault { row: fault.row, error: fault.error.context("tokenize") })
    }

    fn names_itself(&self) -> bool {
        true
    }
}

/// The texts of an array of strings, or of nulls.
fn texts(input: &ArrayRef) -> Result<Vec<Option<&str>>, Fault> {
    Ok(match input.data_type() {
        DataType::Utf8 => input.as_string::<i32>().iter().collect(),
        DataType::LargeUtf8 => input.as_string::<i64>().iter().collect(),
        DataType::Utf8View => input.as_string_view().iter().collect(),
        DataType::Null => vec![None; input.len()],
        other => return Err(internal(format!("tokenize: no tokens of {other}"))),
    })
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

    /// Appends the matches in a text, and charges the time of the searches.
    fn row(&mut self, regex: &Regex, text: Option<&str>, time: &mut MatchTime<'_>) -> Result<()> {
        if let Some(text) = text {
            let ends = regex.find_iter(text).map(|found| {
                self.text.extend_from_slice(found.as_str().as_bytes());
                self.ends.push(self.text.len());
                found.end()
            });
            time.charge(ends, text.len())?;
        }
        self.rows.push(self.ends.len() - 1);
        Ok(())
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
