//! Copies of many bytes, on several threads.

use std::iter::zip;
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
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    copy(to, parts, threads_for(to.len(), cores));
}

/// The threads for a copy of this number of bytes, on a host with this number of cores.
fn threads_for(total: usize, cores: usize) -> usize {
    (total / BLOCK).min(cores / CORES_PER_THREAD).clamp(1, MAX_THREADS)
}

fn copy(mut to: &mut [u8], parts: &[&[u8]], threads: usize) {
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
            to.copy_from_slice(from);
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
            copy(&mut on_threads, &parts, 3);
            prop_assert!(to == on_threads);
        }
    }

    #[test]
    fn hosts_with_eight_cores_and_more_copy_large_columns_on_several_threads() {
        let threads = |cores| threads_for(64 << 20, cores);
        assert_eq!([1, 2, 4, 7, 8, 16, 64].map(threads), [1, 1, 1, 1, 2, 4, MAX_THREADS]);
        assert_eq!(threads_for(2 * BLOCK - 1, 64), 1);
    }
}
