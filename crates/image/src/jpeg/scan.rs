//! Entropy-coded data: the stuffing removed, cut at the restart markers.

use super::simd;

/// Zero bytes behind the data, so that a block that runs over the end finds something to read until the
/// check after its MCU.
const PADDING: usize = 64;

/// The entropy-coded bytes of one scan without stuffing.
#[derive(Debug, Default)]
pub(super) struct ScanData {
    pub(super) bytes: Vec<u8>,
    /// Where each restart interval ends in `bytes`, in order.
    pub(super) ends: Vec<usize>,
}

/// The marker behind a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// A marker other than a restart, and the position of its 0xFF.
    Marker(u8, usize),
    /// The file ends without any marker: it was cut off.
    Nothing,
    /// Restart markers out of order: something is missing in between.
    Disorder,
}

impl ScanData {
    /// Reads the scan that begins at `at`, up to the next marker.
    pub(super) fn read(&mut self, data: &[u8], mut at: usize) -> After {
        self.bytes.clear();
        self.bytes.reserve(data.len().saturating_sub(at) + PADDING);
        self.ends.clear();
        let after = loop {
            let run = simd::find_ff(&data[at..]);
            self.bytes.extend_from_slice(&data[at..at + run]);
            at += run;
            let mut next = at + 1;
            while data.get(next) == Some(&0xFF) {
                next += 1;
            }
            match data.get(next) {
                None => break After::Nothing,
                Some(0) => self.bytes.push(0xFF),
                Some(&m @ 0xD0..=0xD7) => {
                    if usize::from(m & 7) != self.ends.len() % 8 {
                        break After::Disorder;
                    }
                    self.ends.push(self.bytes.len());
                }
                Some(&m) => break After::Marker(m, next - 1),
            }
            at = next + 1;
        };
        self.ends.push(self.bytes.len());
        self.bytes.resize(self.bytes.len() + PADDING, 0);
        after
    }

    /// The bytes of restart interval `i`: `start..end`.
    pub(super) fn interval(&self, i: usize) -> Option<(usize, usize)> {
        let start = if i == 0 { 0 } else { *self.ends.get(i - 1)? };
        Some((start, *self.ends.get(i)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuffing_and_restarts() {
        let mut s = ScanData::default();
        let data = [1, 0xFF, 0, 2, 0xFF, 0xD0, 3, 0xFF, 0xFF, 0xD1, 0xFF, 0, 0xFF, 0xD9];
        assert_eq!(s.read(&data, 0), After::Marker(0xD9, 12));
        assert_eq!(&s.bytes[..5], [1, 0xFF, 2, 3, 0xFF]);
        assert_eq!(s.ends, [3, 4, 5]);
        assert_eq!((s.interval(0), s.interval(2), s.interval(3)), (Some((0, 3)), Some((4, 5)), None));
        assert_eq!(s.read(&data[..12], 0), After::Nothing);
        assert_eq!(s.read(&data[..1], 0), After::Nothing);
        assert_eq!(s.read(&[0xFF, 0xD3, 0xFF, 0xD9], 0), After::Disorder);
        assert_eq!(s.read(&[], 0), After::Nothing);
    }
}
