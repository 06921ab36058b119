//! The writer under the encoders: cuts their bytes into blocks and computes checksums.

use std::io;

use bytes::Bytes;
use caju_runtime::recycle;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::record::Block;

/// Gathers an encoder's output in blocks.
pub(super) struct Sink {
    current: Vec<u8>,
    target: usize,
    /// Whether a block may end after any write, or only where [`Sink::cut`] is called.
    cuts_anywhere: bool,
    blocks: Vec<Block>,
    ready: Vec<Bytes>,
    whole: Xxh3,
    bytes: u64,
}

impl Sink {
    pub(super) fn new(target: usize, cuts_anywhere: bool) -> Self {
        Self {
            current: Vec::new(),
            target: target.max(1),
            cuts_anywhere,
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

    /// Ends the current block. All further bytes go into one block.
    pub(super) fn last_block(&mut self) {
        self.cut();
        self.cuts_anywhere = false;
    }

    /// The blocks that were completed since the last call.
    pub(super) fn take_ready(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.ready)
    }

    /// The records of all blocks, and the checksum of the whole file.
    pub(super) fn totals(&self) -> (Vec<Block>, u128) {
        (self.blocks.clone(), self.whole.digest128())
    }

    /// Reserves `bytes` and the remainder of a block, so that the block is not copied as it grows.
    pub(super) fn reserve(&mut self, bytes: usize) {
        if self.current.capacity() - self.current.len() >= bytes {
            return;
        }
        // There is little to copy so far: a file's head, or nothing.
        let mut buffer = recycle::take(self.current.len() + bytes + self.target);
        buffer.extend_from_slice(&self.current);
        self.current = buffer;
    }
}

impl io::Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.current.extend_from_slice(buf);
        self.bytes += buf.len() as u64;
        if self.cuts_anywhere {
            self.may_cut();
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
