//! Buffers that grow as needed and are used again.

/// Frees a buffer that outgrew `keep` elements.
pub(super) fn trim<T>(v: &mut Vec<T>, keep: usize) {
    if v.capacity() > keep {
        *v = Vec::new();
    }
}

/// The first `n` elements of a buffer that grows as needed; what they hold is left over.
pub(super) fn grow<T: Copy + Default>(v: &mut Vec<T>, n: usize) -> &mut [T] {
    if v.len() < n {
        v.resize(n, T::default());
    }
    &mut v[..n]
}
