//! A pool of buffers for bytes in transit between a store and the engine.
//!
//! Reads of sources and blocks of parts are megabytes that live for milliseconds. The allocator gives each of them new
//! memory, which the kernel has to map and clear. In writing parts that took a tenth of all CPU time (`clear_page_erms`
//! under `perf`). A buffer of this pool returns to it when its last slice is dropped.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

/// The bytes of the smallest pooled buffer. The allocator itself recycles smaller ones.
const MIN_BYTES: usize = 256 << 10;
/// The bytes of the largest pooled buffer. Larger ones are too rare to keep.
const MAX_BYTES: usize = 32 << 20;
/// The most bytes of idle buffers in the process. It bounds the memory that the pool wastes.
const MAX_IDLE_BYTES: usize = 48 << 20;

/// How long a buffer that comes back waits for a pool's lock, which is held for microseconds. In a process that was forked, a
/// thread that no longer exists may hold it: then the memory is freed.
pub const RETURN_TIMEOUT: Duration = Duration::from_millis(20);

static IDLE: Mutex<Idle> = Mutex::new(Idle { buffers: Vec::new(), bytes: 0 });

struct Idle {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// An empty vector with a capacity of at least `len` bytes.
///
/// ```
/// let mut memory = caju_runtime::recycle::take(1 << 20);
/// memory.extend_from_slice(b"some bytes");
/// let bytes = caju_runtime::recycle::bytes(memory);
/// assert_eq!(&bytes[..4], b"some");
/// ```
pub fn take(len: usize) -> Vec<u8> {
    if !(MIN_BYTES..=MAX_BYTES).contains(&len) {
        return Vec::with_capacity(len);
    }
    let mut idle = IDLE.lock();
    // The smallest buffer that is large enough, unless more than half of it would be wasted.
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

/// The content of the vector. Its memory returns to the pool when the last slice is dropped.
pub fn bytes(memory: Vec<u8>) -> Bytes {
    if !(MIN_BYTES..=MAX_BYTES).contains(&memory.capacity()) {
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
        let Some(mut idle) = IDLE.try_lock_for(RETURN_TIMEOUT) else { return };
        if idle.bytes + memory.capacity() > MAX_IDLE_BYTES {
            // The oldest buffer is dropped: sizes that are no longer used must not stay for ever.
            if idle.buffers.is_empty() {
                return;
            }
            let old = idle.buffers.remove(0);
            idle.bytes -= old.capacity();
        }
        if idle.bytes + memory.capacity() <= MAX_IDLE_BYTES {
            idle.bytes += memory.capacity();
            idle.buffers.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_freed_where_nobody_unlocks_the_pool() {
        let lent = bytes(take(MIN_BYTES));
        let locked = IDLE.lock();
        drop(lent);
        assert_eq!(locked.bytes, 0);
    }

    // One test, because the process has one pool.
    #[test]
    fn memory_comes_back_when_its_last_slice_goes_and_idles_within_a_bound() {
        let mut memory = take(1 << 20);
        memory.resize(1 << 20, 7);
        let at = memory.as_ptr();
        let whole = bytes(memory);
        let slice = whole.slice(10..20);
        drop(whole);
        let other = take(1 << 20);
        assert_ne!(other.as_ptr(), at, "a slice is still in use");
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
        assert!(idle.bytes <= MAX_IDLE_BYTES && idle.bytes > MAX_IDLE_BYTES / 2, "{} bytes", idle.bytes);
        assert_eq!(idle.bytes, idle.buffers.iter().map(Vec::capacity).sum::<usize>());
    }
}
