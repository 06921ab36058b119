//! Clients keep the tasks of a version: a list of tasks that changes has another version. Every test of this crate checks that.

use std::collections::{BTreeSet, HashMap};

use caju_proto::v1;
use caju_types::{ClientId, IterationId};
use parking_lot::Mutex;

use crate::control::task_infos;
use crate::state::State;

/// Readers and tasks of an iteration up to which every step is checked.
const MOST: usize = 64;

/// The last version of each list.
#[derive(Debug, Default)]
pub(crate) struct TaskLists(Mutex<HashMap<(IterationId, ClientId), Known>>);

/// A version of an iteration, and the tasks that it has for a client.
type Known = (u64, Vec<v1::TaskInfo>);

impl TaskLists {
    /// Compares the lists of changed iterations with their last versions.
    pub(crate) fn check(&self, state: &State, touched: &BTreeSet<IterationId>) {
        let mut known = self.0.lock();
        for iteration in touched.iter().filter_map(|id| state.iterations.get(id)) {
            if iteration.members.len() * iteration.tasks.len() > MOST {
                continue;
            }
            for client in iteration.own_members() {
                let list = task_infos(state, iteration, client);
                let last = known.insert((iteration.id, client), (iteration.version, list.clone()));
                if let Some((version, last)) = last.filter(|(version, _)| *version == iteration.version) {
                    assert_eq!(
                        last, list,
                        "{client} of {} keeps what it has of version {version}",
                        iteration.id
                    );
                }
            }
        }
    }
}
