"""The limits, defaults and durations of the documentation that are listed here are those of the code.

Each row names a page, the words with the number, a file of code and the code with the number. A sentence or a constant that
changes makes its row fail. Numbers without a row are not checked: whoever writes a new one adds a row. The functions' defaults
in docs/functions.md are generated, and have a test of their own.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORDS = {"one": 1, "two": 2, "twice": 2, "three": 3, "four": 4, "ten": 10, "a minute": 60, "half a minute": 30, "minute": 60}
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "%": 0.01, "ms": 0.001, "s": 1, "m": 60, "min": 60, "seconds": 1,
         "second": 1, "minutes": 60, "minute": 60, "hours": 3600, "h": 3600}  # fmt: skip
DURATIONS = {"from_secs": 1, "from_millis": 0.001}

ARCHITECTURE, CLI, GUARANTEES, CACHING = "ARCHITECTURE.md", "docs/cli.md", "docs/guarantees.md", "docs/caching.md"
PIPELINE, PLAN, TUNING, SHARING = "docs/pipeline.md", "docs/plan.md", "docs/tuning.md", "docs/sharing.md"
FLAGS = "crates/caju/src/cli"
AUTOCACHE = "crates/autocache/src"
DISPATCHER = "crates/dispatcher/src"

# The number is what the parentheses hold. `N` stands for a number with its unit, in words or digits.
ROWS = [
    (ARCHITECTURE, "Constants are folded while they take at most (N) per expression",
     "crates/kernels/src/guard/mod.rs", r"const FOLD_BYTES: u64 = (N);"),
    (ARCHITECTURE, "about (N) splits ahead of the leases", f"{DISPATCHER}/splits/windows.rs", r"const LOOK_AHEAD: usize = (N);"),
    (ARCHITECTURE, "windows that grow from (N) to", f"{DISPATCHER}/splits/order.rs", r"const FIRST_WINDOW: usize = (N);"),
    (ARCHITECTURE, "windows that grow from 128 to (N), by", f"{DISPATCHER}/splits/order.rs", r"const LARGEST_WINDOW: usize = (N);"),
    (ARCHITECTURE, "leases splits one at a time, or up to (N) at once", "crates/worker/src/feed.rs", r"const MAX_SPLITS_PER_REQUEST: u32 = (N);"),
    (ARCHITECTURE, "This stays within (N) of the CPU time", "crates/engine/src/probing.rs", r"const QUOTA: f64 = (N);"),
    (ARCHITECTURE, "it decides when (N) of the splits were begun", f"{AUTOCACHE}/timing.rs", r"MAX_FRACTION_BEGUN: f64 = (N);"),
    (ARCHITECTURE, "it waits (N) at most", f"{AUTOCACHE}/timing.rs", r"PROBE_TIMEOUT_S: f64 = (N);"),
    (ARCHITECTURE, "or after (N), and at the latest", f"{AUTOCACHE}/timing.rs", r"DECISION_TIMEOUT_S: f64 = (N);"),
    (ARCHITECTURE, "another option is better (N) in a row", f"{AUTOCACHE}/replan/state.rs", r"MIN_EPOCHS_IN_A_ROW: u32 = (N);"),
    (ARCHITECTURE, "the decision changes, (N) times per job at most", f"{AUTOCACHE}/replan/state.rs", r"MAX_CHANGES: usize = (N);"),
    (ARCHITECTURE, r"listing and leases | about (N) splits ahead", f"{DISPATCHER}/splits/windows.rs", r"const LOOK_AHEAD: usize = (N);"),
    (ARCHITECTURE, r"a window of at most (N) with", f"{DISPATCHER}/splits/order.rs", r"const LARGEST_WINDOW: usize = (N);"),
    (ARCHITECTURE, r"and one more, (N) to", "crates/engine/src/task/mod.rs", r"\(threads \+ 1\)\.clamp\((N), "),
    (ARCHITECTURE, r"and one more, 2 to (N) at first", "crates/engine/src/task/mod.rs", r"\(threads \+ 1\)\.clamp\(2, (N)\)"),
    (ARCHITECTURE, r"an engine batch | (N) rows", "crates/engine/src/task/mod.rs", r"batch_rows: (N),"),
    (ARCHITECTURE, r"(`--chunk-memory` \()(N)\)", f"{FLAGS}/mod.rs", "chunk_memory"),
    (ARCHITECTURE, r"(`--max-record` \()(N)\)", f"{FLAGS}/mod.rs", "max_record"),
    (ARCHITECTURE, r"(`--bind-timeout` \()(N)\)", f"{FLAGS}/mod.rs", "bind_timeout"),
    (ARCHITECTURE, r"its number of elements, and at first (N) per stage", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (ARCHITECTURE, r"at first (N) per place in the chain of stages", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (PIPELINE, r"ahead of the stages below, and at first (N) per stage", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (PIPELINE, r"ahead of the stages below, and at first (N) per stage", "crates/engine/src/task/mod.rs", r"buffer_bytes: (N),"),
    (TUNING, r"the bound of each queue | (N) |", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (ARCHITECTURE, r"(`--buffer` \()(N) at first\) of finished", "crates/worker/src/tuning.rs", r"FIRST_BUFFER_BYTES: usize = (N);"),
    (ARCHITECTURE, r"(`--buffer-memory` \()(N)\)", f"{FLAGS}/tuned.rs", "buffer_memory"),
    (ARCHITECTURE, r"up to (N) readers while they wait", "crates/worker/src/tuning.rs", r"MAX_READERS: usize = (N);"),
    (ARCHITECTURE, r"up to (N) times as many threads", "crates/runtime/src/cpu.rs", r"MAX_GROWTH: usize = (N);"),
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
    (ARCHITECTURE, "A split that was lost with (N) workers", f"{FLAGS}/service.rs", "split_losses"),
    (ARCHITECTURE, "An iteration fails after (N) lost connections", f"{FLAGS}/service.rs", "connection_losses"),
    (ARCHITECTURE, "An iteration fails after (N) lost connections", f"{DISPATCHER}/state/follow.rs", r"connections: (N) "),
    (ARCHITECTURE, "A split that was lost with (N) workers", f"{DISPATCHER}/state/follow.rs", r"Self \{ splits: (N),"),
    (ARCHITECTURE, r"`--straggler-factor` \((N)\)", f"{FLAGS}/service.rs", "straggler_factor"),
    (ARCHITECTURE, "and try to reach it for (N)\\.", "crates/worker/src/config.rs", r"dispatcher_timeout: Duration::(N),"),
    (ARCHITECTURE, "and try to reach it for (N)\\.", "crates/client/src/config.rs", r"dispatcher_timeout: Duration::(N),"),
    (ARCHITECTURE, "A connection that is silent for (N) is closed", "crates/worker/src/config.rs", r"silence: Duration::(N),"),
    (CLI, r"`--chunk-memory SIZE` | (N) |", f"{FLAGS}/mod.rs", "chunk_memory"),
    (CLI, r"`--max-record SIZE` | (N) |", f"{FLAGS}/mod.rs", "max_record"),
    (CLI, r"`--chunk-steps N` | (N) |", f"{FLAGS}/mod.rs", "chunk_steps"),
    (CLI, r"`--max-pixels N` | (N) |", f"{FLAGS}/mod.rs", "max_pixels"),
    (CLI, r"`--bind-timeout TIME` | (N) |", f"{FLAGS}/mod.rs", "bind_timeout"),
    (CLI, r"`caju read --max-frame SIZE` \((N) by default", f"{FLAGS}/mod.rs", "max_frame"),
    (CLI, r"`caju read --max-frame SIZE` \((N) by default", "crates/wire/src/frame.rs", r"DEFAULT_MAX_BODY_BYTES: u64 = (N);"),
    (CLI, r"the dispatcher's `--consumer-wait`, (N) by default", f"{FLAGS}/service.rs", "consumer_wait"),
    (CLI, r"the dispatcher's `--worker-wait` \((N) by default", f"{FLAGS}/service.rs", "worker_wait"),
    (CLI, r"its own `--worker-wait` \((N)\)", f"{FLAGS}/mod.rs", "worker_wait"),
    (GUARANTEES, r"\(a heartbeat, (N) by default\)", f"{FLAGS}/service.rs", "heartbeat"),
    (GUARANTEES, "of rows above (N) only the first", "crates/engine/src/row_checks.rs", r"const LARGE_ROW_BYTES: usize = (N);"),
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
    (ARCHITECTURE, r"(`--sharing-window` \()(N)\)", f"{FLAGS}/service.rs", "sharing_window"),
    (ARCHITECTURE, r"(`--sharing-window` \()(N)\)", "crates/engine/src/sharing/settings.rs", r"DEFAULT_WINDOW_BYTES: u64 = (N);"),
    (ARCHITECTURE, r"(`--sharing-spill-bytes` \()(N)\)", f"{FLAGS}/service.rs", "sharing_spill_bytes"),
    (ARCHITECTURE, r"(`--sharing-spill-bytes` \()(N)\)", "crates/engine/src/sharing/settings.rs", r"DEFAULT_SPILL_BYTES: u64 = (N);"),
    (ARCHITECTURE, r"(`--sharing-backlog` \()(N)\)", f"{FLAGS}/service.rs", "sharing_backlog"),
    (ARCHITECTURE, r"(`--sharing-backlog` \()(N)\)", "crates/engine/src/sharing/settings.rs", r"DEFAULT_BACKLOG_BYTES: u64 = (N);"),
    (ARCHITECTURE, r"(`--shared-memory` \()(N)\)", f"{FLAGS}/service.rs", "shared_memory"),
    (SHARING, r"`caju worker --sharing-window`, (N) by default", f"{FLAGS}/service.rs", "sharing_window"),
    (SHARING, r"`--sharing-backlog`, (N) by default", f"{FLAGS}/service.rs", "sharing_backlog"),
    (SHARING, r"`--sharing-spill-bytes` \((N) by default", f"{FLAGS}/service.rs", "sharing_spill_bytes"),
    (SHARING, r"`caju worker --shared-memory` \((N) by default", f"{FLAGS}/service.rs", "shared_memory"),
    (SHARING, r"for `--sharing-wait` at most \((N) by default", f"{FLAGS}/service.rs", "sharing_wait"),
    ("docs/python/batches.md", r"part of the definition, up to (N); write", "crates/python/python/caju/_memory.py",
     r"INLINE_BYTES = (N)"),
    ("README.md", r"`quickstart` generates (N) JPEG photos", f"{FLAGS}/sample.rs", "count"),
    ("README.md", r"You need Rust (N) or newer", "Cargo.toml", r'rust-version = "(N)"'),
    ("CONTRIBUTING.md", r"# Rust (N) or newer", "Cargo.toml", r'rust-version = "(N)"'),
    ("docs/python/README.md", r"`chunk_memory` | `--chunk-memory` | (N) |", f"{FLAGS}/mod.rs", "chunk_memory"),
    ("docs/python/README.md", r"`max_pixels` | `--max-pixels` | (N) |", f"{FLAGS}/mod.rs", "max_pixels"),
    ("docs/python/README.md", r"`bind_timeout` | `--bind-timeout` | (N) |", f"{FLAGS}/mod.rs", "bind_timeout"),
    ("docs/python/README.md", r"wait for it, (N) by default", f"{FLAGS}/service.rs", "consumer_wait"),
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

NUMBER = (r"from_\w+\([\d_]+\)|half a minute|a minute|minute|one|twice|two|three|four|ten"
          r"|[\d_]+ << \d+|[\d,_]*\d(?:\.\d+)?(?: ?(?:KiB|MiB|GiB|%|ms|seconds?|minutes?|min|hours?|s|m|h)\b| %)?")  # fmt: skip


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


@pytest.mark.parametrize(("page", "words", "file", "code"), ROWS, ids=[f"{r[0]}: {r[1]}" for r in ROWS])
def test_a_number_of_the_documentation_is_that_of_the_code(page, words, file, code):
    assert of_page(page, words) == pytest.approx(of_code(file, code)), f"{page} states another number than {file} has"


@pytest.mark.parametrize(("text", "value"), [
    ("256 MiB", 256 << 20), ("256MiB", 256 << 20), ("256 << 20", 256 << 20), ("8 %", 0.08), ("0.08", 0.08), ("2 minutes", 120),
    ("from_secs(60)", 60), ("a minute", 60), ("100,000,000", 100_000_000), ("100_000_000", 100_000_000), ("2m", 120),
])  # fmt: skip
def test_numbers_are_read_as_pages_and_code_write_them(text, value):
    assert number(text) == value
