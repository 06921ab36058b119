//! The parts of a body that is ready to be written.

use arrow_buffer::Buffer;
use xxhash_rust::xxh3::Xxh3;

use crate::frame::ALIGN;

/// Segments of at least this many bytes are compared by where they lie. A smaller one, such as the offsets of a list, may have
/// been made for one frame.
const LARGE: usize = 4 << 10;

/// A part of a body.
#[derive(Debug, Clone)]
pub enum Segment {
    /// Bytes of an array.
    Data(Buffer),
    /// This many zeros, fewer than [`ALIGN`].
    Zeros(usize),
}

static ZEROS: [u8; ALIGN] = [0; ALIGN];

impl Segment {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Segment::Data(b) => b.as_slice(),
            Segment::Zeros(n) => &ZEROS[..(*n).min(ALIGN)],
        }
    }
}

/// A hash of where the bytes of a body lie, however it is cut: bodies of slices of the same arrays have equal ones. Small segments
/// count by their bytes. Other bodies nearly never have equal ones while the arrays of both are held.
pub(crate) fn location_hash(body: &[Segment]) -> u128 {
    let mut hasher = Xxh3::new();
    // Bytes that follow each other in memory, as an address and a length.
    let mut run = (0, 0);
    let end = |hasher: &mut Xxh3, (start, len): (usize, usize)| {
        if len > 0 {
            hasher.update(&start.to_le_bytes());
            hasher.update(&len.to_le_bytes());
        }
    };
    for part in body.iter().map(Segment::as_slice) {
        let start = part.as_ptr() as usize;
        if part.len() < LARGE {
            end(&mut hasher, std::mem::take(&mut run));
            hasher.update(part);
        } else if run.0 + run.1 == start {
            run.1 += part.len();
        } else {
            end(&mut hasher, std::mem::replace(&mut run, (start, part.len())));
        }
    }
    end(&mut hasher, run);
    hasher.digest128()
}

/// Whether two bodies have equal bytes. Bytes that both have at one place in memory are not read.
pub(crate) fn are_equal(one: &[Segment], other: &[Segment]) -> bool {
    let mut ours = one.iter().map(Segment::as_slice);
    let mut theirs = other.iter().map(Segment::as_slice);
    let (mut a, mut b): (&[u8], &[u8]) = (&[], &[]);
    loop {
        while a.is_empty() {
            match ours.next() {
                Some(next) => a = next,
                None => return b.is_empty() && theirs.all(<[u8]>::is_empty),
            }
        }
        while b.is_empty() {
            match theirs.next() {
                Some(next) => b = next,
                None => return false,
            }
        }
        let len = a.len().min(b.len());
        let (first, second) = (&a[..len], &b[..len]);
        if !std::ptr::eq(first, second) && first != second {
            return false;
        }
        (a, b) = (&a[len..], &b[len..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(whole: &Buffer, cuts: &[usize]) -> Vec<Segment> {
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([whole.len()]);
        starts.zip(ends).map(|(from, to)| Segment::Data(whole.slice_with_length(from, to - from))).collect()
    }

    fn buffer(seed: u8) -> Buffer {
        Buffer::from_vec((0..20_000u32).map(|i| (i % 251) as u8 ^ seed).collect::<Vec<u8>>())
    }

    #[test]
    fn bodies_of_the_same_memory_have_one_hash_however_they_are_cut() {
        let (one, copy) = (buffer(1), buffer(1));
        let whole = location_hash(&body(&one, &[]));
        assert_eq!(whole, location_hash(&body(&one, &[5_000, 12_000])));
        assert_ne!(whole, location_hash(&body(&copy, &[])), "other memory");
        assert_ne!(whole, location_hash(&body(&one.slice(8), &[])), "fewer bytes");
        // Offsets are made for each frame.
        let with_offsets = |small: Vec<u8>| {
            let mut parts = body(&one, &[]);
            parts.insert(0, Segment::Data(Buffer::from_vec(small)));
            location_hash(&parts)
        };
        assert_eq!(with_offsets(vec![1, 2, 3]), with_offsets(vec![1, 2, 3]));
        assert_ne!(with_offsets(vec![1, 2, 3]), with_offsets(vec![1, 2, 4]));
    }

    #[test]
    fn bodies_are_equal_if_their_bytes_are() {
        let (one, copy, other) = (buffer(1), buffer(1), buffer(2));
        for (cuts, more) in [(vec![], vec![10]), (vec![3, 19_999], vec![0, 3]), (vec![20_000], vec![])] {
            assert!(are_equal(&body(&one, &cuts), &body(&one, &more)));
            assert!(are_equal(&body(&one, &cuts), &body(&copy, &more)));
            assert!(!are_equal(&body(&one, &cuts), &body(&other, &more)));
            assert!(!are_equal(&body(&one, &cuts), &body(&one.slice_with_length(0, 19_999), &[])));
            assert!(!are_equal(&body(&one.slice_with_length(0, 19_999), &[]), &body(&one, &cuts)));
        }
        assert!(are_equal(&[], &[]) && !are_equal(&[], &body(&one, &[])));
        let mut padded = body(&one, &[]);
        padded.push(Segment::Zeros(0));
        assert!(are_equal(&padded, &body(&one, &[])));
    }
}
