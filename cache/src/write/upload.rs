//! Uploading a part while it is made: one request if it is small, pieces of one size otherwise.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use caju_runtime::stores::store_error;
use caju_runtime::{Task, Tasks};
use caju_types::Result;
use object_store::path::Path;
use object_store::{MultipartUpload, PutPayload};

use crate::store::Root;

/// Requests in flight per part.
pub(crate) const IN_FLIGHT: usize = 2;

pub(super) struct Upload {
    root: Arc<Root>,
    tasks: Tasks,
    path: Path,
    piece: usize,
    pending: VecDeque<Bytes>,
    pending_bytes: usize,
    pieces: Option<Box<dyn MultipartUpload>>,
    flying: VecDeque<Task<object_store::Result<()>>>,
}

impl Upload {
    pub(super) fn new(root: Arc<Root>, tasks: Tasks, path: Path, piece: usize) -> Self {
        Self {
            root,
            tasks,
            path,
            // The least that S3 takes.
            piece: piece.max(5 << 20),
            pending: VecDeque::new(),
            pending_bytes: 0,
            pieces: None,
            flying: VecDeque::new(),
        }
    }

    /// Takes bytes; waits while too many are on their way.
    pub(super) async fn push(&mut self, bytes: Bytes) -> Result<()> {
        self.pending_bytes += bytes.len();
        self.pending.push_back(bytes);
        while self.pending_bytes > self.piece {
            self.send(self.piece).await?;
        }
        Ok(())
    }

    async fn send(&mut self, bytes: usize) -> Result<()> {
        if self.pieces.is_none() {
            self.pieces = Some(self.root.upload(&self.path).await?);
        }
        while self.flying.len() >= IN_FLIGHT {
            self.land().await?;
        }
        let payload = self.take(bytes);
        if let Some(pieces) = &mut self.pieces {
            let name = format!("uploading a piece of {}", self.root.name(&self.path));
            self.flying.push_back(self.tasks.spawn(name, pieces.put_part(payload)));
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

    /// Waits for the oldest piece.
    async fn land(&mut self) -> Result<()> {
        let Some(oldest) = self.flying.front_mut() else { return Ok(()) };
        let name = self.root.name(&self.path);
        let landed = self.root.retry.within(name, async { oldest.await?.map_err(|e| store_error(name, e)) });
        let landed = landed.await;
        self.flying.pop_front();
        landed
    }

    /// Sends what is left and makes the object appear.
    pub(super) async fn finish(&mut self) -> Result<()> {
        if self.pieces.is_none() {
            let all: Vec<Bytes> = self.pending.drain(..).collect();
            return self.root.put_pieces(&self.path, &all).await;
        }
        if self.pending_bytes > 0 {
            self.send(self.pending_bytes).await?;
        }
        while !self.flying.is_empty() {
            self.land().await?;
        }
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        let name = self.root.name(&self.path);
        let complete = async { pieces.complete().await.map(drop).map_err(|e| store_error(name, e)) };
        self.root.retry.within(name, complete).await?;
        self.pieces = None;
        Ok(())
    }

    /// Gives up; whatever was stored is deleted.
    pub(super) async fn abort(&mut self) {
        for piece in self.flying.drain(..) {
            piece.abort();
            // Its outcome no longer matters.
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
            tracing::debug!(%error, "an abandoned part is left to the collection");
        }
    }
}
