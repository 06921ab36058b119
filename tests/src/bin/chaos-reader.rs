//! The reader of a round of chaos, a process of its own: see `caju_tests::chaos::reader`.
//!
//! Its only argument is [`Settings`] as JSON.

#![allow(clippy::unwrap_used, reason = "a wrong argument ends the program")]

use std::process::ExitCode;

use caju_tests::chaos::reader::{Settings, run};

fn main() -> ExitCode {
    let settings = std::env::args().nth(1).expect("chaos-reader SETTINGS");
    let settings: Settings = serde_json::from_str(&settings).unwrap();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    match runtime.block_on(run(&settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {}", e.message());
            ExitCode::FAILURE
        }
    }
}
