//! One row's way through a chain.
//!
//! A [`Run`] is a view of pixels that were not computed yet: where they come from, which window of them is wanted,
//! to what size it is resampled, whether it is mirrored, and which pointwise steps come last. Geometry only changes
//! these numbers. Pixels move when an operation has to see them (colours, blur, a second resize) and at the end,
//! straight into the output.

use caju_types::budget::{self, Reservation};
use caju_types::{Error, Result};

use super::buffers::grow;
use super::color::{self, Jitter, Pointwise};
use super::geometry::{self, Rect, Size};
use super::resample::Resampler;
use super::source::{self, Encoded};
use super::taps::Axis;
use super::{ImageChain, ImageOp, InputKind, RowInput, Scratch, blur};
use caju_types::rng::RowRng;

/// Where a row's result goes.
pub(super) enum Target<'o> {
    U8(&'o mut [u8]),
    F32(&'o mut [f32]),
}

/// Where the pixels of a view are.
#[derive(Debug, Clone, Copy)]
enum Source<'a> {
    Encoded(Encoded<'a>),
    U8(&'a [u8]),
    F32(&'a [f32]),
    /// In `Scratch::current`.
    Current,
    /// In `Scratch::current_f32`.
    CurrentF32,
}

/// A resize that was asked for: to `full`, of which `window` is wanted.
#[derive(Debug, Clone, Copy)]
struct Resize {
    full: Size,
    window: Rect,
}

/// The view.
pub(super) struct Run<'a> {
    chain: &'a ImageChain,
    source: Source<'a>,
    /// Size of the source's image.
    size: Size,
    crop: Rect,
    resize: Option<Resize>,
    flip: bool,
    pointwise: Vec<Pointwise>,
    /// What the images between steps take of the chunk's budget, until the row is done.
    held: Vec<Reservation>,
}

/// Charges an image of `pixels` with samples of `bytes` bytes to the chunk's budget.
fn hold(size: Size, bytes: usize) -> Result<Reservation> {
    let all = budget::product(&[size.h, size.w, 3, bytes]);
    budget::hold(all as u64, format_args!("an image of {} x {} between two steps", size.h, size.w))
}

impl<'a> Run<'a> {
    /// A view of the whole input.
    pub(super) fn new(chain: &'a ImageChain, input: RowInput<'a>, _s: &mut Scratch) -> Result<Self> {
        let checked = |len: usize, height: u32, width: u32| {
            let size = Size { h: height as usize, w: width as usize };
            if size.h.checked_mul(size.w).and_then(|n| n.checked_mul(3)) == Some(len) && len > 0 {
                return Ok(size);
            }
            Err(Error::data_loss(format!("an image of {height} x {width} x 3 has {len} samples")))
        };
        let (source, size) = match (input, chain.input) {
            (RowInput::Encoded(bytes), InputKind::Encoded) => {
                let max = match chain.steps.first() {
                    Some((ImageOp::Decode { max_pixels }, _)) => *max_pixels,
                    _ => super::DEFAULT_MAX_PIXELS,
                };
                let e = Encoded::open(bytes, max)?;
                e.check_length()?;
                (Source::Encoded(e), e.size())
            }
            (RowInput::Pixels { data, height, width }, InputKind::U8) => {
                (Source::U8(data), checked(data.len(), height, width)?)
            }
            (RowInput::FloatPixels { data, height, width }, InputKind::F32) => {
                (Source::F32(data), checked(data.len(), height, width)?)
            }
            _ => return Err(Error::internal("an image chain was given another kind of input than its own")),
        };
        Ok(Self {
            chain,
            source,
            size,
            crop: Rect::whole(size),
            resize: None,
            flip: false,
            pointwise: Vec::new(),
            held: Vec::new(),
        })
    }

    /// Runs the operations, writes the result, and returns its height and width. `target` returns a buffer for the
    /// given number of samples.
    pub(super) fn finish<'o>(
        mut self,
        row_key: u64,
        s: &mut Scratch,
        target: impl FnOnce(usize) -> Result<Target<'o>>,
    ) -> Result<(u32, u32)> {
        let chain = self.chain;
        for (op, site) in &chain.steps {
            self.step(op, *site, row_key, s)?;
        }
        let now = self.now();
        match target(now.h * now.w * 3)? {
            Target::U8(out) => self.write_u8(s, out)?,
            Target::F32(out) => self.write_f32(s, out)?,
        }
        Ok((now.h as u32, now.w as u32))
    }

    /// The size of the view.
    fn now(&self) -> Size {
        self.resize.map_or(self.crop.size(), |r| r.window.size())
    }

    fn is_float(&self) -> bool {
        !self.pointwise.is_empty() || matches!(self.source, Source::F32(_) | Source::CurrentF32)
    }

    fn step(&mut self, op: &ImageOp, site: u64, row_key: u64, s: &mut Scratch) -> Result<()> {
        let rng = || RowRng::new(row_key, site);
        let now = self.now();
        match *op {
            ImageOp::Decode { .. } => {}
            ImageOp::Resize { height, width } => {
                self.resize(Size { h: height as usize, w: width as usize }, s)?;
            }
            ImageOp::ResizeShorter { size } => {
                let to = geometry::shorter(now, size);
                if to.h.max(to.w) > usize::from(u16::MAX) {
                    return Err(Error::invalid(format!(
                        "resize_shorter({size}) of an image of {} x {} (height x width) would give {} x {}",
                        now.h, now.w, to.h, to.w
                    )));
                }
                self.resize(to, s)?;
            }
            ImageOp::CenterCrop { height, width } => {
                self.crop(geometry::center_crop(now, Size { h: height as usize, w: width as usize })?);
            }
            ImageOp::RandomCrop { height, width } => {
                let to = Size { h: height as usize, w: width as usize };
                self.crop(geometry::random_crop(now, to, &mut rng())?);
            }
            ImageOp::RandomResizedCrop { height, width, scale, ratio } => {
                let wide = |(a, b): (f32, f32)| (f64::from(a), f64::from(b));
                self.crop(geometry::random_resized_crop(now, wide(scale), wide(ratio), &mut rng()));
                self.resize(Size { h: height as usize, w: width as usize }, s)?;
            }
            ImageOp::RandomFlip { p } => self.flip ^= rng().uniform() < f64::from(p),
            ImageOp::ColorJitter { .. } => {
                if let Some(jitter) = Jitter::draw(op, &mut rng()) {
                    jitter.apply(self.materialise(s)?);
                }
            }
            ImageOp::Grayscale => color::grayscale(self.materialise(s)?),
            ImageOp::GaussianBlur { kernel, sigma } => {
                let sigma = rng().uniform_in(f64::from(sigma.0), f64::from(sigma.1));
                self.materialise(s)?;
                let _held = hold(now, size_of::<f32>())?;
                budget::check_steps(blur::steps(now, kernel as usize), "gaussian_blur")?;
                blur::gaussian(&mut s.current, now, kernel as usize, sigma, &mut s.blur)?;
            }
            ImageOp::ToFloat => {
                if !self.is_float() {
                    self.pointwise.push(Pointwise::Unit);
                }
            }
            ImageOp::Normalize { mean, std } => self.pointwise.push(if self.is_float() {
                Pointwise::Standardise { mean, std }
            } else {
                Pointwise::normalize_u8(mean, std)
            }),
        }
        Ok(())
    }

    fn crop(&mut self, mut inner: Rect) {
        let now = self.now();
        if self.flip {
            inner.x = now.w - inner.x - inner.w;
        }
        match &mut self.resize {
            Some(r) => r.window = r.window.window(inner),
            None => self.crop = self.crop.window(inner),
        }
    }

    fn resize(&mut self, to: Size, s: &mut Scratch) -> Result<()> {
        if self.now() == to {
            return Ok(());
        }
        // A resize works on computed pixels: operations that were collected before it are applied first.
        if self.resize.is_some() || self.flip || !self.pointwise.is_empty() {
            if self.is_float() {
                self.materialise_f32(s)?;
            } else {
                self.materialise(s)?;
            }
        }
        self.resize = Some(Resize { full: to, window: Rect::whole(to) });
        Ok(())
    }

    /// Applies the operations that were collected so far; the pixels are in `Scratch::current` afterwards.
    fn materialise<'s>(&mut self, s: &'s mut Scratch) -> Result<&'s mut [u8]> {
        let now = self.now();
        self.held.push(hold(now, 1)?);
        let mut next = std::mem::take(&mut s.next);
        next.resize(now.h * now.w * 3, 0);
        let done = self.write_u8(s, &mut next);
        s.next = std::mem::replace(&mut s.current, next);
        done?;
        self.restart(Source::Current, now);
        Ok(&mut s.current)
    }

    fn materialise_f32(&mut self, s: &mut Scratch) -> Result<()> {
        let now = self.now();
        self.held.push(hold(now, size_of::<f32>())?);
        let mut next = std::mem::take(&mut s.next_f32);
        next.resize(now.h * now.w * 3, 0.0);
        let done = self.write_f32(s, &mut next);
        s.next_f32 = std::mem::replace(&mut s.current_f32, next);
        done?;
        self.restart(Source::CurrentF32, now);
        Ok(())
    }

    fn restart(&mut self, source: Source<'a>, size: Size) {
        self.source = source;
        self.size = size;
        self.crop = Rect::whole(size);
        self.resize = None;
        self.flip = false;
        self.pointwise.clear();
    }

    fn write_u8(&self, s: &mut Scratch, out: &mut [u8]) -> Result<()> {
        let Some(resize) = self.resize else {
            match self.source {
                Source::Encoded(e) => e.decode(self.crop, 1, &mut s.decode, out)?,
                Source::U8(data) => source::copy_window(data, self.size, self.crop, out),
                Source::Current => source::copy_window(&s.current, self.size, self.crop, out),
                Source::F32(_) | Source::CurrentF32 => {
                    return Err(Error::internal("float pixels were asked for as uint8"));
                }
            }
            if self.flip {
                color::flip_rows(out, self.crop.w);
            }
            return Ok(());
        };
        let _held = self.resample(resize, s)?;
        if resize.window.w > 0 {
            for (i, row) in out.chunks_exact_mut(resize.window.w * 3).enumerate() {
                s.resampler.row(i, row);
            }
        }
        Ok(())
    }

    fn write_f32(&self, s: &mut Scratch, out: &mut [f32]) -> Result<()> {
        let Some((first, rest)) = self.pointwise.split_first() else {
            return self.copy_f32(s, out);
        };
        if matches!(self.source, Source::F32(_) | Source::CurrentF32) {
            self.copy_f32(s, out)?;
            self.pointwise.iter().for_each(|p| p.in_place(out));
            return Ok(());
        }
        let width = self.now().w * 3;
        if width == 0 {
            return Ok(());
        }
        if let Some(resize) = self.resize {
            let _held = self.resample(resize, s)?;
            let row = grow(&mut s.row, width);
            for (i, to) in out.chunks_exact_mut(width).enumerate() {
                s.resampler.row(i, row);
                first.row(row, false, to);
            }
        } else {
            let (data, size, crop): (&[u8], Size, Rect) = match self.source {
                Source::Encoded(e) => {
                    let _held = hold(self.crop.size(), 1)?;
                    let pixels = grow(&mut s.window, self.crop.h * width);
                    e.decode(self.crop, 1, &mut s.decode, pixels)?;
                    (pixels, self.crop.size(), Rect::whole(self.crop.size()))
                }
                Source::U8(data) => (data, self.size, self.crop),
                _ => (&s.current, self.size, self.crop),
            };
            for (y, to) in out.chunks_exact_mut(width).enumerate() {
                let at = ((crop.y + y) * size.w + crop.x) * 3;
                first.row(&data[at..at + width], self.flip, to);
            }
        }
        rest.iter().for_each(|p| p.in_place(out));
        Ok(())
    }

    /// Float pixels through the geometry, without pointwise steps.
    fn copy_f32(&self, s: &mut Scratch, out: &mut [f32]) -> Result<()> {
        let data: &[f32] = match self.source {
            Source::F32(data) => data,
            Source::CurrentF32 => &s.current_f32,
            _ => return Err(Error::internal("uint8 pixels were asked for as floats")),
        };
        if let Some(resize) = self.resize {
            let (rows, cols) = self.axes(resize, self.crop.size(), self.crop);
            s.resampler.prepare(&rows, &cols);
            let _held = hold(s.resampler.middle(), size_of::<f32>())?;
            let at = (s.resampler.rows.min * self.size.w + s.resampler.cols.min) * 3;
            s.resampler.float(&data[at..], self.size.w * 3, out);
            return Ok(());
        }
        let (c, width) = (self.crop, self.crop.w * 3);
        if width == 0 {
            return Ok(());
        }
        for (y, row) in out.chunks_exact_mut(width).enumerate() {
            let at = ((c.y + y) * self.size.w + c.x) * 3;
            let from = &data[at..at + width];
            if self.flip {
                row.chunks_exact_mut(3)
                    .zip(from.chunks_exact(3).rev())
                    .for_each(|(o, p)| o.copy_from_slice(p));
            } else {
                row.copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// The axes of a resampling from a window at full resolution.
    fn axes(&self, r: Resize, window: Size, at: Rect) -> (Axis, Axis) {
        let axis = |len: usize, offset: usize, out: usize, first: usize, count: usize, reverse: bool| Axis {
            origin: 0.0,
            length: len as f64,
            lo: 0,
            hi: len,
            offset,
            out,
            first,
            count,
            reverse,
        };
        (
            axis(window.h, at.y, r.full.h, r.window.y, r.window.h, false),
            axis(window.w, at.x, r.full.w, r.window.x, r.window.w, self.flip),
        )
    }

    /// Prepares the resampler and resamples the rows that its second step needs. What they take is charged until the
    /// answer is dropped.
    fn resample(&self, r: Resize, s: &mut Scratch) -> Result<Reservation> {
        let (mut rows, mut cols) = self.axes(r, self.crop.size(), self.crop);
        let e = match self.source {
            Source::Encoded(e) => e,
            Source::U8(data) => {
                s.resampler.prepare(&rows, &cols);
                let held = hold(s.resampler.middle(), 1)?;
                from_memory(&mut s.resampler, data, self.size.w);
                return Ok(held);
            }
            Source::Current => {
                s.resampler.prepare(&rows, &cols);
                let held = hold(s.resampler.middle(), 1)?;
                from_memory(&mut s.resampler, &s.current, self.size.w);
                return Ok(held);
            }
            Source::F32(_) | Source::CurrentF32 => {
                return Err(Error::internal("float pixels were asked for as uint8"));
            }
        };
        let scale = self.decode_scale(&e, r.full);
        if scale > 1 {
            let (origin, size) = (e.scaled_origin(scale), e.scaled_size(scale));
            scaled_axis(&mut rows, self.crop.y, self.crop.h, scale, origin.0, size.h);
            scaled_axis(&mut cols, self.crop.x, self.crop.w, scale, origin.1, size.w);
        }
        s.resampler.prepare(&rows, &cols);
        let (h, w) = s.resampler.needed();
        let window = Rect { y: s.resampler.rows.min, x: s.resampler.cols.min, h, w };
        let held = hold(s.resampler.middle(), 1)?;
        let _window = hold(Size { h, w }, 1)?;
        let pixels = grow(&mut s.window, h * w * 3);
        e.decode(window, scale, &mut s.decode, pixels)?;
        s.resampler.horizontal(pixels, w * 3);
        Ok(held)
    }

    /// The largest of 8, 4 and 2 by which the window may be decoded smaller.
    fn decode_scale(&self, e: &Encoded<'_>, to: Size) -> usize {
        if !self.chain.scaled {
            return 1;
        }
        let fits = |s: &usize| self.crop.h >= s * to.h && self.crop.w >= s * to.w;
        [8, 4, 2].into_iter().find(fits).filter(|_| e.can_scale()).unwrap_or(1)
    }
}

fn from_memory(r: &mut Resampler, data: &[u8], width: usize) {
    let at = (r.rows.min * width + r.cols.min) * 3;
    r.horizontal(&data[at..], width * 3);
}

/// Moves an axis onto the grid of an image decoded at 1/`scale`.
fn scaled_axis(a: &mut Axis, at: usize, len: usize, scale: usize, origin: f64, size: usize) {
    a.origin = origin + at as f64 / scale as f64;
    a.length = len as f64 / scale as f64;
    a.lo = (a.origin.floor() as usize).min(size - 1);
    a.hi = ((a.origin + a.length).ceil() as usize).clamp(a.lo + 1, size);
    a.offset = 0;
}
