//! The file of a definition: reading it, and naming it in errors.

use std::path::Path;

use caju_pipeline::DatasetDef;
use caju_types::{Error, ErrorKind, Result};

use crate::input_file;

/// The largest pipeline file, in bytes. One with as many rows in it as Python puts there (8 MiB) is far smaller.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a pipeline file. Relative paths in it start at its folder.
///
/// # Errors
/// `NotFound` for a missing file; `InvalidArgument` that names the place in the file.
pub(crate) fn read(file: &Path) -> Result<DatasetDef> {
    let shown = file.display();
    let text = input_file::read_text(file, MAX_BYTES).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Error::not_found(format!("{shown}: no such pipeline file; check the path"))
        }
        std::io::ErrorKind::InvalidData => {
            Error::invalid(format!("{shown}: not a text file; a pipeline file is YAML"))
        }
        std::io::ErrorKind::IsADirectory => {
            Error::invalid(format!("{shown}: is a folder; name the pipeline file in it"))
        }
        std::io::ErrorKind::FileTooLarge => {
            Error::invalid(format!("{shown}: {e}; write rows that the pipeline reads to files of their own"))
        }
        std::io::ErrorKind::TimedOut => Error::deadline(format!("{shown}: {e}")),
        _ => Error::permission_denied(format!("{shown}: {e}")),
    })?;
    let whole = std::path::absolute(file).map_err(|e| Error::failed_precondition(format!("{shown}: {e}")))?;
    DatasetDef::from_yaml(&text, whole.parent()).map_err(|e| e.context(shown))
}

/// The error of a definition that was read from a file, with the file in front. What is wrong with the input is known before
/// rows are read, when the definition is bound; other errors are no fault of the file.
pub(crate) fn in_file(file: &Path) -> impl Fn(Error) -> Error {
    |error| match error.kind() {
        ErrorKind::InvalidArgument | ErrorKind::NotFound => error.context(file.display()),
        _ => error,
    }
}
