//! How near the framed stream comes to the loopback itself.
//!
//! Prints the rate of raw TCP over loopback, of the framed stream with ready batches of 38.5 MB, and how many
//! one-row elements a second pass. Run it with
//! `cargo run --release -p caju-worker --example loopback -- [seconds per measurement]`.

use std::error::Error;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, UInt8Array};
use arrow_schema::{DataType, Field, Schema};
use caju_wire::frame::{Kind, RowsHeader};
use caju_wire::{BufferPool, FrameReader, FrameWriter, decode_chunk, encode_chunk, tune};
use caju_wire::{Chunk, Elements, RoundMark, Run};
use tokio::net::{TcpListener, TcpStream};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ROWS: usize = 256;
const ROW_BYTES: usize = 224 * 224 * 3;

fn main() -> Fallible<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(3.0), |s| s.parse())?;
    let time = Duration::from_secs_f64(seconds);
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for _ in 0..3 {
        let raw = raw(time)?;
        println!("raw TCP, 38.5 MB writes         {:8.2} GB/s", raw / 1e9);
        for pieces in [1, 8] {
            let ours = rt.block_on(batches(time, pieces))?;
            println!(
                "framed, 38.5 MB in {pieces} piece(s)     {:8.2} GB/s   {:5.1} % of raw",
                ours / 1e9,
                100.0 * ours / raw
            );
        }
        let tiny = rt.block_on(tiny(time))?;
        println!("framed, one-row elements        {tiny:10.0} elements/s");
    }
    Ok(())
}

/// Bytes per second of a blocking sender and a blocking receiver.
fn raw(time: Duration) -> Fallible<f64> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let data = vec![7u8; ROWS * ROW_BYTES];
        let start = Instant::now();
        while start.elapsed() < time {
            stream.write_all(&data)?;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![1u8; ROWS * ROW_BYTES];
    let (start, mut bytes) = (Instant::now(), 0);
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        bytes += n;
    }
    let rate = bytes as f64 / start.elapsed().as_secs_f64();
    sender.join().map_err(|_| "the sender panicked")??;
    Ok(rate)
}

fn images(pieces: usize) -> Fallible<Chunk> {
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let width = i32::try_from(ROW_BYTES)?;
    let schema = Arc::new(Schema::new(vec![
        Field::new("image", DataType::FixedSizeList(Arc::clone(&item), width), false),
        Field::new("label", DataType::Int64, false),
    ]));
    let piece = |rows: usize| -> Fallible<RecordBatch> {
        let values = UInt8Array::from(vec![7u8; rows * ROW_BYTES]);
        let image: ArrayRef =
            Arc::new(FixedSizeListArray::try_new(Arc::clone(&item), width, Arc::new(values), None)?);
        let label: ArrayRef = Arc::new(Int64Array::from(vec![1; rows]));
        Ok(RecordBatch::try_new(Arc::clone(&schema), vec![image, label])?)
    };
    Ok(Chunk {
        pieces: (0..pieces).map(|_| piece(ROWS / pieces)).collect::<Fallible<_>>()?,
        runs: vec![Run { split: 0, start: 0, len: ROWS as u64 }],
        elements: Elements::Lengths(vec![u32::try_from(ROWS)?]),
        remainder: false,
        round: RoundMark::default(),
    })
}

async fn pair() -> Fallible<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (a, b) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
    let (a, b) = (a?, b?.0);
    tune(&a)?;
    tune(&b)?;
    Ok((a, b))
}

/// Sends the chunk again and again for some time; the receiver decodes it and looks at it with `each`.
async fn stream(
    chunk: Chunk,
    time: Duration,
    each: impl Fn(&Chunk) -> u64 + Send + 'static,
) -> Fallible<f64> {
    let (a, b) = pair().await?;
    let schema = chunk.schema();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut writer = FrameWriter::new(a, "reader", Duration::from_secs(30));
        let start = Instant::now();
        while start.elapsed() < time {
            writer.write(&encode_chunk(&chunk)?).await?;
        }
        writer.send(Kind::End, &caju_wire::frame::EmptyHeader {}).await?;
        Fallible::Ok(0.0)
    });
    tasks.spawn(async move {
        let mut reader = FrameReader::new(b, "worker", BufferPool::new(64 << 20), Duration::from_secs(30));
        let (start, mut sum) = (Instant::now(), 0);
        while let Some(frame) = reader.next().await? {
            if frame.kind != Kind::Rows {
                break;
            }
            sum += each(&decode_chunk(frame.message::<RowsHeader>()?, &schema, frame.body)?);
        }
        Ok(sum as f64 / start.elapsed().as_secs_f64())
    });
    let mut rate = 0.0;
    while let Some(done) = tasks.join_next().await {
        rate += done??;
    }
    Ok(rate)
}

/// Bytes per second of ready batches.
async fn batches(time: Duration, pieces: usize) -> Fallible<f64> {
    let chunk = images(pieces)?;
    let bytes = (ROWS * ROW_BYTES) as u64;
    stream(chunk, time, move |_| bytes).await
}

/// One-row elements per second, every one of them handed over as a batch of its own.
async fn tiny(time: Duration) -> Fallible<f64> {
    let rows = 8192;
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let chunk = Chunk {
        pieces: vec![RecordBatch::try_new(schema, vec![ids])?],
        runs: vec![Run { split: 0, start: 0, len: rows.cast_unsigned() }],
        elements: Elements::Lengths(vec![1; usize::try_from(rows)?]),
        remainder: false,
        round: RoundMark::default(),
    };
    stream(chunk, time, |chunk| {
        let Elements::Lengths(lengths) = &chunk.elements else { return 0 };
        let (mut at, mut n) = (0, 0);
        for len in lengths {
            let element = chunk.pieces[0].slice(at, *len as usize);
            at += element.num_rows();
            n += 1;
        }
        n
    })
    .await
}
