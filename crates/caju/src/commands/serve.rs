//! What dispatcher and worker processes share: their address, their first line of output, and their shutdown.

use std::net::SocketAddr;

use caju_types::{Error, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::ServeArgs;
use crate::output;
use crate::report::write_whole;

/// Refuses an address that other machines can reach, without `--insecure`: there is no authentication.
///
/// # Errors
/// `InvalidArgument` for such an address, and for text that is no address.
pub(crate) async fn check_listen(listen: &str, insecure: bool) -> Result<()> {
    let wrong = |why: String| {
        Error::invalid(format!("--listen `{listen}`: {why}; write HOST:PORT, such as 127.0.0.1:7070"))
    };
    let port = listen.rsplit_once(':').map(|(_, port)| port).ok_or_else(|| wrong("no port".into()))?;
    port.parse::<u16>().map_err(|_| wrong(format!("`{port}` is not a port")))?;
    let found = tokio::net::lookup_host(listen).await.map_err(|e| wrong(e.to_string()))?;
    let addresses: Vec<SocketAddr> = found.collect();
    if insecure || addresses.iter().all(|a| a.ip().is_loopback()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "--listen {listen}: others could connect, and this version authenticates nobody; listen on 127.0.0.1, or say \
         --insecure if the network is trusted"
    )))
}

/// The signals that stop a server. Created before the server prints its address, so that none is missed.
#[derive(Debug)]
pub(crate) struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers of SIGTERM and Ctrl-C.
    ///
    /// # Errors
    /// `Unavailable` if the system refuses.
    pub(crate) fn new() -> Result<Self> {
        let on = |kind| signal(kind).map_err(|e| Error::unavailable(format!("signals: {e}")));
        Ok(Self { term: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    /// The name of the next signal.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Publishes the server's address: as the first line on standard output, and in the address file.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn announce(what: &str, address: &str, args: &ServeArgs) -> Result<()> {
    if let Some(file) = &args.address_file {
        write_whole(file, &format!("{address}\n"), "--address-file")?;
    }
    output::say(format_args!("caju {what} listening on {address}"))
}

/// Serves; with `--until-stdin-ends` no longer than standard input lasts.
///
/// # Errors
/// Those of the server, and `Cancelled` at the end of standard input.
pub(crate) async fn until_stdin_ends(
    args: &ServeArgs,
    server: impl Future<Output = Result<()>>,
) -> Result<()> {
    if !args.until_stdin_ends {
        return server.await;
    }
    let read_to_end = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    tokio::select! {
        served = server => served,
        _ = caju_runtime::blocking("waiting for the end of standard input", read_to_end) => Err(Error::cancelled(
            "standard input ended (--until-stdin-ends): the process that started this one is gone",
        )),
    }
}

/// Runs the shutdown of a server. A second signal aborts it.
///
/// # Errors
/// `Cancelled` after a second signal, `DeadlineExceeded` if work was still running at the timeout.
pub(crate) async fn drain(
    signals: &mut Signals,
    name: &str,
    args: &ServeArgs,
    end: impl Future<Output = bool>,
) -> Result<()> {
    let bound = caju_types::format_duration(args.drain_timeout);
    output::note(format_args!("{name}: leaving within {bound}; a second signal ends at once"));
    tokio::select! {
        done = end => {
            if done {
                return Ok(());
            }
            Err(Error::deadline(format!("work was still going on after --drain-timeout {bound}; others take it over")))
        }
        name = signals.next() => Err(Error::cancelled(format!("a second signal ({name}) ended the process at once"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loopback_without_insecure() {
        for ok in ["127.0.0.1:0", "127.0.0.1:7070", "[::1]:0", "localhost:0"] {
            check_listen(ok, false).await.unwrap();
        }
        for bad in ["0.0.0.0:7070", "[::]:0", "8.8.8.8:1"] {
            let e = check_listen(bad, false).await.unwrap_err();
            assert!(e.message().contains("--insecure"), "{e}");
            check_listen(bad, true).await.unwrap();
        }
        for wrong in ["7070", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999"] {
            assert_eq!(
                check_listen(wrong, true).await.unwrap_err().kind(),
                caju_types::ErrorKind::InvalidArgument
            );
        }
    }
}
