//! Paths of the files that the agent reads and writes. All paths are below `--root`.

use stemma_core::task::is_at_or_below;
pub use stemma_core::task::{
    AGENT_CONFIG_FILE as CONFIG, AGENT_RUN_DIR as RUN, AGENT_STATE_DIR as STATE, DEFAULT_HOST_LABEL_MAP,
};

use crate::host::HostPath;

/// Directory of the hooks: programs that the agent runs after a change of labels, annotations, traits or tags.
pub const HOOKS: &str = "/etc/stemma/hooks.d";

/// Directory with the state of the root half of the agent (`apply`), which runs the tasks. The network half (`sync`)
/// writes the other directory in [`STATE`]. The command `join` writes the identity file there.
pub const APPLY_STATE: &str = "/var/lib/stemma-agent/apply";

/// Returns whether a path is the hooks directory or below it, so that the agent may execute a file at this path.
#[must_use]
pub fn is_hook(path: &HostPath) -> bool {
    is_at_or_below(path.as_str(), HOOKS)
}
