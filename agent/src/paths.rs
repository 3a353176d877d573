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

/// Whether a path is the agent's own: its state, what it writes for services, and what the host's owner decides for it.
/// No task writes there: one that did could undo what was verified, or lift the host's own ceiling.
#[must_use]
pub fn is_own(path: &HostPath) -> bool {
    [STATE, RUN, CONFIG].into_iter().any(|own| is_at_or_below(path, own))
}

/// Whether the agent runs what is put there.
#[must_use]
pub fn is_hook(path: &HostPath) -> bool {
    is_at_or_below(path, HOOKS)
}

fn is_at_or_below(path: &HostPath, own: &str) -> bool {
    path.as_str().strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s63_the_agents_own_files_are_no_tasks() {
        for (text, is) in [
            ("/var/lib/stemma-agent", true),
            ("/var/lib/stemma-agent/apply/accepted", true),
            ("/run/stemma/labels.json", true),
            ("/etc/stemma/agent.toml", true),
            ("/etc/stemma/hooks.d/10-a", false),
            ("/var/lib/stemma-agents", false),
            ("/etc/stemma/agent.toml.d", false),
        ] {
            assert_eq!(is_own(&HostPath::own(text)), is, "{text}");
        }
    }
}
