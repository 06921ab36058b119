//! Rows that leave the memory of the window for files, and come back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_array::RecordBatch;
use caju_runtime::blocking;
use caju_types::{Error, Result};

use super::{SharingWindow, State};
use crate::sharing::shared_split::{SharedSplit, ToSpill};
use crate::sharing::spill::{SpillFolder, SpilledBatch};

/// The most bytes of rows in a file, about: as many are in memory, and count there, until the file is written.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The fraction of the window, as a divisor, that is for rows which are computed while others are written: writing begins when
/// less is left.
const RESERVE: u64 = 4;

impl SharingWindow {
    /// Writes rows that do not fit in memory to files, and removes the files that no task needs, for as long as it is polled.
    /// Returns at once if the window drops such rows.
    pub async fn spill(&self) {
        let Some(folder) = &self.spill else { return };
        loop {
            let changed = folder.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.spill_surplus(folder).await;
            if folder.has_unused() {
                let folder = Arc::clone(folder);
                // What cannot be removed now goes with the folder.
                drop(blocking("removing spilled rows", move || folder.remove_unused()).await);
                self.freed.notify_waiters();
                continue;
            }
            changed.await;
        }
    }

    /// Writes files until the window has its reserve.
    pub(super) async fn spill_surplus(&self, folder: &Arc<SpillFolder>) {
        loop {
            let found = {
                let mut state = self.state.lock();
                let found = state.surplus(self.spill_above(state.writing.wanted_bytes), folder);
                state.writing.is_busy = found.is_some();
                if found.is_none() {
                    state.writing.wanted_bytes = 0;
                }
                found
            };
            let Some((split, rows)) = found else { break };
            let (to, rows) = (Arc::clone(folder), Arc::new(rows));
            let of = Arc::clone(&rows);
            let written = blocking("spilling shared rows", move || to.write(&of.batches)).await;
            self.on_written(folder, &split, &rows, written.and_then(|written| written));
        }
        self.freed.notify_waiters();
    }

    fn on_written(
        &self,
        folder: &SpillFolder,
        split: &SharedSplit,
        rows: &ToSpill,
        written: Result<Option<Vec<SpilledBatch>>>,
    ) {
        let mut state = self.state.lock();
        state.writing.is_stalled = false;
        match written {
            // It has left the window if its number is not there: then the file is removed again.
            Ok(Some(written)) if state.splits.contains_key(&split.number) => {
                let spilled: u64 = written.iter().map(SpilledBatch::file_bytes).sum();
                state.counts.spilled_bytes += spilled;
                state.bytes = state.bytes.saturating_sub(split.spilled(rows, written));
                if split.bytes() == 0 {
                    state.resident.remove(&split.number);
                }
                state.refresh(split);
                state.trim(self.settings.backlog_bytes);
            }
            Ok(Some(_)) => {}
            Ok(None) => split.stay_in_memory(),
            Err(error) => {
                split.stay_in_memory();
                state.counts.spill_errors += 1;
                if !folder.write_failed.swap(true, Ordering::Relaxed) {
                    let folder = folder.path().display();
                    tracing::warn!(%error, %folder, "shared rows cannot be spilled: jobs that lag compute them; further errors are counted and not logged");
                }
            }
        }
        drop(state);
        self.freed.notify_waiters();
    }

    /// Reads rows of a split back. None if they cannot be read within [`SharingSettings::wait`](super::SharingSettings): a task
    /// computes them. A split with a damaged file leaves the window.
    pub(in crate::sharing) async fn read_back(
        &self,
        split: &SharedSplit,
        batch: SpilledBatch,
        is_first: bool,
    ) -> Option<RecordBatch> {
        let reading = blocking("reading spilled rows", move || batch.read());
        let read = tokio::select! {
            biased;
            read = reading => read.and_then(|read| read),
            () = self.clock.sleep(self.settings.wait) => return None,
        };
        match read {
            Ok(batch) => {
                self.state.lock().counts.read_back += u64::from(is_first);
                Some(batch)
            }
            Err(error) => {
                self.on_unreadable(split, &error);
                None
            }
        }
    }

    fn on_unreadable(&self, split: &SharedSplit, error: &Error) {
        let mut state = self.state.lock();
        state.counts.spill_errors += 1;
        state.remove(split);
        drop(state);
        if let Some(folder) = self.spill.as_ref().filter(|f| !f.read_failed.swap(true, Ordering::Relaxed)) {
            let folder = folder.path().display();
            tracing::warn!(%error, %folder, "spilled rows cannot be read: jobs that need them compute them; further errors are counted and not logged");
        }
        split.changed.notify_waiters();
        self.freed.notify_waiters();
    }

    pub(in crate::sharing) fn spills(&self) -> bool {
        self.spill.is_some()
    }

    /// Waits while the window has no space for `bytes` bytes, or its reserve is used up, and rows are being written. A file that
    /// takes longer than [`SharingSettings::wait`](super::SharingSettings) holds up nobody any more.
    pub(in crate::sharing) async fn wait_for_spill(&self, bytes: u64) {
        let Some(folder) = &self.spill else { return };
        let above = self.spill_above(bytes);
        self.wait_freed(|state, is_late| {
            if !state.is_spilling(above, folder) {
                return true;
            }
            if is_late {
                state.writing.is_stalled = true;
                return true;
            }
            state.writing.wanted_bytes = state.writing.wanted_bytes.max(bytes);
            folder.changed.notify_one();
            false
        })
        .await;
    }

    /// Wakes the writer of files if it has something to do.
    pub(super) fn wake_spill(&self, state: &State) {
        if let Some(folder) = self.spill.as_ref().filter(|_| state.needed_bytes() > self.spill_above(0)) {
            folder.changed.notify_one();
        }
    }

    /// With more bytes of needed rows in memory, some are written, if a task waits for space for `wanted` bytes.
    fn spill_above(&self, wanted: u64) -> u64 {
        let limit = self.settings.window_bytes;
        // Rows that never fit make no space for themselves.
        let wanted = if wanted > limit { 0 } else { wanted };
        (limit - limit / RESERVE).min(limit - wanted)
    }
}

impl State {
    /// Bytes in memory that some task needs or reads.
    fn needed_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.idle_bytes)
    }

    /// Whether the memory for needed rows is used up, and rows are being written or can be.
    fn is_spilling(&self, above: u64, folder: &SpillFolder) -> bool {
        self.needed_bytes() > above
            && !self.writing.is_stalled
            && (self.writing.is_busy || self.surplus(above, folder).is_some())
    }

    /// The rows that leave memory next: of the oldest whole split that some task needs and none reads, or else of the oldest one
    /// that some task needs or reads.
    fn surplus(&self, above: u64, folder: &SpillFolder) -> Option<(Arc<SharedSplit>, ToSpill)> {
        if self.needed_bytes() <= above {
            return None;
        }
        let free = folder.free_bytes();
        let needed = || {
            let resident = self.resident.iter().filter(|number| !self.idle.contains_key(number));
            resident.filter_map(|number| self.splits.get(number))
        };
        let at_rest = needed().filter(|s| s.is_whole() && !s.is_read());
        let split = at_rest.chain(needed()).find(|s| s.bytes() <= free && s.may_spill())?;
        Some((Arc::clone(split), split.to_spill(MAX_FILE_BYTES)?))
    }
}
