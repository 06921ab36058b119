"""The limits, defaults and durations of the documentation are those of the code.

Numbers next to the flag or the constant that they are of are found by themselves: in the tables with a column `default`, and in
sentences such as "`--reader-wait` (10 s by default)" and "5 s (`POLL`)". For any other number a row of ROWS names a page, the words
with the number, a file of code and the code with the number. A sentence or a constant that changes makes its row fail. Other
numbers are not checked: whoever writes a new one adds a row. The functions' defaults in docs/functions.md are generated, and have
a test of their own.
"""

import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORDS = {"one": 1, "two": 2, "twice": 2, "three": 3, "three times": 3, "four": 4, "four times": 4, "five": 5, "five times": 5,
         "ten": 10, "a minute": 60, "half a minute": 30, "minute": 60, "a tenth": 0.1, "a half": 0.5}  # fmt: skip
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "%": 0.01, "ms": 0.001, "s": 1, "m": 60, "min": 60, "seconds": 1,
         "second": 1, "minutes": 60, "minute": 60, "hours": 3600, "h": 3600, "days": 86400, "times": 1}  # fmt: skip
DURATIONS = {"from_secs": 1, "from_millis": 0.001}

ARCHITECTURE, CLI, GUARANTEES, CACHING = "ARCHITECTURE.md", "docs/cli.md", "docs/guarantees.md", "docs/caching.md"
PIPELINE, PLAN, TUNING, SHARING = "docs/pipeline.md", "docs/plan.md", "docs/tuning.md", "docs/sharing.md"
FUNCTIONS, PATTERNS = "docs/functions.md", "crates/kernels/src/guard/patterns.rs"
SCALING, REPORT, LIMITS, RAY, KUBERNETES = "docs/scaling.md", "docs/report.md", "docs/limits.md", "docs/ray.md", "docs/kubernetes.md"
FLAGS = "crates/caju/src/cli"
AUTOCACHE = "crates/autocache/src"
QUICKSTART = "crates/caju/src/commands/quickstart/mod.rs"
DISPATCHER = "crates/dispatcher/src"
ENGINE = "crates/engine/src"
RAY_CLUSTER = "crates/python/python/caju/ray/_cluster.py"

# The number is what the parentheses hold. `N` stands for a number with its unit, in words or digits.
ROWS = [
    (ARCHITECTURE, "Constants are folded while they take at most (N) per expression",
     "crates/kernels/src/guard/mod.rs", r"const FOLD_BYTES: u64 = (N);"),
    (ARCHITECTURE, "Patterns that take more than (N) when", PATTERNS, r"const SMALL_BYTES: usize = (N);"),
    (ARCHITECTURE, "while a definition is bound, and may take (N) together", PATTERNS, r"const MAX_DEFINITION_BYTES: u64 = (N);"),
    (FUNCTIONS, "in the texts of a pipeline may take (N) together", PATTERNS, r"const MAX_DEFINITION_BYTES: u64 = (N);"),
    (FUNCTIONS, "that take less than (N) are not counted", PATTERNS, r"const SMALL_BYTES: usize = (N);"),
    (PIPELINE, "structs and maps may be nested (N) levels deep", "crates/pipeline/src/validate/mod.rs", r"const MAX_TYPE_LEVELS: usize = (N);"),
    (CLI, "a pipeline file or a profile has (N) at most", "crates/caju/src/commands/pipeline_file.rs", r"const MAX_BYTES: u64 = (N);"),
    (CLI, "a pipeline file or a profile has (N) at most", "crates/caju/src/commands/plan.rs", r"const MAX_BYTES: u64 = (N);"),
    (CLI, "a settings file (N), and the state", "crates/caju/src/config.rs", r"const MAX_BYTES: u64 = (N);"),
    (CLI, "and the state of a reader (N).", "crates/caju/src/commands/state_file.rs", r"const MAX_BYTES: u64 = (N);"),
    (ARCHITECTURE, "about (N) splits ahead of the leases", f"{DISPATCHER}/splits/windows.rs", r"const LOOK_AHEAD: usize = (N);"),
    (ARCHITECTURE, "windows that grow from (N) to", f"{DISPATCHER}/splits/order.rs", r"const FIRST_WINDOW: usize = (N);"),
    (ARCHITECTURE, "windows that grow from 128 to (N), by", f"{DISPATCHER}/splits/order.rs", r"const LARGEST_WINDOW: usize = (N);"),
    (ARCHITECTURE, "leases splits one at a time, or up to (N) at once", "crates/worker/src/feed.rs", r"const MAX_SPLITS_PER_REQUEST: u32 = (N);"),
    (ARCHITECTURE, "This stays within (N) of the CPU time", "crates/engine/src/probing.rs", r"const QUOTA: f64 = (N);"),
    (ARCHITECTURE, "it decides when (N) of the splits were begun", f"{AUTOCACHE}/timing.rs", r"MAX_FRACTION_BEGUN: f64 = (N);"),
    (ARCHITECTURE, "it waits (N) at most", f"{AUTOCACHE}/timing.rs", r"PROBE_TIMEOUT_S: f64 = (N);"),
    (ARCHITECTURE, "It decides after (N) in any case", f"{AUTOCACHE}/timing.rs", r"DECISION_TIMEOUT_S: f64 = (N);"),
    (ARCHITECTURE, "another option is better (N) in a row", f"{AUTOCACHE}/replan/state.rs", r"MIN_EPOCHS_IN_A_ROW: u32 = (N);"),
    (ARCHITECTURE, "the decision changes, (N) times per job at most", f"{AUTOCACHE}/replan/state.rs", r"MAX_CHANGES: usize = (N);"),
    (ARCHITECTURE, r"listing and leases | about (N) splits ahead", f"{DISPATCHER}/splits/windows.rs", r"const LOOK_AHEAD: usize = (N);"),
    (ARCHITECTURE, r"a window of at most (N) with", f"{DISPATCHER}/splits/order.rs", r"const LARGEST_WINDOW: usize = (N);"),
    (ARCHITECTURE, r"and one more, (N) to", "crates/engine/src/task/mod.rs", r"\(threads \+ 1\)\.clamp\((N), "),
    (ARCHITECTURE, r"and one more, 2 to (N) at first", "crates/engine/src/task/mod.rs", r"\(threads \+ 1\)\.clamp\(2, (N)\)"),
    (ARCHITECTURE, r"an engine batch | (N) rows", "crates/engine/src/task/mod.rs", r"batch_rows: (N),"),
    (ARCHITECTURE, r"its number of elements, and at first (N) per stage", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (ARCHITECTURE, r"at first (N) per place in the chain of stages", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (PIPELINE, r"ahead of the stages below, and at first (N) per stage", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (PIPELINE, r"ahead of the stages below, and at first (N) per stage", "crates/engine/src/task/mod.rs", r"buffer_bytes: (N),"),
    (TUNING, r"the bound of each queue | (N) |", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (ARCHITECTURE, r"(`--buffer` \()(N) at first\) of finished", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (ARCHITECTURE, r"up to (N) readers while they wait", "crates/worker/src/tuning.rs", r"MAX_READERS: usize = (N);"),
    (ARCHITECTURE, r"up to (N) times as many threads", "crates/runtime/src/cpu.rs", r"MAX_GROWTH: usize = (N);"),
    (ARCHITECTURE, r"(`--buffer-memory` \()(N)\)", f"{FLAGS}/tuned.rs", "buffer_memory"),
    (CLI, r"`--buffer-memory SIZE` | (N) |", f"{FLAGS}/tuned.rs", "buffer_memory"),
    (CLI, r"at first (N) each, within `--buffer-memory`", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (ARCHITECTURE, r"`--connections`, (N); those", f"{FLAGS}/service.rs", "connections"),
    (ARCHITECTURE, r"`--connections`, (N); those", "crates/wire/src/accept.rs", r"connections: (N),"),
    (ARCHITECTURE, r"without a first request: (N), for", "crates/wire/src/accept.rs", r"pending: (N),"),
    (ARCHITECTURE, r"`--connection-calls`, (N) |", f"{FLAGS}/service.rs", "connection_calls"),
    (ARCHITECTURE, r"`--message-bytes`, (N) |", f"{FLAGS}/service.rs", "message_bytes"),
    (ARCHITECTURE, r"those in use and (N) more", "crates/worker/src/caches.rs", r"const MAX_UNUSED: usize = (N);"),
    (ARCHITECTURE, r"(credits: `--prefetch` \()(N)\) over all tasks", "crates/client/src/config.rs", r"prefetch_bytes: (N),"),
    (ARCHITECTURE, r"at least (N) per task", "crates/client/src/credit.rs", r"const LEAST_WINDOW: usize = (N);"),
    (ARCHITECTURE, "A split that was lost with (N) workers", f"{FLAGS}/service.rs", "max_split_losses"),
    (ARCHITECTURE, "An iteration fails after (N) lost connections", f"{FLAGS}/service.rs", "max_connection_losses"),
    (ARCHITECTURE, "An iteration fails after (N) lost connections", f"{DISPATCHER}/state/follow.rs", r"connections: (N) "),
    (ARCHITECTURE, "A split that was lost with (N) workers", f"{DISPATCHER}/state/follow.rs", r"Self \{ splits: (N),"),
    (ARCHITECTURE, "and try to reach it for (N)\\.", "crates/worker/src/config.rs", r"dispatcher_timeout: Duration::(N),"),
    (ARCHITECTURE, "and try to reach it for (N)\\.", "crates/client/src/config.rs", r"dispatcher_timeout: Duration::(N),"),
    (ARCHITECTURE, "A connection that is silent for (N) is closed", "crates/worker/src/config.rs", r"silence: Duration::(N),"),
    (CLI, r"`caju read --max-frame SIZE` \((N) by default", "crates/wire/src/frame.rs", r"DEFAULT_MAX_BODY_BYTES: u64 = (N);"),
    (CLI, r"the dispatcher's `--worker-wait` \((N) by default", f"{FLAGS}/service.rs", "worker_wait"),
    (CLI, r"its own `--worker-wait` \((N)\)", f"{FLAGS}/mod.rs", "worker_wait"),
    (GUARANTEES, r"\(a heartbeat, (N) by default\)", f"{FLAGS}/service.rs", "heartbeat"),
    (GUARANTEES, "of rows above (N) \\(the mean of a chunk\\) only the first", "crates/engine/src/row_checks.rs", r"const LARGE_ROW_BYTES: usize = (N);"),
    (CACHING, r"the memory tier \((N)\) has space", "cache/src/options.rs", r"memory_tier_bytes: (N),"),
    (CACHING, r"A budget below (N), in which", "cache/src/options.rs", r"MIN_BUDGET_BYTES: u64 = (N);"),
    (CACHING, r"its lease has not changed for (N),", "cache/src/options.rs", r"lease_ttl: Duration::(N),"),
    (CACHING, r"by the store's own clock \((N) more\)", "cache/src/lease.rs", r"TIME_ROUNDING: Duration = Duration::(N);"),
    (CACHING, r"A job changes its decision (N) times at most", f"{AUTOCACHE}/replan/state.rs", r"MAX_CHANGES: usize = (N);"),
    (CACHING, r"is judged after (N) such epochs", f"{AUTOCACHE}/replan/state.rs", r"MAX_EPOCHS_MISSED: u32 = (N);"),
    (PIPELINE, r"dropped and counted, up to (N) per epoch", "crates/pipeline/src/def.rs", r"DEFAULT_SKIP_LIMIT: u64 = (N);"),
    (PIPELINE, r"the nominal size of a split, (N) by default", "crates/pipeline/src/def.rs", r"DEFAULT_SPLIT_BYTES: u64 = (N);"),
    (PIPELINE, r"Datasets nest up to (N) deep", "crates/pipeline/src/validate/mod.rs", r"MAX_DEPTH: usize = (N);"),
    (PIPELINE, r"counts as hanging, (N) by default", "crates/functions/src/config.rs", r" timeout: Duration::(N),"),
    (PLAN, r"when (N) of the epoch's splits were begun", f"{AUTOCACHE}/timing.rs", r"MAX_FRACTION_BEGUN: f64 = (N);"),
    (PLAN, r"the probes are awaited for (N) at most", f"{AUTOCACHE}/timing.rs", r"PROBE_TIMEOUT_S: f64 = (N);"),
    (PLAN, r"or after (N);", f"{AUTOCACHE}/timing.rs", r"DECISION_TIMEOUT_S: f64 = (N);"),
    (PLAN, r"single probe may be off by (N), and", f"{AUTOCACHE}/timing.rs", r"PROBE_ERROR: f64 = (N);"),
    (PLAN, r"with a probability of (N), so", f"{AUTOCACHE}/timing.rs", r"PROBE_ERROR_PROBABILITY: f64 = (N);"),
    (PLAN, r"The 1\.1 leaves out (N) of", "crates/worker/src/profiling.rs", r"UNCOUNTED_FRACTION: f64 = (N);"),
    (PLAN, r"waits for at most (N) probes", f"{AUTOCACHE}/timing.rs", r"MAX_PROBES: usize = (N);"),
    (PLAN, r"The first sample has (N), for", "crates/engine/src/probing/sample.rs", r"const FIRST: Size = Size \{ bytes: (N),"),
    (PLAN, r"Further ones have (N), the size", "crates/engine/src/probing/sample.rs", r"const FURTHER: Size = Size \{ bytes: (N),"),
    (PLAN, r"all of that stays within (N) of the CPU time", "crates/engine/src/probing.rs", r"const QUOTA: f64 = (N);"),
    (PLAN, r"is probed for at most (N) more", "crates/engine/src/task/mod.rs", r"LAST_PROBES: Duration = Duration::(N);"),
    (ARCHITECTURE, r"definitions to bind | (N) concurrently", "crates/kernels/src/registry.rs", r"MAX_CONCURRENT_BINDS: usize = (N);"),
    (CLI, r"planning a pipeline; (N) run concurrently", "crates/kernels/src/registry.rs", r"MAX_CONCURRENT_BINDS: usize = (N);"),
    (ARCHITECTURE, r"per worker, and (N) files; of those", "crates/worker/src/body_files.rs", r"const MAX_FILES: usize = (N);"),
    (SHARING, r"by default\) and (N) batches", "crates/worker/src/body_files.rs", r"const MAX_FILES: usize = (N);"),
    (ARCHITECTURE, r"and (N) times as many including idle ones", "crates/functions/src/config.rs", r"definitions: (N),"),
    (ARCHITECTURE, r"(`--sharing-window` \()(N)\)", "crates/engine/src/sharing/settings.rs", r"DEFAULT_WINDOW_BYTES: u64 = (N);"),
    (ARCHITECTURE, r"(`--sharing-spill-bytes` \()(N)\)", "crates/engine/src/sharing/settings.rs", r"DEFAULT_SPILL_BYTES: u64 = (N);"),
    (ARCHITECTURE, r"(`--sharing-backlog` \()(N)\)", "crates/engine/src/sharing/settings.rs", r"DEFAULT_BACKLOG_BYTES: u64 = (N);"),
    (SHARING, "when it has missed (N) splits", f"{DISPATCHER}/control/sharing.rs", r"MAX_WAITING: usize = if cfg!\(test\) \{ 20 \} else \{ (N) \};"),
    (SHARING, r"for `--sharing-wait` at most \((N) by default", f"{FLAGS}/service.rs", "sharing_wait"),
    ("docs/python/batches.md", r"part of the definition, up to (N); write", "crates/python/python/caju/_memory.py",
     r"INLINE_BYTES = (N)"),
    ("README.md", r"`quickstart` generates (N) JPEG photos", f"{FLAGS}/sample.rs", "count"),
    (f"{FLAGS}/sample.rs", r"computes on at most (N) threads", QUICKSTART, r"MAX_CPU_THREADS: usize = (N);"),
    (f"{FLAGS}/sample.rs", r"and keeps (N) of stored rows in memory", QUICKSTART, r"MEMORY_TIER_BYTES: u64 = (N);"),
    (f"{FLAGS}/sample.rs", r"\(`caju run`: (N)\)", "cache/src/options.rs", r"memory_tier_bytes: (N),"),
    ("README.md", r"You need Rust (N) or newer", "Cargo.toml", r'rust-version = "(N)"'),
    ("CONTRIBUTING.md", r"# Rust (N) or newer", "Cargo.toml", r'rust-version = "(N)"'),
    ("docs/python/README.md", r"wait for it, (N) by default", f"{FLAGS}/service.rs", "consumer_wait"),
    ("docs/README.md", r"part of a file \((N) by default", "crates/pipeline/src/def.rs", r"DEFAULT_SPLIT_BYTES: u64 = (N);"),
    ("README.md", r"pieces of files of about (N)\)", "crates/pipeline/src/def.rs", r"DEFAULT_SPLIT_BYTES: u64 = (N);"),
    (ARCHITECTURE, r"A chunk that would take more than (N), by", f"{ENGINE}/task/concurrent/row_time.rs", r"WHOLE: Duration = Duration::(N);"),
    (ARCHITECTURE, r"is cut into slices of (N), which", f"{ENGINE}/task/concurrent/row_time.rs", r"SLICE: Duration = Duration::(N);"),
    (ARCHITECTURE, r"gives rows back when a call takes more than (N):", "crates/functions/src/process.rs", r"SLOW_CALL: Duration = Duration::(N);"),
    (ARCHITECTURE, r"a slice that takes more than (N) is passed", f"{ENGINE}/task/concurrent/slice.rs", r"SLOW: Duration = Duration::(N);"),
    (ARCHITECTURE, r"leases and readers of splits | (N) leases", f"{DISPATCHER}/splits/windows.rs", r"MOST_READY: usize = (N);"),
    (ARCHITECTURE, r"8192 rows, and about (N) of source bytes", f"{ENGINE}/task/mod.rs", r"batch_bytes: (N),"),
    (ARCHITECTURE, r"with little work: up to (N) rows within", [
        (f"{ENGINE}/task/mod.rs", r"batch_rows: (N),"), (f"{ENGINE}/task/batch_size.rs", r"GROWTH: usize = (N);")]),
    (ARCHITECTURE, r"up to 65,536 rows within (N)\.", f"{ENGINE}/task/mod.rs", r"batch_bytes: (N),"),
    (ARCHITECTURE, r"that a stage enlarges: at most (N) at the widest", [
        (f"{ENGINE}/task/mod.rs", r"batch_bytes: (N),"), (f"{ENGINE}/task/batch_size.rs", r"MAX_GROWN_BYTES: f64 = (N);")]),
    (ARCHITECTURE, r"up to (N) readers are named to each other", f"{DISPATCHER}/state/iteration.rs", r"READERS_NOTIFIED: usize = (N);"),
    (ARCHITECTURE, r"better twice in a row, by (N) \(by a half", [(f"{AUTOCACHE}/replan/mod.rs", r"MIN_GAIN_KNOWN: f64 = 1\.(N);"), 0.1]),
    (ARCHITECTURE, r"by a tenth \(by (N) for", [(f"{AUTOCACHE}/replan/mod.rs", r"MIN_GAIN_PREDICTED: f64 = 1\.(N);"), 0.1]),
    (CACHING, r"twice in a row, by (N) where it ran", [(f"{AUTOCACHE}/replan/mod.rs", r"MIN_GAIN_KNOWN: f64 = 1\.(N);"), 0.1]),
    (CACHING, r"they wait for less than (N) of their time", f"{AUTOCACHE}/replan/mod.rs", r"MIN_WAIT_FRACTION: f64 = (N);"),
    ("docs/python/README.md", r"readers of a job of more than (N) hear", f"{DISPATCHER}/state/iteration.rs", r"READERS_NOTIFIED: usize = (N);"),
    ("docs/python/README.md", r"from a worker of another process, at least (N) |", f"{FLAGS}/service.rs", r"bytes if bytes < (N) =>"),
    ("docs/python/README.md", r"A function may take (N) for a row", "crates/functions/src/config.rs", r" timeout: Duration::(N),"),
    ("docs/python/README.md", r"When a call takes more than (N), rows", "crates/functions/src/process.rs", r"SLOW_CALL: Duration = Duration::(N);"),
    (CLI, r"\(2 GiB by default, at least (N)\) bounds it", f"{FLAGS}/service.rs", r"bytes if bytes < (N) =>"),
    (CLI, r"and up to (N) times as many while rows wait", "crates/runtime/src/cpu.rs", r"MAX_GROWTH: usize = (N);"),
    (CLI, r"more than the CPU threads, and up to (N) while", "crates/worker/src/tuning.rs", r"MAX_READERS: usize = (N);"),
    (CLI, r"`--max-restarts` workers \((N) by default\)", f"{FLAGS}/up.rs", "max_restarts"),
    (CLI, r"abandons a task without a reader after (N) \(", f"{FLAGS}/service.rs", "drain_linger"),
    (CACHING, r"the memory tier \(256 MiB\)(?s:.)*better (N) in a row, by a tenth", f"{AUTOCACHE}/replan/state.rs", r"MIN_EPOCHS_IN_A_ROW: u32 = (N);"),
    (CACHING, r"earlier ones, up to (N)\. A pipeline", f"{AUTOCACHE}/horizon.rs", r"MAX_EXPECTED_JOBS: u64 = (N);"),
    (CACHING, r"is expected to have (N), or as many", "planner/src/profile/mod.rs", r"DEFAULT_EPOCHS: u64 = (N);"),
    (CACHING, r"workers or cores differs by (N), the", f"{AUTOCACHE}/warm_start.rs", r"SAME_CLUSTER: f64 = (N);"),
    (CACHING, r"A snapshot that covers under (N) of the splits", f"{AUTOCACHE}/coverage.rs", r"MIN_COVERAGE: f64 = (N);"),
    (CACHING, r"one that covers under (N) does not fix", f"{AUTOCACHE}/coverage.rs", r"NEARLY_ALL: f64 = (N);"),
    (CACHING, r"Objects younger than `--grace` \((N)\)", "cache/src/options.rs", r"orphan_grace: Duration::(N),"),
    (SHARING, r"get large batches in shared memory \((N) or more", [
        ("crates/client/src/config.rs", r"prefetch_bytes: (N),"), 1 / 256]),
    (SHARING, r"with a `--prefetch` below 64 MiB, 1/(N) of it", "crates/worker/src/outgoing.rs", r"MAX_FILES_IN_WINDOW: u64 = (N);"),
    (SHARING, r"of it, and (N) at least\)", "crates/worker/src/outgoing.rs", r"MIN_FILE_BYTES: u64 = (N);"),
    (PIPELINE, r"the file system's clock \((N), or", "crates/runtime/src/stores/settled.rs", r"FINE_STEP: Duration = Duration::(N);"),
    (PIPELINE, r"clock \(20 ms, or (N) where", "crates/runtime/src/stores/settled.rs", r"COARSE_STEP: Duration = Duration::(N);"),
    (PIPELINE, r"the number of classes, from 2 to (N)\.", "crates/pipeline/src/boundaries.rs", r"MAX_LEARNT_CLASSES: u64 = (N);"),
    (PIPELINE, r"lengths are read, (N) by default", "crates/pipeline/src/boundaries.rs", r"DEFAULT_LEARNING_ROWS: u64 = (N);"),
    (PIPELINE, r"4096 by default and (N) at most", "crates/pipeline/src/boundaries.rs", r"MAX_LEARNING_ROWS: u64 = (N);"),
    (PIPELINE, r"so do more than (N) stages between", f"{ENGINE}/bind/order/mod.rs", r"MAX_SEGMENT: usize = (N);"),
    (PLAN, r"keep part of a snapshot in memory \((N) each", "cache/src/options.rs", r"memory_tier_bytes: (N),"),
    (PLAN, r"Options within (N) of the shortest horizon", "planner/src/candidate.rs", r"const TIE: f64 = (N);"),
    (PLAN, r"Sizes within (N) count as equal", "planner/src/candidate.rs", r"const TIE: f64 = (N);"),
    (PLAN, r"Options within (N) by that count", "planner/src/candidate.rs", r"const TIE: f64 = (N);"),
    (PLAN, r"as low as the first costs (N)\.", "planner/src/candidate.rs", r"INTERFERENCE: f64 = (N);"),
    (PLAN, r"a second resource is used to (N) or more", "planner/src/explain.rs", r"const CLOSE: f64 = (N);"),
    (PLAN, r"lies above 1 \(above (N) while some", f"{AUTOCACHE}/timing.rs", r"CLEAR_LEAD: f64 = (N);"),
    (PLAN, r"or within the (N) of a tie on both", "planner/src/candidate.rs", r"const TIE: f64 = (N);"),
    (PLAN, r"never within its first (N), which are", f"{AUTOCACHE}/timing.rs", r"MIN_ELAPSED_S: f64 = (N);"),
    (PLAN, r"stops waiting when (N) have passed", f"{AUTOCACHE}/timing.rs", r"PROBE_TIMEOUT_S: f64 = (N);"),
    (PLAN, r"have passed and (N) of the epoch's splits were begun, or", f"{AUTOCACHE}/timing.rs", r"MAX_FRACTION_BEGUN: f64 = (N);"),
    (PLAN, r"of the epoch's splits were begun, or after (N)\.", f"{AUTOCACHE}/timing.rs", r"DECISION_TIMEOUT_S: f64 = (N);"),
    (PLAN, r"and read them back, up to (N), until", f"{ENGINE}/probing.rs", r"const ROUNDS: usize = (N);"),
    (PLAN, r"The store is measured (N), and", f"{ENGINE}/probing.rs", r"STORE_MEASUREMENTS: usize = (N);"),
    (PLAN, r"and within (N) of the time of the requests", f"{ENGINE}/probing.rs", r"const QUOTA: f64 = (N);"),
    (PLAN, r"epochs left of a job \((N) if unknown\)", "planner/src/profile/mod.rs", r"DEFAULT_EPOCHS: u64 = (N);"),
    (PLAN, r"jobs expected \((N) if unknown\)", "planner/src/profile/mod.rs", r"DEFAULT_JOBS: u64 = (N);"),
    (TUNING, r"and cores are idle | (N) times as many", "crates/runtime/src/cpu.rs", r"MAX_GROWTH: usize = (N);"),
    (TUNING, r"16 times as many, and (N) |", "crates/runtime/src/cpu.rs", r"MAX_THREADS: usize = (N);"),
    (TUNING, r"one more than the threads, (N) to 16", f"{ENGINE}/task/mod.rs", r"\(threads \+ 1\)\.clamp\((N), "),
    (TUNING, r"one more than the threads, 2 to (N) |", f"{ENGINE}/task/mod.rs", r"\(threads \+ 1\)\.clamp\(2, (N)\)"),
    (TUNING, r"are the limit | (N), and, per job, a quarter", "crates/worker/src/tuning.rs", r"MAX_READERS: usize = (N);"),
    (TUNING, r"of `--buffer-memory` at (N) each", "crates/worker/src/tuning.rs", r"READER_BYTES: usize = (N);"),
    (TUNING, r"if it brings at least (N) of the rows", "planner/src/tuning/trial.rs", r"MIN_GAIN: f64 = (N);"),
    (TUNING, r"the next trial is (N) away, then 8", [
        ("planner/src/tuning/climb.rs", r"FIRST_HOLD: u32 = (N);"), ("crates/worker/src/config.rs", r"tuning_step: Duration::(N),")]),
    (TUNING, r"and so on up to (N)\.", [
        ("planner/src/tuning/climb.rs", r"MAX_HOLD: u32 = (N);"), ("crates/worker/src/config.rs", r"tuning_step: Duration::(N),")]),
    (SCALING, r"`--max-workers N` | (N) | the most workers", "planner/src/scaling/mod.rs", r"DEFAULT_MAX_WORKERS: u64 = (N);"),
    (SCALING, r"the most workers, up to (N) |", "planner/src/scaling/mod.rs", r"HIGHEST_MAX: u64 = (N);"),
    (SCALING, r"Rates that differ by less than (N) count as the same", "planner/src/scaling/choose.rs", r"SAME_RATE: f64 = (N);"),
    (SCALING, r"`--max-workers N` | (N), 100 | the limits", "crates/caju/src/commands/dispatcher.rs", r"min_workers\.unwrap_or\((N)\)"),
    (SCALING, r"`--max-workers N` | 0, (N) | the limits", "planner/src/scaling/mod.rs", r"DEFAULT_MAX_WORKERS: u64 = (N);"),
    (SCALING, r"Measurements may be off by (N)\.", "planner/src/scaling/target.rs", r"relative_error: (N),"),
    (SCALING, r"if readers wait for more than (N) of their", "planner/src/scaling/target.rs", r"MAX_WAIT: f64 = (N);"),
    (SCALING, r"Where added workers bring less than (N) of", "planner/src/scaling/ceiling.rs", r"MIN_MARGINAL_GAIN: f64 = (N);"),
    (SCALING, r"when a worker's rate rises by (N), or", "planner/src/scaling/ceiling.rs", r"OTHER_RATE: f64 = (N);"),
    (SCALING, r"or when the rate falls by (N) although", "planner/src/scaling/ceiling.rs", r"OTHER_RATE: f64 = (N);"),
    (SCALING, r"rate has just changed by (N), as", "planner/src/scaling/ceiling.rs", r"OTHER_RATE: f64 = (N);"),
    (SCALING, r"A worker that has missed (N) heartbeats", f"{FLAGS}/service.rs", "worker_missed_heartbeats"),
    (SCALING, r"target then is at most (N) the workers", "planner/src/scaling/known.rs", r"MAX_GROWTH: f64 = (N);"),
    (REPORT, r"Seconds from (N) of the rows to", "crates/caju/src/commands/tail.rs", r"BEFORE: f64 = (N);"),
    (REPORT, r"At most (N) the workers that work", "planner/src/reported_times.rs", r"MAX_GROWTH: u64 = (N);"),
    (LIMITS, r"a function in Python | (N) a row", "crates/functions/src/config.rs", r" timeout: Duration::(N),"),
    (LIMITS, r"a stream that is released for (N)\.", "crates/python/src/stream.rs", r"LEAVE_TIMEOUT: Duration = Duration::(N);"),
    ("docs/saving.md", r"of another host\*\* counts as alive for (N)\.", f"{FLAGS}/service.rs", "cache_lease"),
    (RAY, r"`max_workers` | 1, (N) | limits", f"{RAY_CLUSTER}", r"max_workers: int = (N),"),
    (RAY, r"`max_workers` | (N), 100 | limits", f"{RAY_CLUSTER}", r"min_workers: int = (N),"),
    (RAY, r"`scale_down_after` | (N), 30 s", f"{RAY_CLUSTER}", r"scaling_interval: float = (N),"),
    (RAY, r"`scale_down_after` | 5 s, (N) |", f"{RAY_CLUSTER}", r"scale_down_after: float = (N),"),
    (RAY, r"`drain_timeout` | (N) |", f"{RAY_CLUSTER}", r"drain_timeout: float = (N),"),
    (RAY, r"splits are computed again after (N),", f"{FLAGS}/service.rs", "worker_timeout"),
    (RAY, r"after growing pauses, of (N) at most", "crates/python/python/caju/ray/_head.py", r"MAX_PAUSE_S = (N)"),
    (KUBERNETES, r"`worker.drainSeconds` \((N)\)", "deploy/kubernetes/chart/values.yaml", r"drainSeconds: (N)"),
    (KUBERNETES, r"It asks `GetMetrics` every (N)\.", "deploy/kubernetes/chart/templates/keda.yaml", r"pollingInterval: (N)"),
    (KUBERNETES, r"KEDA waits for `cooldownPeriod` \((N)\)", "deploy/kubernetes/chart/templates/keda.yaml", r"cooldownPeriod: (N)"),
    ("docs/python/README.md", r"`connect_timeout` | `--connect-timeout` | (N) |", f"{FLAGS}/mod.rs", "connect_timeout"),
    ("docs/python/README.md", r"`dispatcher_timeout` | `--dispatcher-timeout` | (N) |", f"{FLAGS}/service.rs", "dispatcher_timeout"),
    ("docs/python/README.md", r"`stall_timeout` | `--stall-timeout` | (N) |", f"{FLAGS}/service.rs", "stall_timeout"),
    ("docs/python/README.md", r"`dial_timeout` | `--dial-timeout` | (N) |", f"{FLAGS}/service.rs", "dial_timeout"),
    ("docs/python/README.md", r"`worker_silence` | `--worker-silence` | (N) |", f"{FLAGS}/service.rs", "worker_silence"),
    ("docs/python/README.md", r"`prefetch` | `--prefetch` | (N) |", f"{FLAGS}/service.rs", "prefetch"),
    ("docs/python/README.md", r"`buffer_memory` | `--buffer-memory` | (N) |", f"{FLAGS}/tuned.rs", "buffer_memory"),
    ("docs/python/README.md", r"`max_frame` | `--max-frame` | (N) |", f"{FLAGS}/mod.rs", "max_frame"),
    ("docs/python/README.md", r"`max_record` | `--max-record` | (N) |", f"{FLAGS}/mod.rs", "max_record"),
]  # fmt: skip

NUMBER = (r"from_\w+\([\d_]+\)|half a minute|a minute|minute|a tenth|a half|one|twice|two|three times|three|four times|four"
          r"|five times|five|ten|[\d_]+ << \d+"
          r"|[\d,_]*\d(?:\.\d+)?(?: ?(?:KiB|MiB|GiB|%|ms|seconds?|minutes?|min|hours?|days|s|m|h)\b| %)?")  # fmt: skip


def number(text):
    """The value of a number as pages and code write it, in bytes, seconds, or as a plain number."""
    text = text.strip()
    if text in WORDS:
        return WORDS[text]
    if made := re.fullmatch(r"(from_\w+)\(([\d_]+)\)", text):
        return int(made[2]) * DURATIONS[made[1]]
    if shifted := re.fullmatch(r"([\d_]+) << (\d+)", text):
        return int(shifted[1]) << int(shifted[2])
    plain = re.fullmatch(r"([\d,_.]+) ?(\D*)", text)
    digits = plain[1].replace(",", "").replace("_", "")
    return (float(digits) if "." in digits else int(digits)) * UNITS[plain[2]]


def found(text, pattern, where):
    match = re.search(pattern.replace("N)", f"{NUMBER})", 1), text)
    assert match, f"{where} has no `{pattern}` any more: correct the row of this test with it"
    return number(match[match.lastindex])


def of_page(page, words):
    text = (ROOT / page).read_text(encoding="utf-8")
    return found(text, words.replace(" | ", r" \| ").replace(" |", r" \|") if "|" in words else words, page)


def of_code(file, code):
    text = (ROOT / file).read_text(encoding="utf-8")
    if re.fullmatch(r"\w+", code):
        # The default of a flag.
        flag = rf'default_value(?:_t)? = "?([^",)]+)"?[^\]]*\)\]\s*pub\(crate\) {code}:'
        flags = [m for m in re.finditer(flag, text)]
        assert flags, f"{file} has no flag {code} with a default any more"
        return number(flags[-1][1])
    return found(text, code, file)


def of_row(file, *code):
    """The number of a row's code. Several places, and plain numbers among them, are multiplied."""
    if code:
        return of_code(file, *code)
    return math.prod(part if isinstance(part, float) else of_code(*part) for part in file)


@pytest.mark.parametrize("row", ROWS, ids=[f"{r[0]}: {r[1]}" for r in ROWS])
def test_a_number_of_the_documentation_is_that_of_the_code(row):
    page, words, *code = row
    assert of_page(page, words) == pytest.approx(of_row(*code)), f"{page} states another number than {code} has"


PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Flags whose default is not the same for all commands: which arguments a page, or a part of it, means.
ARGUMENTS = {
    ("--worker-wait", LIMITS, "Readers"): "ReadArgs",
    ("--worker-wait", LIMITS, "The dispatcher"): "DispatcherSettings",
    ("--worker-wait", "docs/python/README.md", None): "ReadArgs",
    # A flag of two commands in one paragraph, and defaults that are no numbers in the flags: rows of ROWS compare them.
    ("--worker-wait", CLI, None): None,
    ("--min-workers", SCALING, "While jobs run: the target"): None,
}  # fmt: skip
# Names that several constants have: the file of the one that the pages mean.
MEANT = {
    "POLL": f"{DISPATCHER}/control/learning.rs",
    "CLOSE_TIMEOUT": "crates/worker/src/caches.rs",
    "LEAVE_TIMEOUT": "crates/client/src/session.rs",
    "CALL": "crates/wire/src/link.rs",
    "MAX_DECODED_BYTES": "proto/src/codec.rs",
    "MAX_JSON_BYTES": "crates/types/src/json.rs",
}  # fmt: skip


def flags():
    """The defaults of the command's flags that are numbers, by flag and by the arguments that have it."""
    found = {}
    for file in sorted((ROOT / FLAGS).glob("*.rs")):
        for arguments in re.finditer(r"struct (\w+) \{(.*?)\n\}", file.read_text(encoding="utf-8"), re.DOTALL):
            fields = r"#\[arg\(((?:[^()]|\([^()]*\))*)\)\]\s*(?:pub\(crate\) )?(\w+): "
            for attribute, field in re.findall(fields, arguments[2]):
                default = re.search(r'default_value(?:_t)? = "?([^",)]+)', attribute)
                if default and re.fullmatch(NUMBER, default[1]):
                    found.setdefault("--" + field.replace("_", "-"), {})[arguments[1]] = number(default[1])
    return found


def default_of(flag, page, heading):
    """The default of a flag as a page means it; none where rows of ROWS compare it, or for one whose default is no number."""
    defaults = flags().get(flag, {})
    meant = next((key for key in ((flag, page, heading), (flag, page, None)) if key in ARGUMENTS), None)
    if meant:
        return ARGUMENTS[meant] and defaults[ARGUMENTS[meant]]
    assert len(set(defaults.values())) <= 1, f"{page} names {flag}, which has several defaults: add to ARGUMENTS which it means"
    return next(iter(defaults.values()), None)


def constant(name):
    """The value of a constant of the code."""
    pattern = rf"const {name}: \w+ = (?:Duration::)?(N);"
    if name in MEANT:
        return found((ROOT / MEANT[name]).read_text(encoding="utf-8"), pattern, MEANT[name])
    files = [f for folder in ("crates", "cache", "planner") for f in (ROOT / folder).rglob("src/**/*.rs")]
    values = {number(m[1]) for f in files for m in re.finditer(pattern.replace("N)", f"{NUMBER})"), f.read_text(encoding="utf-8"))}
    assert len(values) == 1, f"the code has {len(values)} values of {name}: name the file in MEANT, or correct the page"
    return values.pop()


def cells(line):
    return [c.strip() for c in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def tables():
    """The rows of all tables with a column of defaults, as (page, heading, the cells of the row, of its default, of its name)."""
    for page in PAGES:
        heading, columns = None, None
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                heading = line.strip("# ")
            if not line.startswith("|"):
                columns = None
            elif columns is None:
                titles = [c.lower() for c in cells(line)]
                names = [i for of in ("setting", "flag", "option") for i, t in enumerate(titles) if t.startswith(of)]
                columns = (titles.index("default"), names[0]) if names and "default" in titles else ()
            elif columns and not set(line) <= set("|- "):
                row = cells(line)
                yield page.relative_to(ROOT).as_posix(), heading, row[0], row[columns[0]], row[columns[1]]


def names_in(cell):
    return re.findall(r"`(--[a-z-]+)[^`]*`", cell) or re.findall(r"`([A-Z][A-Z_]+)`", cell)


def stated_in_tables():
    """The defaults that tables state, as (page, heading, name, number). A row may have several, in the order of its names."""
    for page, heading, _, default, name in tables():
        numbers = re.findall(rf"(?<![\w`-])(?:{NUMBER})(?!\w)", default)
        yield from ((page, heading, name, text) for name, text in zip(names_in(name), numbers))


def stated_in_sentences():
    """The defaults that sentences state next to a flag or a constant, likewise."""
    flag, n = r"`(?:caju [a-z]+ )?(--[a-z-]+)(?: [A-Z]+)?`", rf"({NUMBER})"
    for page in PAGES:
        heading = None
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                heading = line.strip("# ")
            where = page.relative_to(ROOT).as_posix(), heading
            for m in re.finditer(rf"{flag},? \(?{n} by default|{flag},? \({n}\)", line):
                yield (*where, m[1] or m[3], m[2] or m[4])
            for m in re.finditer(rf"\({n}, {flag}\)|(?<![\w`-]){n} \(`([A-Z][A-Z_]+)`\)", line):
                yield (*where, m[2] or m[4], m[1] or m[3])


STATED = [*stated_in_tables(), *stated_in_sentences()]


@pytest.mark.parametrize(("page", "heading", "name", "text"), STATED, ids=[f"{p}: {n} {t}" for p, _, n, t in STATED])
def test_a_number_next_to_its_flag_or_constant_is_its_own(page, heading, name, text):
    of_code = default_of(name, page, heading) if name.startswith("--") else constant(name)
    if of_code is not None:
        assert number(text) == pytest.approx(of_code), f"{page} states another number for {name} than the code has"


def test_every_wait_and_count_of_the_limits_is_compared():
    """A default in docs/limits.md that no test compares would be one that nobody notices when it is wrong."""
    compared = {(heading, name) for page, heading, name, _ in STATED if page == LIMITS}
    by_hand = " ".join(words for page, words, *_ in ROWS if page == LIMITS)
    for page, heading, what, _, name in tables():
        if page == LIMITS:
            names = names_in(name)
            is_compared = names and all((heading, n) in compared and (n[0] != "-" or flags().get(n)) for n in names)
            assert is_compared or what[-20:] in by_hand, f"the default of {what!r} is not compared with the code"


@pytest.mark.parametrize(("page", "least"), [(LIMITS, 45), (CLI, 8), (SHARING, 4), (ARCHITECTURE, 8), ("docs/python/README.md", 12)])
def test_numbers_are_found_where_they_are(page, least):
    """A page that changes its form loses no checks in silence."""
    assert sum(of == page for of, *_ in STATED) >= least


@pytest.mark.parametrize(("text", "value"), [
    ("256 MiB", 256 << 20), ("256MiB", 256 << 20), ("256 << 20", 256 << 20), ("8 %", 0.08), ("0.08", 0.08), ("2 minutes", 120),
    ("from_secs(60)", 60), ("a minute", 60), ("100,000,000", 100_000_000), ("100_000_000", 100_000_000), ("2m", 120),
])  # fmt: skip
def test_numbers_are_read_as_pages_and_code_write_them(text, value):
    assert number(text) == value
