//! Decides when a task set is released, and which barriers are open.
//!
//! Both decisions are functions of a snapshot and the time. The controller only carries them out, and a test can check
//! them for any time. Budgets, windows and leases belong here too, because they are further reasons to make a node wait
//! that is due.

mod barrier_order;
mod barriers;
mod kept_task_set;
mod obsolete;
mod quota;
mod release;

pub use barriers::{AffectedNodeSet, Completion, TaskResults, Wave};
pub use kept_task_set::{KeptProfile, KeptTaskSet, plan_kept};
pub use obsolete::obsolete_barriers;
pub use quota::{QuotaDecision, RecordQuota, RecordSize, max_record_bytes};
pub use release::{ReleaseCandidate, ReleaseKey, ReleaseState};
