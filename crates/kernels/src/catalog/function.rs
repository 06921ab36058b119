//! A function of the catalog: its signature, and how a call of it is built.

use caju_image::ImageOp;
use caju_types::Result;

use crate::call::Call;
use crate::kernel::Kernel;
use crate::signature::Signature;

/// The result of building a call.
pub(crate) enum Built {
    /// An image operation. It is fused with nested ones.
    Image { op: ImageOp, scaled: bool },
    /// Anything else.
    Kernel(Box<dyn Kernel>),
}

/// One function.
pub(crate) struct Function {
    pub(crate) signature: Signature,
    pub(crate) build: fn(&Call<'_>) -> Result<Built>,
}

pub(super) fn kernel(k: impl Kernel + 'static) -> Result<Built> {
    Ok(Built::Kernel(Box::new(k)))
}
