//! The agents' API: the desired state of each node, and the listener that sends it.
//!
//! Reconcile decides and never uses the network. The listener responds and never decides. Two interfaces separate them:
//! `desired` (the decisions, per node) and `intake` (the reports of hosts).

mod checkin;
mod content;
mod listener;
mod liveness;

pub(crate) use listener::CHECK_IN_PATH;
pub use listener::{AgentBody, AgentsListener};
pub use liveness::{create_slots, store_confirmations, watch_silence};
