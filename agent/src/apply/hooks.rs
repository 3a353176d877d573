//! Hooks: executables of the host's owner that run after a change.
//!
//! A hook receives the difference between the present state and the snapshot that the hooks last received. That
//! snapshot is stored on disk, so a change is delivered once, together with others that arrived in the meantime. If a
//! crash makes it uncertain whether the hooks received a change, the change is delivered again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use log::{info, warn};
use serde::Serialize;

use super::ledger::{Desired, HookSnapshot};
use crate::host::command::log_excerpt;
use crate::host::{CommandPurpose, Host, HostCommand, HostError, HostPath};
use crate::{hook_files, paths};

/// A change of a node's desired state, as hooks read it on standard input in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HookInput {
    /// Name of the node.
    pub node: String,
    /// The change of the effective labels.
    pub labels: MapChange,
    /// The change of the annotations.
    pub annotations: MapChange,
    /// The change of the traits.
    pub traits: SetChange,
    /// The change of the tags and primaries. A tag is `NAME`, or `NAME:VALUE` if it has a value. A tag of which the
    /// node is primary also adds `primary-NAME`.
    pub tags: SetChange,
}

/// A change of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MapChange {
    /// New and changed entries, with their values.
    pub set: BTreeMap<String, String>,
    /// Removed keys.
    pub removed: BTreeSet<String>,
}

/// A change of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetChange {
    /// New entries.
    pub added: BTreeSet<String>,
    /// Removed entries.
    pub removed: BTreeSet<String>,
}

/// Returns the part of a desired state that hooks receive: labels, annotations, traits, tags and primaries.
#[must_use]
pub fn snapshot(desired: &Desired) -> HookSnapshot {
    let primaries = desired.task_set.primaries.iter().map(|name| format!("primary-{name}"));
    HookSnapshot {
        labels: desired.known.labels.iter().map(|(key, label)| (key.clone(), label.value.clone())).collect(),
        annotations: desired.known.annotations.clone(),
        traits: desired.known.traits.iter().cloned().collect(),
        tags: desired.task_set.tags.iter().cloned().chain(primaries).collect(),
    }
}

/// Returns the change from the snapshot `old` to the snapshot `new`, or `None` if they are equal.
#[must_use]
pub fn change(node: &str, old: &HookSnapshot, new: &HookSnapshot) -> Option<HookInput> {
    let change = HookInput {
        node: node.to_owned(),
        labels: map_change(&old.labels, &new.labels),
        annotations: map_change(&old.annotations, &new.annotations),
        traits: set_change(&old.traits, &new.traits),
        tags: set_change(&old.tags, &new.tags),
    };
    (old != new).then_some(change)
}

/// Returns the entries of `new` that differ from `old`, and the keys that only `old` has.
fn map_change(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> MapChange {
    let set = new.iter().filter(|&(key, value)| old.get(key) != Some(value));
    MapChange {
        set: set.map(|(key, value)| (key.clone(), value.clone())).collect(),
        removed: old.keys().filter(|key| !new.contains_key(*key)).cloned().collect(),
    }
}

fn set_change(old: &BTreeSet<String>, new: &BTreeSet<String>) -> SetChange {
    SetChange { added: new.difference(old).cloned().collect(), removed: old.difference(new).cloned().collect() }
}

/// A message of the agent about each hook that failed, by the name of the hook.
pub type HookFailures = BTreeMap<String, String>;

/// Runs the hooks one after the other, in the order of their names, each with the timeout, and returns the failures.
/// Does not report entries that are no hooks, because `hook_files` does. Runs nothing if the directory is unreadable.
pub async fn run(host: Rc<dyn Host>, change: HookInput, timeout: Duration) -> HookFailures {
    let input = serde_json::to_vec(&change).expect("a change contains only texts");
    let mut failures = HookFailures::new();
    // The first part of the result contains the names of the hooks, the second the findings.
    for name in hook_files::list_hooks(&*host).unwrap_or_default().0 {
        let path = host.system_path(&HostPath::from_static(paths::HOOKS)).join(&name).display().to_string();
        let purpose = CommandPurpose::Hook(name.clone());
        let command = HostCommand { input: input.clone(), purpose, ..HostCommand::new(vec![path.clone()], timeout) };
        match host.run(&command).await {
            Ok(finished) if finished.end.is_success() => info!(name = name.as_str(); "a hook has processed a change"),
            Ok(finished) => {
                let (error, output) = (finished.end.sentence(), log_excerpt(&finished.output));
                warn!(name = name.as_str(), error = error.as_str(), output; "a hook failed");
                failures.insert(name.clone(), format!("hook {name} {error}"));
            }
            Err(error) => {
                let error = with_hook_path(error, &path, &name).sentence();
                warn!(name = name.as_str(), error = error.as_str(); "a hook failed");
                failures.insert(name.clone(), format!("hook {name}: {error}"));
            }
        }
    }
    failures
}

/// Replaces the path of a hook in an error by its path below the agent's `--root`, because other findings name hooks in
/// this form.
fn with_hook_path(error: HostError, full_path: &str, name: &str) -> HostError {
    match error {
        HostError::Io { operation, path, source } if path == full_path => {
            HostError::Io { operation, path: format!("{}/{name}", paths::HOOKS), source }
        }
        other => other,
    }
}

/// Removes the failures of hooks that no longer exist, or that may no longer be run.
pub(super) fn prune_failures(host: &dyn Host, failures: &mut HookFailures) {
    if !failures.is_empty()
        && let Ok((names, _)) = hook_files::list_hooks(host)
    {
        failures.retain(|name, _| names.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::skipped_by_name;
    use crate::hook_files::findings;
    use crate::host::memory::MemoryHost;
    use crate::host::real::RealHost;
    use crate::host::{CommandResult, ExitKind};

    fn test_snapshot(labels: &[(&str, &str)], tags: &[&str]) -> HookSnapshot {
        HookSnapshot {
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..HookSnapshot::default()
        }
    }

    #[test]
    fn change_contains_only_differences() {
        let old = test_snapshot(&[("a", "1"), ("b", "1"), ("c", "1")], &["x"]);
        let new = test_snapshot(&[("a", "1"), ("b", "2"), ("d", "1")], &["y"]);
        assert_eq!(change("n", &old, &old), None);
        let json = serde_json::to_string(&change("n", &old, &new).unwrap()).unwrap();
        assert_eq!(
            json,
            r#"{"node":"n","labels":{"set":{"b":"2","d":"1"},"removed":["c"]},"annotations":{"set":{},"removed":[]},"traits":{"added":[],"removed":[]},"tags":{"added":["y"],"removed":["x"]}}"#
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn run_executes_hooks_by_name_unless_writable_by_others() {
        let host = MemoryHost::new();
        for (name, mode) in [("20-b", 0o755), ("10-a", 0o700), ("30-open", 0o777), ("README", 0o644)] {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), mode);
        }
        let failures = run(Rc::new(host.clone()), HookInput::default(), Duration::from_secs(1)).await;
        let findings = findings(&host);
        assert_eq!(failures, HookFailures::new());
        assert_eq!(host.commands_run(), [["/etc/stemma/hooks.d/10-a"], ["/etc/stemma/hooks.d/20-b"]]);
        assert_eq!(findings, ["hook 30-open can be written by others and is not run: chmod go-w, chown root"]);
        let input = host.last_command().unwrap().input;
        assert!(input.starts_with(b"{\"node\":\"\",\"labels\":{\"set\""));
    }

    /// Regression test: the message named the hook by its path with `--root` in front, and stated that the hook did not
    /// exist. In fact only the interpreter of the hook is missing.
    #[tokio::test(flavor = "current_thread")]
    async fn y09_run_names_hook_path_when_interpreter_is_missing() {
        let root = tempfile::tempdir().unwrap();
        // A separate shell writes the script. Other tests fork this process, and such a child would hold the script
        // open for writing. The system does not run a script that is open for writing.
        let script =
            "umask 022; mkdir -p etc/stemma/hooks.d && cd etc/stemma/hooks.d && echo '#!/no/such' > 50-i && chmod 755 50-i";
        let status = std::process::Command::new("sh").args(["-c", script]).current_dir(root.path()).status().unwrap();
        assert!(status.success());
        let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
        let failures = run(host, HookInput::default(), Duration::from_mins(2)).await;
        let expected = "hook 50-i: cannot run /etc/stemma/hooks.d/50-i: it exists, and the interpreter \"/no/such\" that its first line \
                    names is missing: install that, or name another one";
        assert_eq!(failures.values().collect::<Vec<_>>(), [expected]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn y08_run_ignores_editor_and_package_manager_files() {
        let host = MemoryHost::new();
        let skipped = ["#50-reload#", "50-reload.bak", "50-reload.dpkg-old", "50-reload.rpmsave", "50-reload.sh", "50-reload~"];
        // A hidden file is ignored without a finding.
        for name in skipped.into_iter().chain(["50-reload", ".50-reload.swp"]) {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), 0o755);
        }
        host.put("/etc/stemma/hooks.d/README.md", "");
        host.chmod("/etc/stemma/hooks.d/README.md", 0o644);
        let failures = run(Rc::new(host.clone()), HookInput::default(), Duration::from_secs(1)).await;
        let findings = findings(&host);
        assert_eq!(failures, HookFailures::new());
        assert_eq!(host.commands_run(), [["/etc/stemma/hooks.d/50-reload"]]);
        assert_eq!(findings, [skipped_by_name(paths::HOOKS, &skipped.map(str::to_owned)).unwrap()]);
    }

    /// The program `run-parts` runs hooks that are symbolic links. The agent skips links, and earlier did so without a
    /// finding.
    #[tokio::test(flavor = "current_thread")]
    async fn y08_findings_name_links_and_special_files_with_advice() {
        let host = MemoryHost::new();
        // The last two are ignored because of their names, and the hidden one without a finding.
        for name in ["10-link", "11-dangling", "12-link", "13-link", "14-link", "20-link~", ".30-link"] {
            host.put_link(&format!("/etc/stemma/hooks.d/{name}"));
        }
        host.put_special("/etc/stemma/hooks.d/40-fifo");
        host.put("/etc/stemma/hooks.d/50-dir/README", "");
        host.put("/etc/stemma/hooks.d/60-file", "");
        host.chmod("/etc/stemma/hooks.d/60-file", 0o755);
        let failures = run(Rc::new(host.clone()), HookInput::default(), Duration::from_secs(1)).await;
        let findings = findings(&host);
        assert_eq!(failures, HookFailures::new());
        assert_eq!(host.commands_run(), [["/etc/stemma/hooks.d/60-file"]]);
        let name_finding = skipped_by_name(paths::HOOKS, &["20-link~".to_owned()]).unwrap();
        let link_finding = r#"/etc/stemma/hooks.d: not run, since symbolic links are not followed: "10-link", "11-dangling", "12-link", "13-link" and 1 more: copy the file itself there, or put a script there that runs it"#;
        let special_file_finding =
            r#"/etc/stemma/hooks.d: not run, since they are not regular files: "40-fifo", "50-dir": move them away"#;
        assert_eq!(findings, [name_finding.as_str(), link_finding, special_file_finding]);
    }

    /// Regression test: the failure of a hook was reported until the next change, even if the hook was deleted.
    #[tokio::test(flavor = "current_thread")]
    async fn y08_failure_is_reported_until_hook_is_deleted() {
        let host = MemoryHost::new();
        host.on_run(|_, _| CommandResult { end: ExitKind::Status(3), output: String::new() });
        for name in ["10-a", "20-b"] {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), 0o755);
        }
        let mut failures = run(Rc::new(host.clone()), HookInput::default(), Duration::from_secs(1)).await;
        let messages = |failures: &HookFailures| failures.values().cloned().collect::<Vec<_>>();
        assert_eq!(messages(&failures), ["hook 10-a ended with status 3", "hook 20-b ended with status 3"]);
        host.delete("/etc/stemma/hooks.d/10-a");
        prune_failures(&host, &mut failures);
        assert_eq!(messages(&failures), ["hook 20-b ended with status 3"]);
        // The failure of a hook that others can write is removed, because that hook is not run. A finding reports it
        // instead.
        host.chmod("/etc/stemma/hooks.d/20-b", 0o777);
        prune_failures(&host, &mut failures);
        assert_eq!(failures, HookFailures::new());
        assert_eq!(findings(&host), ["hook 20-b can be written by others and is not run: chmod go-w, chown root"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn s71_run_executes_nothing_when_others_can_write_directory() {
        for dir in ["/etc", "/etc/stemma", "/etc/stemma/hooks.d"] {
            for (mode, owner) in [(0o777, 0), (0o775, 0), (0o755, 1000), (0o1777, 0)] {
                let host = MemoryHost::new();
                host.put("/etc/stemma/hooks.d/10-a", "");
                host.chmod("/etc/stemma/hooks.d/10-a", 0o755);
                host.chmod(dir, mode);
                host.chown(dir, owner);
                let failures = run(Rc::new(host.clone()), HookInput::default(), Duration::from_secs(1)).await;
                let findings = findings(&host);
                assert_eq!(failures, HookFailures::new());
                let finding = format!("{dir} can be written by others, so no hook is run: chmod go-w, chown root");
                assert_eq!((host.commands_run(), findings), (vec![], vec![finding]), "{mode:o} {owner}");
            }
        }
    }
}
