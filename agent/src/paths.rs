//! Where the agent keeps and writes things, all below `--root`.

use crate::host::HostPath;

/// The agent's configuration.
pub const CONFIG: &str = "/etc/stemma/agent.toml";

/// Executables that are told of a change.
pub const HOOKS: &str = "/etc/stemma/hooks.d";

/// What services read: labels, traits, tags.
pub const RUN: &str = "/run/stemma";

/// Everything that the agent keeps. `apply/` and `identity` are written by apply, the rest by sync.
pub const STATE: &str = "/var/lib/stemma-agent";

/// The root half's own state.
pub const APPLY_STATE: &str = "/var/lib/stemma-agent/apply";

/// The host label map, unless the configuration names another file.
pub const HOST_LABEL_MAP: &str = "/etc/stemma/node-labels";

/// One of the paths above, or below them.
///
/// # Panics
/// When the text is no plain absolute path: a mistake in this program.
#[must_use]
pub fn own(text: &str) -> HostPath {
    HostPath::own(text)
}
