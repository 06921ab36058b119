//! The seeds of the fuzz target, replayed and mutated without a fuzzer.

use std::path::PathBuf;

use caju_planner::Profile;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::malformed::survives;

fn at(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Names and bytes, in the order of names.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(at("../fuzz/corpus/profile")).unwrap();
    let mut out: Vec<_> = entries
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
        .collect();
    out.sort();
    out
}

/// What is said about every bad seed is a file, so that a message gets worse only on purpose: with
/// `BLESS=1` in the environment the test rewrites it.
#[test]
fn messages_of_bad_seeds() {
    let mut messages = String::new();
    for (name, bytes) in seeds() {
        let text = String::from_utf8(bytes).unwrap();
        survives(&text).unwrap();
        match (name.starts_with("bad-"), Profile::from_json(&text)) {
            (true, Err(e)) => messages += &format!("{name}: {e}\n"),
            (false, Ok(_)) => {}
            (_, result) => panic!("{name}: {:?}", result.map(|_| "accepted")),
        }
    }
    let file = at("tests/planner/profile-messages.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &messages).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap_or_default(), messages);
}

#[derive(Debug, Clone)]
enum Change {
    Byte(Index, u8),
    Cut(Index, Index),
    Insert(Index, &'static str),
    Repeat(Index, Index),
    /// A piece of another seed.
    Splice(Index, Index, Index, Index),
}

/// What breaks readers of JSON and of numbers.
const WORDS: [&str; 16] = [
    "null",
    "-1",
    "1e999",
    "1e-999",
    "-0.0",
    "NaN",
    "18446744073709551616",
    "\"\"",
    "\\u0000",
    "\\",
    "\"",
    "[[[[",
    "}",
    ",",
    "\u{feff}",
    "{\"a\":",
];

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(i, b)| Change::Byte(i, b)),
        (at(), at()).prop_map(|(i, j)| Change::Cut(i, j)),
        (at(), prop::sample::select(&WORDS[..])).prop_map(|(i, w)| Change::Insert(i, w)),
        (at(), at()).prop_map(|(i, j)| Change::Repeat(i, j)),
        (at(), at(), at(), at()).prop_map(|(s, i, j, k)| Change::Splice(s, i, j, k)),
    ]
}

/// Two places in order.
fn range(len: usize, i: &Index, j: &Index) -> std::ops::Range<usize> {
    let (i, j) = (i.index(len + 1), j.index(len + 1));
    i.min(j)..i.max(j)
}

fn apply(bytes: &mut Vec<u8>, change: &Change, seeds: &[(String, Vec<u8>)]) {
    let n = bytes.len();
    match change {
        Change::Byte(i, b) if n > 0 => bytes[i.index(n)] = *b,
        Change::Byte(..) => {}
        Change::Cut(i, j) => drop(bytes.drain(range(n, i, j))),
        Change::Insert(i, word) => {
            let at = i.index(n + 1);
            bytes.splice(at..at, word.bytes());
        }
        Change::Repeat(i, j) => {
            let r = range(n, i, j);
            let piece = bytes[r.clone()].to_vec();
            bytes.splice(r.end..r.end, piece);
        }
        Change::Splice(s, i, j, at) => {
            let other = &seeds[s.index(seeds.len())].1;
            let piece = other[range(other.len(), i, j)].to_vec();
            let at = at.index(n + 1);
            bytes.splice(at..at, piece);
        }
    }
    bytes.truncate(1 << 16);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn mutated_seeds(which in any::<Index>(), changes in vec(change(), 1..5)) {
        let seeds = seeds();
        let mut bytes = seeds[which.index(seeds.len())].1.clone();
        for change in &changes {
            apply(&mut bytes, change, &seeds);
        }
        survives(&String::from_utf8_lossy(&bytes))?;
    }
}
