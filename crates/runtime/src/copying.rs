//! Copies of many bytes, on several threads.

use std::iter::zip;
use std::mem::MaybeUninit;
use std::num::NonZero;

use parking_lot::Mutex;

/// Bytes that a thread copies at a time, and below twice of which no thread is started. The start of one takes as long as 0.2 MB.
const BLOCK: usize = 1 << 20;

/// The most threads of a copy. With more the memory of usual hosts is not faster.
const MAX_THREADS: usize = 8;

/// Cores of the host for each thread of a copy. On two cores that also compute, two threads take as long as one, and a third more CPU
/// time.
const CORES_PER_THREAD: usize = 4;

/// Copies parts one behind the other into `to`: on several threads where they are large, since the memory of a host is
/// faster than one core of it. It returns when all is copied.
///
/// # Panics
/// If the parts do not have the length of `to` together.
///
/// # Examples
/// ```
/// let mut to = [0; 5];
/// caju_runtime::copy_parts(&mut to, &[&[1, 2], &[3, 4, 5]]);
/// assert_eq!(to, [1, 2, 3, 4, 5]);
/// ```
pub fn copy_parts(to: &mut [u8], parts: &[&[u8]]) {
    copy(to, parts, threads_for(to.len()), <[u8]>::copy_from_slice);
}

/// A copy of parts one behind the other, aligned for every number, as [`copy_parts`] copies them. The bytes behind the last
/// part are zero.
///
/// # Examples
/// ```
/// let joined = caju_runtime::joined_parts(&[&[1, 2], &[3, 4, 5]]);
/// assert_eq!(joined, [u128::from_le_bytes([1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])]);
/// ```
#[allow(unsafe_code, reason = "memory that is written once, without being cleared before")]
pub fn joined_parts(parts: &[&[u8]]) -> Vec<u128> {
    let total = parts.iter().map(|part| part.len()).sum::<usize>();
    let words = total.div_ceil(size_of::<u128>());
    let mut joined: Vec<u128> = Vec::with_capacity(words);
    let room = joined.spare_capacity_mut();
    if let Some(last) = room.get_mut(..words).and_then(|words| words.last_mut()) {
        last.write(0);
    }
    // SAFETY: the memory of `words` numbers is that of 16 times as many bytes, which need no alignment and may be uninitialised.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<MaybeUninit<u8>>(), words * size_of::<u128>())
    };
    copy(&mut bytes[..total], parts, threads_for(total), |to, from| {
        to.write_copy_of_slice(from);
    });
    // SAFETY: `copy` has written the first `total` bytes, or has panicked, and the last word was written before it.
    unsafe { joined.set_len(words) };
    joined
}

/// The threads for a copy of this number of bytes.
fn threads_for(total: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (total / BLOCK).min(cores / CORES_PER_THREAD).clamp(1, MAX_THREADS)
}

fn copy<T: Send>(mut to: &mut [T], parts: &[&[u8]], threads: usize, write: impl Fn(&mut [T], &[u8]) + Sync) {
    let total = to.len();
    assert_eq!(total, parts.iter().map(|part| part.len()).sum::<usize>(), "bytes of the parts of a copy");
    // One thread copies each part at once, past the caches where it is large.
    let block = if threads > 1 { BLOCK } else { total.max(1) };
    let mut blocks = Vec::with_capacity(total / block + parts.len());
    for part in parts {
        let (here, rest) = to.split_at_mut(part.len());
        blocks.extend(zip(here.chunks_mut(block), part.chunks(block)));
        to = rest;
    }
    let blocks = Mutex::new(blocks.into_iter());
    let copy = || {
        loop {
            // The lock is released before the copy.
            let next = blocks.lock().next();
            let Some((to, from)) = next else { return };
            write(to, from);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread it takes longer. Its panic would be one of the scope.
            let started = std::thread::Builder::new().name("caju-copy".into()).spawn_scoped(scope, copy);
            if started.is_err() {
                break;
            }
        }
        copy();
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_copy_is_its_parts(lengths in prop::collection::vec(0..3 * BLOCK, 0..5), seed in any::<u8>()) {
            #[allow(clippy::cast_possible_truncation, reason = "any byte will do")]
            let bytes = |n: usize, k: usize| (0..n).map(|i| (i / 251 + i + k) as u8 ^ seed).collect::<Vec<u8>>();
            let parts: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(k, n)| bytes(*n, k)).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut to = vec![0; lengths.iter().sum()];
            copy_parts(&mut to, &parts);
            prop_assert!(to == parts.concat());
            let mut on_threads = vec![0; to.len()];
            copy(&mut on_threads, &parts, 3, <[u8]>::copy_from_slice);
            prop_assert!(to == on_threads);
            let joined = joined_parts(&parts);
            let bytes: Vec<u8> = joined.iter().flat_map(|word| word.to_ne_bytes()).collect();
            prop_assert!(bytes.starts_with(&to) && bytes[to.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
