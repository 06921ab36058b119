//! The beginning of a split: it is read from the window, or computed as soon as the window has space for it.

use std::ops::Range;
use std::sync::Arc;

use super::{SharingWindow, SplitPoints, State};
use crate::sharing::settings::SharingLag;
use crate::sharing::shared_split::{SharedSplit, SplitRef};

/// A task that waits for others to begin a split, until this is dropped.
struct Waiting<'a> {
    window: &'a SharingWindow,
    member: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(me) = self.window.state.lock().members.get_mut(&self.member) {
            me.waiting = me.waiting.saturating_sub(1);
        }
    }
}

impl SharingWindow {
    /// A task begins a split. `readable`: the points at which it can read it, from the first one at which rows of it can be
    /// shared.
    pub(in crate::sharing) async fn begin(
        &self,
        member: u64,
        (of, name): (SplitRef, u64),
        readable: Range<usize>,
        may_skip: bool,
    ) -> SplitPoints {
        let from = readable.start;
        {
            let mut state = self.state.lock();
            let Some(me) = state.members.get_mut(&member) else { return SplitPoints::default() };
            me.is_out = false;
            me.had.insert(of);
            let is_new = state.find(member, of, from..usize::MAX).is_none();
            let read = state.find_to_read(member, of, readable.clone());
            state.refresh_points(member, of);
            state.trim(self.settings.backlog_bytes);
            let skip = state.skipped(member, of, from).filter(|_| is_new && may_skip);
            if skip.is_some() {
                return SplitPoints { skip, ..SplitPoints::default() };
            }
            if !is_new || self.settings.lag != SharingLag::Throttle {
                let begun = state.begin(member, (of, name), from, read);
                drop(state);
                // It has what it read before.
                self.freed.notify_waiters();
                return begun;
            }
        }
        self.begin_in_space(member, (of, name), readable).await
    }

    /// Waits until the window has space that no other task needs, or for as long as the settings say, and begins the split under the
    /// same lock: one place that is free is for one split. Tasks that are behind then are not waited for any more. A split
    /// that another task has begun meanwhile needs no further space.
    async fn begin_in_space(
        &self,
        member: u64,
        (of, name): (SplitRef, u64),
        readable: Range<usize>,
    ) -> SplitPoints {
        let (mut begun, mut waiting) = (None, None);
        self.wait_freed(|state, is_late| {
            let is_there = state.find(member, of, readable.start..usize::MAX).is_some();
            if !is_there && !state.has_space(member, self.settings.window_bytes) {
                if !is_late {
                    if let Some(me) = state.members.get_mut(&member).filter(|_| waiting.is_none()) {
                        me.waiting += 1;
                        waiting = Some(Waiting { window: self, member });
                        // No task waits for this one.
                        self.freed.notify_waiters();
                    }
                    return false;
                }
                state.leave_behind(member);
            }
            let read = state.find_to_read(member, of, readable.clone());
            begun = Some(state.begin(member, (of, name), readable.start, read));
            true
        })
        .await;
        // Another split of this task, or the same one of another task, may wait.
        self.freed.notify_waiters();
        begun.unwrap_or_default()
    }

    /// Asks `is_done` at once, whenever memory is freed, and a last time when [`SharingSettings::wait`] has passed: then its second
    /// argument is true, and its answer does not matter.
    pub(super) async fn wait_freed(&self, mut is_done: impl FnMut(&mut State, bool) -> bool) {
        let deadline = self.clock.now() + self.settings.wait;
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let left = deadline.saturating_sub(self.clock.now());
            if is_done(&mut self.state.lock(), left.is_zero()) || left.is_zero() {
                return;
            }
            tokio::select! {
                () = freed => {}
                () = self.clock.sleep(left) => {}
            }
        }
    }
}

impl State {
    /// The point at which a task reads a split that it begins. A split with a reader stays.
    fn find_to_read(
        &mut self,
        member: u64,
        of: SplitRef,
        readable: Range<usize>,
    ) -> Option<(usize, Arc<SharedSplit>)> {
        self.find(member, of, readable).inspect(|(_, split)| split.add_reader())
    }

    /// What a task reads of a split that it begins, and where it puts rows into the window, from one of its points on.
    fn begin(
        &mut self,
        member: u64,
        (of, name): (SplitRef, u64),
        from: usize,
        read: Option<(usize, Arc<SharedSplit>)>,
    ) -> SplitPoints {
        self.refresh_points(member, of);
        match &read {
            Some(_) => self.counts.hits += 1,
            None => self.counts.misses += 1,
        }
        let below = read.as_ref().map_or(from, |(at, _)| at + 1);
        let write = self.useful_points(member).into_iter().filter(|at| *at >= below).collect::<Vec<_>>();
        let write = write.into_iter().filter_map(|at| self.open(member, at, of, name)).collect();
        SplitPoints { read, write, skip: None }
    }
}
