//! Chunks as frames for one reader: as they are, compressed, or in shared memory.

use std::sync::Arc;

use caju_runtime::CpuPool;
use caju_types::Result;
use caju_wire::{Chunk, Codec, OutFrame, SplitFacts, encode_chunk_as, encode_rows};

use crate::body_files::TaskBodies;

/// Chunks that are sent as they are after one that hardly shrank: a few percent of the chunks are tried again.
const CHUNKS_SENT_UNCOMPRESSED: u32 = 31;
/// The smallest body, in bytes, that travels as a file. Making and mapping a file costs about as much as copying this.
const MIN_FILE_BYTES: u64 = 128 << 10;
/// Bodies of this fraction of a reader's window travel as files. So at most this many files are on their way to a reader, or
/// mapped by it and not taken by its user.
const MAX_FILES_IN_WINDOW: u64 = 256;

/// Makes frames of chunks, and compresses them where the reader wants it and it helps.
pub(crate) struct Outgoing {
    codec: Option<Codec>,
    pool: CpuPool,
    /// Chunks that are not tried.
    untried: u32,
    /// Where bodies may travel as files.
    files: Option<Files>,
}

struct Files {
    task: Arc<TaskBodies>,
    /// The smallest body that does.
    min_bytes: u64,
}

/// A frame, and what is counted of it.
pub(crate) struct Packed {
    pub(crate) frame: OutFrame,
    /// The body is a file that a task of another job had made.
    was_there: bool,
}

impl Outgoing {
    pub(crate) fn new(codec: Option<Codec>, pool: CpuPool) -> Self {
        Self { codec, pool, untried: 0, files: None }
    }

    /// Sends large bodies as files, to a reader that has at most `window_bytes` unused.
    pub(crate) fn in_files(mut self, task: Arc<TaskBodies>, window_bytes: u64) -> Self {
        let min_bytes = (window_bytes / MAX_FILES_IN_WINDOW).max(MIN_FILE_BYTES);
        self.files = Some(Files { task, min_bytes });
        self
    }

    /// Whether chunks of this size are sent alone. Equal elements of several readers are one file only if each goes out as it
    /// is, whatever else is ready.
    pub(crate) fn is_alone(&self, bytes: usize) -> bool {
        self.files.as_ref().is_some_and(|files| bytes as u64 >= files.min_bytes)
    }

    /// The frame of a chunk, with what it says of splits.
    pub(crate) async fn frame(&mut self, chunk: &Chunk, facts: &SplitFacts) -> Result<Packed> {
        if let Some(files) = &self.files {
            let (rows, task) = (encode_rows(chunk, facts.clone())?, Arc::clone(&files.task));
            if rows.body_len() < files.min_bytes {
                return Ok(Packed { frame: rows.inline(None)?, was_there: false });
            }
            let (rows, placed) =
                self.pool.run(move || (task.file(&rows), rows)).await.map(|(p, r)| (r, p))?;
            match placed {
                Ok((file, was_there)) => return Ok(Packed { frame: rows.in_file(file)?, was_there }),
                Err(e) => self.without_files(&e),
            }
        }
        let Some(codec) = self.codec.filter(|_| self.untried == 0) else {
            self.untried = self.untried.saturating_sub(1);
            return Ok(Packed { frame: encode_chunk_as(chunk, facts.clone(), None)?, was_there: false });
        };
        let (chunk, facts) = (chunk.clone(), facts.clone());
        let frame = self.pool.run(move || encode_chunk_as(&chunk, facts, Some(codec))).await??;
        if frame.body_len == frame.raw_len {
            self.untried = CHUNKS_SENT_UNCOMPRESSED;
        }
        Ok(Packed { frame, was_there: false })
    }

    /// The system makes or passes on no file: bodies go over the socket from now on.
    pub(crate) fn without_files(&mut self, reason: &dyn std::fmt::Display) {
        tracing::debug!(%reason, "rows go over the socket, and not in shared memory");
        self.files = None;
    }
}

impl Packed {
    /// The reader got it.
    pub(crate) fn count(&self, task: &TaskBodies) {
        match self.frame.file {
            Some(_) => task.add_mapped(self.frame.raw_len, self.was_there),
            None => task.add_sent(self.frame.body_len),
        }
    }
}
