//! Encoded images: decoded whole, and through a random crop at full and at reduced scale. A data error, or an image of the
//! size that it says; never more pixels than the limit allows.

use std::cell::RefCell;

use caju_image::{ImageChain, ImageOp, InputKind, RowInput, Scratch, image_size};
use caju_types::budget;

use crate::environment::CHUNK_BYTES;

/// Small, so that what a header of some bytes can ask for is small too.
const MAX_PIXELS: u64 = 1_000_000;

thread_local! {
    /// Shared by all inputs, as by the rows of a batch: what damage leaves behind must not matter.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(crate) fn one(data: &[u8]) {
    let decode = ImageOp::Decode { max_pixels: MAX_PIXELS };
    let crop = ImageOp::RandomResizedCrop { height: 9, width: 8, scale: (0.1, 1.0), ratio: (0.5, 2.0) };
    let chains = [
        (vec![(decode.clone(), None)], false),
        (vec![(decode.clone(), None), (crop.clone(), Some(1))], false),
        (vec![(decode, None), (crop, Some(1))], true),
    ];
    for (ops, scaled) in chains {
        let whole = ops.len() == 1;
        let chain = ImageChain::new(ops, InputKind::Encoded).unwrap().allow_scaled(scaled);
        let mut pixels = Vec::new();
        let run = |s: &RefCell<Scratch>| {
            let row = RowInput::Encoded(data);
            budget::scope(CHUNK_BYTES, || chain.run_variable_u8(row, 7, &mut s.borrow_mut(), &mut pixels))
        };
        match SCRATCH.with(run) {
            Ok((height, width)) => {
                assert!(!whole || u64::from(height) * u64::from(width) <= MAX_PIXELS, "{height} x {width}");
                assert_eq!(pixels.len() as u64, u64::from(height) * u64::from(width) * 3);
                assert!(image_size(data).is_ok(), "an image without a size");
            }
            Err(e) => assert!(e.is_data_error() && pixels.is_empty(), "{e}"),
        }
    }
}
