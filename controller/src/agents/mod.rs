//! The agents' side: what each node is to be told, and the listener that tells it.
//!
//! Reconcile decides and never touches the network; the listener answers and never decides. Between them stand
//! two seams: `desired` (what was decided, per node) and `intake` (what the hosts say).

mod checkin;
mod content;
mod listener;
mod liveness;

pub(crate) use listener::CHECK_IN;
pub use listener::{AgentBody, AgentsListener};
pub use liveness::{make_places, store_confirmed, watch_silence};
