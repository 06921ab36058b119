#![allow(clippy::cast_possible_truncation, reason = "made-up values of every width")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::*;
use arrow::compute::concat_batches;
use arrow::datatypes::{Int8Type, UInt8Type};
use arrow_schema::{DataType, Field, Fields, Schema};
use caju_types::{Error, ErrorKind};
use proptest::prelude::*;

use super::*;
use crate::frame::{
    CreditHeader, EmptyHeader, EndHeader, ErrorHeader, FIXED_LEN, Kind, OpenHeader, RowsHeader,
};
use crate::{Chunk, Elements, RoundMark, Run};

/// A small deterministic generator: proptest chooses the seed and the shape, this fills the values.
struct Values(u64);

impl Values {
    fn next(&mut self) -> u64 {
        self.0 = caju_types::mix64(self.0, 0x5eed);
        self.0
    }
    fn below(&mut self, n: u64) -> usize {
        (self.next() % n.max(1)) as usize
    }
    fn text(&mut self) -> String {
        let n = self.below(9);
        (0..n).map(|_| ['a', 'é', '日', '🥜', 'z'][self.below(5)]).collect()
    }
    fn null(&mut self, nullable: bool) -> bool {
        nullable && self.next().is_multiple_of(4)
    }
}

fn types(depth: u32) -> BoxedStrategy<DataType> {
    let leaf = prop_oneof![
        Just(DataType::Int64),
        Just(DataType::UInt8),
        Just(DataType::Float32),
        Just(DataType::Boolean),
        Just(DataType::Null),
        Just(DataType::Utf8),
        Just(DataType::LargeUtf8),
        Just(DataType::Binary),
        Just(DataType::Utf8View),
        Just(DataType::BinaryView),
        Just(DataType::FixedSizeBinary(5)),
        Just(DataType::Decimal128(20, 2)),
        Just(DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    // A non-nullable field of nulls is refused by Arrow itself.
    let field = |name: String, t: DataType, n: bool| Field::new(name, t.clone(), n || t == DataType::Null);
    let item =
        (types(depth - 1), any::<bool>()).prop_map(move |(t, n)| Arc::new(field("item".to_string(), t, n)));
    prop_oneof![
        4 => leaf,
        1 => item.clone().prop_map(DataType::List),
        1 => item.clone().prop_map(DataType::LargeList),
        1 => (item, 0i32..4).prop_map(|(f, n)| DataType::FixedSizeList(f, n)),
        1 => prop::collection::vec((types(depth - 1), any::<bool>()), 0..3).prop_map(move |ts| {
            DataType::Struct(ts.into_iter().enumerate().map(|(i, (t, n))| field(format!("f{i}"), t, n)).collect())
        }),
    ]
    .boxed()
}

fn array(v: &mut Values, t: &DataType, rows: usize, nullable: bool) -> ArrayRef {
    let nulls = |v: &mut Values| {
        nullable.then(|| NullBufferBuilder::new(rows)).map(|mut b| {
            (0..rows).for_each(|_| b.append(!v.null(true)));
            b.finish()
        })
    };
    match t {
        DataType::Null => Arc::new(NullArray::new(rows)),
        DataType::Int64 => {
            Arc::new((0..rows).map(|_| (!v.null(nullable)).then(|| v.next() as i64)).collect::<Int64Array>())
        }
        DataType::UInt8 => {
            Arc::new((0..rows).map(|_| (!v.null(nullable)).then(|| v.next() as u8)).collect::<UInt8Array>())
        }
        DataType::Float32 => Arc::new(
            (0..rows).map(|_| (!v.null(nullable)).then(|| v.next() as f32)).collect::<Float32Array>(),
        ),
        DataType::Boolean => Arc::new(
            (0..rows)
                .map(|_| (!v.null(nullable)).then(|| v.next().is_multiple_of(2)))
                .collect::<BooleanArray>(),
        ),
        DataType::Decimal128(..) => Arc::new(
            (0..rows)
                .map(|_| (!v.null(nullable)).then(|| v.next() as i128))
                .collect::<Decimal128Array>()
                .with_precision_and_scale(20, 2)
                .unwrap(),
        ),
        DataType::Utf8 => {
            Arc::new((0..rows).map(|_| (!v.null(nullable)).then(|| v.text())).collect::<StringArray>())
        }
        DataType::LargeUtf8 => {
            Arc::new((0..rows).map(|_| (!v.null(nullable)).then(|| v.text())).collect::<LargeStringArray>())
        }
        DataType::Utf8View => Arc::new(
            (0..rows).map(|_| (!v.null(nullable)).then(|| v.text().repeat(2))).collect::<StringViewArray>(),
        ),
        DataType::BinaryView => Arc::new(
            (0..rows)
                .map(|_| (!v.null(nullable)).then(|| v.text().repeat(2).into_bytes()))
                .collect::<BinaryViewArray>(),
        ),
        DataType::Binary => {
            let values: Vec<Option<Vec<u8>>> =
                (0..rows).map(|_| (!v.null(nullable)).then(|| v.text().into_bytes())).collect();
            Arc::new(values.iter().map(|x| x.as_deref()).collect::<BinaryArray>())
        }
        DataType::FixedSizeBinary(n) => {
            let mut b = FixedSizeBinaryBuilder::new(*n);
            for _ in 0..rows {
                if v.null(nullable) {
                    b.append_null();
                } else {
                    let x = v.next().to_le_bytes();
                    b.append_value(&x[..*n as usize]).unwrap();
                }
            }
            Arc::new(b.finish())
        }
        DataType::Dictionary(..) => {
            let values: Vec<Option<String>> =
                (0..rows).map(|_| (!v.null(nullable)).then(|| format!("w{}", v.below(7)))).collect();
            Arc::new(values.iter().map(|x| x.as_deref()).collect::<DictionaryArray<Int8Type>>())
        }
        DataType::List(f) => {
            let lengths: Vec<usize> = (0..rows).map(|_| v.below(4)).collect();
            let child = array(v, f.data_type(), lengths.iter().sum(), f.is_nullable());
            let offsets = arrow::buffer::OffsetBuffer::from_lengths(lengths);
            Arc::new(ListArray::new(Arc::clone(f), offsets, child, nulls(v).flatten()))
        }
        DataType::LargeList(f) => {
            let lengths: Vec<usize> = (0..rows).map(|_| v.below(4)).collect();
            let child = array(v, f.data_type(), lengths.iter().sum(), f.is_nullable());
            let offsets = arrow::buffer::OffsetBuffer::from_lengths(lengths);
            Arc::new(LargeListArray::new(Arc::clone(f), offsets, child, nulls(v).flatten()))
        }
        DataType::FixedSizeList(f, n) => {
            let child = array(v, f.data_type(), rows * *n as usize, f.is_nullable());
            let list =
                FixedSizeListArray::try_new_with_length(Arc::clone(f), *n, child, nulls(v).flatten(), rows);
            Arc::new(list.unwrap())
        }
        DataType::Struct(fields) => {
            let children = fields.iter().map(|f| array(v, f.data_type(), rows, f.is_nullable())).collect();
            let nulls = nulls(v).flatten();
            Arc::new(StructArray::try_new_with_length(fields.clone(), children, nulls, rows).unwrap())
        }
        other => panic!("no generator for {other}"),
    }
}

fn batch(v: &mut Values, schema: &Arc<Schema>, rows: usize) -> RecordBatch {
    // Sliced arrays everywhere: offsets that are not 0, and bitmaps that begin within a byte.
    let (before, after) = (v.below(11), v.below(3));
    let columns = schema
        .fields()
        .iter()
        .map(|f| array(v, f.data_type(), before + rows + after, f.is_nullable()).slice(before, rows))
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).unwrap()
}

fn chunks() -> impl Strategy<Value = Chunk> {
    let columns = prop::collection::vec((types(2), any::<bool>()), 0..4);
    (columns, prop::collection::vec(0usize..20, 1..4), any::<u64>(), any::<bool>(), any::<bool>()).prop_map(
        |(columns, pieces, seed, flat, remainder)| {
            let fields: Fields = columns
                .into_iter()
                .enumerate()
                .map(|(i, (t, n))| Field::new(format!("c{i}"), t.clone(), n || t == DataType::Null))
                .collect();
            let metadata = HashMap::from([("k".to_string(), "v".to_string())]);
            let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
            let mut v = Values(seed);
            let pieces: Vec<_> = pieces.iter().map(|n| batch(&mut v, &schema, *n)).collect();
            let rows: usize = pieces.iter().map(|p| p.num_rows()).sum();
            let mut runs = Vec::new();
            let mut left = rows as u64;
            while left > 0 {
                let len = 1 + v.next() % left;
                runs.push(Run {
                    split: v.next() % 5,
                    start: 1000 * runs.len() as u64 + v.next() % 900,
                    len: len.min(90),
                });
                left -= len.min(90);
            }
            let elements = if flat { Elements::Rows } else { Elements::Lengths(vec![0, rows as u32]) };
            Chunk {
                pieces,
                runs,
                elements,
                remainder,
                round: RoundMark { bucket: remainder.then_some(3), remainder_round: 7 },
            }
        },
    )
}

fn bytes_of(frame: &OutFrame) -> Vec<u8> {
    let mut out = frame.head.clone();
    frame.body.iter().for_each(|s| out.extend_from_slice(s.as_slice()));
    assert_eq!(out.len() as u64, frame.len());
    out
}

fn reader(bytes: &[u8]) -> FrameReader<&[u8]> {
    FrameReader::new(bytes, "peer", BufferPool::new(1 << 20), Duration::from_secs(5))
        .with_limits(1 << 20, 64 << 20)
}

fn receive(bytes: &[u8], schema: &arrow_schema::SchemaRef) -> caju_types::Result<Chunk> {
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    rt.block_on(async {
        let frame = reader(bytes).next().await?.ok_or_else(|| Error::data_loss("closed"))?;
        decode_chunk(frame.message::<RowsHeader>()?, schema, frame.body)
    })
}

/// Rows of the deepest types that sources and stages give travel, also without rows in them.
#[test]
fn rows_of_the_deepest_types_travel() {
    let field = |of: DataType| Field::new("x", of, true);
    let nested = |wrap: &dyn Fn(Field) -> DataType, levels| {
        let inner = (0..levels).fold(field(DataType::Int32), |inner, _| field(wrap(inner)));
        Arc::new(Schema::new(vec![inner]))
    };
    let deepest = caju_pipeline::MAX_TYPE_LEVELS;
    let wraps: [&dyn Fn(Field) -> DataType; 2] =
        [&|inner| DataType::List(Arc::new(inner)), &|inner| DataType::Struct(vec![inner].into())];
    for wrap in wraps {
        let schema = nested(wrap, deepest);
        let back = decode_schema(&encode_schema(&schema).unwrap()).unwrap();
        assert_eq!(back, schema);
        let rows =
            RecordBatch::try_new(Arc::clone(&schema), vec![new_null_array(schema.field(0).data_type(), 2)]);
        let chunk = Chunk {
            pieces: vec![rows.unwrap()],
            runs: vec![Run { split: 0, start: 0, len: 2 }],
            elements: Elements::Rows,
            remainder: false,
            round: RoundMark::default(),
        };
        let received = receive(&bytes_of(&encode_chunk(&chunk).unwrap()), &back).unwrap();
        assert_eq!(received.pieces, chunk.pieces);
        let refused = encode_schema(&nested(wrap, deepest + 1)).unwrap_err();
        assert!(refused.message().contains("may be nested 32 levels deep at most"), "{refused}");
    }
    let dictionary = |inner| DataType::Dictionary(Box::new(DataType::Int8), Box::new(wraps[1](inner)));
    let refused = encode_schema(&nested(&dictionary, deepest)).unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Unimplemented && refused.message().contains("dictionaries"),
        "{refused}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Any chunk arrives equal: schema with metadata, rows, provenance and elements.
    #[test]
    fn round_trip(chunk in chunks()) {
        let schema = decode_schema(&encode_schema(&chunk.schema()).unwrap()).unwrap();
        prop_assert_eq!(&schema, &chunk.schema());
        let frame = encode_chunk(&chunk).unwrap();
        let back = receive(&bytes_of(&frame), &schema).unwrap();
        let want = concat_batches(&schema, &chunk.pieces).unwrap();
        prop_assert_eq!(back.pieces.len(), 1);
        prop_assert_eq!(&back.pieces[0], &want);
        back.pieces[0].columns().iter().for_each(|c| c.to_data().validate_full().unwrap());
        prop_assert_eq!(&back.runs, &chunk.runs);
        prop_assert_eq!(&back.elements, &chunk.elements);
        prop_assert_eq!(back.remainder, chunk.remainder);
    }

    /// Bytes of a foreign or broken peer end in an error or in valid arrays: no panic, no wild read.
    #[test]
    fn damage_is_an_error(chunk in chunks(), hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>(), truncate in any::<bool>(), fix in any::<bool>()) {
        let schema = chunk.schema();
        let mut bytes = bytes_of(&encode_chunk(&chunk).unwrap());
        for (at, to) in hits {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if truncate {
            bytes.truncate(cut.index(bytes.len()));
        }
        if fix && bytes.len() > FIXED_LEN {
            // A hostile peer computes checksums too.
            let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
            if let Some(header) = bytes.get(FIXED_LEN..FIXED_LEN.saturating_add(len)) {
                let crc = crc32c::crc32c(header);
                bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            }
        }
        if let Ok(back) = receive(&bytes, &schema) {
            back.pieces[0].columns().iter().for_each(|c| c.to_data().validate_full().unwrap());
            let _ = format!("{back:?}");
        }
    }

    /// A lying header over an honest body: every number in it may be anything.
    #[test]
    fn lies_are_errors(chunk in chunks(), which in 0usize..8, at in any::<prop::sample::Index>(), to in prop_oneof![0u64..300, any::<u64>()]) {
        let frame = encode_chunk(&chunk).unwrap();
        let bytes = bytes_of(&frame);
        let mut header: RowsHeader = prost::Message::decode(&frame.head[FIXED_LEN..]).unwrap();
        let pick = |v: &mut Vec<u64>| if v.is_empty() { v.push(to) } else { let i = at.index(v.len()); v[i] = to };
        match which {
            0 => header.rows = to,
            1 => pick(&mut header.run_len),
            2 => pick(&mut header.run_start),
            3 => pick(&mut header.node_rows),
            4 | 5 => pick(&mut header.buffers),
            6 => header.variadic.push(to as u32),
            _ => header.lengths.push(to as u32),
        }
        let body = arrow::buffer::Buffer::from(&bytes[frame.head.len()..]);
        if let Ok(back) = decode_chunk(header, &chunk.schema(), body) {
            back.pieces[0].columns().iter().for_each(|c| c.to_data().validate_full().unwrap());
        }
    }
}

#[test]
fn pieces_of_fixed_width_columns_are_not_copied() {
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let image = |n: usize| -> ArrayRef {
        let values = UInt8Array::from_iter_values((0..n * 12).map(|i| i as u8));
        Arc::new(FixedSizeListArray::new(Arc::clone(&item), 12, Arc::new(values), None))
    };
    let tensor = DataType::FixedSizeList(Arc::clone(&item), 12);
    let schema = Arc::new(Schema::new(vec![Field::new("image", tensor, false)]));
    let pieces: Vec<_> = [30, 20, 50]
        .iter()
        .map(|n| RecordBatch::try_new(Arc::clone(&schema), vec![image(*n)]).unwrap())
        .collect();
    let at: Vec<*const u8> = pieces
        .iter()
        .map(|p| p.column(0).as_fixed_size_list().values().as_primitive::<UInt8Type>().values().as_ptr())
        .collect();
    let chunk = Chunk {
        pieces,
        runs: vec![Run { split: 0, start: 0, len: 100 }],
        elements: Elements::Lengths(vec![100]),
        remainder: false,
        round: RoundMark::default(),
    };
    let frame = encode_chunk(&chunk).unwrap();
    let sent: Vec<*const u8> = frame
        .body
        .iter()
        .filter_map(|s| match s {
            Segment::Data(b) => Some(b.as_ptr()),
            Segment::Zeros(_) => None,
        })
        .collect();
    assert_eq!(sent, at, "the body is the arrays' own memory");
    let back = receive(&bytes_of(&frame), &schema).unwrap();
    assert_eq!(back.pieces[0].num_rows(), 100);
    let values =
        back.pieces[0].column(0).as_fixed_size_list().values().as_primitive::<UInt8Type>().values().as_ptr();
    assert_eq!(values.align_offset(64), 0);
}

#[test]
fn small_chunks_share_a_frame() {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let one = |i: u64| {
        let ids = Int64Array::from(vec![i as i64]);
        Chunk {
            pieces: vec![RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(ids)]).unwrap()],
            runs: vec![Run { split: 0, start: i, len: 1 }],
            elements: Elements::Lengths(vec![1]),
            remainder: false,
            round: RoundMark::default(),
        }
    };
    let mut all = one(0);
    for i in 1..1000 {
        coalesce(&mut all, one(i)).unwrap();
    }
    assert_eq!(all.runs, vec![Run { split: 0, start: 0, len: 1000 }]);
    let back = receive(&bytes_of(&encode_chunk(&all).unwrap()), &schema).unwrap();
    assert_eq!(back.num_elements(), 1000);
    let ids = back.pieces[0].column(0).as_primitive::<arrow::datatypes::Int64Type>();
    assert!(ids.values().iter().copied().eq(0..1000));
    let mut short = one(0);
    short.remainder = true;
    assert!(coalesce(&mut all, short).is_err(), "the reader must see remainders");
    let mut rows = one(0);
    rows.elements = Elements::Rows;
    assert!(coalesce(&mut all, rows).is_err());
}

#[test]
fn rows_that_belong_to_no_split_are_damage() {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let chunk = Chunk {
        pieces: vec![RecordBatch::try_new(Arc::clone(&schema), vec![ids]).unwrap()],
        runs: vec![Run { split: 0, start: 0, len: 2 }],
        elements: Elements::Rows,
        remainder: false,
        round: RoundMark::default(),
    };
    let e = receive(&bytes_of(&encode_chunk(&chunk).unwrap()), &schema).unwrap_err();
    assert!(e.kind() == ErrorKind::DataLoss && e.message().contains("runs of 2 rows in a chunk of 3"), "{e}");
    let padding = Chunk { runs: Vec::new(), ..chunk };
    let back = receive(&bytes_of(&encode_chunk(&padding).unwrap()), &schema).unwrap();
    assert!(back.is_padding() && back.rows() == 3, "rows of another consumer");
}

#[test]
fn the_end_says_what_was_emitted_or_that_it_does_not_know() {
    let count = |split_index, rows| caju_proto::v1::SplitCount { split_index, rows };
    let counts = vec![count(3, 7), count(1 << 40, 1)];
    assert_eq!(EndHeader::new(Some(&counts)).counts(), Some(counts));
    assert_eq!(EndHeader::new(Some(&[])).counts(), Some(Vec::new()), "a task without rows");
    assert_eq!(EndHeader::new(None).counts(), None);
    let of_old_worker: EndHeader = prost::Message::decode(&b""[..]).unwrap();
    assert_eq!(of_old_worker.counts(), None);
    let torn = EndHeader { counted: true, splits: vec![1], ..EndHeader::default() };
    assert_eq!(torn.counts(), None);
}

#[tokio::test]
async fn control_frames_and_errors() {
    let (a, b) = tokio::io::duplex(64);
    let mut w = FrameWriter::new(a, "worker", Duration::from_secs(5));
    let mut r = FrameReader::new(b, "worker w:1", BufferPool::new(0), Duration::from_secs(5));
    let open = OpenHeader {
        task_id: 7,
        client_id: 9,
        window_bytes: 1 << 26,
        ticket: vec![5; 16],
        consumer: 0,
        compression: 0,
        shared_memory: true,
    };
    let send = async {
        w.send(Kind::Open, &open).await.unwrap();
        w.send(Kind::Credit, &CreditHeader { bytes: 5, shrink_bytes: 0 }).await.unwrap();
        w.send(Kind::Error, &ErrorHeader::from(&Error::not_found("a.parquet: no such file"))).await.unwrap();
        w.send(Kind::End, &EmptyHeader {}).await.unwrap();
        w.shutdown().await;
    };
    let receive = async {
        let f = r.next().await.unwrap().unwrap();
        assert_eq!((f.kind, &f.message::<OpenHeader>().unwrap()), (Kind::Open, &open));
        assert_eq!(r.next().await.unwrap().unwrap().message::<CreditHeader>().unwrap().bytes, 5);
        let e = Error::from(r.next().await.unwrap().unwrap().message::<ErrorHeader>().unwrap());
        assert_eq!((e.kind(), e.message()), (ErrorKind::NotFound, "a.parquet: no such file"));
        assert_eq!(r.next().await.unwrap().unwrap().kind, Kind::End);
        assert!(r.next().await.unwrap().is_none());
    };
    tokio::join!(send, receive);
}

#[tokio::test]
async fn silence_and_stalls_have_deadlines() {
    let (a, b) = tokio::io::duplex(16);
    let mut r = FrameReader::new(b, "worker w:1", BufferPool::new(0), Duration::from_millis(20));
    let e = r.next().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
    assert!(e.message().contains("worker w:1"), "{e}");
    let mut w = FrameWriter::new(a, "client c", Duration::from_millis(20));
    let mut e = Ok(());
    for _ in 0..3 {
        e = w.send(Kind::Ping, &EmptyHeader {}).await;
    }
    assert_eq!(e.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn other_versions_and_huge_claims_are_refused() {
    let good = frame::head(Kind::Ping, &EmptyHeader {}, 0).unwrap();
    let mut other = good.clone();
    other[4] = 9;
    let e = reader(&other).next().await.unwrap_err();
    assert!(e.message().contains("version 9"), "{e}");
    let mut huge = good.clone();
    huge[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(reader(&huge).next().await.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert!(
        begins_framed_stream(&good)
            && begins_framed_stream(b"C")
            && !begins_framed_stream(b"PRI * HTTP/2.0")
            && !begins_framed_stream(b"")
    );
}

#[test]
fn types_that_cannot_travel_are_named() {
    let runs = DataType::RunEndEncoded(
        Arc::new(Field::new("run_ends", DataType::Int32, false)),
        Arc::new(Field::new("values", DataType::Int64, true)),
    );
    let e = encode_schema(&Schema::new(vec![Field::new("odd", runs, true)])).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unimplemented);
    assert!(e.message().contains("`odd`"), "{e}");
}
