//! Orphans: what tasks left on a host after they fell away, and the clean-ups that run once because of that. An agent reports
//! both in one fact.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of the fact that lists the objects that tasks of the host left, that still exist, and that no task manages now.
/// It also lists the clean-ups.
pub const ORPHANS_FACT: &str = "agent.orphans";

/// The kind of a file, which is the default.
const FILE_KIND: &str = "file";

/// The kinds of objects whose name is a path.
const PATH_KINDS: [&str; 3] = [FILE_KIND, "directory", "link"];

/// The orphans of a host, as its agent reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// The objects that the host names, each with the task that left it. The host names only the first objects.
    pub listed: Vec<OrphanedObject>,
    /// The number of further orphaned objects, which the host counts but does not name.
    pub unlisted_count: u64,
    /// The clean-ups of tasks that are no longer placed on the node.
    pub clean_ups: Vec<CleanUpReport>,
}

/// An object of a host, such as a file or a package, that a task left and that no task manages now.
///
/// In JSON, a file, directory or link has the member `path`, and another object `name`. The member `kind` is absent for a
/// file, so that controllers of older versions, which know only files, read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "OrphanEntry", try_from = "OrphanEntry")]
pub struct OrphanedObject {
    /// The id of the task that left the object.
    pub task: String,
    /// The kind of the object: `file`, `directory`, `link`, `package`, `unit`, `user` or `group`. A newer agent may report
    /// other kinds.
    pub kind: String,
    /// The name of the object. The name of a file, directory or link is its path.
    pub name: String,
    /// True if the object may hold a secret, because a sensitive task managed it.
    pub is_secret: bool,
    /// The reason why the host does not remove the object although its nodegroup has `remove_orphans`. `None` without
    /// `remove_orphans`.
    pub kept: Option<String>,
}

/// The JSON form of an [`OrphanedObject`].
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrphanEntry {
    task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    secret: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
}

/// A task that runs once because the task that names it in `on_unassign` is no longer placed on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanUpReport {
    /// The id of the task that is no longer placed on the node.
    pub task: String,
    /// The id of the task that runs once because of that.
    pub on_unassign: String,
    /// Whether it has succeeded.
    pub state: CleanUpState,
    /// The reason of a failure, as a sentence for people. Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The state of a clean-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanUpState {
    /// It has not run yet.
    #[display("waiting")]
    Waiting,
    /// Its last run failed. The host tries again.
    #[display("failed")]
    Failed,
    /// It has succeeded, and does not run again.
    #[display("succeeded")]
    Succeeded,
}

/// The error for an orphan without a name.
#[derive(Debug, thiserror::Error)]
#[error("an orphan has neither `path` nor `name`")]
struct NoName;

impl From<OrphanedObject> for OrphanEntry {
    fn from(OrphanedObject { task, kind, name, is_secret, kept }: OrphanedObject) -> Self {
        let is_path = PATH_KINDS.contains(&kind.as_str());
        let (path, name) = if is_path { (Some(name), None) } else { (None, Some(name)) };
        Self { task, path, kind: (kind != FILE_KIND).then_some(kind), name, secret: is_secret, kept }
    }
}

impl TryFrom<OrphanEntry> for OrphanedObject {
    type Error = NoName;

    fn try_from(OrphanEntry { task, path, kind, name, secret, kept }: OrphanEntry) -> Result<Self, NoName> {
        let name = path.or(name).ok_or(NoName)?;
        Ok(Self { task, kind: kind.unwrap_or_else(|| FILE_KIND.to_owned()), name, is_secret: secret, kept })
    }
}

impl OrphanedObject {
    /// Returns the object in words, such as `/etc/motd` or `package nginx`.
    pub fn object_text(&self) -> String {
        if self.kind == FILE_KIND { self.name.clone() } else { format!("{} {}", self.kind, self.name) }
    }
}

impl Orphans {
    /// Returns whether the host has no orphaned object and no clean-up that has yet to succeed.
    pub fn is_empty(&self) -> bool {
        let is_over = |clean_up: &CleanUpReport| clean_up.state == CleanUpState::Succeeded;
        self.listed.is_empty() && self.unlisted_count == 0 && self.clean_ups.iter().all(is_over)
    }

    /// Returns the orphans in the JSON text of [`ORPHANS_FACT`]. An entry is an object with its task, a clean-up, or
    /// `{"more": N}` for the number of objects that are not listed. Other entries are ignored, because an agent of a newer
    /// version may add some.
    pub fn from_fact(fact: &str) -> Self {
        let mut orphans = Self::default();
        let entries: Vec<Value> = serde_json::from_str(fact).unwrap_or_default();
        for entry in entries {
            if let Some(count) = entry.get("more").and_then(Value::as_u64) {
                orphans.unlisted_count = orphans.unlisted_count.saturating_add(count);
            } else if let Ok(clean_up) = serde_json::from_value(entry.clone()) {
                orphans.clean_ups.push(clean_up);
            } else {
                orphans.listed.extend(serde_json::from_value::<OrphanedObject>(entry));
            }
        }
        orphans
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(task: &str, kind: &str, name: &str) -> OrphanedObject {
        OrphanedObject { task: task.into(), kind: kind.into(), name: name.into(), is_secret: false, kept: None }
    }

    #[test]
    fn y06_orphans_are_read_from_facts_of_any_version() {
        let key = object("key", "file", "/root/.ssh/authorized_keys");
        let secret =
            OrphanedObject { is_secret: true, kept: Some("somebody changed it".into()), ..object("db", "file", "/etc/db") };
        let clean_up = |state, message: &str| CleanUpReport {
            task: "conf".into(),
            on_unassign: "undo".into(),
            state,
            message: message.into(),
        };
        for (fact, listed, unlisted_count, clean_ups) in [
            // The form of agents that know only files.
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys"}]"#, vec![key.clone()], 0, vec![]),
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys","since":1},{"more":7}]"#, vec![key], 7, vec![]),
            (
                r#"[{"task":"db","path":"/etc/db","secret":true,"kept":"somebody changed it"},{"task":"web","kind":"package","name":"nginx"},
                    {"task":"srv","path":"/srv/a","kind":"directory"},{"task":"x","kind":"volume","name":"v"}]"#,
                vec![secret, object("web", "package", "nginx"), object("srv", "directory", "/srv/a"), object("x", "volume", "v")],
                0,
                vec![],
            ),
            (
                r#"[{"task":"conf","on_unassign":"undo","state":"failed","message":"no disk"},
                    {"task":"conf","on_unassign":"undo","state":"succeeded"}]"#,
                vec![],
                0,
                vec![clean_up(CleanUpState::Failed, "no disk"), clean_up(CleanUpState::Succeeded, "")],
            ),
            (r#"[{"task":1},"x",{"task":"a"}]"#, vec![], 0, vec![]),
            ("[]", vec![], 0, vec![]),
            ("{}", vec![], 0, vec![]),
        ] {
            assert_eq!(Orphans::from_fact(fact), Orphans { listed, unlisted_count, clean_ups }, "{fact}");
        }
    }

    #[test]
    fn orphans_are_empty_when_nothing_is_left() {
        for (fact, is_empty) in [
            ("[]", true),
            (r#"[{"task":"conf","on_unassign":"undo","state":"succeeded"}]"#, true),
            (r#"[{"task":"conf","on_unassign":"undo","state":"waiting"}]"#, false),
            (r#"[{"task":"conf","path":"/x"}]"#, false),
            (r#"[{"more":1}]"#, false),
        ] {
            assert_eq!(Orphans::from_fact(fact).is_empty(), is_empty, "{fact}");
        }
    }

    /// Controllers of older versions read the members `task` and `path`.
    #[test]
    fn orphaned_object_keeps_form_of_older_controllers() {
        for (object, expected) in [
            (object("key", "file", "/k"), json!({"task": "key", "path": "/k"})),
            (object("srv", "directory", "/s"), json!({"task": "srv", "path": "/s", "kind": "directory"})),
            (object("web", "package", "nginx"), json!({"task": "web", "kind": "package", "name": "nginx"})),
        ] {
            assert_eq!(json!(object), expected);
            assert_eq!(serde_json::from_value::<OrphanedObject>(expected).unwrap(), object);
        }
    }
}
