//! The objects of a scene, and their colours and light.

#![allow(clippy::cast_possible_truncation, reason = "pixel coordinates and counts are small by construction")]

use caju_types::mix64;

use super::noise::PAD;
use super::shape::{Form, Frame, Paint, Rgb, Shape};
use crate::rng::Rng;

pub(super) fn building(
    shapes: &mut Vec<Shape>,
    rng: &Rng,
    style: &Rng,
    frame: Frame,
    foot: [f32; 2],
    size: [f32; 2],
) {
    let [wide, tall] = size;
    let centre = [foot[0] + wide / 2.0, foot[1] - tall / 2.0];
    let grain = [0.06, rng.range(0.05, 0.14), rng.range(0.1, 0.35)];
    let mut wall = textured(rng, jitter(earth(style), rng, 40.0), grain);
    wall.colour = mix(wall.colour, [200.0, 192.0, 180.0], 0.4);
    wall.slope = [frame.light * 0.25 / wide, 0.0];
    wall.centre = centre;
    shapes.push(Shape::new(Form::rectangle(centre, [wide / 2.0, tall / 2.0], [1.0, 0.0]), wall, 1.0));
    let columns = 2 + rng.below(5);
    let floors = 2 + (tall / (frame.height * 0.11)) as u64;
    let pane = jitter([56.0, 66.0, 82.0], rng, 20.0);
    let lintel = jitter([210.0, 204.0, 196.0], rng, 20.0);
    for i in 0..columns {
        for j in 0..floors {
            let at = [
                foot[0] + wide * (i as f32 + 0.5) / columns as f32,
                foot[1] - tall + tall * (j as f32 + 0.55) / floors as f32,
            ];
            let half = [wide / columns as f32 * 0.26, tall / floors as f32 * 0.3];
            let sill = Form::rectangle(at, [half[0] * 1.2, half[1] * 1.15], [1.0, 0.0]);
            shapes.push(Shape::new(sill, Paint::flat(lintel), 0.8));
            let mut glass = textured(rng, shade(pane, rng.range(0.6, 1.6)), [0.3, 0.05, 0.05]);
            glass.slope = [0.0, -0.4 / half[1].max(1.0)];
            glass.centre = at;
            shapes.push(Shape::new(Form::rectangle(at, half, [1.0, 0.0]), glass, 1.0));
        }
    }
}

pub(super) fn car(shapes: &mut Vec<Shape>, rng: &Rng, style: &Rng, frame: Frame, horizon: f32) {
    let depth = rng.range(0.15, 0.9);
    let long = frame.width * (0.06 + 0.14 * depth);
    let at = [rng.range(0.0, frame.width), horizon + (frame.height - horizon) * depth * 0.8];
    shadow(shapes, frame, [at[0], at[1] + long * 0.24], [long * 1.1, long * 0.1]);
    let mut body = textured(rng, jitter(vivid(style), rng, 50.0), [0.15, 0.04, 0.06]);
    lit(&mut body, frame, at, [long, long * 0.3]);
    let roof = [at[0], at[1] - long * 0.22];
    shapes.push(Shape::new(
        Form::Ellipse { centre: roof, half: [long * 0.6, long * 0.3] },
        body.clone(),
        1.0,
    ));
    let glass = Form::Ellipse { centre: roof, half: [long * 0.5, long * 0.2] };
    shapes.push(Shape::new(glass, Paint::flat([48.0, 56.0, 66.0]), 0.9));
    shapes.push(Shape::new(Form::rectangle(at, [long, long * 0.2], [1.0, 0.0]), body, 1.0));
    for side in [-0.6, 0.6] {
        let centre = [at[0] + side * long, at[1] + long * 0.2];
        for (r, c) in [(0.16, [26.0; 3]), (0.08, [150.0; 3])] {
            let half = [long * r, long * r];
            shapes.push(Shape::new(Form::Ellipse { centre, half }, Paint::flat(c), 1.0));
        }
    }
}

pub(super) fn tree(shapes: &mut Vec<Shape>, rng: &Rng, style: &Rng, frame: Frame, foot: f32, tall: f32) {
    let x = rng.range(-0.05, 1.05) * frame.width;
    shadow(shapes, frame, [x - frame.light * tall * 0.2, foot], [tall * 0.42, tall * 0.05]);
    let bark = textured(rng, jitter([92.0, 72.0, 54.0], rng, 16.0), [0.1, 0.3, 0.5]);
    let trunk = Form::rectangle([x, foot - tall * 0.25], [tall * 0.045, tall * 0.28], [1.0, 0.0]);
    shapes.push(Shape::new(trunk, bark, 1.0));
    let leaf = jitter([70.0, 98.0, 44.0], style, 26.0);
    let clumps = 10 + rng.below(16);
    for i in 0..clumps {
        let up = i as f32 / clumps as f32;
        let at = [
            x + tall * 0.3 * rng.range(-1.0, 1.0) * (1.15 - up),
            foot - tall * (0.4 + 0.55 * up) + tall * rng.range(-0.06, 0.06),
        ];
        let r = tall * rng.range(0.08, 0.18);
        let grain = [0.15, rng.range(0.3, 0.5), rng.range(0.35, 0.6)];
        let mut paint = textured(rng, shade(leaf, 0.6 + 0.6 * up + rng.range(-0.15, 0.15)), grain);
        lit(&mut paint, frame, at, [r, r]);
        shapes.push(Shape::new(Form::Ellipse { centre: at, half: [r, r * 0.85] }, paint, 0.95));
    }
}

pub(super) fn animal(shapes: &mut Vec<Shape>, rng: &Rng, style: &Rng, frame: Frame, horizon: f32) {
    let depth = rng.range(0.1, 0.8);
    let size = frame.height * (0.04 + 0.12 * depth);
    let at = [rng.range(0.1, 0.9) * frame.width, horizon + (frame.height - horizon) * depth * 0.8];
    let coat = textured(rng, jitter(earth(style), rng, 40.0), [0.15, 0.2, 0.35]);
    shadow(shapes, frame, [at[0], at[1] + size * 0.95], [size * 1.1, size * 0.15]);
    for dx in [-0.7, -0.5, 0.5, 0.7] {
        let leg =
            Form::rectangle([at[0] + dx * size, at[1] + size * 0.6], [size * 0.07, size * 0.4], [1.0, 0.0]);
        shapes.push(Shape::new(leg, coat.clone(), 1.0));
    }
    let head = [at[0] + frame.light * size * 1.05, at[1] - size * 0.45];
    for (centre, half) in [(at, [size, size * 0.5]), (head, [size * 0.32, size * 0.28])] {
        let mut paint = coat.clone();
        lit(&mut paint, frame, centre, half);
        shapes.push(Shape::new(Form::Ellipse { centre, half }, paint, 1.0));
    }
}

pub(super) fn rocks(shapes: &mut Vec<Shape>, rng: &Rng, style: &Rng, frame: Frame, horizon: f32) {
    for _ in 0..rng.below(14) {
        let depth = rng.range(0.05, 1.0);
        let size = frame.height * 0.1 * depth * rng.range(0.3, 1.0) + 2.0;
        let at = [rng.range(0.0, frame.width), horizon + (frame.height - horizon) * depth];
        shadow(shapes, frame, [at[0], at[1] + size * 0.5], [size * 1.3, size * 0.3]);
        let colour = mix(earth(style), [140.0, 136.0, 130.0], 0.6);
        let mut paint = textured(rng, jitter(colour, rng, 20.0), [0.15, 0.3, 0.35]);
        lit(&mut paint, frame, at, [size, size]);
        let form = Form::Polygon(vec![
            [at[0] - size * 1.2, at[1] + size * 0.5],
            [at[0] - size * rng.range(0.6, 0.9), at[1] - size * rng.range(0.2, 0.5)],
            [at[0] + size * rng.range(-0.2, 0.3), at[1] - size * rng.range(0.6, 0.9)],
            [at[0] + size * rng.range(0.7, 1.0), at[1] - size * rng.range(0.0, 0.4)],
            [at[0] + size * 1.3, at[1] + size * 0.5],
        ]);
        shapes.push(Shape::new(form, paint, 1.0));
    }
}

pub(super) fn picture_frames(shapes: &mut Vec<Shape>, rng: &Rng, style: &Rng, frame: Frame, floor: f32) {
    for _ in 0..rng.below(4) {
        let half = [frame.width * rng.range(0.05, 0.13), floor * rng.range(0.12, 0.28)];
        let at = [rng.range(0.1, 0.9) * frame.width, floor * rng.range(0.3, 0.6)];
        let outer = Form::rectangle(at, [half[0] + 6.0, half[1] + 6.0], [1.0, 0.0]);
        shapes.push(Shape::new(outer, Paint::flat(jitter([60.0, 44.0, 32.0], rng, 20.0)), 1.0));
        let canvas = textured(rng, jitter(vivid(style), rng, 50.0), [0.5, 0.4, 0.25]);
        shapes.push(Shape::new(Form::rectangle(at, half, [1.0, 0.0]), canvas, 1.0));
    }
}

pub(super) fn shadow(shapes: &mut Vec<Shape>, frame: Frame, at: [f32; 2], half: [f32; 2]) {
    for grow in [1.0, 0.75] {
        let centre = [at[0] - frame.light * half[0] * 0.2, at[1]];
        let form = Form::Ellipse { centre, half: [half[0] * grow, half[1] * grow] };
        shapes.push(Shape::new(form, Paint::flat([24.0, 22.0, 26.0]), 0.28));
    }
}

/// Lights a surface from above and from one side.
pub(super) fn lit(paint: &mut Paint, frame: Frame, centre: [f32; 2], half: [f32; 2]) {
    paint.centre = centre;
    paint.slope = [frame.light * 0.3 / half[0].max(1.0), -0.28 / half[1].max(1.0)];
}

pub(super) fn textured(rng: &Rng, colour: Rgb, texture: [f32; 3]) -> Paint {
    Paint { texture, offset: rng.below(PAD as u64) as usize, ..Paint::flat(colour) }
}

/// A direction at most about `most` radians from horizontal, as (cosine, sine).
pub(super) fn turn(rng: &Rng, most: f32) -> [f32; 2] {
    let slope = rng.range(-most, most);
    let norm = (1.0 + slope * slope).sqrt();
    [1.0 / norm, slope / norm]
}

pub(super) fn mix(a: Rgb, b: Rgb, t: f32) -> Rgb {
    std::array::from_fn(|i| a[i] + (b[i] - a[i]) * t)
}

pub(super) fn shade(c: Rgb, light: f32) -> Rgb {
    c.map(|v| v * light)
}

pub(super) fn jitter(c: Rgb, rng: &Rng, by: f32) -> Rgb {
    c.map(|v| (v + rng.range(-by, by)).clamp(4.0, 252.0))
}

/// A brown, green or grey tone.
pub(super) fn earth(style: &Rng) -> Rgb {
    const TONES: [Rgb; 6] = [
        [146.0, 116.0, 82.0],
        [104.0, 110.0, 70.0],
        [128.0, 120.0, 108.0],
        [166.0, 146.0, 112.0],
        [92.0, 84.0, 76.0],
        [120.0, 96.0, 72.0],
    ];
    TONES[(mix64(style.bits(), 1) % 6) as usize]
}

/// A saturated tone, as of paint, fruit and flowers.
pub(super) fn vivid(style: &Rng) -> Rgb {
    const TONES: [Rgb; 8] = [
        [198.0, 52.0, 44.0],
        [226.0, 158.0, 44.0],
        [212.0, 196.0, 92.0],
        [82.0, 142.0, 84.0],
        [60.0, 106.0, 168.0],
        [128.0, 84.0, 146.0],
        [214.0, 210.0, 202.0],
        [222.0, 132.0, 150.0],
    ];
    TONES[(style.bits() % 8) as usize]
}
