//! Recycled memory for bytes on their way between a store and the engine.
//!
//! Reads of sources and blocks of parts are megabytes that live for milliseconds. From the allocator each of them is
//! fresh memory, which the kernel has to map and clear: when parts were written that was a tenth of all CPU time
//! (`clear_page_erms` under `perf`). Here they come back when the last slice of them is dropped.

use bytes::Bytes;
use parking_lot::Mutex;

/// Allocations below this size are left to the allocator, which keeps them anyway.
const SMALL: usize = 256 << 10;
/// Allocations above this size are too rare to be kept.
const LARGE: usize = 32 << 20;
/// The most bytes that lie idle, for the whole process.
const IDLE_BYTES: usize = 48 << 20;

static IDLE: Mutex<Idle> = Mutex::new(Idle { buffers: Vec::new(), bytes: 0 });

struct Idle {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// An empty vector with room for `len` bytes.
///
/// ```
/// let mut memory = caju_runtime::recycle::take(1 << 20);
/// memory.extend_from_slice(b"some bytes");
/// let bytes = caju_runtime::recycle::bytes(memory);
/// assert_eq!(&bytes[..4], b"some");
/// ```
pub fn take(len: usize) -> Vec<u8> {
    if !(SMALL..=LARGE).contains(&len) {
        return Vec::with_capacity(len);
    }
    let mut idle = IDLE.lock();
    // The smallest that is large enough, unless that wastes more than it holds.
    let fits = |b: &Vec<u8>| b.capacity() >= len && b.capacity() / 2 <= len;
    let best = idle.buffers.iter().enumerate().filter(|(_, b)| fits(b)).min_by_key(|(_, b)| b.capacity());
    let Some(i) = best.map(|(i, _)| i) else {
        drop(idle);
        return Vec::with_capacity(len);
    };
    let found = idle.buffers.swap_remove(i);
    idle.bytes -= found.capacity();
    found
}

/// The vector's content; its memory is recycled when nobody looks at it any more.
pub fn bytes(memory: Vec<u8>) -> Bytes {
    if !(SMALL..=LARGE).contains(&memory.capacity()) {
        return memory.into();
    }
    Bytes::from_owner(Recycled(memory))
}

struct Recycled(Vec<u8>);

impl AsRef<[u8]> for Recycled {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.0);
        memory.clear();
        let mut idle = IDLE.lock();
        if idle.bytes + memory.capacity() > IDLE_BYTES {
            // The oldest goes: sizes that are no longer asked for must not stay for ever.
            if idle.buffers.is_empty() {
                return;
            }
            let old = idle.buffers.remove(0);
            idle.bytes -= old.capacity();
        }
        if idle.bytes + memory.capacity() <= IDLE_BYTES {
            idle.bytes += memory.capacity();
            idle.buffers.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: the pool is the process's.
    #[test]
    fn memory_comes_back_when_its_last_slice_goes_and_idles_within_a_bound() {
        let mut memory = take(1 << 20);
        memory.resize(1 << 20, 7);
        let at = memory.as_ptr();
        let whole = bytes(memory);
        let slice = whole.slice(10..20);
        drop(whole);
        let other = take(1 << 20);
        assert_ne!(other.as_ptr(), at, "a slice is still looked at");
        assert_eq!(&slice[..], &[7; 10]);
        drop(slice);
        let again = take(1 << 20);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        let smaller = take(600 << 10);
        assert_ne!(smaller.as_ptr(), at);

        let many: Vec<Bytes> = (0..100)
            .map(|_| {
                let mut memory = take(2 << 20);
                memory.resize(2 << 20, 1);
                bytes(memory)
            })
            .collect();
        drop(many);
        let idle = IDLE.lock();
        assert!(idle.bytes <= IDLE_BYTES && idle.bytes > IDLE_BYTES / 2, "{} bytes", idle.bytes);
        assert_eq!(idle.bytes, idle.buffers.iter().map(Vec::capacity).sum::<usize>());
    }
}
