//! Uploading a part while it is encoded: in one request if it is small, else in pieces of one size.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use caju_runtime::stores::store_error;
use caju_runtime::{Task, Tasks};
use caju_types::Result;
use object_store::path::Path;
use object_store::{MultipartUpload, PutPayload};

use crate::store::Root;

/// Upload requests in flight per part. Two keep the store busy while the next piece is encoded.
pub(crate) const UPLOADS_IN_FLIGHT: usize = 2;
/// The smallest piece of a multipart upload that S3 accepts, in bytes.
const MIN_PIECE_BYTES: usize = 5 << 20;

pub(super) struct Upload {
    root: Arc<Root>,
    tasks: Tasks,
    path: Path,
    piece_bytes: usize,
    pending: VecDeque<Bytes>,
    pending_bytes: usize,
    pieces: Option<Box<dyn MultipartUpload>>,
    in_flight: VecDeque<Task<object_store::Result<()>>>,
}

impl Upload {
    pub(super) fn new(root: Arc<Root>, tasks: Tasks, path: Path, piece: usize) -> Self {
        Self {
            root,
            tasks,
            path,
            piece_bytes: piece.max(MIN_PIECE_BYTES),
            pending: VecDeque::new(),
            pending_bytes: 0,
            pieces: None,
            in_flight: VecDeque::new(),
        }
    }

    /// Adds bytes. Waits while [`UPLOADS_IN_FLIGHT`] requests are in flight.
    pub(super) async fn push(&mut self, bytes: Bytes) -> Result<()> {
        self.pending_bytes += bytes.len();
        self.pending.push_back(bytes);
        while self.pending_bytes > self.piece_bytes {
            self.send(self.piece_bytes).await?;
        }
        Ok(())
    }

    async fn send(&mut self, bytes: usize) -> Result<()> {
        if self.pieces.is_none() {
            self.pieces = Some(self.root.upload(&self.path).await?);
        }
        while self.in_flight.len() >= UPLOADS_IN_FLIGHT {
            self.wait_for_oldest().await?;
        }
        let payload = self.take(bytes);
        if let Some(pieces) = &mut self.pieces {
            let name = format!("uploading a piece of {}", self.root.name(&self.path));
            self.in_flight.push_back(self.tasks.spawn(name, pieces.put_part(payload)));
        }
        Ok(())
    }

    fn take(&mut self, mut bytes: usize) -> PutPayload {
        let mut out = Vec::new();
        while bytes > 0 {
            let Some(mut front) = self.pending.pop_front() else { break };
            if front.len() > bytes {
                let rest = front.split_off(bytes);
                self.pending.push_front(rest);
            }
            bytes -= front.len();
            self.pending_bytes -= front.len();
            out.push(front);
        }
        out.into_iter().collect()
    }

    /// Waits until the oldest piece was stored.
    async fn wait_for_oldest(&mut self) -> Result<()> {
        let Some(oldest) = self.in_flight.front_mut() else { return Ok(()) };
        let name = self.root.name(&self.path);
        let stored = self.root.retry.within(name, async { oldest.await?.map_err(|e| store_error(name, e)) });
        let stored = stored.await;
        self.in_flight.pop_front();
        stored
    }

    /// Sends the remainder and creates the object.
    pub(super) async fn finish(&mut self) -> Result<()> {
        if self.pieces.is_none() {
            let all: Vec<Bytes> = self.pending.drain(..).collect();
            return self.root.put_pieces(&self.path, &all).await;
        }
        if self.pending_bytes > 0 {
            self.send(self.pending_bytes).await?;
        }
        while !self.in_flight.is_empty() {
            self.wait_for_oldest().await?;
        }
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        let name = self.root.name(&self.path);
        let complete = async { pieces.complete().await.map(drop).map_err(|e| store_error(name, e)) };
        self.root.retry.within(name, complete).await?;
        self.pieces = None;
        Ok(())
    }

    /// Abandons the upload. What was stored is deleted.
    pub(super) async fn abort(&mut self) {
        for piece in self.in_flight.drain(..) {
            piece.abort();
            // The piece is deleted below, whatever its result.
            drop(piece.await);
        }
        let name = self.root.name(&self.path);
        let result = match &mut self.pieces {
            Some(pieces) => {
                let abort = async { pieces.abort().await.map_err(|e| store_error(name, e)) };
                self.root.retry.within(name, abort).await
            }
            None => self.root.delete(&self.path).await,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "an abandoned part could not be deleted; `cache gc` deletes it");
        }
    }
}
