//! Where the agent keeps and writes things, all below `--root`.

use stemma_core::task::is_at_or_below;
pub use stemma_core::task::{AGENT_CONFIG as CONFIG, AGENT_RUN as RUN, AGENT_STATE as STATE};

use crate::host::HostPath;

/// Executables that are told of a change.
pub const HOOKS: &str = "/etc/stemma/hooks.d";

/// The root half's own state. It writes this and `identity` below [`STATE`]; sync writes the rest.
pub const APPLY_STATE: &str = "/var/lib/stemma-agent/apply";

/// The host label map, unless the configuration names another file.
pub const HOST_LABEL_MAP: &str = "/etc/stemma/node-labels";

/// Whether a name is one that is read in a directory which packages and people write too: of letters, digits, `_` and `-` alone, as `run-parts`
/// takes it (run-parts(8)). So what editors and package managers leave beside a file (`10-a~`, `10-a.dpkg-old`, `#10-a#`) is none.
#[must_use]
pub fn is_shared_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Whether the agent runs what is put there.
#[must_use]
pub fn is_hook(path: &HostPath) -> bool {
    is_at_or_below(path.as_str(), HOOKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y08_a_shared_name_is_one_that_run_parts_takes() {
        for name in ["50-reload", "reload", "RELOAD_2", "_x", "-", "0"] {
            assert!(is_shared_name(name), "{name}");
        }
        for name in [
            "",
            "50-reload~",
            "50-reload.dpkg-old",
            "50-reload.dpkg-dist",
            "50-reload.dpkg-new",
            "50-reload.dpkg-tmp",
            "50-reload.rpmsave",
            "50-reload.rpmnew",
            "50-reload.rpmorig",
            "50-reload.ucf-old",
            "50-reload.ucf-dist",
            "50-reload.bak",
            "50-reload.orig",
            "50-reload.swp",
            ".50-reload.swp",
            "#50-reload#",
            ".#50-reload",
            ".hidden",
            "50-reload.sh",
            "50 reload",
            "50-reload,v",
            "réload",
            "a\nb",
            "a/b",
        ] {
            assert!(!is_shared_name(name), "{name}");
        }
    }
}
