//! What the JSON decoder of Arrow does not report: keys that an object has twice, of which it takes one, keys that no column
//! takes, integers that it rounds, fractions that it cuts off, and numbers that it makes infinite.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use arrow_schema::{DataType, FieldRef, Fields};

use crate::text::{overflow, shown};

/// The keys of an object, and the columns of a type, that are compared one by one; more are found by their hash.
const FEW_KEYS: usize = 16;

/// The bits of an integer that float64 holds.
const FLOAT_BITS: u32 = 53;

/// The most objects and lists within one another: each one that is open takes some hundred bytes for a byte of text. Schemas
/// that are found by reading go no deeper than 128.
const MAX_DEPTH: usize = 512;

/// What the columns say about each line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a> {
    /// The type of a line's object, by which numbers are found that would not be read as they are.
    pub(crate) of: &'a DataType,
    /// Whether an object may have keys that its type does not have.
    pub(crate) unknown_keys: bool,
    /// Whether integers may be rounded.
    pub(crate) rounds: bool,
}

/// An object or a list that is open.
struct Open<'a> {
    /// The keys of an object so far; none for a list.
    keys: Option<Keys<'a>>,
    /// Whether the next string is a key.
    at_key: bool,
    /// The type of the next value, if there is a column for it.
    next: Option<&'a DataType>,
    of: Option<&'a DataType>,
}

/// Keys, borrowed from the text: only a key with an escape is owned.
#[derive(Default)]
struct Keys<'a> {
    few: Vec<Key<'a>>,
    many: HashSet<Key<'a>>,
}

type Key<'a> = std::borrow::Cow<'a, str>;

impl<'a> Keys<'a> {
    /// Adds a key; false if the set has it already.
    fn insert(&mut self, key: Key<'a>) -> bool {
        if self.many.is_empty() && self.few.len() < FEW_KEYS {
            let new = !self.few.contains(&key);
            self.few.push(key);
            return new;
        }
        self.many.extend(self.few.drain(..));
        self.many.insert(key)
    }
}

/// The columns of types with many columns, by their names: a line with as many keys would be compared with all of them for each
/// key.
#[derive(Default)]
struct Columns<'a>(HashMap<*const FieldRef, HashMap<&'a str, &'a DataType>>);

impl<'a> Columns<'a> {
    /// The type of the value of a key.
    fn value_of(&mut self, object: &'a DataType, key: &str) -> Option<&'a DataType> {
        let DataType::Struct(fields) = object else { return None };
        if fields.len() <= FEW_KEYS {
            return fields.iter().find(|f| f.name() == key).map(|f| f.data_type());
        }
        let types = |fields: &'a Fields| fields.iter().map(|f| (f.name().as_str(), f.data_type())).collect();
        self.0.entry(fields.as_ptr()).or_insert_with(|| types(fields)).get(key).copied()
    }
}

/// Scans whole lines. Without `expected` integers are not checked, and any key is accepted.
///
/// # Errors
/// What is wrong. Text that is no JSON is left to the decoder.
pub(crate) fn scan(lines: &[u8], expected: Option<Expected<'_>>) -> Result<(), String> {
    let root = expected.map(|e| e.of);
    let unknown_keys = expected.is_none_or(|e| e.unknown_keys);
    let rounds = expected.is_none_or(|e| e.rounds);
    let mut open: Vec<Open<'_>> = Vec::new();
    let mut columns = Columns::default();
    let mut at = 0;
    while let Some(&b) = lines.get(at) {
        match b {
            b'{' | b'[' => {
                if open.len() >= MAX_DEPTH {
                    return Err(format!(
                        "a value has more than {MAX_DEPTH} objects and lists within one another"
                    ));
                }
                let of = open.last().map_or(root, |o| o.next);
                let item = if b == b'[' { of.and_then(item_of) } else { None };
                let keys = (b == b'{').then(Keys::default);
                open.push(Open { at_key: keys.is_some(), keys, next: item, of });
                at += 1;
            }
            b'}' | b']' => {
                open.pop();
                at += 1;
            }
            b',' => {
                if let Some(o) = open.last_mut() {
                    o.at_key = o.keys.is_some();
                }
                at += 1;
            }
            b'"' => {
                let Some(len) = string_len(&lines[at..]) else { return Ok(()) };
                match open.last_mut() {
                    Some(o) if o.at_key => {
                        o.at_key = false;
                        add_key(o, &lines[at..at + len], unknown_keys, &mut columns)?;
                    }
                    // The decoder reads numbers in quotes, too.
                    Some(Open { next: Some(of), .. }) if of.is_numeric() => {
                        check_number(&unquoted(&lines[at..at + len]), of, rounds)?;
                    }
                    _ => {}
                }
                at += len;
            }
            b'-' | b'0'..=b'9' => {
                let number = &lines[at..];
                let len = number.iter().position(|b| !is_of_number(*b)).unwrap_or(number.len());
                if !is_number(&number[..len]) {
                    let text = String::from_utf8_lossy(&number[..len]);
                    return Err(format!("{} is no number of JSON", shown(&text)));
                }
                if let Some(of) = open.last().and_then(|o| o.next) {
                    check_number(&number[..len], of, rounds)?;
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    Ok(())
}

fn is_of_number(b: u8) -> bool {
    b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E')
}

/// Whether text is a number by the grammar of JSON. The decoder also takes `01`, `1.` and `1e`.
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, mut rest) = text.split_at(digits(text));
    if whole.is_empty() || (whole.len() > 1 && whole[0] == b'0') {
        return false;
    }
    if let [b'.', fraction @ ..] = rest {
        let n = digits(fraction);
        if n == 0 {
            return false;
        }
        rest = &fraction[n..];
    }
    match rest {
        [] => true,
        [b'e' | b'E', b'+' | b'-', exponent @ ..] | [b'e' | b'E', exponent @ ..] => {
            !exponent.is_empty() && digits(exponent) == exponent.len()
        }
        _ => false,
    }
}

/// The bytes of a string with its quotes; none if it does not end.
fn string_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += text.get(at..)?.iter().position(|b| matches!(b, b'"' | b'\\'))?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

fn add_key<'a>(
    object: &mut Open<'a>,
    quoted: &'a [u8],
    unknown_keys: bool,
    columns: &mut Columns<'a>,
) -> Result<(), String> {
    let inner = &quoted[1..quoted.len() - 1];
    let key: Key<'a> = match std::str::from_utf8(inner) {
        Ok(plain) if !inner.contains(&b'\\') => plain.into(),
        _ => match serde_json::from_slice::<String>(quoted) {
            Ok(key) => key.into(),
            // The decoder reports it.
            Err(_) => return Ok(()),
        },
    };
    object.next = object.of.and_then(|of| columns.value_of(of, &key));
    let is_unknown = !unknown_keys && object.next.is_none() && matches!(object.of, Some(DataType::Struct(_)));
    let again = key.clone();
    let is_new = object.keys.as_mut().is_none_or(|keys| keys.insert(key));
    if !is_new {
        return Err(format!("an object has the key {} twice", shown(&again)));
    }
    if is_unknown {
        return Err(format!(
            "the key {} is not in the first rows of the source, in which the columns were found; name the columns to read in \
             `schema`, or put a row with this key first",
            shown(&again)
        ));
    }
    Ok(())
}

/// The type of the values of a list.
fn item_of(list: &DataType) -> Option<&DataType> {
    match list {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => Some(f.data_type()),
        _ => None,
    }
}

/// The text within the quotes, without escapes.
fn unquoted(quoted: &[u8]) -> Cow<'_, [u8]> {
    let inner = &quoted[1..quoted.len() - 1];
    if !inner.contains(&b'\\') {
        return inner.into();
    }
    // The decoder reports what is no string.
    serde_json::from_slice::<String>(quoted).map_or(inner.into(), |text| text.into_bytes().into())
}

/// # Errors
/// For a number that its column cannot have exactly. `rounds`: floats may be rounded.
fn check_number(number: &[u8], of: &DataType, rounds: bool) -> Result<(), String> {
    check_range(number, of)?;
    check_fraction(number, of)?;
    if *of == DataType::Float64 && !rounds { check_integer(number) } else { Ok(()) }
}

/// The most characters of a number without an exponent that fits float32.
const MAX_DIGITS: usize = 38;

/// # Errors
/// For a number that is too large for a type of floats.
fn check_range(number: &[u8], of: &DataType) -> Result<(), String> {
    if !of.is_floating() || (number.len() <= MAX_DIGITS && !number.iter().any(|b| matches!(b, b'e' | b'E'))) {
        return Ok(());
    }
    match std::str::from_utf8(number).ok().and_then(|number| overflow(number, of)) {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

/// Any integer of this number of characters fits 64 bits.
const MAX_INTEGER_CHARACTERS: usize = 18;

/// Integers below this one are exact in float64.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// # Errors
/// For a number with a fraction in a column of integers: the decoder would cut it off. For an integer below those of 64 bits:
/// the decoder would read it as a float, which is rounded to the least of them.
fn check_fraction(number: &[u8], of: &DataType) -> Result<(), String> {
    if !of.is_integer() {
        return Ok(());
    }
    if !number.iter().any(|b| matches!(b, b'.' | b'e' | b'E')) {
        let is_below = number.len() > MAX_INTEGER_CHARACTERS && number.starts_with(b"-");
        let text = String::from_utf8_lossy(number);
        return match is_below && text.parse::<i64>().is_err() {
            true => Err(format!("the integer {} does not fit int64; set `schema` with string", shown(&text))),
            false => Ok(()),
        };
    }
    let text = String::from_utf8_lossy(number);
    match text.parse::<f64>() {
        // Beyond, the decoder rounds what is written with a point or an exponent.
        Ok(n) if n.fract() != 0.0 || n.abs() >= MAX_EXACT => Err(format!(
            "the number {} is no integer that is read exactly, and the type of its column is {}; write it without a point and \
             an exponent, or set `schema` with float64",
            shown(&text),
            of.to_string().to_lowercase()
        )),
        // The decoder reports what is no number.
        _ => Ok(()),
    }
}

/// # Errors
/// For an integer that float64 rounds.
fn check_integer(number: &[u8]) -> Result<(), String> {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    // Each integer of 15 digits is exact.
    if digits.len() <= 15 || !digits.iter().all(u8::is_ascii_digit) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(number);
    let is_exact = |n: u128| n == 0 || 128 - n.leading_zeros() - n.trailing_zeros() <= FLOAT_BITS;
    match String::from_utf8_lossy(digits).parse::<u128>() {
        Ok(n) if is_exact(n) => Ok(()),
        _ => Err(format!(
            "the integer {} is not exact in float64, the type that was found for its column; set `schema` with int64 or \
             string",
            shown(&text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{Field, Fields};

    use super::*;

    #[test]
    fn keys_that_an_object_has_twice_are_found() {
        for (text, twice) in [
            (r#"{"a":1,"b":{"a":2},"c":[{"a":1},{"a":2}]}"#, None),
            ("{\"a\":1}\n{\"a\":1}\n", None),
            (r#"{"a":"a","b":"a"}"#, None),
            (r#"{"a":1,"b":2,"a":3}"#, Some("`a`")),
            (r#"{"x":[{"a":1,"a":2}]}"#, Some("`a`")),
            (r#"{"a\"":1,"a\"":2}"#, Some("`a\"`")),
            (r#"{"ab":1,"\u0061b":2}"#, Some("`ab`")),
            (r#"{"a":"}{\"b\":1","b":1}"#, None),
            (r#"{"a":1,"a"#, None),
            (r#"}}]],"a":1"#, None),
        ] {
            match (scan(text.as_bytes(), None), twice) {
                (Ok(()), None) => {}
                (Err(e), Some(key)) => assert!(e.contains(key), "{text}: {e}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        let many = |last: usize| {
            let keys: Vec<String> = (0..100).chain([last]).map(|i| format!("\"k{i}\":1")).collect();
            format!("{{{}}}", keys.join(","))
        };
        scan(many(100).as_bytes(), None).unwrap();
        scan(many(7).as_bytes(), None).unwrap_err();
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        scan(deep(MAX_DEPTH).as_bytes(), None).unwrap();
        assert!(scan(deep(MAX_DEPTH + 1).as_bytes(), None).unwrap_err().contains("512"));
    }

    #[test]
    fn numbers_are_those_of_json() {
        for good in ["0", "-0", "10", "1.5", "0.50", "1e5", "1E+05", "-1.25e-7"] {
            scan(format!("{{\"a\":{good}}}").as_bytes(), None).unwrap();
            assert!(serde_json::from_str::<f64>(good).is_ok());
        }
        for bad in ["01", "-01", "1.", "-", "1e", "1e+", "1.e5", "1.5.2", "1-2", "00", "--1"] {
            let e = scan(format!("{{\"a\":{bad}}}").as_bytes(), None).unwrap_err();
            assert!(e.contains(bad) && e.contains("no number of JSON"), "{bad}: {e}");
            assert!(serde_json::from_str::<f64>(bad).is_err());
        }
    }

    #[test]
    fn integers_that_float64_rounds_are_found_in_columns_of_floats() {
        let float = |name: &str| Arc::new(Field::new(name, DataType::Float64, true));
        let list = DataType::List(float("item"));
        let inner = DataType::Struct(Fields::from(vec![float("y")]));
        let root = DataType::Struct(Fields::from(vec![
            float("x"),
            Arc::new(Field::new("n", DataType::Int64, true)),
            Arc::new(Field::new("list", list, true)),
            Arc::new(Field::new("object", inner, true)),
        ]));
        for (text, rounded) in [
            (r#"{"x":9007199254740993}"#, true),
            (r#"{"x":-9007199254740993}"#, true),
            (r#"{"x":9007199254740992}"#, false),
            (r#"{"x":18446744073709551616}"#, false),
            (r#"{"x":100000000000000000000}"#, false),
            (r#"{"x":1000000000000000000000000000000000000000000}"#, true),
            (r#"{"x":9007199254740993.5,"n":9007199254740993}"#, false),
            (r#"{"list":[1,9007199254740993]}"#, true),
            (r#"{"object":{"n":9007199254740993,"y":1}}"#, false),
            (r#"{"object":{"n":1,"y":9007199254740993}}"#, true),
            (r#"{"other":9007199254740993}"#, false),
            // The decoder reads numbers in quotes, with escapes, too.
            (r#"{"x":"9007199254740993"}"#, true),
            (r#"{"x":"900719925474099\u0033"}"#, true),
            (r#"{"x":"9007199254740992"}"#, false),
        ] {
            let expected = Expected { of: &root, unknown_keys: true, rounds: false };
            assert_eq!(scan(text.as_bytes(), Some(expected)).is_err(), rounded, "{text}");
            scan(text.as_bytes(), None).unwrap();
        }
    }

    #[test]
    fn fractions_in_columns_of_integers_are_found() {
        let int = |name: &str| Arc::new(Field::new(name, DataType::Int64, true));
        let root = DataType::Struct(Fields::from(vec![
            int("n"),
            Arc::new(Field::new("list", DataType::List(int("item")), true)),
            Arc::new(Field::new("x", DataType::Float64, true)),
        ]));
        for (text, is_cut) in [
            (r#"{"n":1500.75}"#, true),
            (r#"{"n":"1500.75"}"#, true),
            (r#"{"n":15e-1}"#, true),
            (r#"{"n":9007199254740993.5}"#, true),
            (r#"{"n":9007199254740993.0}"#, true),
            (r#"{"n":9007199254740993}"#, false),
            (r#"{"list":[1,2.5]}"#, true),
            (r#"{"n":1500.0,"x":1500.75}"#, false),
            (r#"{"n":15e1,"other":1.5}"#, false),
            (r#"{"n":"x.e"}"#, false),
        ] {
            let expected = Expected { of: &root, unknown_keys: true, rounds: true };
            assert_eq!(scan(text.as_bytes(), Some(expected)).is_err(), is_cut, "{text}");
        }
    }

    /// If each key were compared with all columns, this would take minutes.
    #[test]
    fn a_line_of_very_many_keys_is_scanned() {
        let name = |i: u32| format!("column_{i}");
        let field = |i: u32| Field::new(name(i), DataType::Float64, true);
        let root = DataType::Struct((0..100_000).map(field).collect());
        let line = |last: &str| {
            let keys: Vec<String> = (1..100_000).rev().map(|i| format!("\"{}\":1", name(i))).collect();
            format!("{{{},{last}}}", keys.join(","))
        };
        let expected = Expected { of: &root, unknown_keys: false, rounds: false };
        scan(line("\"column_0\":1").as_bytes(), Some(expected)).unwrap();
        let e = scan(line("\"column_0\":9007199254740993").as_bytes(), Some(expected)).unwrap_err();
        assert!(e.contains("9007199254740993"), "{e}");
        assert!(scan(line("\"y\":1").as_bytes(), Some(expected)).unwrap_err().contains("`y`"));
    }

    #[test]
    fn keys_without_a_column_are_found() {
        let int = |name: &str| Arc::new(Field::new(name, DataType::Int64, true));
        let inner = DataType::Struct(Fields::from(vec![int("y")]));
        let root = DataType::Struct(Fields::from(vec![
            int("x"),
            Arc::new(Field::new("object", inner.clone(), true)),
            Arc::new(Field::new("list", DataType::List(Arc::new(Field::new("item", inner, true))), true)),
        ]));
        for (text, unknown) in [
            (r#"{"x":1,"object":{"y":1},"list":[{"y":1},{}]}"#, None),
            (r#"{"\u0078":1}"#, None),
            (r#"{"x":"z","object":{"y":"z"}}"#, None),
            // The decoder reports that this is no integer.
            (r#"{"x":{"z":1}}"#, None),
            (r#"{"x":1,"z":2}"#, Some("`z`")),
            (r#"{"y":1}"#, Some("`y`")),
            (r#"{"object":{"y":1,"x":2}}"#, Some("`x`")),
            (r#"{"list":[{"y":1},{"z":2}]}"#, Some("`z`")),
        ] {
            let all = Expected { of: &root, unknown_keys: false, rounds: false };
            match (scan(text.as_bytes(), Some(all)), unknown) {
                (Ok(()), None) => {}
                (Err(e), Some(key)) => assert!(e.contains(key), "{text}: {e}"),
                other => panic!("{text}: {other:?}"),
            }
            let some = Expected { of: &root, unknown_keys: true, rounds: true };
            scan(text.as_bytes(), Some(some)).unwrap();
            scan(text.as_bytes(), None).unwrap();
        }
    }
}
