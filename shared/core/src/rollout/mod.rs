//! When a task set is released, and which barriers are open.
//!
//! Both are functions of a snapshot and the time, so that the controller only carries out what is decided here, and a test can ask
//! at any time. Budgets, windows and leases belong here too: they are further reasons for which a node that is due waits.

mod barriers;
mod dropped;
mod keep;
mod release;
mod room;

pub use barriers::{Affected, Done, TaskResults, Wave};
pub use dropped::dropped_barriers;
pub use keep::{Kept, KeptProfile, keep};
pub use release::{Candidate, Content, Standing};
pub use room::{Admitted, RecordSize, Room, most_of_records};
