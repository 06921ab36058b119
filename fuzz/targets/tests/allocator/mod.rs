//! An allocator that counts: what a reader asks for in vain kills the process elsewhere, and must be seen here.

#![allow(unsafe_code, reason = "an allocator is unsafe by its interface")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicUsize, Ordering};

struct Counting;

/// Bytes that are allocated now, and the most since [`watch`].
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);
static BASE: AtomicIsize = AtomicIsize::new(0);
/// The largest single request that is granted, and what is written where one is refused.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LABEL: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LABEL_LEN: AtomicUsize = AtomicUsize::new(0);
static OWNER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: isize) {
    let live = LIVE.fetch_add(change, Ordering::Relaxed) + change;
    if change > 0 {
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

fn refuses(size: usize) -> bool {
    if size <= MOST.load(Ordering::Relaxed) {
        return false;
    }
    // The requester aborts, or reports an error: both are visible, and neither has the place of the allocation.
    let (label, len) = (LABEL.load(Ordering::Acquire), LABEL_LEN.load(Ordering::Acquire));
    if !label.is_null() {
        // SAFETY: `watch` keeps the label alive in OWNER until it replaces pointer and length, which happens between
        // inputs only. `write` takes nothing from the heap.
        unsafe { libc::write(2, label.cast(), len) };
    }
    true
}

// SAFETY: everything is passed to the system's allocator, with the layouts as they came; a request that is refused
// answers null, as the interface allows.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size().cast_signed());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size().cast_signed());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses(size) {
            return std::ptr::null_mut();
        }
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Counts from here on; a single request for more than `most` bytes is refused and writes `label`.
pub(crate) fn watch(most: usize, label: &str) {
    let mut owner = OWNER.lock().unwrap();
    LABEL.store(std::ptr::null_mut(), Ordering::Release);
    owner.clear();
    owner.extend_from_slice(label.as_bytes());
    LABEL_LEN.store(owner.len(), Ordering::Release);
    LABEL.store(owner.as_mut_ptr(), Ordering::Release);
    MOST.store(most, Ordering::Relaxed);
    let live = LIVE.load(Ordering::Relaxed);
    BASE.store(live, Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
}

/// The most bytes that were allocated since [`watch`], beyond those before it.
pub(crate) fn peak() -> usize {
    let most = PEAK.load(Ordering::Relaxed) - BASE.load(Ordering::Relaxed);
    usize::try_from(most).unwrap_or(0)
}
