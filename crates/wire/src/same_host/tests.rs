use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use caju_types::ErrorKind;

use super::*;
use crate::frame::Kind;
use crate::{
    Chunk, EncodedRows, FrameReader, FrameWriter, Listener, OutFrame, ReadHalf, Run, SplitFacts, WriteHalf,
    connect_same_host, decode_chunk, encode_rows,
};

const ROWS: i64 = 50_000;
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn chunk() -> Chunk {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|i| format!("row {i}"))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap();
    Chunk::rows_of(batch, vec![Run { split: 3, start: 0, len: ROWS.cast_unsigned() }])
}

fn rows() -> EncodedRows {
    encode_rows(&chunk(), SplitFacts::default()).unwrap()
}

struct Pair {
    writer: FrameWriter<WriteHalf>,
    reader: FrameReader<ReadHalf>,
    files: PassedFiles,
}

async fn pair() -> Pair {
    let mut listener = Listener::bind_same_host().unwrap();
    let name = listener.address().to_owned();
    let (accepted, connected) = tokio::join!(listener.accept(), connect_same_host(&name));
    let (server, client) = (accepted.unwrap(), connected.unwrap());
    let (ours, files) = (server.passed_files(), client.passed_files().unwrap());
    let writer = FrameWriter::new(server.into_split().1, "reader", TEST_TIMEOUT).with_files(ours);
    let reader = FrameReader::new(client.into_split().0, "worker", BufferPool::new(0), TEST_TIMEOUT);
    Pair { writer, reader, files }
}

impl Pair {
    /// The header of the next rows, with the body of the frame and the one of its file.
    async fn next(&mut self) -> (RowsHeader, Buffer, Result<FileBody>) {
        let frame = self.reader.next().await.unwrap().unwrap();
        assert_eq!(frame.kind, Kind::Rows);
        let header = frame.message::<RowsHeader>().unwrap();
        let body = self.files.take_body(&header, 1 << 30, &BufferPool::new(0));
        (header, frame.body, body)
    }
}

#[tokio::test]
async fn one_file_gives_the_rows_to_several_readers() {
    let file = Arc::new(rows().write_file().unwrap());
    assert!(rows().has_body(file.map().unwrap().as_ref()));
    for _ in 0..2 {
        let mut pair = pair().await;
        // The order of frames with and without files is that of their rows.
        for _ in 0..3 {
            assert!(pair.writer.write(&rows().in_file(Arc::clone(&file)).unwrap()).await.unwrap());
            let small = encode_rows(&chunk().slice_rows(7, 1), SplitFacts::default()).unwrap();
            assert!(pair.writer.write(&small.inline(None).unwrap()).await.unwrap());
        }
        for _ in 0..3 {
            let (header, inline, body) = pair.next().await;
            let body = body.unwrap();
            assert!(inline.is_empty() && body.is_mapped);
            let got = decode_chunk(header, &chunk().schema(), body.bytes).unwrap();
            assert_eq!((&got.pieces, &got.runs), (&chunk().pieces, &chunk().runs));
            let column = got.pieces[0].column(0).as_primitive::<Int64Type>().values().inner().clone();
            assert_eq!(column.as_ptr().align_offset(4096), 0, "the column is in the map");
            let frame = pair.reader.next().await.unwrap().unwrap();
            let header = frame.message::<RowsHeader>().unwrap();
            assert_eq!((header.file_bytes, header.rows), (0, 1));
        }
    }
}

#[tokio::test]
async fn a_frame_that_lies_about_its_file_is_refused() {
    let mut pair = pair().await;
    let file = Arc::new(rows().write_file().unwrap());
    let honest = rows().in_file(Arc::clone(&file)).unwrap();
    pair.writer.write(&OutFrame { file: None, ..honest }).await.unwrap();
    assert_eq!(pair.next().await.2.unwrap_err().kind(), ErrorKind::Unavailable);
    let other = Arc::new(SealedFile::new([&b"other rows"[..]]).unwrap());
    let lie = OutFrame { file: Some(other), ..rows().in_file(Arc::clone(&file)).unwrap() };
    pair.writer.write(&lie).await.unwrap();
    assert_eq!(pair.next().await.2.unwrap_err().kind(), ErrorKind::DataLoss);
    pair.writer.write(&rows().in_file(file).unwrap()).await.unwrap();
    let huge = pair.reader.next().await.unwrap().unwrap().message::<RowsHeader>().unwrap();
    let refused = pair.files.take_body(&huge, huge.file_bytes - 1, &BufferPool::new(0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    let without = FrameWriter::new(tokio::io::sink(), "reader", TEST_TIMEOUT);
    let mut without = without.with_files(None);
    let file = Arc::new(rows().write_file().unwrap());
    assert!(without.write(&rows().in_file(file).unwrap()).await.is_err(), "TCP takes no files");
}

/// Rows of equal length, of which the files come in another order than the frames.
#[tokio::test]
async fn a_file_of_other_rows_is_refused() {
    let mut pair = pair().await;
    let file = || Arc::new(rows().write_file().unwrap());
    let (mine, other) = (file(), file());
    let swapped = OutFrame { file: Some(other), ..rows().in_file(mine).unwrap() };
    pair.writer.write(&swapped).await.unwrap();
    let refused = pair.next().await.2.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DataLoss);
    assert!(refused.message().contains("of other rows"), "{refused}");
}

/// The system drops a file and says so with the bytes that it came with, which may be those of an earlier frame.
#[tokio::test]
async fn no_file_is_taken_after_one_that_was_lost() {
    let mut pair = pair().await;
    pair.writer.write(&rows().in_file(Arc::new(rows().write_file().unwrap())).unwrap()).await.unwrap();
    pair.files.on_received(Vec::new(), true).unwrap();
    let refused = pair.next().await.2.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.message().contains("without their file"), "{refused}");
}

#[tokio::test]
async fn readers_connect_to_sockets_of_workers_alone() {
    for name in ["other", "caju-", "caju-/run/x", ""] {
        let refused = connect_same_host(name).await;
        let kind = refused.map(|_| ()).unwrap_err().kind();
        assert!(
            matches!(kind, io::ErrorKind::InvalidInput | io::ErrorKind::ConnectionRefused),
            "{name}: {kind:?}"
        );
    }
}

/// A worker holds no descriptors that its readers send.
#[tokio::test]
async fn files_of_readers_end_their_connections() {
    let mut listener = Listener::bind_same_host().unwrap();
    let name = listener.address().to_owned();
    let (accepted, connected) = tokio::join!(listener.accept(), connect_same_host(&name));
    let (server, client) = (accepted.unwrap(), connected.unwrap());
    let files = client.passed_files();
    let mut writer = FrameWriter::new(client.into_split().1, "worker", TEST_TIMEOUT).with_files(files);
    let mut reader = FrameReader::new(server.into_split().0, "reader", BufferPool::new(0), TEST_TIMEOUT);
    let file = Arc::new(rows().write_file().unwrap());
    writer.write(&rows().in_file(file).unwrap()).await.unwrap();
    let ended = reader.next().await.unwrap_err();
    assert!(ended.message().contains("belong to no frame"), "{ended}");
}

/// A connection of a system that passes on no file now.
struct Full(Vec<u8>, PassedFiles);

impl AsyncWrite for Full {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.1.0.lock().outgoing.is_some() {
            // ETOOMANYREFS
            return Poll::Ready(Err(io::Error::from_raw_os_error(109)));
        }
        self.0.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn nothing_is_written_while_the_system_passes_on_no_file() {
    let files = PassedFiles::default();
    let mut full = Full(Vec::new(), files.clone());
    let mut writer = FrameWriter::new(&mut full, "reader", TEST_TIMEOUT).with_files(Some(files));
    let file = Arc::new(rows().write_file().unwrap());
    assert!(!writer.write(&rows().in_file(file).unwrap()).await.unwrap());
    let inline = rows().inline(None).unwrap();
    assert!(writer.write(&inline).await.unwrap());
    assert_eq!(full.0.len() as u64, inline.len(), "the frame went over the socket, once");
}

#[tokio::test]
async fn nobody_listens_at_a_name_that_ended() {
    let listener = Listener::bind_same_host().unwrap();
    let name = listener.address().to_owned();
    drop(listener);
    assert_eq!(connect_same_host(&name).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
