//! `caju bench dispatcher`: a dispatcher under simulated workers and clients, over real connections.
//!
//! The dispatcher is the command `caju dispatcher` in a process of its own.

mod heartbeats;
mod latency;
mod peers;
mod restart;
mod splits;

use std::ffi::OsString;

use caju_dispatcher::journal::JournalKind;
use caju_types::{Error, Result};
use serde_json::{Map, Value, json};

use super::server::{Program, Server};
use super::source::LineSource;
use crate::cli::{DispatcherBenchArgs, DispatcherPart};
use crate::cores::available_cores;
use crate::output;
use crate::report;

/// Runs the parts.
///
/// # Errors
/// A folder that cannot be written, a dispatcher that does not start, and calls that it refuses.
pub(super) async fn run(args: &DispatcherBenchArgs) -> Result<()> {
    // Each job reads all splits, and some are left for a dispatcher that is started again. The part `heartbeats` leases at its
    // rate, and a listing must not end meanwhile.
    let paced = u64::from(args.splits_per_s) * (args.duration.as_secs() + 60) / u64::from(args.jobs) + 1024;
    let leases = args.parts.iter().any(|part| *part != DispatcherPart::Heartbeats);
    let splits = if leases { u64::from(args.splits).saturating_add(1024).max(paced) } else { paced };
    let scratch = LineSource::write(&args.dir, "dispatcher", splits)?;
    let mut results = Map::new();
    if args.parts.contains(&DispatcherPart::Heartbeats) {
        let server = start(args, &scratch, "heartbeats").await?;
        let result = heartbeats::measure(args, &scratch, &server).await?;
        output::say(result.text())?;
        results.insert("heartbeats".to_string(), result.json());
    }
    let restarts = args.parts.contains(&DispatcherPart::Restart);
    if args.parts.contains(&DispatcherPart::Splits) || restarts {
        let server = start(args, &scratch, "splits").await?;
        let (result, peers) = splits::measure(args, &scratch, &server).await?;
        output::say(result.text())?;
        results.insert("splits".to_string(), result.json());
        if restarts {
            let result = restart::measure(args, &scratch, server, peers).await?;
            output::say(result.text())?;
            results.insert("restart".to_string(), result.json());
        }
    }
    if let Some(path) = &args.out {
        let head = json!({
            "schema": "caju.dispatcher-bench/v1",
            "cores": available_cores(),
            "pinned_to": args.core,
            "workers": args.workers,
            "clients": args.clients,
            "jobs": args.jobs,
            "heartbeat_s": args.heartbeat.as_secs_f64(),
        });
        let mut all = head.as_object().cloned().unwrap_or_default();
        all.append(&mut results);
        let text =
            serde_json::to_string_pretty(&Value::Object(all)).map_err(|e| Error::internal(e.to_string()))?;
        report::write_bytes(path, text.as_bytes(), "--out")?;
    }
    Ok(())
}

/// Connections beyond one for each peer.
const SPARE_CONNECTIONS: u32 = 64;

/// Starts a dispatcher with its journal in the folder `name` of the scratch folder, which may hold one.
async fn start(args: &DispatcherBenchArgs, scratch: &LineSource, name: &str) -> Result<Server> {
    let journal: JournalKind = args.journal.into();
    let connections = args.workers + args.clients + args.leasing_workers + SPARE_CONNECTIONS;
    let heartbeat = caju_types::format_duration(args.heartbeat);
    let of = |flag: &str, value: &str| [OsString::from(flag), OsString::from(value)];
    let mut all = vec![
        "--allow".into(),
        scratch.folder().into(),
        "--state-dir".into(),
        scratch.folder().join(name).into(),
    ];
    all.extend(of("--journal", journal.name()));
    all.extend(of("--heartbeat", &heartbeat));
    all.extend(of("--connections", &connections.to_string()));
    // Simulated peers only report while they are measured.
    all.extend(of("--worker-timeout", "10m"));
    all.extend(of("--client-timeout", "10m"));
    all.extend(of("--straggler-factor", "0"));
    let program = Program { path: args.program.clone(), core: args.core };
    Server::start(&program, "dispatcher", &all).await
}
