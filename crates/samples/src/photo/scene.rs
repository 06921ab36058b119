//! The content of a photo: a background, and shapes of several sizes in front of it.

#![allow(clippy::cast_possible_truncation, reason = "pixel coordinates and counts are small by construction")]

use super::noise::{PAD, Texture, ridge};
use super::objects::{
    animal, building, car, earth, jitter, lit, mix, picture_frames, rocks, shade, shadow, textured, tree,
    turn, vivid,
};
use super::shape::{Form, Frame, Paint, Rgb, Row, Shape};
use crate::rng::Rng;

/// A composed photo, painted row by row.
#[derive(Debug)]
pub(crate) struct Scene {
    background: Background,
    shapes: Vec<Shape>,
}

#[derive(Debug)]
enum Background {
    Outdoor(Box<Outdoor>),
    /// Out of focus: large soft blotches between two colours.
    Blurred {
        from: Rgb,
        to: Rgb,
    },
    /// A wall, and a floor of planks below `floor`.
    Indoor {
        wall: Paint,
        boards: Paint,
        floor: f32,
        plank: f32,
    },
}

#[derive(Debug)]
struct Outdoor {
    horizon: f32,
    sky: [Rgb; 2],
    /// How much of the sky is clear. Noise above this value is cloud.
    clear: f32,
    cloud: Rgb,
    /// Far to near: the top of each column, and its paint.
    ridges: Vec<(Vec<f32>, Paint)>,
    ground: [Rgb; 2],
    /// Weight of each band of texture on the nearest ground.
    grain: [f32; 3],
}

impl Scene {
    /// The scene of one photo. Photos with the same label have the same kind of scene and similar colours.
    pub(crate) fn compose(rng: &Rng, label: u64, width: usize, height: usize) -> Self {
        let light = if rng.chance(0.5) { 1.0 } else { -1.0 };
        let frame = Frame { width: width as f32, height: height as f32, light };
        let style = Rng::new(label, 0x57_59_4C_45, 0);
        match label % 5 {
            0 => Self::landscape(rng, &style, frame),
            1 => Self::meadow(rng, &style, frame),
            2 => Self::street(rng, &style, frame),
            3 => Self::close_up(rng, &style, frame),
            _ => Self::still_life(rng, &style, frame),
        }
    }

    /// Paints row `y`; `texture` must have been sought to it.
    pub(crate) fn paint(&self, row: &mut Row, texture: &Texture, y: usize) {
        self.background.paint(row, texture, y);
        for shape in &self.shapes {
            shape.paint(row, texture, y);
        }
    }

    fn landscape(rng: &Rng, style: &Rng, frame: Frame) -> Self {
        let mut outdoor = Outdoor::new(rng, style, frame, rng.range(0.42, 0.66));
        let haze = outdoor.sky[1];
        let layers = 2 + rng.below(3) as usize;
        for i in 0..layers {
            let near = (i as f32 + 1.0) / layers as f32;
            let reach = frame.height * rng.range(0.08, 0.26) * (1.2 - 0.8 * near);
            let base = outdoor.horizon - frame.height * 0.10 * (1.0 - near);
            let rough = rng.range(0.42, 0.62);
            let heights =
                ridge(rng.bits(), frame.width as usize, (frame.width * rng.range(0.2, 0.6)) as usize, rough);
            let colour = mix(haze, shade(earth(style), rng.range(0.5, 0.9)), 0.25 + 0.7 * near);
            let mut paint = textured(rng, colour, [0.16 * near, 0.22 * near, 0.26 * near]);
            paint.slope = [0.0, -0.3 / frame.height];
            paint.centre = [0.0, base];
            outdoor.ridges.push((heights.iter().map(|h| base - reach * (0.35 + 0.5 * h)).collect(), paint));
        }
        let mut shapes = Vec::new();
        let trees = rng.below(7);
        for _ in 0..trees {
            let depth = rng.range(0.0, 1.0);
            let foot = outdoor.horizon + (frame.height - outdoor.horizon) * (0.05 + 0.75 * depth);
            tree(&mut shapes, rng, style, frame, foot, frame.height * (0.08 + 0.34 * depth));
        }
        rocks(&mut shapes, rng, style, frame, outdoor.horizon);
        Self { background: Background::Outdoor(Box::new(outdoor)), shapes }
    }

    fn meadow(rng: &Rng, style: &Rng, frame: Frame) -> Self {
        let mut outdoor = Outdoor::new(rng, style, frame, rng.range(0.22, 0.45));
        outdoor.ground = [[96.0, 128.0, 58.0], [64.0, 96.0, 34.0]].map(|c| jitter(c, rng, 22.0));
        outdoor.grain = [0.16, 0.26, 0.42];
        let hedge = ridge(rng.bits(), frame.width as usize, 48, 0.7);
        let paint = textured(rng, jitter([52.0, 76.0, 42.0], style, 14.0), [0.2, 0.4, 0.45]);
        let base = outdoor.horizon;
        outdoor
            .ridges
            .push((hedge.iter().map(|h| base - frame.height * 0.05 * (0.8 + 0.7 * h)).collect(), paint));
        let mut shapes = Vec::new();
        for _ in 0..2 + rng.below(4) {
            let foot = base + frame.height * rng.range(0.0, 0.12);
            tree(&mut shapes, rng, style, frame, foot, frame.height * rng.range(0.15, 0.5));
        }
        for _ in 0..rng.below(4) {
            animal(&mut shapes, rng, style, frame, base);
        }
        // Flowers: many small, bright discs.
        let petal = vivid(style);
        for _ in 0..rng.below(90) {
            let depth = rng.range(0.0, 1.0);
            let at = [rng.range(0.0, frame.width), base + (frame.height - base) * depth];
            let size = 1.0 + 4.5 * depth * rng.range(0.5, 1.0);
            let form = Form::Ellipse { centre: at, half: [size, size * 0.8] };
            shapes.push(Shape::new(form, textured(rng, jitter(petal, rng, 25.0), [0.0, 0.1, 0.2]), 0.95));
        }
        Self { background: Background::Outdoor(Box::new(outdoor)), shapes }
    }

    fn street(rng: &Rng, style: &Rng, frame: Frame) -> Self {
        let mut outdoor = Outdoor::new(rng, style, frame, rng.range(0.58, 0.78));
        outdoor.ground = [[118.0, 114.0, 110.0], [92.0, 90.0, 90.0]].map(|c| jitter(c, rng, 16.0));
        outdoor.grain = [0.08, 0.12, 0.24];
        let mut shapes = Vec::new();
        let mut x = -frame.width * rng.range(0.0, 0.15);
        while x < frame.width {
            let wide = frame.width * rng.range(0.12, 0.34);
            let tall = frame.height * rng.range(0.28, 0.72);
            building(&mut shapes, rng, style, frame, [x, outdoor.horizon + 4.0], [wide, tall]);
            x += wide * rng.range(0.92, 1.15);
        }
        for _ in 0..1 + rng.below(4) {
            car(&mut shapes, rng, style, frame, outdoor.horizon);
        }
        if rng.chance(0.5) {
            tree(&mut shapes, rng, style, frame, outdoor.horizon + 20.0, frame.height * rng.range(0.3, 0.6));
        }
        Self { background: Background::Outdoor(Box::new(outdoor)), shapes }
    }

    fn close_up(rng: &Rng, style: &Rng, frame: Frame) -> Self {
        let from = jitter(earth(style), rng, 25.0);
        let background = Background::Blurred { from, to: jitter(shade(vivid(style), 0.7), rng, 30.0) };
        let mut shapes = Vec::new();
        for _ in 0..4 + rng.below(10) {
            let r = frame.width * rng.range(0.03, 0.12);
            let at = [rng.range(0.0, frame.width), rng.range(0.0, frame.height)];
            let paint = Paint::flat(jitter(vivid(style), rng, 50.0));
            shapes.push(Shape::new(Form::Ellipse { centre: at, half: [r, r] }, paint, rng.range(0.08, 0.25)));
        }
        // The subject: a body of overlapping, strongly textured parts.
        let centre = [frame.width * rng.range(0.35, 0.65), frame.height * rng.range(0.45, 0.65)];
        let size = frame.width.min(frame.height) * rng.range(0.26, 0.42);
        let coat = jitter(earth(style), rng, 30.0);
        let fur = [rng.range(0.1, 0.25), rng.range(0.2, 0.4), rng.range(0.3, 0.6)];
        for i in 0..5 + rng.below(5) {
            let spread = if i == 0 { 0.0 } else { 0.8 };
            let at = [
                centre[0] + size * spread * rng.range(-1.0, 1.0),
                centre[1] + size * spread * rng.range(-0.6, 1.0),
            ];
            let half = [size * rng.range(0.35, 0.9), size * rng.range(0.35, 0.9)];
            let mut paint = textured(rng, shade(jitter(coat, rng, 18.0), rng.range(0.7, 1.2)), fur);
            lit(&mut paint, frame, at, half);
            shapes.push(Shape::new(Form::Ellipse { centre: at, half }, paint, 1.0));
        }
        for side in [-1.0, 1.0] {
            let at = [centre[0] + side * size * 0.28, centre[1] - size * 0.2];
            for (r, colour) in [(0.11, [235.0, 228.0, 210.0]), (0.07, [22.0, 18.0, 16.0]), (0.02, [250.0; 3])]
            {
                let half = [size * r, size * r];
                shapes.push(Shape::new(Form::Ellipse { centre: at, half }, Paint::flat(colour), 1.0));
            }
        }
        Self { background, shapes }
    }

    fn still_life(rng: &Rng, style: &Rng, frame: Frame) -> Self {
        let floor = frame.height * rng.range(0.5, 0.75);
        let mut wall = textured(rng, jitter(shade(vivid(style), 0.85), rng, 20.0), [0.05, 0.04, 0.08]);
        wall.slope = [frame.light * rng.range(0.2, 0.7) / frame.width, -0.2 / frame.height];
        wall.centre = [frame.width / 2.0, frame.height / 2.0];
        let mut boards = textured(rng, jitter([150.0, 108.0, 70.0], style, 30.0), [0.08, 0.16, 0.3]);
        boards.slope = [0.0, 0.5 / frame.height];
        boards.centre = [0.0, frame.height];
        let background =
            Background::Indoor { wall, boards, floor, plank: frame.height * rng.range(0.05, 0.12) };
        let mut shapes = Vec::new();
        picture_frames(&mut shapes, rng, style, frame, floor);
        for _ in 0..4 + rng.below(9) {
            let size = frame.height * rng.range(0.05, 0.2);
            let at = [rng.range(0.0, frame.width), floor + frame.height * rng.range(-0.04, 0.2)];
            shadow(&mut shapes, frame, [at[0], at[1] + size * 0.9], [size * 1.1, size * 0.25]);
            let colour = jitter(vivid(style), rng, 45.0);
            let grain = [0.05, rng.range(0.02, 0.25), rng.range(0.05, 0.4)];
            let mut paint = textured(rng, colour, grain);
            let half = [size * rng.range(0.6, 1.0), size];
            lit(&mut paint, frame, at, half);
            let round = rng.chance(0.6);
            let form = if round {
                Form::Ellipse { centre: at, half }
            } else {
                Form::rectangle(at, half, turn(rng, 0.35))
            };
            shapes.push(Shape::new(form, paint, 1.0));
            if round {
                let spot = [at[0] + frame.light * half[0] * 0.35, at[1] - half[1] * 0.4];
                let half = [half[0] * 0.16, half[1] * 0.12];
                shapes.push(Shape::new(Form::Ellipse { centre: spot, half }, Paint::flat([252.0; 3]), 0.7));
            }
        }
        Self { background, shapes }
    }
}

impl Outdoor {
    fn new(rng: &Rng, style: &Rng, frame: Frame, horizon: f32) -> Self {
        let dusk = style.range(0.0, 1.0);
        let top = mix([62.0, 108.0, 178.0], [70.0, 70.0, 120.0], dusk);
        let low = mix([188.0, 212.0, 232.0], [244.0, 186.0, 140.0], dusk);
        let soil = earth(style);
        Self {
            horizon: frame.height * horizon,
            sky: [jitter(top, rng, 22.0), jitter(low, rng, 14.0)],
            clear: rng.range(-0.25, 0.7),
            cloud: jitter([236.0, 234.0, 236.0], rng, 14.0),
            ridges: Vec::new(),
            ground: [jitter(soil, rng, 16.0), shade(jitter(soil, rng, 20.0), 0.7)],
            grain: [rng.range(0.1, 0.25), rng.range(0.12, 0.3), rng.range(0.15, 0.5)],
        }
    }

    fn paint(&self, row: &mut Row, texture: &Texture, y: usize) {
        let width = row.width();
        let at = y as f32;
        if at < self.horizon + 1.0 {
            let t = (at / self.horizon).clamp(0.0, 1.0);
            let sky = mix(self.sky[0], self.sky[1], t * t);
            let coarse = &texture.rows[0];
            for x in 0..width {
                let c = ((coarse[x] - self.clear) * 1.9).clamp(0.0, 0.92) * (1.0 - 0.45 * t);
                for (plane, (s, w)) in row.planes.iter_mut().zip(sky.iter().zip(&self.cloud)) {
                    plane[x] = s + (w - s) * c;
                }
            }
        }
        for (tops, paint) in &self.ridges {
            fill_below(paint, tops, row, texture, y);
        }
        if at >= self.horizon {
            let t = (at - self.horizon) / (self.horizon * 0.6 + 60.0);
            let t = t.min(1.0);
            let mut paint = Paint::flat(mix(self.ground[0], self.ground[1], t));
            // Far ground shows only fine grain; near ground shows large tufts too.
            paint.texture =
                [self.grain[0] * t, self.grain[1] * (0.3 + 0.7 * t), self.grain[2] * (0.5 + 0.5 * t)];
            paint.offset = 40;
            paint.fill(row, texture, y, 0, width, 1.0);
        }
    }
}

/// Paints the columns whose top lies above row `y`, run by run.
fn fill_below(paint: &Paint, tops: &[f32], row: &mut Row, texture: &Texture, y: usize) {
    let at = y as f32 + 1.0;
    let width = row.width();
    let mut x = 0;
    while x < width {
        let cover = at - tops[x];
        if cover <= 0.0 {
            x += 1;
            continue;
        }
        let start = x;
        if cover < 1.0 {
            paint.fill(row, texture, y, x, x + 1, cover);
            x += 1;
            continue;
        }
        while x < width && at - tops[x] >= 1.0 {
            x += 1;
        }
        paint.fill(row, texture, y, start, x, 1.0);
    }
}

impl Background {
    fn paint(&self, row: &mut Row, texture: &Texture, y: usize) {
        let width = row.width();
        match self {
            Background::Outdoor(outdoor) => outdoor.paint(row, texture, y),
            Background::Blurred { from, to } => {
                let coarse = &texture.rows[0];
                for x in 0..width {
                    let t = (0.5 + 0.75 * coarse[x]).clamp(0.0, 1.0);
                    for (plane, (a, b)) in row.planes.iter_mut().zip(from.iter().zip(to)) {
                        plane[x] = a + (b - a) * t;
                    }
                }
            }
            Background::Indoor { wall, boards, floor, plank } => {
                let at = y as f32;
                if at < *floor {
                    wall.fill(row, texture, y, 0, width, 1.0);
                    return;
                }
                // Nearer planks are further apart. Each has its own shade and a dark joint.
                let depth = (at - floor) / plank;
                let (index, inside) = (depth.floor(), depth.fract());
                let mut board = boards.clone();
                let shadow = if inside < 0.06 { 0.45 } else { 0.88 + 0.05 * (index % 4.0) };
                board.colour = shade(board.colour, shadow);
                board.offset = (index as usize * 37) % PAD;
                board.fill(row, texture, y, 0, width, 1.0);
            }
        }
    }
}
