//! The kernels: text, tables, random numbers, and faster or safer forms of DataFusion's functions.

mod checked;
mod decimal_range;
mod fast;
mod hash;
mod image_size;
mod list;
mod one_hot;
mod random;
mod tokenize;
mod truncate;
mod zeros;

pub(crate) use checked::{checked, checked_rest};
pub(crate) use decimal_range::decimals_in_range;
pub(crate) use fast::with_constant;
pub(crate) use hash::HashBucket;
pub(crate) use image_size::ImageSide;
pub(crate) use list::Pad;
pub(crate) use one_hot::OneHot;
pub(crate) use random::Draw;
pub(crate) use tokenize::{Tokenize, offsets};
pub(crate) use truncate::Truncate;
pub(crate) use zeros::equal_zeros;
