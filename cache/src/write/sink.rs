//! Where encoders write: bytes become blocks, and blocks are checksummed.

use std::io;

use bytes::Bytes;
use caju_runtime::recycle;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::record::Block;

/// Gathers an encoder's output in blocks.
pub(super) struct Sink {
    current: Vec<u8>,
    target: usize,
    /// Whether a block may end anywhere, or only where [`Sink::cut`] is called.
    anywhere: bool,
    blocks: Vec<Block>,
    ready: Vec<Bytes>,
    whole: Xxh3,
    bytes: u64,
}

impl Sink {
    pub(super) fn new(target: usize, anywhere: bool) -> Self {
        Self {
            current: Vec::new(),
            target: target.max(1),
            anywhere,
            blocks: Vec::new(),
            ready: Vec::new(),
            whole: Xxh3::new(),
            bytes: 0,
        }
    }

    /// Ends a block here if it is large enough.
    pub(super) fn may_cut(&mut self) {
        if self.current.len() >= self.target {
            self.cut();
        }
    }

    /// Ends a block here.
    pub(super) fn cut(&mut self) {
        if self.current.is_empty() {
            return;
        }
        let block = std::mem::take(&mut self.current);
        self.blocks.push(Block { bytes: block.len() as u64, checksum: xxh3_64(&block) });
        self.whole.update(&block);
        self.ready.push(recycle::bytes(block));
    }

    /// From now on, everything goes into one block.
    pub(super) fn last_block(&mut self) {
        self.cut();
        self.anywhere = false;
    }

    /// The blocks that ended since the last call.
    pub(super) fn take_ready(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.ready)
    }

    /// All blocks, and the checksum of everything.
    pub(super) fn totals(&self) -> (Vec<Block>, u128) {
        (self.blocks.clone(), self.whole.digest128())
    }

    /// Makes room for so many bytes, and the rest of a block, so that it does not move as it grows.
    pub(super) fn reserve(&mut self, bytes: usize) {
        if self.current.capacity() - self.current.len() >= bytes {
            return;
        }
        // What is there so far is little: a file's head, or nothing.
        let mut room = recycle::take(self.current.len() + bytes + self.target);
        room.extend_from_slice(&self.current);
        self.current = room;
    }
}

impl io::Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.current.extend_from_slice(buf);
        self.bytes += buf.len() as u64;
        if self.anywhere {
            self.may_cut();
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
