//! The frame around every command: arguments, logging, the runtime, panics and the exit code.

use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use caju_types::{Error, Result};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Global};
use crate::{commands, config, output};

/// Runs the process to its exit code: 0, 1 our fault, 2 the user's input, 3 the environment.
pub(crate) fn main() -> ExitCode {
    install_panic_hook();
    // Panics in tasks and on the pool are errors there; this catches those of the main thread.
    match catch_unwind(AssertUnwindSafe(start)) {
        Ok(code) => code,
        Err(_) => ExitCode::from(1),
    }
}

fn start() -> ExitCode {
    let cli = match config::parse(std::env::args_os().collect(), std::env::var_os("CAJU_CONFIG")) {
        Ok(cli) => cli,
        Err(config::Failure::Clap(e)) => {
            // `--help` and `--version` arrive here too, with exit code 0.
            drop(e.print());
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
        Err(config::Failure::Error(e)) => return failed(&e),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(&e),
    }
}

fn failed(error: &Error) -> ExitCode {
    output::show_error(error);
    ExitCode::from(error.kind().exit_code())
}

fn run(cli: Cli) -> Result<()> {
    init_log(&cli.global)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("caju-io")
        .build()
        .map_err(|e| Error::exhausted(format!("cannot start threads: {e}")))?;
    let result = runtime.block_on(commands::run(cli));
    // Blocking reads that nobody waits for any more must not hold up the exit.
    runtime.shutdown_background();
    result
}

fn init_log(global: &Global) -> Result<()> {
    let filter = EnvFilter::builder()
        .parse(&global.log)
        .map_err(|e| Error::invalid(format!("--log `{}`: {e}; try warn, info or caju=debug", global.log)))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .finish();
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|e| Error::internal(format!("logging was set up twice: {e}")))
}

fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("(no message)");
        let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        output::note(format_args!("error: this is a defect of caju: {text}{place}"));
        output::note("  hint: please report it with the command and the pipeline file");
    }));
}
