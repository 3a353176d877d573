//! What a release is, in one definition: its hash is taken over it, and a version fixes it.
//!
//! Content is all that decides what hosts run. A description, the release's own labels and fields of other systems
//! decide nothing, with one exception: a task that is marked untranslated never runs. The name is no content. Two
//! releases may have the same content, so whoever needs the name of a node's release takes it from where the node's
//! levels name it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::CompiledRelease;
use crate::digest::{Hex, ReleaseHash, canonical_json, sha256};
use crate::object::ReleaseSpec;
use crate::task::{Task, UNTRANSLATED};

/// Whether two releases have the same content, what they import left to its names.
pub fn has_same_content(one: &ReleaseSpec, other: &ReleaseSpec) -> bool {
    own_content(one) == own_content(other)
}

/// The hash of a release's content with that of all its imports.
pub(super) fn release_hash(spec: &ReleaseSpec, imports: &[Arc<CompiledRelease>]) -> ReleaseHash {
    let mut bytes = own_content(spec).into_bytes();
    for import in imports {
        bytes.extend_from_slice(&import.hash.0);
    }
    ReleaseHash(sha256(&bytes))
}

/// The hash under which a task enters the task digest: `foreign` has no meaning, and so no part in it.
pub(super) fn task_hash(task: &Task) -> [u8; 32] {
    let mut value = task.told().expect("a task has only JSON in it");
    if let Value::Object(fields) = &mut value {
        fields.remove("foreign");
    }
    sha256(canonical_json(&value).as_bytes())
}

/// A task's canonical JSON as it is told to hosts. One with an expression that nobody evaluates is of a type that no agent has, so that it
/// is never started and stops what depends on it, as an unsupported type does.
pub fn sent_definition(task: &Task) -> String {
    let mut value = task.told().expect("a task has only JSON in it");
    if task.is_untranslated() {
        value["type"] = json!(UNTRANSLATED);
    }
    canonical_json(&value)
}

/// Whether what was told to hosts is such a task.
pub fn is_sent_untranslated(definition: &str) -> bool {
    serde_json::from_str::<Value>(definition).is_ok_and(|definition| definition["type"] == UNTRANSLATED)
}

/// Whether what was told to hosts is a task that they neither run nor check.
pub fn is_sent_observed(definition: &str) -> bool {
    serde_json::from_str(definition).is_ok_and(|task: Task| task.is_observed())
}

/// The content of a release by itself, as canonical JSON. The order of its lists means nothing.
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
    fn what_is_told_of_an_untranslated_task_is_read_as_one() {
        let mut task = Task::new("a", "shell");
        assert!(!is_sent_untranslated(&sent_definition(&task)));
        task.foreign.insert(UNTRANSLATED.to_owned(), json!("an expression"));
        assert!(is_sent_untranslated(&sent_definition(&task)));
    }

    #[test]
    fn y06_what_is_told_of_a_task_says_whether_it_is_observed_alone() {
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
