//! What leaves the window, and when.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::State;
use crate::sharing::shared_split::{SharedSplit, SplitId, SplitRef};

impl State {
    /// Notes whether a split is idle: no task needs or reads it.
    pub(super) fn refresh(&mut self, split: &SharedSplit) {
        let before = self.idle.remove(&split.number).unwrap_or(0);
        self.idle_bytes = self.idle_bytes.saturating_sub(before);
        self.idle_on_disk.remove(&split.number);
        let is_idle = !split.is_read() && !self.members.values().any(|m| m.needs(split));
        if is_idle && self.splits.contains_key(&split.number) {
            let bytes = split.bytes();
            self.idle.insert(split.number, bytes);
            self.idle_bytes += bytes;
            if split.is_on_disk() {
                self.idle_on_disk.insert(split.number);
            }
        }
    }

    /// Notes whether a split is idle at each point of a member.
    pub(super) fn refresh_points(&mut self, member: u64, of: SplitRef) {
        let points = self.members.get(&member).map(|m| m.points.clone()).unwrap_or_default();
        for point in points {
            let split = self.by_id.get(&SplitId { point, split: of }).and_then(|n| self.splits.get(n));
            if let Some(split) = split.cloned() {
                self.refresh(&split);
            }
        }
    }

    pub(super) fn refresh_all(&mut self) {
        let splits: Vec<_> = self.splits.values().cloned().collect();
        splits.iter().for_each(|split| self.refresh(split));
    }

    /// Removes idle splits, the oldest first, until they take this number of bytes at most. Removes all idle splits with rows on
    /// disk.
    pub(super) fn trim(&mut self, most: u64) {
        while let Some(split) = self.idle_on_disk.first().and_then(|n| self.splits.get(n)).cloned() {
            self.remove(&split);
        }
        while self.idle_bytes > most {
            let oldest = self.idle.first_key_value().and_then(|(number, _)| self.splits.get(number)).cloned();
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }

    /// Removes splits until the window is within its bound: first those that no task needs, of these the oldest whole ones and then
    /// the last of those that tasks compute; then the oldest whole ones that some task needs, and then the last ones that tasks
    /// compute. What tasks read stays: else they would compute it again.
    pub(super) fn evict(&mut self, growing: &Arc<SharedSplit>, limit: u64) {
        while self.bytes > limit {
            let is_needed = |s: &SharedSplit| self.members.values().any(|m| m.needs(s));
            let is_free = |s: &SharedSplit| s.is_whole() && !s.is_read();
            let all = || self.resident.iter().filter_map(|number| self.splits.get(number));
            let idle = || self.idle.keys().filter_map(|n| self.splits.get(n)).filter(|s| s.bytes() > 0);
            let victim = idle()
                .find(|s| s.is_whole())
                .or_else(|| idle().next_back())
                .or_else(|| all().find(|s| is_free(s)))
                .or_else(|| all().rev().find(|s| !s.is_whole() && !s.is_read()))
                .unwrap_or(growing);
            let victim = Arc::clone(victim);
            self.counts.evicted_unread += u64::from(is_needed(&victim));
            self.remove(&victim);
            victim.changed.notify_waiters();
            if victim.number == growing.number {
                // The bytes before it are within the bound.
                return;
            }
        }
    }

    /// Removes the rows at points that no task has had for the given time.
    pub(super) fn prune(&mut self, now: Duration, keep: Duration) {
        let is_over = |since: &Duration| now.saturating_sub(*since) >= keep;
        let over: HashSet<u128> =
            self.unused.iter().filter(|(_, since)| is_over(since)).map(|(point, _)| *point).collect();
        if over.is_empty() {
            return;
        }
        let splits = self.splits.values().filter(|s| over.contains(&s.id.point));
        let splits: Vec<Arc<SharedSplit>> = splits.cloned().collect();
        splits.iter().for_each(|split| self.remove(split));
        self.unused.retain(|point, _| !over.contains(point));
        self.sizes.retain(|point, _| !over.contains(point));
    }

    pub(super) fn remove(&mut self, split: &SharedSplit) {
        if let Some(rows) = split.whole_rows() {
            self.depart(split, rows);
        }
        self.bytes = self.bytes.saturating_sub(split.remove());
        self.resident.remove(&split.number);
        self.splits.remove(&split.number);
        self.refresh(split);
        if self.by_id.get(&split.id) == Some(&split.number) {
            self.by_id.remove(&split.id);
        }
    }
}
