//! `caju save`: stores the rows of a pipeline under a URL, in this process or on a cluster.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use caju_client::{Client, ClientConfig, SaveTo};
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::{DatasetDef, SavedForm};
use caju_proto::v1::SaveStatus;
use caju_runtime::SystemClock;
use caju_types::{Error, ErrorKind, Result, format_bytes, format_count};
use serde_json::{Value, json};

use super::{pipeline_file, shared};
use crate::cli::{Global, OutputFormat, SaveArgs};
use crate::output;
use crate::progress::{Progress, State};

/// How often the dispatcher is asked for the progress.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Saves, and waits for the end without `--detach`.
///
/// # Errors
/// A wrong file, a place that cannot be written, and what the save fails with.
pub(crate) async fn run(global: &Global, args: &SaveArgs) -> Result<()> {
    let def = pipeline_file::read(&args.file)?;
    let to = SaveTo { url: shared::absolute_url(&args.to)?, chunk_bytes: args.chunk_bytes.unwrap_or(0) };
    let form = SavedForm::of(&def).map_err(|e| e.context(args.file.display()))?;
    if !form.left_out.is_empty() && !global.quiet {
        output::note(format_args!(
            "rows are saved without {}: they only order or group rows; put them behind the load",
            form.left_out.iter().map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ")
        ));
    }
    let status = match &args.dispatcher {
        Some(address) => {
            let config = ClientConfig { connect_timeout: args.connect_timeout, ..ClientConfig::default() };
            let client = Client::connect(address, config).await?;
            let started = start(&client, args, &def, &to).await?;
            if args.detach { started } else { follow(global, &client, started).await? }
        }
        None => Box::pin(save_in_process(global, args, &def, &to)).await?,
    };
    match args.format {
        OutputFormat::Json => output::say(format_args!("{:#}", as_json(&status))),
        OutputFormat::Text if global.quiet => Ok(()),
        OutputFormat::Text => output::say(text(&status)),
    }
}

async fn save_in_process(
    global: &Global,
    args: &SaveArgs,
    def: &DatasetDef,
    to: &SaveTo,
) -> Result<SaveStatus> {
    let config = shared::cluster(&args.compute, Arc::new(shared::stores()?))?;
    let config = ClusterConfig { workers: args.workers, ..config };
    let cluster = Cluster::start(config).await?;
    let ended = async {
        let client = cluster.client(ClientConfig::default()).await?;
        let started = start(&client, args, def, to).await?;
        follow(global, &client, started).await
    }
    .await;
    cluster.stop().await;
    ended
}

async fn start(client: &Client, args: &SaveArgs, def: &DatasetDef, to: &SaveTo) -> Result<SaveStatus> {
    let encoding = args.encoding.map(|e| e.to_string()).unwrap_or_default();
    let started = client.start_save(def, to, &encoding).await;
    started.map_err(pipeline_file::in_file(&args.file))
}

/// Waits for the end of a save and shows its progress. The dispatcher ends every save, at the latest by a timeout.
async fn follow(global: &Global, client: &Client, started: SaveStatus) -> Result<SaveStatus> {
    let clock = SystemClock::shared();
    let last = RefCell::new(started.clone());
    let work = async {
        loop {
            let status = client.save_status(&started.url).await?;
            if status.state != "running" {
                return ended(status);
            }
            last.replace(status);
            clock.sleep(POLL_INTERVAL).await;
        }
    };
    let shown = || {
        let now = last.borrow();
        State {
            done: now.splits_done,
            total: (now.splits_total > 0).then_some(now.splits_total),
            text: Some(format!("{} of {} splits stored", now.splits_done, total(&now))),
            ..State::default()
        }
    };
    Progress::new("saving", global.quiet).watch(work, shown).await
}

fn ended(status: SaveStatus) -> Result<SaveStatus> {
    match &status.failure {
        Some(f) => {
            let kind = ErrorKind::ALL.into_iter().find(|k| k.as_str() == f.kind);
            Err(Error::new(kind.unwrap_or(ErrorKind::Internal), f.message.clone()))
        }
        None => Ok(status),
    }
}

fn total(s: &SaveStatus) -> String {
    if s.splits_total > 0 { s.splits_total.to_string() } else { "?".into() }
}

fn text(s: &SaveStatus) -> String {
    match s.state.as_str() {
        "finished" => format!(
            "saved {} rows in {} ({}) to {}{}",
            format_count(s.rows),
            parts(s),
            format_bytes(s.bytes),
            s.url,
            skipped(s)
        ),
        _ => format!("saving to {}; see `caju status`", s.url),
    }
}

fn parts(s: &SaveStatus) -> String {
    match s.splits_total {
        n if n == s.chunks => format!("{n} {}", if n == 1 { "part" } else { "parts" }),
        n => format!("{n} {} of {} chunks", if n == 1 { "part" } else { "parts" }, s.chunks),
    }
}

/// How many bad rows a finished save lacks; empty if none.
fn skipped(s: &SaveStatus) -> String {
    match s.rows_skipped {
        0 => String::new(),
        1 => "; 1 bad row was skipped".to_owned(),
        n => format!("; {} bad rows were skipped", format_count(n)),
    }
}

/// A save as one row of a table, for `caju status`.
pub(super) fn line(s: &SaveStatus) -> [String; 5] {
    let failure = s.failure.as_ref().map(|f| format!("{}: {}", f.kind, f.message)).unwrap_or_default();
    let splits = format!("{}/{}", s.splits_done, total(s));
    let rows = if s.state == "finished" { format_count(s.rows) + &skipped(s) } else { failure };
    [s.url.clone(), s.pipeline.clone(), s.state.clone(), splits, rows]
}

/// A save for programs: `caju.saved/v1`.
pub(super) fn as_json(s: &SaveStatus) -> Value {
    let known = |n: u64| if s.state == "finished" { json!(n) } else { Value::Null };
    let failure = s.failure.as_ref().map(|f| json!({"kind": f.kind, "message": f.message}));
    json!({"schema": "caju.saved/v1", "url": s.url, "pipeline": s.pipeline, "fingerprint": s.fingerprint,
           "state": s.state, "splits_done": s.splits_done, "splits_total": s.splits_total,
           "rows": known(s.rows), "bytes": known(s.bytes), "chunks": known(s.chunks), "rows_skipped": known(s.rows_skipped),
           "failure": failure})
}
