//! Users' Python functions, run over record batches by a pool of processes.
//!
//! A [`Pool`] has Python processes, each of which runs one call at a time. Rows are passed both ways as Arrow IPC through
//! files in memory, and a line of JSON in each direction names the files. A call blocks its thread, so it belongs on a
//! thread of the CPU pool, whose core the process then uses.
//!
//! An exception of a function is returned with the row and the traceback. A process that dies or hangs is replaced, and the
//! call is run once more. If the second run fails, too, the error names the function and the row at which it stopped.
//! Functions that draw random numbers from `caju.rng()` alone give the same rows in the second run.
//!
//! A process writes the row at which it works to a file in memory. It hangs if it stays at one row for longer than the
//! function's timeout, however long the whole batch takes. For functions over batches the timeout is for the batch.
//!
//! A call of a function over rows that takes longer than [`SLOW_CALL`] gives rows back ([`Caller`]): those that are ready, and
//! those that are not begun. A slow row then holds back itself alone. A thread of the process does that while the function runs,
//! so it waits for as long as the function holds the interpreter's lock.

mod config;
mod function;
mod pool;
mod process;

pub use config::{Environment, PoolConfig};
pub use function::{Caller, Function, FunctionError, Kind, Output, WaitForAll};
pub use pool::Pool;
pub use process::SLOW_CALL;
