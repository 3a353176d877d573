//! Hooks: executables of the host's owner that run after a change.
//!
//! A hook gets the difference to the snapshot that the hooks got last. The snapshot is kept on disk. So a change is passed
//! on once, together with others that came in the meantime, and again after a crash that left open whether it was.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use log::{info, warn};
use serde::Serialize;

use super::ledger::{Desired, HookSnapshot};
use crate::host::command::logged;
use crate::host::{Command, Host, HostError, HostPath};
use crate::{hook_files, paths};

/// What changed, as hooks read it on standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The node's name.
    pub node: String,
    /// Labels.
    pub labels: MapChange,
    /// Annotations.
    pub annotations: MapChange,
    /// Traits.
    pub traits: SetChange,
    /// Tags, `NAME` or `NAME:VALUE`.
    pub tags: SetChange,
}

/// A change of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MapChange {
    /// New and changed ones, with their value.
    pub set: BTreeMap<String, String>,
    /// Those that are gone.
    pub removed: BTreeSet<String>,
}

/// A change of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetChange {
    /// New ones.
    pub added: BTreeSet<String>,
    /// Those that are gone.
    pub removed: BTreeSet<String>,
}

/// Everything whose change runs the hooks.
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

/// What changed from one to the other; `None` when nothing did.
#[must_use]
pub fn change(node: &str, before: &HookSnapshot, now: &HookSnapshot) -> Option<Change> {
    let change = Change {
        node: node.to_owned(),
        labels: map_change(&before.labels, &now.labels),
        annotations: map_change(&before.annotations, &now.annotations),
        traits: set_change(&before.traits, &now.traits),
        tags: set_change(&before.tags, &now.tags),
    };
    (before != now).then_some(change)
}

fn map_change(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> MapChange {
    let set = now.iter().filter(|&(key, value)| before.get(key) != Some(value));
    MapChange {
        set: set.map(|(key, value)| (key.clone(), value.clone())).collect(),
        removed: before.keys().filter(|key| !now.contains_key(*key)).cloned().collect(),
    }
}

fn set_change(before: &BTreeSet<String>, now: &BTreeSet<String>) -> SetChange {
    SetChange { added: now.difference(before).cloned().collect(), removed: before.difference(now).cloned().collect() }
}

/// What became of the hooks that failed, by their names.
pub type Failures = BTreeMap<String, String>;

/// Runs the hooks by name, one after the other, and gives which of them failed. What is there and is not run, `hook_files` says, and whenever
/// it is there.
pub async fn run(host: Rc<dyn Host>, change: Change, limit: Duration) -> Failures {
    let input = serde_json::to_vec(&change).expect("a change is texts alone");
    let mut failures = Failures::new();
    for name in hook_files::hooks(&*host).unwrap_or_default().0 {
        let path = host.outside(&HostPath::own(paths::HOOKS)).join(&name).display().to_string();
        let command = Command { input: input.clone(), ..Command::new(vec![path.clone()], limit) };
        match host.run(&command).await {
            Ok(finished) if finished.end.is_success() => info!(name = name.as_str(); "a hook was told of a change"),
            Ok(finished) => {
                let (error, output) = (finished.end.sentence(), logged(&finished.output));
                warn!(name = name.as_str(), error = error.as_str(), output; "a hook failed");
                failures.insert(name.clone(), format!("hook {name} {error}"));
            }
            Err(error) => {
                let error = by_own_path(error, &path, &name).sentence();
                warn!(name = name.as_str(), error = error.as_str(); "a hook failed");
                failures.insert(name.clone(), format!("hook {name}: {error}"));
            }
        }
    }
    failures
}

/// The same error with the path of its hook as every other finding names it, without what the agent's `--root` is.
fn by_own_path(error: HostError, outside: &str, name: &str) -> HostError {
    match error {
        HostError::Io { operation, path, source } if path == outside => {
            HostError::Io { operation, path: format!("{}/{name}", paths::HOOKS), source }
        }
        other => other,
    }
}

/// Forgets what became of hooks that are there no more.
pub(super) fn forget_gone(host: &dyn Host, failures: &mut Failures) {
    if !failures.is_empty()
        && let Ok((names, _)) = hook_files::hooks(host)
    {
        failures.retain(|name, _| names.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::left_out;
    use crate::hook_files::findings;
    use crate::host::memory::MemoryHost;
    use crate::host::real::RealHost;
    use crate::host::{End, Finished};

    fn said(labels: &[(&str, &str)], tags: &[&str]) -> HookSnapshot {
        HookSnapshot {
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..HookSnapshot::default()
        }
    }

    #[test]
    fn only_what_changed_is_told() {
        let before = said(&[("a", "1"), ("b", "1"), ("c", "1")], &["x"]);
        let now = said(&[("a", "1"), ("b", "2"), ("d", "1")], &["y"]);
        assert_eq!(change("n", &before, &before), None);
        let json = serde_json::to_string(&change("n", &before, &now).unwrap()).unwrap();
        assert_eq!(
            json,
            r#"{"node":"n","labels":{"set":{"b":"2","d":"1"},"removed":["c"]},"annotations":{"set":{},"removed":[]},"traits":{"added":[],"removed":[]},"tags":{"added":["y"],"removed":["x"]}}"#
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn executables_run_by_name_unless_others_may_write_them() {
        let host = MemoryHost::new();
        for (name, mode) in [("20-b", 0o755), ("10-a", 0o700), ("30-open", 0o777), ("README", 0o644)] {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), mode);
        }
        let failures = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
        let findings = findings(&host);
        assert_eq!(failures, Failures::new());
        assert_eq!(host.ran(), [["/etc/stemma/hooks.d/10-a"], ["/etc/stemma/hooks.d/20-b"]]);
        assert_eq!(findings, ["hook 30-open can be written by others and is not run: chmod go-w, chown root"]);
        let input = host.last_run().unwrap().input;
        assert!(input.starts_with(b"{\"node\":\"\",\"labels\":{\"set\""));
    }

    /// Its path was that from outside `--root`, and it was said not to be there.
    #[tokio::test(flavor = "current_thread")]
    async fn y09_a_hook_without_its_interpreter_says_so_by_the_path_that_findings_have() {
        let root = tempfile::tempdir().unwrap();
        // By another process: this one forks in other tests meanwhile, and what a child has open to write is not run.
        let script = "umask 022; mkdir -p etc/stemma/hooks.d && cd etc/stemma/hooks.d && echo '#!/no/such' > 50-i && chmod 755 50-i";
        let made = std::process::Command::new("sh").args(["-c", script]).current_dir(root.path()).status().unwrap();
        assert!(made.success());
        let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
        let failures = run(host, Change::default(), Duration::from_mins(2)).await;
        let said = "hook 50-i: cannot run /etc/stemma/hooks.d/50-i: it is there, and the interpreter \"/no/such\" that its first line \
                    names is not: install that, or name another one";
        assert_eq!(failures.values().collect::<Vec<_>>(), [said]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn y08_what_editors_and_package_managers_leave_is_not_run() {
        let host = MemoryHost::new();
        let left =
            ["#50-reload#", "50-reload.bak", "50-reload.dpkg-old", "50-reload.rpmsave", "50-reload.sh", "50-reload~"];
        for name in left.into_iter().chain(["50-reload", ".50-reload.swp"]) {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), 0o755);
        }
        host.put("/etc/stemma/hooks.d/README.md", "");
        host.chmod("/etc/stemma/hooks.d/README.md", 0o644);
        let failures = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
        let findings = findings(&host);
        assert_eq!(failures, Failures::new());
        assert_eq!(host.ran(), [["/etc/stemma/hooks.d/50-reload"]]);
        assert_eq!(findings, [left_out(paths::HOOKS, &left.map(str::to_owned)).unwrap()]);
    }

    /// `run-parts` follows a link: whoever put one there heard of nothing.
    #[tokio::test(flavor = "current_thread")]
    async fn y08_what_is_no_file_is_not_run_and_said_once_with_what_to_do() {
        let host = MemoryHost::new();
        for name in ["10-link", "11-dangling", "12-link", "13-link", "14-link", "20-link~", ".30-link"] {
            host.put_link(&format!("/etc/stemma/hooks.d/{name}"));
        }
        host.put_special("/etc/stemma/hooks.d/40-fifo");
        host.put("/etc/stemma/hooks.d/50-dir/README", "");
        host.put("/etc/stemma/hooks.d/60-file", "");
        host.chmod("/etc/stemma/hooks.d/60-file", 0o755);
        let failures = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
        let findings = findings(&host);
        assert_eq!(failures, Failures::new());
        assert_eq!(host.ran(), [["/etc/stemma/hooks.d/60-file"]]);
        let by_name = left_out(paths::HOOKS, &["20-link~".to_owned()]).unwrap();
        let links = r#"/etc/stemma/hooks.d: not run, since symbolic links are not followed: "10-link", "11-dangling", "12-link", "13-link" and 1 more: copy the file itself there, or put a script there that runs it"#;
        let others =
            r#"/etc/stemma/hooks.d: not run, since they are no regular files: "40-fifo", "50-dir": move them away"#;
        assert_eq!(findings, [by_name.as_str(), links, others]);
    }

    /// It stayed until a label changed.
    #[tokio::test(flavor = "current_thread")]
    async fn y08_a_failure_is_said_until_its_hook_is_gone() {
        let host = MemoryHost::new();
        host.on_run(|_, _| Finished { end: End::Status(3), output: String::new() });
        for name in ["10-a", "20-b"] {
            host.put(&format!("/etc/stemma/hooks.d/{name}"), "");
            host.chmod(&format!("/etc/stemma/hooks.d/{name}"), 0o755);
        }
        let mut failures = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
        let said = |failures: &Failures| failures.values().cloned().collect::<Vec<_>>();
        assert_eq!(said(&failures), ["hook 10-a ended with status 3", "hook 20-b ended with status 3"]);
        host.delete("/etc/stemma/hooks.d/10-a");
        forget_gone(&host, &mut failures);
        assert_eq!(said(&failures), ["hook 20-b ended with status 3"]);
        // What cannot be run any more is said to be so.
        host.chmod("/etc/stemma/hooks.d/20-b", 0o777);
        forget_gone(&host, &mut failures);
        assert_eq!(failures, Failures::new());
        assert_eq!(findings(&host), ["hook 20-b can be written by others and is not run: chmod go-w, chown root"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn s71_no_hook_runs_from_a_directory_that_others_may_write() {
        for open in ["/etc", "/etc/stemma", "/etc/stemma/hooks.d"] {
            for (mode, user) in [(0o777, 0), (0o775, 0), (0o755, 1000), (0o1777, 0)] {
                let host = MemoryHost::new();
                host.put("/etc/stemma/hooks.d/10-a", "");
                host.chmod("/etc/stemma/hooks.d/10-a", 0o755);
                host.chmod(open, mode);
                host.chown(open, user);
                let failures = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
                let findings = findings(&host);
                assert_eq!(failures, Failures::new());
                let said = format!("{open} can be written by others, so no hook is run: chmod go-w, chown root");
                assert_eq!((host.ran(), findings), (vec![], vec![said]), "{mode:o} {user}");
            }
        }
    }
}
