//! The command line of a worker process.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use caju_types::{Error, Result};

use super::super::OwnCommand;
use super::super::shared::absolute_url;
use crate::cli::{BoundArgs, ConnectionArgs, CpuThreads, Global, StoreArgs, UpArgs};

/// The command line that starts a worker of a dispatcher in this process. It ends when its standard input ends.
///
/// # Errors
/// `InvalidArgument` if other machines would not know the workers' address, or a path of the settings is not UTF-8.
pub(super) fn worker_command(
    own: &OwnCommand,
    global: &Global,
    args: &UpArgs,
    cpu_threads: CpuThreads,
    address: &str,
) -> Result<Vec<OsString>> {
    let settings = &args.settings;
    let (dispatcher, listen) = addresses(address)?;
    let mut line = Arguments(own.program.clone());
    line.flag("worker");
    line.option("--dispatcher", dispatcher).option("--listen", listen);
    line.option("--cpu-threads", cpu_threads).flag("--until-stdin-ends");
    line.time("--drain-timeout", settings.serve.drain_timeout);
    line.time("--cache-request-timeout", settings.cache_requests.cache_request_timeout);
    line.time("--cache-lease", settings.cache_lease.cache_lease);
    if settings.serve.insecure {
        line.flag("--insecure");
    }
    if let Some(config) = &global.config {
        line.option_raw("--config", config.clone().into());
    }
    line.option("--log", &global.log);
    if global.quiet {
        line.flag("--quiet");
    }
    line.bounds(&global.bounds).connections(&settings.limits).stores(&settings.stores)?;
    Ok(line.0)
}

/// Where workers find a dispatcher that listens at an address, and where they listen themselves.
fn addresses(address: &str) -> Result<(String, String)> {
    let listening: SocketAddr = address.parse().map_err(|e| {
        Error::internal(format!("the dispatcher listens at `{address}`, which is no address: {e}"))
    })?;
    if !listening.ip().is_unspecified() {
        return Ok((address.to_owned(), SocketAddr::new(listening.ip(), 0).to_string()));
    }
    let loopback: IpAddr = match listening {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    Err(Error::invalid(format!(
        "--listen {address}: readers on other machines would not learn under which address they reach the workers; listen on \
         an address of this machine, or on {loopback} for readers on it"
    )))
}

/// Arguments that the other process understands as this one does.
struct Arguments(Vec<OsString>);

impl Arguments {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.0.push(flag.into());
        self
    }

    /// With `=`, so that a value may begin with a dash.
    fn option(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        self.0.push(format!("{name}={value}").into());
        self
    }

    fn option_raw(&mut self, name: &str, value: OsString) -> &mut Self {
        self.0.push(name.into());
        self.0.push(value);
        self
    }

    fn time(&mut self, name: &str, value: Duration) -> &mut Self {
        self.option(name, format_args!("{}us", value.as_micros()))
    }

    fn bounds(&mut self, bounds: &BoundArgs) -> &mut Self {
        self.option("--chunk-memory", bounds.chunk_memory).option("--max-record", bounds.max_record);
        self.option("--chunk-steps", bounds.chunk_steps);
        self.option("--row-group-memory", bounds.row_group_memory);
        self.option("--max-pixels", bounds.max_pixels).time("--bind-timeout", bounds.bind_timeout);
        self.time("--save-wait", bounds.save_wait)
    }

    fn connections(&mut self, limits: &ConnectionArgs) -> &mut Self {
        self.option("--connections", limits.connections);
        self.option("--connection-calls", limits.connection_calls);
        self.option("--message-bytes", limits.message_bytes);
        self.time("--handshake-timeout", limits.handshake_timeout)
            .time("--idle-timeout", limits.idle_timeout);
        self.time("--request-timeout", limits.request_timeout)
    }

    fn stores(&mut self, stores: &StoreArgs) -> Result<()> {
        for url in stores.allow_read.iter().chain(&stores.allow) {
            self.option("--allow-read", absolute_url(url)?);
        }
        for url in &stores.allow_write {
            self.option("--allow-write", absolute_url(url)?);
        }
        if let Some(python) = &stores.allow_python {
            self.option("--allow-python", python);
            for name in &stores.python_env {
                self.option("--python-env", name);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_worker_gets_the_settings_of_the_command() {
        let given = [
            "caju",
            "up",
            "--allow",
            "/data",
            "--allow-read",
            "s3://b/x",
            "--allow-write",
            "/out",
            "--allow-python",
            "python3",
            "--python-env",
            "A,B",
            "--drain-timeout",
            "1500ms",
            "--cache-request-timeout",
            "11s",
            "--cache-lease",
            "12s",
            "--connections",
            "7",
            "--max-record",
            "2MiB",
            "--row-group-memory",
            "5MiB",
            "--log",
            "info",
            "--config",
            "/etc/caju.toml",
            "--idle-timeout",
            "3s",
        ];
        let cli = Cli::parse_from(given);
        let Command::Up(up) = &cli.command else { panic!() };
        let own =
            OwnCommand { program: vec!["python3".into(), "-m".into(), "caju".into()], args: Vec::new() };
        let line =
            worker_command(&own, &cli.global, up, CpuThreads::Auto(Some(3)), "127.0.0.1:7070").unwrap();
        assert_eq!(line[..3], own.program[..]);
        let worker = Cli::parse_from(&line[2..]);
        assert_eq!((worker.global.log.as_str(), worker.global.bounds.max_record), ("info", 2 << 20));
        assert_eq!(worker.global.bounds.row_group_memory, 5 << 20);
        assert_eq!(worker.global.config, cli.global.config);
        let Command::Worker(worker) = worker.command else { panic!() };
        assert_eq!(worker.dispatcher.as_deref(), Some("127.0.0.1:7070"));
        assert_eq!((worker.listen.as_str(), worker.cpu_threads), ("127.0.0.1:0", CpuThreads::Auto(Some(3))));
        assert_eq!(worker.serve.drain_timeout, Duration::from_millis(1500));
        let of_cache =
            [worker.tasks.cache_requests.cache_request_timeout, worker.tasks.cache_lease.cache_lease];
        assert_eq!(of_cache, [11, 12].map(Duration::from_secs));
        assert!(worker.serve.until_stdin_ends && !worker.serve.insecure);
        assert_eq!((worker.limits.connections, worker.limits.idle_timeout), (7, Duration::from_secs(3)));
        assert_eq!(worker.stores.allow_read, ["s3://b/x", "/data"]);
        assert_eq!(
            (worker.stores.allow_write, worker.stores.python_env),
            (vec!["/out".into()], vec!["A".into(), "B".into()])
        );
        assert_eq!(worker.stores.allow_python.as_deref(), Some("python3"));
    }

    #[test]
    fn workers_listen_where_the_dispatcher_does() {
        let of = |address| addresses(address).map_err(|e| e.message().to_owned());
        assert_eq!(of("10.0.0.1:7070"), Ok(("10.0.0.1:7070".into(), "10.0.0.1:0".into())));
        assert_eq!(of("[::1]:7070"), Ok(("[::1]:7070".into(), "[::1]:0".into())));
        assert!(of("0.0.0.0:7070").unwrap_err().contains("or on 127.0.0.1"));
    }
}
