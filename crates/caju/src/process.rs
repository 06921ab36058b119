//! What surrounds every command: arguments, logging, the runtime, panics and the exit code.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};

use caju_types::{Error, Result};
use tracing_subscriber::EnvFilter;

use crate::allocator::keep_freed_memory;
use crate::cli::{Cli, Command, Global, mistake};
use crate::commands::OwnCommand;
use crate::{commands, config, output};

/// Runs the command that the arguments say, the program's name first, to its exit code: 0, 1 our fault, 2 the
/// user's input, 3 the environment, 4 `caju cache verify` found damage.
///
/// For the `main` of a process: it installs logging, a panic hook and, in servers, handlers of SIGTERM and Ctrl-C.
pub fn run(args: Vec<OsString>) -> u8 {
    install_panic_hook();
    keep_freed_memory(args.iter().any(|arg| arg == "quickstart"));
    // Panics in tasks and on the pool become errors there. This catches panics of the main thread.
    catch_unwind(AssertUnwindSafe(|| start(args))).unwrap_or(1)
}

fn start(args: Vec<OsString>) -> u8 {
    let own = own_command(&args);
    let cli = match config::parse(args.clone(), std::env::var_os("CAJU_CONFIG")) {
        Ok(cli) => cli,
        Err(config::Failure::Clap(e)) => {
            match mistake(&e, &args) {
                Some(mistake) => output::show(&mistake.message, Some(&mistake.hint)),
                // `--help` and `--version`, with exit code 0, and the help of a command without its subcommand.
                None => drop(e.print()),
            }
            return u8::try_from(e.exit_code()).unwrap_or(2);
        }
        Err(config::Failure::Error(e)) => return failed(&e),
    };
    match execute(cli, own) {
        Ok(code) => code,
        Err(e) => failed(&e),
    }
}

fn failed(error: &Error) -> u8 {
    output::show_error(error);
    error.kind().exit_code()
}

/// The command line of this process; none if the process was started with other arguments than this command.
fn own_command(args: &[OsString]) -> Option<OwnCommand> {
    let own: Vec<OsString> = std::env::args_os().collect();
    let (_, given) = args.split_first()?;
    if own == args {
        // An interpreter is started by its name, which may select an environment. The command's own name may be anything.
        return Some(OwnCommand {
            program: vec![std::env::current_exe().ok()?.into()],
            args: given.to_vec(),
        });
    }
    let program = own.strip_suffix(given).filter(|program| !program.is_empty())?;
    Some(OwnCommand { program: program.to_vec(), args: given.to_vec() })
}

fn execute(cli: Cli, own: Option<OwnCommand>) -> Result<u8> {
    init_log(&cli.global, &cli.command)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("caju-io")
        .build()
        .map_err(|e| Error::exhausted(format!("cannot start threads: {e}")))?;
    let result = runtime.block_on(commands::run(cli, own));
    // Blocking reads whose result is no longer needed must not delay the exit.
    runtime.shutdown_background();
    result
}

/// The log filter of commands with a whole cluster in their process. Failures of its workers and dispatcher are the
/// error of the command, so they are not logged as well.
const EMBEDDED_LOG: &str = "warn,caju_worker::manager=off,caju_worker::starting=off,caju_worker::finishing=off,\
     caju_dispatcher::control=off,caju_dispatcher::control::autocache=warn,\
     caju_dispatcher::control::replanning=off";

fn init_log(global: &Global, command: &Command) -> Result<()> {
    let embedded =
        matches!(command, Command::Run(_) | Command::Quickstart(_) | Command::Profile(_) | Command::Save(_));
    let level = if embedded && global.log == "warn" { EMBEDDED_LOG } else { &global.log };
    let filter = EnvFilter::builder()
        .parse(level)
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;

    struct Lines(SyncSender<Vec<u8>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.send(bytes.to_vec()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What no error of the command says is logged by commands with a whole cluster, too.
    #[test]
    fn commands_with_a_whole_cluster_log_a_changed_source() {
        let (to, lines) = sync_channel(16);
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::builder().parse(EMBEDDED_LOG).unwrap())
            .with_writer(move || Lines(to.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "caju_dispatcher::source", "the source has 3 splits, and had 4");
            tracing::warn!(target: "caju_dispatcher::control::splits", "a failure that is the error of the command");
        });
        let text = String::from_utf8(lines.try_iter().flatten().collect()).unwrap();
        assert!(text.contains("had 4") && !text.contains("a failure"), "{text}");
    }
}
