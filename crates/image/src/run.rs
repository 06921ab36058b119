//! The entry points of a chain: one row in, its samples out.

use caju_types::budget;
use caju_types::{Error, Result};

use super::exec::{Run, Target};
use super::{Dtype, ImageChain, OutputKind, RowInput, Scratch};

impl ImageChain {
    /// Runs one row whose result has a fixed size and uint8 samples; fills `out` exactly.
    ///
    /// # Errors
    /// `DataLoss` for damaged or foreign bytes, `InvalidArgument` for images that do not fit the operations;
    /// `Internal` if `out` has the wrong length or the chain another type. After an error the contents of
    /// `out` are unspecified.
    pub fn run_fixed_u8(
        &self,
        input: RowInput<'_>,
        row_key: u64,
        s: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let size =
            self.run(input, row_key, s, Dtype::U8, |n| check_len(n, out.len()).map(|()| Target::U8(out)))?;
        self.check_size(size)
    }

    /// [`Self::run_fixed_u8`] for float32 samples.
    ///
    /// # Errors
    /// As [`Self::run_fixed_u8`].
    pub fn run_fixed_f32(
        &self,
        input: RowInput<'_>,
        row_key: u64,
        s: &mut Scratch,
        out: &mut [f32],
    ) -> Result<()> {
        let size =
            self.run(input, row_key, s, Dtype::F32, |n| check_len(n, out.len()).map(|()| Target::F32(out)))?;
        self.check_size(size)
    }

    /// Runs one row and appends its uint8 samples to `out`; gives the result's height and width.
    ///
    /// # Errors
    /// As [`Self::run_fixed_u8`]; after an error `out` is as before.
    pub fn run_variable_u8(
        &self,
        input: RowInput<'_>,
        row_key: u64,
        s: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(u32, u32)> {
        let before = out.len();
        let done = self.run(input, row_key, s, Dtype::U8, |n| {
            budget::reserve(n as u64, "an image")?;
            out.resize(before + n, 0);
            Ok(Target::U8(&mut out[before..]))
        });
        if done.is_err() {
            out.truncate(before);
        }
        done
    }

    /// [`Self::run_variable_u8`] for float32 samples.
    ///
    /// # Errors
    /// As [`Self::run_variable_u8`].
    pub fn run_variable_f32(
        &self,
        input: RowInput<'_>,
        row_key: u64,
        s: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<(u32, u32)> {
        let before = out.len();
        let done = self.run(input, row_key, s, Dtype::F32, |n| {
            budget::reserve(budget::bytes_of::<f32>(n), "an image")?;
            out.resize(before + n, 0.0);
            Ok(Target::F32(&mut out[before..]))
        });
        if done.is_err() {
            out.truncate(before);
        }
        done
    }

    fn run<'o>(
        &self,
        input: RowInput<'_>,
        row_key: u64,
        s: &mut Scratch,
        dtype: Dtype,
        target: impl FnOnce(usize) -> Result<Target<'o>>,
    ) -> Result<(u32, u32)> {
        if dtype != self.dtype() {
            return Err(Error::internal("an image chain was run for another type than its own"));
        }
        let done = Run::new(self, input, s).and_then(|run| run.finish(row_key, s, target));
        s.trim();
        done
    }

    fn check_size(&self, (h, w): (u32, u32)) -> Result<()> {
        match self.output {
            OutputKind::Fixed { height, width, .. } if (height, width) != (h, w) => {
                Err(Error::internal(format!("an image chain of size {height} x {width} gave {h} x {w}")))
            }
            _ => Ok(()),
        }
    }
}

fn check_len(needed: usize, given: usize) -> Result<()> {
    if needed == given {
        return Ok(());
    }
    Err(Error::internal(format!("an image of {needed} samples was to go into {given}")))
}
