//! The operator tags of a node in patches: the tags that operators assign, and those that they unassign. Each entry of
//! these two sets has owners. In an answer, `tags` shows a node's tags from all sources, but a patch of `tags` changes
//! the two stored sets.

use serde_json::{Map, Value, json};
use stemma_core::manifest::SpecFields;

use crate::api::http::patch::{Patch, PatchOperation, PatchVerb};

/// The name of the field with the operator tags.
const TAGS: &str = "tags";

/// The two sets of operator tags in the field.
const TAG_SETS: [&str; 2] = ["assigned", "unassigned"];

/// Returns the operator tags of a node, or `None` for other kinds.
pub(super) fn tags<S: SpecFields>(spec: &S) -> Option<Value> {
    let tags = &spec.node()?.tags;
    let [assigned, unassigned] = [&tags.assigned, &tags.unassigned].map(|set| set.members().collect::<Vec<_>>());
    Some(json!({"assigned": assigned, "unassigned": unassigned}))
}

/// Returns whether a field is the tags of a node.
pub(super) fn is_tags_field<S: SpecFields>(spec: &S, field: &str) -> bool {
    field == TAGS && spec.node().is_some()
}

/// Adds the operator tags to the document that a JSON patch edits, if the node has any, or if the patch replaces the
/// field or changes a part of it. An empty set is omitted if the first operation on it is its removal, so that the
/// removal fails: there is nothing to remove. For the same reason the field is omitted if both sets are empty and the
/// patch removes it.
pub(super) fn add_to_document<S: SpecFields>(spec: &S, patch: &Patch, document: &mut Map<String, Value>) {
    let Some(mut tags) = tags(spec) else { return };
    let has_tags = TAG_SETS.iter().any(|set| tags[*set] != json!([]));
    if let Value::Object(sets) = &mut tags {
        sets.retain(|set, names| *names != json!([]) || !is_removed_first(patch, set));
    }
    let changes_tags = |operation: &PatchOperation| {
        operation.path[0] == TAGS && (operation.path.len() > 1 || operation.verb == PatchVerb::Replace)
    };
    if has_tags || patch.0.iter().any(changes_tags) {
        document.insert(TAGS.to_owned(), tags);
    }
}

/// Returns whether the first operation on one of the sets is its removal.
fn is_removed_first(patch: &Patch, set: &str) -> bool {
    let is_of_set = |operation: &&PatchOperation| operation.path[0] == TAGS && operation.path.get(1).is_none_or(|one| one == set);
    let first = patch.0.iter().find(is_of_set);
    first.is_some_and(|operation| operation.verb == PatchVerb::Remove && operation.path.len() == 2)
}

/// Converts the tags in `changes`, the result of a JSON patch, into a merge patch. A removed set becomes `null`. A set
/// that the patch does not change is omitted, so that it stays as stored, except for tags that the patch adds to the
/// other set.
pub(super) fn write_merge_patch<S: SpecFields>(spec: &S, patch: &Patch, changes: &mut Map<String, Value>) {
    let (Some(stored), Some(Value::Object(sets))) = (tags(spec), changes.get_mut(TAGS)) else { return };
    let is_whole = patch.0.iter().any(|operation| operation.path == [TAGS]);
    for set in TAG_SETS {
        if !sets.contains_key(set) {
            sets.insert(set.to_owned(), Value::Null);
        } else if !is_whole && sets[set] == stored[set] {
            sets.remove(set);
        }
    }
}

/// Converts a merge patch of the tags into the form of a plain write, which replaces or removes each set as a whole. A
/// `null` for an unknown name removes nothing in a merge patch, so it is omitted.
pub(super) fn normalize_merge_patch(change: &mut Value) {
    if let Value::Object(sets) = change {
        sets.retain(|set, names| !names.is_null() || TAG_SETS.contains(&set.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stemma_core::name::TagName;
    use stemma_core::object::{NodeSpec, NodeTags};
    use stemma_core::ownership::Manager;
    use stemma_core::role::RoleTable;

    use super::*;

    /// An empty set could once be removed, but both sets together could not.
    #[test]
    fn y05_add_to_document_omits_set_when_empty() {
        let (git, x) = (Manager::new("git").unwrap(), TagName::new("x").unwrap());
        let tags = RoleTable::default().assign(&BTreeSet::new(), &NodeTags::default(), &x, &git);
        let (bare, node) = (NodeSpec::default(), NodeSpec { tags, ..NodeSpec::default() });
        let operation = |verb, path: &str| PatchOperation {
            verb,
            path: path.split('/').map(str::to_owned).collect(),
            value: (verb != PatchVerb::Remove).then(|| json!(["y"])),
        };
        let one = |verb, path| vec![operation(verb, path)];
        for (spec, operations, fits) in [
            (&bare, one(PatchVerb::Remove, "tags"), false),
            (&bare, one(PatchVerb::Remove, "tags/assigned"), false),
            (&bare, one(PatchVerb::Remove, "tags/assigned/0"), false),
            (&node, one(PatchVerb::Remove, "tags/unassigned"), false),
            (&node, one(PatchVerb::Remove, "tags/assigned"), true),
            (&node, one(PatchVerb::Remove, "tags"), true),
            (&bare, one(PatchVerb::Replace, "tags/assigned"), true),
            (&bare, one(PatchVerb::Add, "tags/assigned"), true),
            (&bare, vec![operation(PatchVerb::Add, "tags/assigned/-"), operation(PatchVerb::Remove, "tags/assigned")], true),
        ] {
            let (mut document, patch) = (Map::new(), Patch(operations));
            add_to_document(spec, &patch, &mut document);
            assert_eq!(patch.apply(document).is_ok(), fits, "{patch:?}");
        }
    }

    #[test]
    fn y05_write_merge_patch_writes_each_set() {
        let (git, x) = (Manager::new("git").unwrap(), TagName::new("x").unwrap());
        let tags = RoleTable::default().assign(&BTreeSet::new(), &NodeTags::default(), &x, &git);
        let node = NodeSpec { tags, ..NodeSpec::default() };
        let operation = |path: &[&str]| PatchOperation {
            verb: PatchVerb::Add,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            value: Some(json!("y")),
        };
        for (path, after, said) in [
            (&["tags", "unassigned", "-"][..], json!({"assigned": ["x"], "unassigned": ["y"]}), json!({"unassigned": ["y"]})),
            (&["tags", "assigned"], json!({"unassigned": []}), json!({"assigned": null})),
            (&["tags"], json!({"assigned": ["x"]}), json!({"assigned": ["x"], "unassigned": null})),
            (&["tags"], json!(null), json!(null)),
        ] {
            let mut changes = Map::from_iter([("tags".to_owned(), after)]);
            write_merge_patch(&node, &Patch(vec![operation(path)]), &mut changes);
            assert_eq!(changes["tags"], said, "{path:?}");
        }
    }
}
