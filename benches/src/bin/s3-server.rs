//! The S3 server of the tests in a process of its own, so that its CPU time does not count as its client's.
//!
//! usage: `s3-server FOLDER BUCKET...`
//!
//! Prints one line, a JSON object with the environment of its clients, and serves until it is killed. Buckets are
//! folders of FOLDER, which must exist. They are not removed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use caju_testkit::s3::S3Server;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, buckets @ ..] = args.as_slice() else {
        return Err(std::io::Error::other("usage: s3-server FOLDER BUCKET..."));
    };
    let buckets: Vec<&str> = buckets.iter().map(String::as_str).collect();
    let server = S3Server::start_in(PathBuf::from(folder), &buckets).await?;
    let env: BTreeMap<String, String> =
        server.options().into_iter().map(|(key, value)| (key.to_uppercase(), value)).collect();
    println!("{}", serde_json::json!(env));
    std::io::stdout().flush()?;
    std::future::pending().await
}
