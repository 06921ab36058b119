//! Shapes with soft edges, shading and texture, painted row by row.

#![allow(clippy::cast_possible_truncation, reason = "pixel coordinates are clamped to the image")]

use super::noise::{PAD, Texture};

/// Red, green, blue in 0..255.
pub(crate) type Rgb = [f32; 3];

/// The size of a photo in pixels, and the direction of its light.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) width: f32,
    pub(crate) height: f32,
    /// 1 for light from the right, -1 for light from the left.
    pub(crate) light: f32,
}

/// One row of the image being painted, plane by plane.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) planes: [Vec<f32>; 3],
}

impl Row {
    pub(crate) fn new(width: usize) -> Self {
        Self { planes: std::array::from_fn(|_| vec![0.0; width]) }
    }

    pub(crate) fn width(&self) -> usize {
        self.planes[0].len()
    }
}

/// The look of a surface: its colour, its shading, and the weight of each band of texture.
#[derive(Debug, Clone)]
pub(crate) struct Paint {
    pub(crate) colour: Rgb,
    /// Change of brightness per pixel to the right and down, from the centre.
    pub(crate) slope: [f32; 2],
    pub(crate) centre: [f32; 2],
    /// Weight of each band of texture in the brightness.
    pub(crate) texture: [f32; 3],
    /// The column of the texture at which the surface starts. Below [`PAD`].
    pub(crate) offset: usize,
}

impl Paint {
    pub(crate) fn flat(colour: Rgb) -> Self {
        Self { colour, slope: [0.0; 2], centre: [0.0; 2], texture: [0.0; 3], offset: 0 }
    }

    /// Paints the columns `from..to` with a constant opacity.
    pub(crate) fn fill(
        &self,
        row: &mut Row,
        texture: &Texture,
        y: usize,
        from: usize,
        to: usize,
        opacity: f32,
    ) {
        if from >= to {
            return;
        }
        let base = 1.0 + (y as f32 - self.centre[1]) * self.slope[1] - self.centre[0] * self.slope[0];
        let o = self.offset.min(PAD);
        let [coarse, mid, fine] = &texture.rows;
        let (c, m, f) = (&coarse[from + o..to + o], &mid[from + o..to + o], &fine[from + o..to + o]);
        let [tc, tm, tf] = self.texture;
        let [r, g, b] = &mut row.planes;
        let (r, g, b) = (&mut r[from..to], &mut g[from..to], &mut b[from..to]);
        for i in 0..to - from {
            let light = base + (from + i) as f32 * self.slope[0] + tc * c[i] + tm * m[i] + tf * f[i];
            r[i] += opacity * (self.colour[0] * light - r[i]);
            g[i] += opacity * (self.colour[1] * light - g[i]);
            b[i] += opacity * (self.colour[2] * light - b[i]);
        }
    }

    /// Paints from `x0` to `x1`. The pixels at both ends are painted in proportion to their coverage.
    pub(crate) fn span(&self, row: &mut Row, texture: &Texture, y: usize, span: (f32, f32), opacity: f32) {
        let width = row.width() as f32;
        let (x0, x1) = (span.0.max(0.0), span.1.min(width));
        if x1 <= x0 {
            return;
        }
        let (first, last) = (x0.ceil() as usize, x1.floor() as usize);
        if first > last {
            self.fill(row, texture, y, last, first, opacity * (x1 - x0));
            return;
        }
        self.fill(row, texture, y, first, last, opacity);
        let (left, right) = (first as f32 - x0, x1 - last as f32);
        if left > 0.0 {
            self.fill(row, texture, y, first - 1, first, opacity * left);
        }
        if right > 0.0 {
            self.fill(row, texture, y, last, last + 1, opacity * right);
        }
    }
}

/// An outline.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    /// Centre and half axes.
    Ellipse { centre: [f32; 2], half: [f32; 2] },
    /// A convex polygon.
    Polygon(Vec<[f32; 2]>),
}

impl Form {
    /// A rectangle turned by the direction (cosine, sine).
    pub(crate) fn rectangle(centre: [f32; 2], half: [f32; 2], turn: [f32; 2]) -> Self {
        let corner = |sx: f32, sy: f32| {
            let (dx, dy) = (sx * half[0], sy * half[1]);
            [centre[0] + dx * turn[0] - dy * turn[1], centre[1] + dx * turn[1] + dy * turn[0]]
        };
        Form::Polygon(vec![corner(-1.0, -1.0), corner(1.0, -1.0), corner(1.0, 1.0), corner(-1.0, 1.0)])
    }

    /// First and last row that the outline touches.
    fn rows(&self) -> (f32, f32) {
        match self {
            Form::Ellipse { centre, half } => (centre[1] - half[1], centre[1] + half[1]),
            Form::Polygon(points) => points
                .iter()
                .fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), p| (lo.min(p[1]), hi.max(p[1]))),
        }
    }

    /// The columns inside at the middle of row `y`.
    fn at(&self, y: usize) -> Option<(f32, f32)> {
        let y = y as f32 + 0.5;
        match self {
            Form::Ellipse { centre, half } => {
                let d = (y - centre[1]) / half[1];
                let reach = half[0] * (1.0 - d * d).max(0.0).sqrt();
                (d.abs() < 1.0).then_some((centre[0] - reach, centre[0] + reach))
            }
            Form::Polygon(points) => {
                let (mut lo, mut hi) = (f32::INFINITY, f32::NEG_INFINITY);
                for (i, a) in points.iter().enumerate() {
                    let b = points[(i + 1) % points.len()];
                    if (a[1] <= y) != (b[1] <= y) {
                        let x = a[0] + (b[0] - a[0]) * (y - a[1]) / (b[1] - a[1]);
                        lo = lo.min(x);
                        hi = hi.max(x);
                    }
                }
                (lo < hi).then_some((lo, hi))
            }
        }
    }
}

/// A painted outline.
#[derive(Debug)]
pub(crate) struct Shape {
    form: Form,
    paint: Paint,
    opacity: f32,
    rows: (f32, f32),
}

impl Shape {
    pub(crate) fn new(form: Form, paint: Paint, opacity: f32) -> Self {
        let rows = form.rows();
        Self { form, paint, opacity, rows }
    }

    /// Paints the part of the shape in row `y`.
    pub(crate) fn paint(&self, row: &mut Row, texture: &Texture, y: usize) {
        let at = y as f32;
        if at + 1.0 < self.rows.0 || at > self.rows.1 {
            return;
        }
        if let Some(span) = self.form.at(y) {
            self.paint.span(row, texture, y, span, self.opacity);
        }
    }
}
