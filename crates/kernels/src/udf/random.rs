//! `uniform`, `normal`, `random_int`: random numbers per row, keyed like the random image functions.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type};
use caju_types::Error;

use crate::kernel::{Fault, Inputs, Kernel, any_null};
use caju_types::rng::RowRng;

/// The kernel of `uniform`, `normal` and `random_int`.
#[derive(Debug)]
pub(crate) struct Draw {
    site: u64,
    kind: Distribution,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Uniform,
    Normal,
    Int,
}

impl Draw {
    pub(crate) fn uniform(site: u64) -> Self {
        Self { site, kind: Distribution::Uniform }
    }

    pub(crate) fn normal(site: u64) -> Self {
        Self { site, kind: Distribution::Normal }
    }

    pub(crate) fn int(site: u64) -> Self {
        Self { site, kind: Distribution::Int }
    }

    fn floats(&self, inputs: &Inputs<'_>) -> Result<ArrayRef, Fault> {
        let (a, b) = (inputs.cast(0, &DataType::Float64)?, inputs.cast(1, &DataType::Float64)?);
        let nulls = NullBuffer::union(a.nulls(), b.nulls());
        let (a, b) = (a.as_primitive::<Float64Type>().values(), b.as_primitive::<Float64Type>().values());
        if self.kind == Distribution::Uniform {
            // A bound that is no number gives none.
            let is_empty = |(a, b): (&f64, &f64)| a > b || a.is_infinite() || b.is_infinite();
            let is_present = |row: &usize| nulls.as_ref().is_none_or(|n| n.is_valid(*row));
            let empty = a.iter().zip(b).map(is_empty).enumerate().filter(|(_, empty)| *empty);
            if let Some(row) = empty.map(|(row, _)| row).find(is_present) {
                let what = format!("no number can be drawn from {:?} to below {:?}", a[row], b[row]);
                return Err(Fault::at(row, Error::invalid(what)));
            }
        }
        let values = inputs.keys.iter().zip(a.iter().zip(b.iter())).map(|(key, (a, b))| {
            let mut rng = RowRng::new(*key, self.site);
            if self.kind == Distribution::Uniform { rng.uniform_in(*a, *b) } else { a + b * rng.normal() }
        });
        Ok(Arc::new(Float64Array::new(values.collect::<Vec<_>>().into(), nulls)))
    }

    fn ints(&self, inputs: &Inputs<'_>) -> Result<ArrayRef, Fault> {
        let (a, b) = (inputs.cast(0, &DataType::Int64)?, inputs.cast(1, &DataType::Int64)?);
        let nulls = NullBuffer::union(a.nulls(), b.nulls());
        let (a, b) = (a.as_primitive::<Int64Type>().values(), b.as_primitive::<Int64Type>().values());
        let mut out = Vec::with_capacity(inputs.rows);
        for (i, key) in inputs.keys.iter().enumerate() {
            if nulls.as_ref().is_some_and(|n| n.is_null(i)) {
                out.push(0);
                continue;
            }
            if a[i] >= b[i] {
                let what = format!("there is no integer from {} to below {}", a[i], b[i]);
                return Err(Fault::at(i, Error::invalid(what)));
            }
            let draw = RowRng::new(*key, self.site).below(b[i].wrapping_sub(a[i]).cast_unsigned());
            out.push(a[i].wrapping_add(draw.cast_signed()));
        }
        Ok(Arc::new(Int64Array::new(out.into(), nulls)))
    }
}

impl Kernel for Draw {
    fn output(&self, inputs: &[FieldRef]) -> Result<Field, String> {
        for f in inputs {
            let t = f.data_type();
            if self.kind == Distribution::Int && !t.is_integer() {
                return Err(format!("takes integers, not {t}"));
            }
            if !t.is_numeric() {
                return Err(format!("takes numbers, not {t}"));
            }
        }
        let t = if self.kind == Distribution::Int { DataType::Int64 } else { DataType::Float64 };
        Ok(Field::new("draw", t, any_null(inputs)))
    }

    fn run(&self, inputs: &Inputs<'_>, _: &Field) -> Result<ArrayRef, Fault> {
        if self.kind == Distribution::Int { self.ints(inputs) } else { self.floats(inputs) }
    }
}
