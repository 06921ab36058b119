//! Bodies of frames as files in memory, for readers on this host.
//!
//! Jobs that share computed rows, and whose elements are equal, get one file: a body is looked for by where its bytes lie, and
//! then by the bytes, among those that tasks of the same pipeline, seed and epoch were given. So nothing has to be known about
//! how an element was made, and what differs never shares a file. A file is held until every such task has had it, within a
//! bound in bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use caju_runtime::sealed::{SealedFile, SealedMap};
use caju_types::TaskId;
use caju_wire::{EncodedRows, Segment};
use parking_lot::Mutex;

/// The most files that are held. Each takes a descriptor, of which a process has 1024 by default.
const MAX_FILES: usize = 256;

/// Of the bytes of all files, the share for which the arrays that they were made of are held, too.
const ARRAYS_SHARE: u64 = 4;

/// The files that a worker holds for further readers. Clones of the `Arc` share them.
#[derive(Debug)]
pub(crate) struct BodyFiles {
    /// The most bytes of all files.
    limit_bytes: u64,
    /// The most bytes of those that every task has had.
    backlog_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: HashMap<u128, Group>,
    /// The files in the order in which they were made: their groups.
    order: BTreeMap<u64, u128>,
    made: u64,
    bytes: u64,
}

/// Tasks whose elements may be equal.
#[derive(Debug, Default)]
struct Group {
    members: BTreeSet<TaskId>,
    bodies: HashMap<u64, Body>,
    /// Bodies by where their bytes lie, while their arrays are held.
    by_location: HashMap<u128, u64>,
    /// Bodies by their bytes.
    by_hash: HashMap<u128, u64>,
}

#[derive(Debug)]
struct Body {
    bytes: u64,
    /// None once the arrays are not held any more.
    location: Option<u128>,
    /// None before the bytes were read.
    hash: Option<u128>,
    slot: Arc<Slot>,
    /// Tasks that have had it.
    had: BTreeSet<TaskId>,
}

/// A file, once it is written. Whoever wants it meanwhile waits for that.
type Slot = Mutex<Option<Written>>;

#[derive(Debug)]
struct Written {
    file: Arc<SealedFile>,
    map: SealedMap,
    /// The arrays that the file was made of: as long as they are held nothing else lies at their place.
    arrays: Vec<Segment>,
}

impl Written {
    fn of(rows: &EncodedRows) -> io::Result<Self> {
        let file = rows.write_file()?;
        Ok(Self { map: file.map()?, file: Arc::new(file), arrays: rows.segments() })
    }

    /// The file if it has these rows.
    fn of_equal(&self, rows: &EncodedRows) -> Option<Arc<SealedFile>> {
        let is_equal = match self.arrays.is_empty() {
            true => rows.has_body(self.map.as_ref()),
            false => rows.has_segments(&self.arrays),
        };
        is_equal.then(|| Arc::clone(&self.file))
    }
}

impl BodyFiles {
    /// Holds at most `limit_bytes`, and of what every task has had `backlog_bytes`.
    pub(crate) fn new(limit_bytes: u64, backlog_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, backlog_bytes, state: Mutex::default() })
    }

    /// Bytes of the files, and the bound.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.state.lock().bytes, self.limit_bytes)
    }

    fn join(self: &Arc<Self>, group: u128, task: TaskId) -> Member {
        self.state.lock().groups.entry(group).or_default().members.insert(task);
        Member { files: Arc::clone(self), group, task }
    }

    /// Removes what need not be held, or does not fit.
    fn trim(&self, state: &mut State) {
        let mut settled = 0;
        let newest_first: Vec<_> = state.order.iter().rev().map(|(number, of)| (*number, *of)).collect();
        let (mut bytes, mut files) = (0, 0);
        for (number, group) in newest_first {
            let Some(of) = state.groups.get_mut(&group) else { continue };
            let Some(body) = of.bodies.get(&number) else { continue };
            let is_settled = of.members.is_subset(&body.had);
            let fits = bytes + body.bytes <= self.limit_bytes && files < MAX_FILES;
            if fits && (!is_settled || settled + body.bytes <= self.backlog_bytes) {
                bytes += body.bytes;
                files += 1;
                settled += if is_settled { body.bytes } else { 0 };
                if is_settled || bytes > self.limit_bytes / ARRAYS_SHARE {
                    of.release_arrays(number);
                }
            } else {
                of.remove(number);
                state.order.remove(&number);
            }
        }
        state.bytes = bytes;
    }
}

impl Group {
    fn remove(&mut self, number: u64) -> Option<Body> {
        let body = self.bodies.remove(&number)?;
        forget(&mut self.by_location, body.location, number);
        forget(&mut self.by_hash, body.hash, number);
        Some(body)
    }

    /// Holds the arrays of a body no longer. One that is being written, or compared, holds them until the next time.
    fn release_arrays(&mut self, number: u64) {
        let Some(body) = self.bodies.get_mut(&number).filter(|body| body.location.is_some()) else { return };
        if let Some(mut slot) = body.slot.try_lock()
            && let Some(written) = &mut *slot
        {
            written.arrays = Vec::new();
            forget(&mut self.by_location, body.location.take(), number);
        }
    }
}

/// Removes a key of a body, unless another body has it since.
fn forget(index: &mut HashMap<u128, u64>, key: Option<u128>, number: u64) {
    if let Some(key) = key.filter(|key| index.get(key) == Some(&number)) {
        index.remove(&key);
    }
}

impl State {
    /// The body whose bytes lie at a place, which `task` gets; a new one if there is none.
    fn at_location(&mut self, group: u128, task: TaskId, (location, bytes): (u128, u64)) -> (u64, Arc<Slot>) {
        let of = self.groups.entry(group).or_default();
        if let Some((number, body)) =
            of.by_location.get(&location).and_then(|n| Some((*n, of.bodies.get_mut(n)?)))
        {
            body.had.insert(task);
            return (number, Arc::clone(&body.slot));
        }
        self.made += 1;
        self.bytes += bytes;
        self.order.insert(self.made, group);
        let slot = Arc::<Slot>::default();
        let body =
            Body { bytes, location: Some(location), hash: None, slot: Arc::clone(&slot), had: [task].into() };
        of.bodies.insert(self.made, body);
        of.by_location.insert(location, self.made);
        (self.made, slot)
    }

    /// Enters the hash of a body. If another body has it, that one takes its place.
    fn with_hash(&mut self, group: u128, task: TaskId, number: u64, hash: u128) -> Option<Arc<Slot>> {
        let of = self.groups.get_mut(&group)?;
        match of.by_hash.get(&hash).copied().filter(|other| *other != number) {
            Some(other) => {
                let body = of.bodies.get_mut(&other)?;
                body.had.insert(task);
                let slot = Arc::clone(&body.slot);
                self.remove(group, number);
                Some(slot)
            }
            None => {
                of.bodies.get_mut(&number)?.hash = Some(hash);
                of.by_hash.insert(hash, number);
                None
            }
        }
    }

    fn remove(&mut self, group: u128, number: u64) {
        let Some(body) = self.groups.get_mut(&group).and_then(|of| of.remove(number)) else { return };
        self.order.remove(&number);
        self.bytes = self.bytes.saturating_sub(body.bytes);
    }
}

/// A task whose elements may be equal to those of others.
#[derive(Debug)]
struct Member {
    files: Arc<BodyFiles>,
    group: u128,
    task: TaskId,
}

impl Member {
    /// The file of a body, and whether it was there. Blocking.
    fn file(&self, rows: &EncodedRows) -> io::Result<(Arc<SealedFile>, bool)> {
        let key = (rows.location_hash(), rows.body_len());
        let (number, slot) = self.files.state.lock().at_location(self.group, self.task, key);
        let found = self.in_slot(number, &slot, rows);
        let mut state = self.files.state.lock();
        if found.is_err() {
            state.remove(self.group, number);
        }
        self.files.trim(&mut state);
        found
    }

    fn in_slot(&self, number: u64, slot: &Slot, rows: &EncodedRows) -> io::Result<(Arc<SealedFile>, bool)> {
        let mut written = slot.lock();
        if let Some(there) = &*written {
            return there.of_equal(rows).map_or_else(|| own_file(rows), |file| Ok((file, true)));
        }
        let hash = rows.hash();
        let equal = self.files.state.lock().with_hash(self.group, self.task, number, hash);
        let Some(equal) = equal else {
            return Ok((Arc::clone(&written.insert(Written::of(rows)?).file), false));
        };
        drop(written);
        let equal = equal.lock().as_ref().and_then(|there| there.of_equal(rows));
        equal.map_or_else(|| own_file(rows), |file| Ok((file, true)))
    }
}

/// A file that no other reader gets: another body has the same hash, or could not be written.
fn own_file(rows: &EncodedRows) -> io::Result<(Arc<SealedFile>, bool)> {
    Ok((Arc::new(rows.write_file()?), false))
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.files.state.lock();
        let Some(of) = state.groups.get_mut(&self.group) else { return };
        of.members.remove(&self.task);
        if of.members.is_empty() {
            state.groups.remove(&self.group);
            let group = self.group;
            state.order.retain(|_, of| *of != group);
        }
        self.files.trim(&mut state);
    }
}

/// The bodies that the readers of one task get.
#[derive(Debug)]
pub(crate) struct TaskBodies {
    task: TaskId,
    files: Arc<BodyFiles>,
    /// Names the tasks whose elements may be equal; none for a job that shares nothing, or whose order of rows is not part of the
    /// epoch.
    group: Option<u128>,
    /// Joined with the first body: readers may all be elsewhere.
    member: OnceLock<Member>,
    mapped_bytes: AtomicU64,
    reused_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl TaskBodies {
    pub(crate) fn new(task: TaskId, files: Arc<BodyFiles>, group: Option<u128>) -> Self {
        Self {
            task,
            files,
            group,
            member: OnceLock::new(),
            mapped_bytes: AtomicU64::new(0),
            reused_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }

    /// Whether readers of other tasks may get the same bodies.
    pub(crate) fn are_shared(&self) -> bool {
        self.group.is_some()
    }

    /// A file with a body, and whether a task of another job had put it there. Blocking: the bytes are copied or compared.
    ///
    /// # Errors
    /// Those of the system: no memory, no descriptor.
    pub(crate) fn file(&self, rows: &EncodedRows) -> io::Result<(Arc<SealedFile>, bool)> {
        match self.group {
            Some(group) => self.member.get_or_init(|| self.files.join(group, self.task)).file(rows),
            None => rows.write_file().map(|file| (Arc::new(file), false)),
        }
    }

    /// A reader got a body in a file.
    pub(crate) fn add_mapped(&self, bytes: u64, was_there: bool) {
        self.mapped_bytes.fetch_add(bytes, Ordering::Relaxed);
        if was_there {
            self.reused_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A reader got a body over a socket.
    pub(crate) fn add_sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn reused_bytes(&self) -> u64 {
        self.reused_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use arrow_array::{Int64Array, RecordBatch};
    use caju_wire::{Chunk, SplitFacts, encode_rows};

    use super::*;

    /// A body of 8000 bytes that depends on `first`, in pieces of any size.
    fn rows(first: i64, pieces: usize) -> EncodedRows {
        let ids = Int64Array::from_iter_values(first..first + 1000);
        let whole = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        let each = 1000 / pieces;
        let pieces = (0..pieces).map(|at| whole.slice(at * each, each)).collect();
        encode_rows(&Chunk { pieces, ..Chunk::rows_of(whole, Vec::new()) }, SplitFacts::default()).unwrap()
    }

    /// Bytes of [`rows`], with the padding.
    const BYTES: u64 = 8000;

    fn task(files: &Arc<BodyFiles>, id: u64, group: u128) -> TaskBodies {
        TaskBodies::new(TaskId(id), Arc::clone(files), Some(group))
    }

    fn was_there(task: &TaskBodies, first: i64, pieces: usize) -> bool {
        let (file, was_there) = task.file(&rows(first, pieces)).unwrap();
        assert!(rows(first, 1).has_body(file.map().unwrap().as_ref()));
        was_there
    }

    #[test]
    fn equal_bodies_of_one_group_are_one_file() {
        let files = BodyFiles::new(1 << 20, 1 << 20);
        let (a, b, c) = (task(&files, 1, 7), task(&files, 2, 7), task(&files, 3, 8));
        assert!(!was_there(&a, 0, 1));
        assert!(was_there(&b, 0, 4), "however it is cut");
        assert!(!was_there(&b, 5, 1), "other rows");
        assert!(!was_there(&c, 0, 1), "another pipeline");
        assert_eq!(files.usage(), (3 * BYTES, 1 << 20));
        drop((a, b));
        assert_eq!(files.usage().0, BYTES, "the last task of a group takes its files along");
        drop(c);
        assert_eq!(files.usage().0, 0);
    }

    #[test]
    fn bodies_of_the_same_arrays_are_one_file_also_when_the_arrays_are_released() {
        let files = BodyFiles::new(16 * BYTES, 0);
        let (a, b) = (task(&files, 1, 7), task(&files, 2, 7));
        let same: Vec<EncodedRows> = (0..10).map(|first| rows(first * 1000, 1)).collect();
        assert!(!was_there(&b, -1000, 1), "it joins");
        for rows in &same {
            assert!(!a.file(rows).unwrap().1);
        }
        let held = || files.state.lock().groups[&7].by_location.len();
        assert_eq!(held(), 4, "a share of the bound");
        assert_eq!(files.usage().0, 10 * BYTES);
        for rows in &same {
            let (file, was_there) = b.file(rows).unwrap();
            assert!(was_there && rows.has_body(file.map().unwrap().as_ref()));
        }
        assert_eq!((held(), files.usage().0), (0, 0), "both have had them");
    }

    #[test]
    fn other_rows_at_the_place_of_released_ones_get_a_file_of_their_own() {
        let files = BodyFiles::new(1 << 20, 1 << 20);
        let (a, b) = (task(&files, 1, 7), task(&files, 2, 7));
        // Memory that is free may be used again for each.
        for first in 0..50 {
            for task in [&a, &b] {
                let (file, _) = task.file(&rows(first, 1)).unwrap();
                assert!(rows(first, 1).has_body(file.map().unwrap().as_ref()));
            }
        }
    }

    #[test]
    fn files_are_held_until_all_tasks_have_had_them() {
        let files = BodyFiles::new(1 << 20, 0);
        let a = task(&files, 1, 7);
        was_there(&a, 0, 1);
        assert_eq!(files.usage().0, 0, "nobody else is there");
        let b = task(&files, 2, 7);
        was_there(&b, 5, 1);
        was_there(&a, 9, 1);
        assert_eq!(files.usage().0, 2 * BYTES);
        assert!(was_there(&a, 5, 1) && was_there(&b, 9, 1));
        assert_eq!(files.usage().0, 0);
        was_there(&a, 20, 1);
        assert_eq!(files.usage().0, BYTES, "the other one has not had it");
        // A task that ends, because its reader was killed or otherwise, is waited for no longer.
        drop(b);
        assert_eq!(files.usage().0, 0);
    }

    #[test]
    fn a_task_that_stands_still_does_not_hold_more_than_the_limit() {
        let files = BodyFiles::new(3 * BYTES, 0);
        let (a, b) = (task(&files, 1, 7), task(&files, 2, 7));
        was_there(&b, -5000, 1);
        for first in 0..10 {
            was_there(&a, first, 1);
            assert!(files.usage().0 <= 3 * BYTES);
        }
        let there: Vec<bool> = (0..10).map(|first| was_there(&b, first, 1)).collect();
        assert_eq!(there, [false; 10], "what left was written again, and pushed out the others");
        assert!(files.usage().0 <= 3 * BYTES);
    }

    #[test]
    fn several_tasks_that_want_a_body_at_once_get_one_file() {
        let files = BodyFiles::new(1 << 20, 1 << 20);
        let tasks: Vec<TaskBodies> = (0..4).map(|id| task(&files, id, 7)).collect();
        let there = std::thread::scope(|scope| {
            let all: Vec<_> = tasks
                .iter()
                .map(|t| scope.spawn(|| (0..50).filter(|i| was_there(t, i * 7, 1)).count()))
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).sum::<usize>()
        });
        assert_eq!(there, 150, "of 200 bodies 50 were written");
    }
}
