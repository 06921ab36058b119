//! tf.train.Example as the protobuf library reads it: our reader gives the same values or an error, never others.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, HashMap};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, BinaryArray};
use caju_pipeline::{ColumnType, Feature, FeatureShape};
use caju_sources::parse_example;
use proptest::prelude::*;
use prost::Message;

/// The messages of `tensorflow/core/example`, written by hand.
mod proto {
    use super::HashMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Example {
        #[prost(message, optional, tag = "1")]
        pub(super) features: Option<Features>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Features {
        #[prost(map = "string, message", tag = "1")]
        pub(super) feature: HashMap<String, Feature>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Feature {
        #[prost(oneof = "Kind", tags = "1, 2, 3")]
        pub(super) kind: Option<Kind>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Kind {
        #[prost(message, tag = "1")]
        Bytes(BytesList),
        #[prost(message, tag = "2")]
        Floats(FloatList),
        #[prost(message, tag = "3")]
        Ints(Int64List),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct BytesList {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub(super) value: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct FloatList {
        #[prost(float, repeated, tag = "1")]
        pub(super) value: Vec<f32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Int64List {
        #[prost(int64, repeated, tag = "1")]
        pub(super) value: Vec<i64>,
    }
}

use proto::Kind;

const NAMES: [&str; 4] = ["a", "b", "image/encoded", ""];

fn kind() -> impl Strategy<Value = Option<Kind>> {
    let bytes = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4);
    prop_oneof![
        1 => Just(None),
        3 => bytes.prop_map(|value| Some(Kind::Bytes(proto::BytesList { value }))),
        3 => prop::collection::vec(any::<f32>(), 0..6)
            .prop_map(|value| Some(Kind::Floats(proto::FloatList { value }))),
        3 => prop::collection::vec(any::<i64>(), 0..6)
            .prop_map(|value| Some(Kind::Ints(proto::Int64List { value }))),
    ]
}

fn example() -> impl Strategy<Value = proto::Example> {
    let feature = (prop::sample::select(&NAMES[..]), kind());
    prop::collection::vec(feature, 0..5).prop_map(|features| {
        let feature =
            features.into_iter().map(|(name, kind)| (name.to_owned(), proto::Feature { kind })).collect();
        proto::Example { features: Some(proto::Features { feature }) }
    })
}

/// Several encodings one behind the other: to protobuf that is one message, in which the later one counts.
fn encoded() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(example(), 1..3)
        .prop_map(|parts| parts.iter().flat_map(Message::encode_to_vec).collect())
}

/// The value of a feature, floats by their bits.
#[derive(Debug, PartialEq)]
enum Values {
    Bytes(Vec<Vec<u8>>),
    Floats(Vec<u32>),
    Ints(Vec<i64>),
}

fn theirs(example: &proto::Example) -> BTreeMap<&str, Values> {
    let features = example.features.iter().flat_map(|f| &f.feature);
    let value = |kind: &Kind| match kind {
        Kind::Bytes(l) => Values::Bytes(l.value.clone()),
        Kind::Floats(l) => Values::Floats(l.value.iter().map(|f| f.to_bits()).collect()),
        Kind::Ints(l) => Values::Ints(l.value.clone()),
    };
    features.filter_map(|(name, f)| Some((name.as_str(), value(f.kind.as_ref()?)))).collect()
}

/// A feature of one record as a list: an error's text, or none where it is null.
fn ours(record: &[u8], name: &str, dtype: ColumnType) -> Result<Option<Values>, String> {
    let records = BinaryArray::from_vec(vec![record]);
    let feature = Feature { dtype, shape: FeatureShape::List, optional: true };
    let columns = parse_example(&records, &[(name.to_owned(), feature)]).map_err(|(_, e)| e.to_string())?;
    let list = columns[0].as_list::<i32>();
    if list.is_null(0) {
        return Ok(None);
    }
    let items = list.value(0);
    Ok(Some(match dtype {
        ColumnType::Bytes => {
            Values::Bytes(items.as_binary::<i32>().iter().map(|b| b.unwrap().to_vec()).collect())
        }
        ColumnType::Float32 => {
            Values::Floats(items.as_primitive::<Float32Type>().values().iter().map(|f| f.to_bits()).collect())
        }
        _ => Values::Ints(items.as_primitive::<Int64Type>().values().to_vec()),
    }))
}

fn type_of(values: &Values) -> ColumnType {
    match values {
        Values::Bytes(_) => ColumnType::Bytes,
        Values::Floats(_) => ColumnType::Float32,
        Values::Ints(_) => ColumnType::Int64,
    }
}

const TYPES: [ColumnType; 3] = [ColumnType::Bytes, ColumnType::Float32, ColumnType::Int64];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whole records: the same values of every feature, and an error for every other type than its own.
    #[test]
    fn records_read_as_prost_reads_them(record in encoded()) {
        let message = proto::Example::decode(record.as_slice()).unwrap();
        let theirs = theirs(&message);
        for name in NAMES {
            for dtype in TYPES {
                let ours = ours(&record, name, dtype);
                match theirs.get(name) {
                    None => prop_assert_eq!(ours, Ok(None), "{:?}", name),
                    Some(values) if type_of(values) == dtype => {
                        prop_assert_eq!(ours.as_ref().map(Option::as_ref), Ok(Some(values)), "{:?}", name);
                    }
                    Some(_) => prop_assert!(ours.is_err(), "{:?} as {:?}: {:?}", name, dtype, ours),
                }
            }
        }
    }

    /// Damaged records: where both readers give values they are the same.
    #[test]
    fn damage_never_gives_other_values(
        record in encoded(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        cuts in prop::bool::weighted(0.2),
    ) {
        let mut record = record;
        for (at, byte) in damage {
            if !record.is_empty() {
                let at = at.index(record.len());
                record[at] = byte;
            }
        }
        if cuts {
            record.truncate(cut.index(record.len() + 1));
        }
        let Ok(message) = proto::Example::decode(record.as_slice()) else { return Ok(()) };
        let theirs = theirs(&message);
        for name in NAMES {
            for dtype in TYPES {
                if let Ok(Some(values)) = ours(&record, name, dtype) {
                    prop_assert_eq!(Some(&values), theirs.get(name), "{:?} as {:?}", name, dtype);
                }
            }
        }
    }
}
