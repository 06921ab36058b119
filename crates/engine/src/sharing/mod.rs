//! Sharing between jobs that run concurrently: a split is computed once on a worker, for all jobs that need its rows.
//!
//! A pipeline has *sharing points*: its active hints with split-local stages alone above them, and the end of its split-local
//! stages. Two jobs share the points whose prefix, columns and draws are equal. A worker has one [`SharingWindow`], bounded in
//! bytes. The first task that runs a split puts the rows that pass a point into the window. A task of another job that leases
//! the split reads them there. Rows keep their ordinals, so each job acknowledges, repeats and resumes as it does alone.
//!
//! Under `sharing: relaxed` a task computes no row that another job computed in the same epoch: rows that have left the window
//! are skipped, and counted.
//!
//! Rows that a job still needs and that do not fit in the window's memory are dropped, or written to files under
//! [`SharingLag::Spill`]. The file of a split holds its batches as Arrow IPC streams, one after another. Nothing else of a split
//! has to be written: ordinals follow from the numbers of rows, and the count of skipped rows stays in memory. A file that cannot
//! be read is a split that is not in the window.
//!
//! A task never depends on another one. It computes the remaining rows of a split itself when the task that computed them
//! fails, ends, or gives no row for [`SharingSettings::wait`], and when the window had no space for them. Where its own readers
//! could take more than they get ([`Demand`]), it does so too when the readers of the other task held the rows of the split back
//! for that long in total, and it begins other splits rather than those. The stages of the other task below the point may hold
//! rows back like its readers.

mod demand;
mod evicted;
mod flight;
mod had;
mod job;
mod locks;
mod member;
mod point;
mod settings;
mod shared_split;
mod spill;
mod stats;
mod window;

pub(crate) use demand::HeldBack;
pub use demand::{Demand, FullOutput};
pub(crate) use flight::{Begin, Flights};
pub(crate) use job::MayShare;
pub use job::SharingJob;
pub(crate) use member::SharedRows;
pub use member::SharingMember;
pub use point::SharingPoint;
pub(crate) use point::{END, entry_index};
pub use settings::{SharingLag, SharingSettings};
pub(crate) use shared_split::Next;
pub use spill::SpillFolder;
pub use stats::{SharedCounts, WindowUsage};
pub use window::SharingWindow;
