//! Where the agent keeps and writes things, all below `--root`.

use stemma_core::task::is_at_or_below;
pub use stemma_core::task::{AGENT_CONFIG as CONFIG, AGENT_RUN as RUN, AGENT_STATE as STATE, HOST_LABEL_MAP};

use crate::host::HostPath;

/// Executables that are told of a change.
pub const HOOKS: &str = "/etc/stemma/hooks.d";

/// The root half's own state. It writes this and `identity` below [`STATE`]; sync writes the rest.
pub const APPLY_STATE: &str = "/var/lib/stemma-agent/apply";

/// Whether the agent runs what is put there.
#[must_use]
pub fn is_hook(path: &HostPath) -> bool {
    is_at_or_below(path.as_str(), HOOKS)
}
