//! `caju read`: reads a pipeline through a dispatcher that runs elsewhere.

use caju_client::{Attempt, Client, ClientConfig, Consumer, LostReaders, Sharing, Transfer, Uneven};
use caju_runtime::SystemClock;
use caju_types::Result;

use super::announce::Announce;
use super::epochs::{Consumer as Work, Epochs, OnSignal};
use super::state_file::StateFile;
use super::{check, shared};
use crate::cli::{Global, LostReadersArg, ReadArgs, UnevenArg};
use crate::rank::{Rank, rank_from_env};

/// Reads the epochs, and reports.
///
/// # Errors
/// A wrong file, a dispatcher that is not there, and what the job fails with.
pub(crate) async fn run(global: &Global, args: &ReadArgs) -> Result<()> {
    let rank = match args.rank_from_env {
        Some(launcher) => Some(rank_from_env(launcher)?),
        None => args.num_consumers.zip(args.consumer_index).map(|(count, index)| Rank { index, count }),
    };
    let def = shared::read_job(&args.file, &args.epochs)?;
    let config = ClientConfig { on_event: shared::events(global.quiet), ..client_config(args) };
    let state_file = args.state.as_deref().map(|path| StateFile::open(path, args.resume)).transpose()?;
    let client = Client::connect(&args.dispatcher, config).await?;
    let epochs = Epochs {
        client: &client,
        def: &def,
        file: Some(&args.file),
        job: args.job.clone().unwrap_or_else(own_name),
        args: &args.epochs,
        quiet: global.quiet,
        pool: shared::cpu_pool(None)?,
        work: Work::default(),
        cpu_before: std::time::Duration::ZERO,
        io: None,
        lost_readers: match args.lost_readers {
            LostReadersArg::Fail => LostReaders::Fail,
            LostReadersArg::Allow => LostReaders::Allow,
        },
        target: args.target_workers.into(),
        consumer: rank.map(|rank| consumer(rank, args)),
        sharing: match &args.sharing {
            Some(name) => Sharing::from_name(name, args.trainer_id.clone())?,
            None => Sharing::AsJob,
        },
        precedence: (args.priority, args.weight),
        transfer: Transfer { protocol: args.data_transfer_protocol, compression: args.compression },
        announce: Announce::AtEnds,
        attempt: args.attempt.clone().map(|id| Attempt { id, rank: None }),
        state_file,
        on_signal: OnSignal::Leave,
    };
    let outcome = Box::pin(epochs.read()).await?;
    shared::finish(&check::title(&def, &args.file), &outcome, &args.epochs, global.quiet)
}

/// The limits and times of the flags.
fn client_config(args: &ReadArgs) -> ClientConfig {
    ClientConfig {
        connect_timeout: args.connect_timeout,
        worker_timeout: args.worker_wait,
        max_frame_bytes: args.max_frame,
        open_timeout: args.waits.open_timeout,
        dispatcher_timeout: args.waits.dispatcher_timeout,
        stall_timeout: args.waits.stall_timeout,
        dial_timeout: args.waits.dial_timeout,
        silence: args.waits.worker_silence,
        prefetch_bytes: usize::try_from(args.waits.prefetch).unwrap_or(usize::MAX),
        ..ClientConfig::default()
    }
}

/// Which of the consumers this reader is.
fn consumer(rank: Rank, args: &ReadArgs) -> Consumer {
    Consumer {
        index: rank.index,
        count: rank.count,
        uneven: match args.uneven {
            UnevenArg::Drop => Uneven::Drop,
            UnevenArg::Pad => Uneven::Pad,
        },
        balance: args.balance.into(),
    }
}

/// A name for a job of this process alone. A job without one would be forgotten at its end, and with it what the
/// workers reported.
fn own_name() -> String {
    format!("read-{}-{}", SystemClock::shared().unix_time().as_secs(), std::process::id())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// What readers do with these is tested in the client (`what_nobody_reads_is_bounded_in_bytes`,
    /// `a_dispatcher_that_does_not_open_an_epoch_is_given_up_after_the_open_timeout`).
    #[test]
    fn flags_are_the_readers_bounds() {
        let bound = |more: &[&str]| {
            let line = [&["caju", "read", "p.yaml", "--dispatcher", "a:1"], more].concat();
            let Command::Read(args) = Cli::try_parse_from(line).unwrap().command else {
                panic!("not `read`")
            };
            let config = client_config(&args);
            (config.prefetch_bytes, config.open_timeout)
        };
        let default = ClientConfig::default();
        let default = (default.prefetch_bytes, default.open_timeout);
        assert_eq!(bound(&["--prefetch", "3MiB"]), (3 << 20, default.1));
        assert_eq!(bound(&["--open-timeout", "3s"]), (default.0, Duration::from_secs(3)));
        assert_eq!(bound(&[]), default, "the flags' defaults are the library's");
    }
}
