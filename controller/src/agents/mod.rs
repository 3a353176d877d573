//! The agents' side: what each node is to be told, and the listener that tells it.
//!
//! Reconcile decides and never touches the network; the listener answers and never decides. Between them stand
//! two seams: `desired` (what was decided, per node) and `intake` (what the hosts say).

pub mod desired;
pub mod intake;
