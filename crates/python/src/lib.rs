//! The extension module `caju._caju`: the part of the Python package that is written in Rust.
//!
//! It is thin. Python holds a definition as the JSON tree of a pipeline file. This module checks and fingerprints it
//! ([`definition`]), starts clusters in the process ([`cluster`]), reads epochs ([`reader`]), converts Arrow columns to NumPy
//! arrays without copies where the layout allows ([`columns`], [`arrays`]) and Python values to Arrow columns
//! ([`column_builder`], [`inline_table`]), and exchanges Arrow data with other libraries ([`capsule`], [`stream`]). Every wait
//! releases the interpreter and checks for Ctrl-C ([`runtime`]).

mod arrays;
mod bounds;
mod capsule;
mod client;
mod cluster;
mod column_builder;
mod columns;
mod command;
mod copied;
mod definition;
mod errors;
mod fork;
mod functions;
mod imported;
mod inline_table;
mod logging;
mod reader;
mod runtime;
mod saves;
mod stream;
mod tuned;
mod types;

/// The allocator of the binary, for the same reason: batches are large, and memory that is returned to the system comes back
/// as pages that have to be zeroed. Python's objects keep Python's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pyo3::pymodule]
mod _caju {
    #[pymodule_export]
    use crate::arrays::Buffer;
    #[pymodule_export]
    use crate::bounds::size_bytes;
    #[pymodule_export]
    use crate::client::{Client, union_states};
    #[pymodule_export]
    use crate::cluster::{Cluster, Dispatcher, Worker, available_cores};
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::definition::{
        bind, check, check_encoding, describe, fingerprint, from_yaml, prefix_fingerprints, stage_order,
        to_yaml,
    };
    #[pymodule_export]
    use crate::functions::{FunctionPool, read_rows};
    #[pymodule_export]
    use crate::inline_table::{
        InlineTableBuilder, PyInlineTable, ipc_from_columns, ipc_rows, ipc_schema, ipc_schema_capsule,
        message_rows, register_arrow, register_columns, register_rows, schema_from_arrow,
    };
    #[pymodule_export]
    use crate::logging::{log_level, take_records, wait_log, wake_log};
    #[pymodule_export]
    use crate::reader::{Batch, Reader};
    #[pymodule_export]
    use crate::runtime::{forked, runtime_alive};
    #[pymodule_export]
    use crate::stream::epoch_stream;
    #[pymodule_export]
    use crate::types::{schema_of, type_names};

    /// The version of caju.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python modules use")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    #[expect(clippy::unnecessary_wraps, reason = "the type that the macro asks for")]
    fn init(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        caju_command::keep_freed_memory(false);
        Ok(())
    }
}
