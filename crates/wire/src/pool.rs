//! Recycled memory for bodies.
//!
//! A new allocation of tens of megabytes costs a page fault per 4 KiB, about a quarter of the cost of receiving the bytes.
//! Bodies therefore live in allocations that are reused when the last array over them is dropped.

use std::sync::{Arc, Weak};

use arrow_buffer::{Buffer, MutableBuffer};
use bytes::Bytes;
use caju_runtime::recycle::RETURN_TIMEOUT;
use parking_lot::Mutex;

use crate::frame::ALIGN;

/// Bodies below this size, in bytes, are allocated each time: recycling them gains nothing.
const SMALL: usize = 64 << 10;

/// A pool of allocations, bounded in the bytes that lie idle. Clones share the pool.
#[derive(Clone, Debug)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    idle: Mutex<Idle>,
    bound: usize,
}

#[derive(Debug, Default)]
struct Idle {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// A pool that holds at most `idle_bytes` of unused allocations, or a single larger one.
    pub fn new(idle_bytes: usize) -> Self {
        Self { shared: Arc::new(Shared { idle: Mutex::default(), bound: idle_bytes }) }
    }

    /// Bytes that lie idle now.
    pub fn idle_bytes(&self) -> usize {
        self.shared.idle.lock().bytes
    }

    /// Memory for a body of `len` bytes, aligned to 64 bytes. Its content is arbitrary.
    pub fn take(&self, len: usize) -> Body {
        if len < SMALL {
            return Body(Inner::Small(MutableBuffer::from_len_zeroed(len)));
        }
        let need = len + ALIGN;
        let found = {
            let mut idle = self.shared.idle.lock();
            // The smallest that fits, unless that wastes more than it holds.
            let best = idle
                .buffers
                .iter()
                .enumerate()
                .filter(|(_, b)| b.len() >= need && b.len() / 2 <= need)
                .min_by_key(|(_, b)| b.len())
                .map(|(i, _)| i);
            best.map(|i| {
                let b = idle.buffers.swap_remove(i);
                idle.bytes -= b.len();
                b
            })
        };
        let memory = found.unwrap_or_else(|| vec![0u8; need]);
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Body(Inner::Pooled(Pooled { memory, start, len, pool: Arc::downgrade(&self.shared) }))
    }
}

impl Shared {
    fn give_back(&self, memory: Vec<u8>) {
        let Some(mut idle) = self.idle.try_lock_for(RETURN_TIMEOUT) else { return };
        while idle.bytes + memory.len() > self.bound && !idle.buffers.is_empty() {
            let old = idle.buffers.remove(0);
            idle.bytes -= old.len();
        }
        idle.bytes += memory.len();
        idle.buffers.push(memory);
    }
}

/// Memory for one body, to be filled and then frozen into an Arrow buffer.
#[derive(Debug)]
pub struct Body(Inner);

#[derive(Debug)]
enum Inner {
    Small(MutableBuffer),
    Pooled(Pooled),
}

impl Body {
    /// The bytes to fill.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Inner::Small(b) => b.as_slice_mut(),
            Inner::Pooled(p) => {
                let (s, e) = (p.start, p.start + p.len);
                &mut p.memory[s..e]
            }
        }
    }

    /// The filled bytes as an Arrow buffer; the memory returns to the pool when the last array that holds a
    /// part of it is dropped.
    pub fn freeze(self) -> Buffer {
        match self.0 {
            Inner::Small(b) => b.into(),
            Inner::Pooled(p) => Buffer::from(Bytes::from_owner(p)),
        }
    }
}

#[derive(Debug)]
struct Pooled {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    pool: Weak<Shared>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.give_back(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_bounded() {
        let pool = BufferPool::new(3 << 20);
        let a = pool.take(1 << 20).freeze();
        assert_eq!(a.as_ptr().align_offset(ALIGN), 0);
        let at = a.as_ptr();
        let part = a.slice_with_length(64, 64);
        drop(a);
        assert_eq!(pool.idle_bytes(), 0, "a slice still looks into it");
        drop(part);
        assert_eq!(pool.idle_bytes(), (1 << 20) + ALIGN);
        let b = pool.take((1 << 20) - 5).freeze();
        assert_eq!(b.as_ptr(), at, "recycled");
        let many: Vec<_> = (0..8).map(|_| pool.take(1 << 20).freeze()).collect();
        drop(many);
        assert!(pool.idle_bytes() <= 3 << 20);
        // One allocation beyond the bound is kept, and no second one.
        drop(pool.take(8 << 20).freeze());
        assert_eq!(pool.idle_bytes(), (8 << 20) + ALIGN);
        drop(b);
        assert!(pool.idle_bytes() <= 3 << 20);
        drop(pool.take(10).freeze());
        assert!(pool.idle_bytes() <= 3 << 20);
        let c = pool.take(1 << 20).freeze();
        drop(pool);
        drop(c);
    }
}
