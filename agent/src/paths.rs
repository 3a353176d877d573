//! Paths of the files that the agent reads and writes, all below `--root`.

use stemma_core::task::is_at_or_below;
pub use stemma_core::task::{
    AGENT_CONFIG_FILE as CONFIG, AGENT_RUN_DIR as RUN, AGENT_STATE_DIR as STATE, DEFAULT_HOST_LABEL_MAP,
};

use crate::host::HostPath;

/// Directory of the executables that the agent runs after a change.
pub const HOOKS: &str = "/etc/stemma/hooks.d";

/// Directory of the state of the root half. Below [`STATE`], the root half writes this directory and the identity file,
/// and the network half (`sync`) writes the rest.
pub const APPLY_STATE: &str = "/var/lib/stemma-agent/apply";

/// Returns whether a path is in the hooks directory, so that the agent would execute a file there.
#[must_use]
pub fn is_hook(path: &HostPath) -> bool {
    is_at_or_below(path.as_str(), HOOKS)
}
