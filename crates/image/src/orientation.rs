//! The EXIF orientation tag: how a stored image must be turned to stand upright.

use super::geometry::{Rect, Size};

/// A turn as the EXIF standard numbers them, in terms of the stored ("raw") image: whether rows and
/// columns are exchanged, and which raw axes run backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Orientation {
    pub(super) transpose: bool,
    pub(super) flip_rows: bool,
    pub(super) flip_cols: bool,
}

impl Orientation {
    /// From the tag's value; anything but 2 to 8 means upright.
    pub(super) fn from_exif(value: u16) -> Self {
        let (transpose, flip_rows, flip_cols) = match value {
            2 => (false, false, true),
            3 => (false, true, true),
            4 => (false, true, false),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transpose, flip_rows, flip_cols }
    }

    pub(super) fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// The size of the upright image, from the raw one's, or the other way round.
    pub(super) fn apply(self, s: Size) -> Size {
        if self.transpose { Size { h: s.w, w: s.h } } else { s }
    }

    /// Whether the upright (vertical, horizontal) axes run against the raw axis they come from.
    pub(super) fn mirrored(self) -> (bool, bool) {
        if self.transpose { (self.flip_cols, self.flip_rows) } else { (self.flip_rows, self.flip_cols) }
    }

    /// The raw window behind an upright window; `raw` is the size of the raw image.
    pub(super) fn raw_rect(self, r: Rect, raw: Size) -> Rect {
        let (y, h, x, w) = if self.transpose { (r.x, r.w, r.y, r.h) } else { (r.y, r.h, r.x, r.w) };
        Rect {
            y: if self.flip_rows { raw.h - y - h } else { y },
            x: if self.flip_cols { raw.w - x - w } else { x },
            h,
            w,
        }
    }

    /// Turns a raw RGB image of size `raw` into `out`.
    pub(super) fn turn(self, src: &[u8], raw: Size, out: &mut [u8]) {
        let to = self.apply(raw);
        for (y, row) in out.chunks_exact_mut((to.w * 3).max(1)).enumerate().take(to.h) {
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let (r, c) = if self.transpose { (x, y) } else { (y, x) };
                let r = if self.flip_rows { raw.h - 1 - r } else { r };
                let c = if self.flip_cols { raw.w - 1 - c } else { c };
                let at = (r * raw.w + c) * 3;
                pixel.copy_from_slice(&src[at..at + 3]);
            }
        }
    }
}

/// The orientation in a TIFF block (the body of an EXIF segment), if it has one.
pub(super) fn from_tiff(tiff: &[u8]) -> Option<u16> {
    let little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let u16_at = |at: usize| -> Option<u16> {
        let b = [*tiff.get(at)?, *tiff.get(at + 1)?];
        Some(if little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) })
    };
    let (a, b) = (u32::from(u16_at(4)?), u32::from(u16_at(6)?));
    let ifd = if little { b << 16 | a } else { a << 16 | b } as usize;
    for i in 0..usize::from(u16_at(ifd)?) {
        let entry = ifd.checked_add(2 + i * 12)?;
        if u16_at(entry)? == 0x0112 {
            return u16_at(entry + 8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of the turned image equals the turned raw window, for all eight turns.
    #[test]
    fn windows_and_turns_agree() {
        let raw = Size { h: 5, w: 7 };
        let src: Vec<u8> = (0..raw.h * raw.w * 3).map(|i| i as u8).collect();
        for value in 1..=8 {
            let o = Orientation::from_exif(value);
            let up = o.apply(raw);
            let mut full = vec![0; src.len()];
            o.turn(&src, raw, &mut full);
            let window = Rect { y: 1, x: 2, h: up.h - 2, w: up.w - 3 };
            let r = o.raw_rect(window, raw);
            let cut = |img: &[u8], s: Size, r: Rect| -> Vec<u8> {
                (0..r.h).flat_map(|y| img[((r.y + y) * s.w + r.x) * 3..][..r.w * 3].to_vec()).collect()
            };
            let mut part = vec![0; window.h * window.w * 3];
            o.turn(&cut(&src, raw, r), r.size(), &mut part);
            assert_eq!(part, cut(&full, up, window), "orientation {value}");
        }
    }

    #[test]
    fn rotations_match_the_standard() {
        // One column of two pixels, A over B. Orientation 6 is shown turned 90 degrees clockwise: B A.
        let raw = Size { h: 2, w: 1 };
        let src = [1, 1, 1, 2, 2, 2];
        let mut out = [0; 6];
        Orientation::from_exif(6).turn(&src, raw, &mut out);
        assert_eq!(out, [2, 2, 2, 1, 1, 1]);
        Orientation::from_exif(8).turn(&src, raw, &mut out);
        assert_eq!(out, [1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn tags_are_read_in_both_byte_orders() {
        let mut le = b"II*\0\x08\0\0\0\x01\0".to_vec();
        le.extend([0x12, 0x01, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(from_tiff(&le), Some(6));
        let mut be = b"MM\0*\0\0\0\x08\0\x01".to_vec();
        be.extend([0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 3, 0, 0]);
        assert_eq!(from_tiff(&be), Some(3));
        for n in 0..be.len() {
            from_tiff(&be[..n]);
        }
        assert_eq!(from_tiff(b"garbage"), None);
    }
}
