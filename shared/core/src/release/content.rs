//! The content of a release in one canonical form. The release hash is computed from the content. The content of a
//! version is fixed once a task set of the version was released.
//!
//! Content includes everything that decides what hosts run. It excludes the description, labels, annotations and owners
//! of the release, and fields of other systems. One such field is content: the mark `untranslated`, because a task with
//! this mark never runs. The name of the release is not content, so two releases may have the same content. Code that
//! needs the name of a node's release reads the name from the levels above the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::CompiledRelease;
use crate::digest::{Hex, ReleaseHash, canonical_json, sha256};
use crate::object::ReleaseSpec;
use crate::task::{Task, UNTRANSLATED};

/// Returns whether two releases have the same content. Imports are compared by name.
pub fn has_same_content(first: &ReleaseSpec, second: &ReleaseSpec) -> bool {
    own_content(first) == own_content(second)
}

/// Returns the hash of a release's content and that of all its imports.
pub(super) fn release_hash(spec: &ReleaseSpec, imports: &[Arc<CompiledRelease>]) -> ReleaseHash {
    let mut bytes = own_content(spec).into_bytes();
    for import in imports {
        bytes.extend_from_slice(&import.hash.0);
    }
    ReleaseHash(sha256(&bytes))
}

/// Returns the SHA-256 hash of a task for the task digest. Excludes the field `foreign`, whose values do not affect
/// hosts, except for `untranslated`, which the digest includes separately (from version 2 on).
pub(super) fn task_hash(task: &Task) -> [u8; 32] {
    let mut value = task.to_host_json().expect("a task consists of JSON values");
    if let Value::Object(fields) = &mut value {
        fields.remove("foreign");
    }
    sha256(canonical_json(&value).as_bytes())
}

/// Returns a task's canonical JSON as it is sent to hosts. An untranslated task has a field that an import could not
/// translate, such as an expression of another system. Such a task gets the type `untranslated`, which no agent
/// supports. So hosts never start the task, nor the tasks that depend on it.
pub fn sent_definition(task: &Task) -> String {
    let mut value = task.to_host_json().expect("a task consists of JSON values");
    if task.is_untranslated() {
        value["type"] = json!(UNTRANSLATED);
    }
    canonical_json(&value)
}

/// Returns whether the JSON of a task, as it was sent to hosts, is that of an untranslated task.
pub fn is_sent_untranslated(definition: &str) -> bool {
    serde_json::from_str::<Value>(definition).is_ok_and(|definition| definition["type"] == UNTRANSLATED)
}

/// Returns whether the JSON of a task, as it was sent to hosts, is that of an observed task, which hosts neither run
/// nor check.
pub fn is_sent_observed(definition: &str) -> bool {
    serde_json::from_str(definition).is_ok_and(|task: Task| task.is_observed())
}

/// Returns the content of a release without that of its imports, as canonical JSON. The names of imports and the tasks
/// are sorted. The lists in roles, tags and extensions keep their order.
fn own_content(spec: &ReleaseSpec) -> String {
    let ReleaseSpec {
        imports,
        roles,
        tags,
        tasks,
        matching,
        extensions,
        description: _,
        labels: _,
        annotations: _,
        foreign: _,
        owners: _,
    } = spec;
    // The hash of a task does not include `foreign`, which marks an untranslated task. Hosts get such a task with
    // another type.
    let task = |task: &Task| (task.id.clone(), json!([Hex(&task_hash(task)).to_string(), task.is_untranslated()]));
    canonical_json(&json!({
        "extensions": extensions,
        "imports": imports.iter().collect::<BTreeSet<_>>(),
        "matching": matching,
        "roles": roles,
        "tags": tags,
        "tasks": tasks.iter().map(task).collect::<BTreeMap<_, _>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Mode;

    #[test]
    fn sent_definition_is_read_as_untranslated() {
        let mut task = Task::new("a", "shell");
        assert!(!is_sent_untranslated(&sent_definition(&task)));
        task.foreign.insert(UNTRANSLATED.to_owned(), json!("an expression"));
        assert!(is_sent_untranslated(&sent_definition(&task)));
    }

    /// A task that runs nothing, of type `stage` or `skipped`, never counts as observed. Invalid JSON does not either.
    #[test]
    fn y06_sent_definition_is_read_as_observed_when_mode_is_observe() {
        for (kind, mode, is_observed) in [
            ("shell", Some(Mode::Observe), true),
            ("teapot", Some(Mode::Observe), true),
            ("shell", Some(Mode::Noop), false),
            ("shell", Some(Mode::Apply), false),
            ("shell", None, false),
            ("stage", Some(Mode::Observe), false),
            ("skipped", Some(Mode::Observe), false),
        ] {
            let task = Task { mode, ..Task::new("a", kind) };
            assert_eq!(is_sent_observed(&sent_definition(&task)), is_observed, "{kind} {mode:?}");
        }
        assert!(!is_sent_observed("{"));
    }
}
