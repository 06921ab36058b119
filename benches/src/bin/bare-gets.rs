//! The rate of an object store without any decoding: fetches every object below a URL with a given ending, completely,
//! several concurrently, and drops the bytes. Prints one JSON object.
//!
//! usage: `bare-gets URL ENDING IN_FLIGHT [REPEATS]`
//!
//! Options of the store come from the environment (`AWS_*`, ...), as for `caju`.

use std::time::Instant;

use caju_runtime::Stores;
use caju_types::{Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::{Value, json};

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    caju_benches::program(|args| async move { run(&args).await })
}

async fn run(args: &[String]) -> Result<Value> {
    let [url, ending, in_flight, rest @ ..] = args else {
        return Err(Error::invalid("usage: bare-gets URL ENDING IN_FLIGHT [REPEATS]"));
    };
    let number = |text: &str| text.parse::<usize>().map_err(|e| Error::invalid(format!("`{text}`: {e}")));
    let (in_flight, repeats) = (number(in_flight)?, rest.first().map_or(Ok(1), |r| number(r))?);
    let at = Stores::new(caju_benches::store_options(), None)?.resolve(url)?;
    let failed = |e: object_store::Error| Error::unavailable(format!("{url}: {e}"));
    let listed: Vec<_> = at.store.list(Some(&at.path)).try_collect().await.map_err(failed)?;
    let paths: Vec<_> =
        listed.into_iter().map(|o| o.location).filter(|p| p.as_ref().ends_with(ending.as_str())).collect();
    let start = Instant::now();
    let mut bytes = 0u64;
    for _ in 0..repeats {
        let get = |path| {
            let store = &at.store;
            async move {
                // Chunk by chunk, so that no object is held in memory.
                let mut pieces = store.get(&path).await?.into_stream();
                let mut length = 0u64;
                while let Some(piece) = pieces.try_next().await? {
                    length += piece.len() as u64;
                }
                Ok::<_, object_store::Error>(length)
            }
        };
        let lengths = stream::iter(paths.clone()).map(get).buffer_unordered(in_flight.max(1));
        bytes += lengths.try_fold(0, |sum, n| async move { Ok(sum + n) }).await.map_err(failed)?;
    }
    Ok(json!({ "objects": paths.len(), "bytes": bytes, "wall_s": start.elapsed().as_secs_f64() }))
}
