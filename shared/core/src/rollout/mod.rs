//! Decides when a task set is released, whether its record fits into the budget of its cluster, and which barriers are
//! open.
//!
//! These decisions depend only on what the caller passes, including the time. So a test can check the decisions for any
//! time, and the controller only carries them out. Any further reason to make a node wait, such as a window or a lease,
//! belongs here too.

mod barrier_order;
mod barriers;
mod kept_task_set;
mod obsolete;
mod quota;
mod release;

pub use barriers::{AffectedNodeSet, Completion, TaskResults, Wave};
pub use kept_task_set::{KeptProfile, KeptTaskSet, plan_kept_task_set};
pub use obsolete::obsolete_barriers;
pub use quota::{QuotaDecision, RecordQuota, RecordSize, max_record_bytes};
pub use release::{ReleaseCandidate, ReleaseKey, ReleaseState};
