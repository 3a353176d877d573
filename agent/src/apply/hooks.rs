//! Hooks: executables of the host's owner that run after a change.
//!
//! A hook gets the difference to the snapshot that the hooks got last. The snapshot is kept on disk. So a change is passed
//! on once, together with others that came in the meantime, and again after a crash that left open whether it was.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use log::{info, warn};
use serde::Serialize;
use stemma_core::name::is_run_parts_name;

use super::ledger::{Desired, HookSnapshot};
use crate::findings::{left_out, not_run};
use crate::host::command::logged;
use crate::host::{Command, Host, HostError, HostPath, Kind};
use crate::paths;

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

/// Runs the hooks by name, one after the other, and gives what people should know.
pub async fn run(host: Rc<dyn Host>, change: Change, limit: Duration) -> Vec<String> {
    let (names, mut findings) = match hooks(&*host) {
        Ok(found) => found,
        Err(error) => return vec![format!("{}: {}", paths::HOOKS, error.sentence())],
    };
    let input = serde_json::to_vec(&change).expect("a change is texts alone");
    for name in names {
        let path = host.outside(&HostPath::own(paths::HOOKS)).join(&name).display().to_string();
        let command = Command { input: input.clone(), ..Command::new(vec![path], limit) };
        match host.run(&command).await {
            Ok(finished) if finished.end.is_success() => info!(name = name.as_str(); "a hook was told of a change"),
            Ok(finished) => {
                let (error, output) = (finished.end.sentence(), logged(&finished.output));
                warn!(name = name.as_str(), error = error.as_str(), output; "a hook failed");
                findings.push(format!("hook {name} {error}"));
            }
            Err(error) => findings.push(format!("hook {name}: {}", error.sentence())),
        }
    }
    findings
}

/// The executables, by name; one that others may write is never run as root (S71).
fn hooks(host: &dyn Host) -> Result<(Vec<String>, Vec<String>), HostError> {
    let Some(dir) = host.dir(&HostPath::own(paths::HOOKS))? else { return Ok((Vec::new(), Vec::new())) };
    let (mut names, mut findings) = (Vec::new(), Vec::new());
    let (own, _) = host.identity();
    if let Some(open) = host.open_to_others(&HostPath::own(paths::HOOKS))? {
        findings.push(format!("{open} can be written by others, so no hook is run: chmod go-w, chown root"));
        return Ok((names, findings));
    }
    let (mut left, mut links, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for name in dir.names()?.into_iter().filter(|name| !name.starts_with('.')) {
        let Some(stat) = dir.stat(&name)? else { continue };
        if stat.kind == Kind::File && stat.mode & 0o111 == 0 {
            continue;
        }
        if !is_run_parts_name(&name) {
            left.push(name);
        } else if stat.kind == Kind::Link {
            links.push(name);
        } else if stat.kind != Kind::File {
            others.push(name);
        } else if stat.is_open_to_others(own) {
            findings.push(format!("hook {name} can be written by others and is not run: chmod go-w, chown root"));
        } else {
            names.push(name);
        }
    }
    findings.extend(left_out(paths::HOOKS, &left));
    findings.extend(not_run(paths::HOOKS, &links, &others));
    Ok((names, findings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

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
        let findings = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
        assert_eq!(host.ran(), [["/etc/stemma/hooks.d/10-a"], ["/etc/stemma/hooks.d/20-b"]]);
        assert_eq!(findings, ["hook 30-open can be written by others and is not run: chmod go-w, chown root"]);
        let input = host.last_run().unwrap().input;
        assert!(input.starts_with(b"{\"node\":\"\",\"labels\":{\"set\""));
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
        let findings = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
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
        let findings = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
        assert_eq!(host.ran(), [["/etc/stemma/hooks.d/60-file"]]);
        let by_name = left_out(paths::HOOKS, &["20-link~".to_owned()]).unwrap();
        let links = r#"/etc/stemma/hooks.d: not run, since symbolic links are not followed: "10-link", "11-dangling", "12-link", "13-link" and 1 more: copy the file itself there, or put a script there that runs it"#;
        let others =
            r#"/etc/stemma/hooks.d: not run, since they are no regular files: "40-fifo", "50-dir": move them away"#;
        assert_eq!(findings, [by_name.as_str(), links, others]);
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
                let findings = run(Rc::new(host.clone()), Change::default(), Duration::from_secs(1)).await;
                let said = format!("{open} can be written by others, so no hook is run: chmod go-w, chown root");
                assert_eq!((host.ran(), findings), (vec![], vec![said]), "{mode:o} {user}");
            }
        }
    }
}
