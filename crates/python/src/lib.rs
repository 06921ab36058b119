//! The extension module `caju._caju`: the part of the Python package that is Rust.
//!
//! It is thin. Python holds a definition as the JSON tree of a pipeline file and says it in verbs; this module
//! checks and names it ([`definition`]), starts clusters within the process ([`cluster`]), reads epochs
//! ([`reader`]) and turns Arrow columns into NumPy arrays without copying where the layout allows
//! ([`columns`]). Whatever waits releases the interpreter and looks for Ctrl-C ([`runtime`]).

mod cluster;
mod columns;
mod command;
mod definition;
mod errors;
mod functions;
mod logging;
mod memory;
mod numpy;
mod parts;
mod reader;
mod runtime;
mod saves;
mod types;

/// As in the binary: batches are large, and a buffer that goes back to the system comes again as pages to be zeroed.
/// Python's own objects stay with Python's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pyo3::pymodule]
mod _caju {
    #[pymodule_export]
    use crate::cluster::{Cluster, Dispatcher, Worker};
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::definition::{
        bind, check, check_encoding, describe, fingerprint, from_yaml, prefix_fingerprints, to_yaml,
    };
    #[pymodule_export]
    use crate::functions::{FunctionPool, read_rows};
    #[pymodule_export]
    use crate::logging::{log_level, take_events, wait_events, wake_events};
    #[pymodule_export]
    use crate::memory::{
        Rows, RowsBuilder, hold, hold_columns, ipc_from_columns, ipc_rows, ipc_schema, message_rows,
    };
    #[pymodule_export]
    use crate::numpy::Buffer;
    #[pymodule_export]
    use crate::reader::{Batch, Client, Reader};
    #[pymodule_export]
    use crate::runtime::{forked, runtime_alive};
    #[pymodule_export]
    use crate::types::{schema_of, type_names};

    /// The version of caju.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python modules use")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
