//! The weights of resampling: which source samples an output pixel is made of, and how much of each.

/// Weights of one output pixel sum to `1 << BITS`.
pub(super) const BITS: u32 = 14;

/// One axis of the source: the part of it that is stretched over the whole output axis, and the samples
/// that exist.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    /// Where the window begins, in source samples.
    pub(super) origin: f64,
    /// How many source samples the window covers.
    pub(super) length: f64,
    /// The samples that may be read: `lo..hi`.
    pub(super) lo: usize,
    pub(super) hi: usize,
    /// Added to every sample's index afterwards.
    pub(super) offset: usize,
    /// Samples of the whole output axis.
    pub(super) out: usize,
    /// The part of the output axis that is wanted.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Whether the wanted part is delivered backwards.
    pub(super) reverse: bool,
}

/// The samples and weights of the wanted output pixels of one axis.
#[derive(Debug, Default)]
pub(super) struct Taps {
    /// First source sample of each output pixel, counted from `min`.
    pub(super) start: Vec<u32>,
    /// Number of source samples of each output pixel.
    pub(super) len: Vec<u32>,
    /// `stride` weights per output pixel, the unused ones 0.
    pub(super) weights: Vec<i16>,
    /// The weights as real numbers, for float images.
    pub(super) real: Vec<f32>,
    /// Weights per output pixel: the longest one's, rounded up to a multiple of four.
    pub(super) stride: usize,
    /// The source samples that any output pixel reads: `min..max`.
    pub(super) min: usize,
    pub(super) max: usize,
}

impl Taps {
    /// Computes the weights of an axis, into buffers that are used again.
    pub(super) fn compute(&mut self, a: &Axis) {
        let scale = a.length / a.out as f64;
        let support = scale.max(1.0);
        let inverse = 1.0 / support;
        let (lo, hi) = (a.lo as f64, a.hi as f64);
        self.start.clear();
        self.len.clear();
        let span = |i: usize| -> (f64, usize, usize) {
            let index = a.first + if a.reverse { a.count - 1 - i } else { i };
            let center = a.origin + (index as f64 + 0.5) * scale;
            // Truncation after adding one half, as Pillow; the values are not negative after the clamp.
            let from = (center - support + 0.5).clamp(lo, hi - 1.0) as usize;
            let to = (center + support + 0.5).clamp(lo, hi) as usize;
            (center, from, to.max(from + 1))
        };
        let longest = (0..a.count).map(span).map(|(_, from, to)| to - from).max().unwrap_or(1);
        self.stride = longest.next_multiple_of(4);
        self.weights.clear();
        self.weights.resize(self.stride * a.count, 0);
        self.real.clear();
        self.real.resize(self.stride * a.count, 0.0);
        (self.min, self.max) = (usize::MAX, 0);
        for i in 0..a.count {
            let (center, from, to) = span(i);
            let real = &mut self.real[i * self.stride..][..to - from];
            let mut sum = 0.0f64;
            for (k, r) in real.iter_mut().enumerate() {
                let w = (1.0 - (((from + k) as f64 - center + 0.5) * inverse).abs()).max(0.0);
                *r = w as f32;
                sum += w;
            }
            if sum <= 0.0 {
                real[0] = 1.0;
                sum = 1.0;
            }
            let fixed = &mut self.weights[i * self.stride..][..to - from];
            // The running sum is rounded, not each weight: the weights then sum to exactly 2^14.
            let (mut run, mut given) = (0.0f64, 0i32);
            for (r, f) in real.iter_mut().zip(fixed.iter_mut()) {
                let w = f64::from(*r) / sum;
                *r = w as f32;
                run += w;
                let upto = ((run * f64::from(1i32 << BITS) + 0.5) as i32).min(1 << BITS);
                *f = (upto - given) as i16;
                given = upto;
            }
            if let Some(last) = fixed.last_mut() {
                *last += ((1i32 << BITS) - given) as i16;
            }
            self.start.push((from + a.offset) as u32);
            self.len.push((to - from) as u32);
            self.min = self.min.min(from + a.offset);
            self.max = self.max.max(to + a.offset);
        }
        if a.count == 0 {
            (self.min, self.max) = (0, 0);
        }
        for s in &mut self.start {
            *s -= self.min as u32;
        }
    }

    #[inline]
    pub(super) fn weights_of(&self, i: usize) -> &[i16] {
        &self.weights[i * self.stride..][..self.len[i] as usize]
    }

    #[inline]
    pub(super) fn real_of(&self, i: usize) -> &[f32] {
        &self.real[i * self.stride..][..self.len[i] as usize]
    }
}
