//! The operator tags of a node in patches: the tags that operators assign, and the tags that they unassign. Each entry
//! of these two sets has owners. In an answer, `tags` shows a node's tags from all sources, but a patch of `tags`
//! changes the two stored sets.

use serde_json::{Map, Value, json};
use stemma_core::manifest::SpecFields;

use crate::api::http::patch::{Patch, PatchOperation, PatchVerb};

/// The name of the field with the operator tags: the tags that an operator assigned to a node or unassigned from it.
const TAGS: &str = "tags";

/// The two sets of operator tags in the field.
const TAG_SETS: [&str; 2] = ["assigned", "unassigned"];

/// Returns the operator tags of a node as JSON: the lists `assigned` and `unassigned`. `None` for other kinds.
pub(super) fn tags<S: SpecFields>(spec: &S) -> Option<Value> {
    let tags = &spec.node()?.tags;
    let [assigned, unassigned] = [&tags.assigned, &tags.unassigned].map(|set| set.members().collect::<Vec<_>>());
    Some(json!({"assigned": assigned, "unassigned": unassigned}))
}

/// Returns whether `field` is the field `tags` of a node, and not that of another kind, such as a cluster.
pub(super) fn is_tags_field<S: SpecFields>(spec: &S, field: &str) -> bool {
    field == TAGS && spec.node().is_some()
}

/// Adds the two sets of operator tags to the document that a JSON patch edits. If a set is empty and the first
/// operation on the set removes it, the set is omitted, so that the operation fails because there is nothing to remove.
/// If both sets are empty, they are added only if the patch replaces the whole field or changes a part of it.
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

/// Returns whether the first operation of a patch that concerns a set is the removal of this set.
fn is_removed_first(patch: &Patch, set: &str) -> bool {
    let is_match = |operation: &&PatchOperation| operation.path[0] == TAGS && operation.path.get(1).is_none_or(|key| key == set);
    let first = patch.0.iter().find(is_match);
    first.is_some_and(|operation| operation.verb == PatchVerb::Remove && operation.path.len() == 2)
}

/// Converts the tags in `changes`, the result of a JSON patch, into a merge patch. A set that the patch removed becomes
/// `null`. A set that the patch did not change is omitted, so that it stays as it is stored. But if the patch adds one
/// of its tags to the other set, a later step removes that tag from the unchanged set. If an operation of the patch
/// concerns the whole field `tags`, both sets are written, also an unchanged one.
pub(super) fn write_merge_patch<S: SpecFields>(spec: &S, patch: &Patch, changes: &mut Map<String, Value>) {
    let (Some(stored), Some(Value::Object(sets))) = (tags(spec), changes.get_mut(TAGS)) else { return };
    let has_whole_field = patch.0.iter().any(|operation| operation.path == [TAGS]);
    for set in TAG_SETS {
        if !sets.contains_key(set) {
            sets.insert(set.to_owned(), Value::Null);
        } else if !has_whole_field && sets[set] == stored[set] {
            sets.remove(set);
        }
    }
}

/// Converts a merge patch of the tags into the form of a plain write, in which each set is replaced or removed as a
/// whole. In a merge patch, `null` for an unknown name removes nothing, so such a member is omitted.
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

    /// Regression test: a patch could once remove an empty set, but not both empty sets together. In this test, `node`
    /// has the assigned tag `x`. `is_applied` is true if the patch can be applied to the document.
    #[test]
    fn y05_json_patch_fails_to_remove_empty_tag_set() {
        let (manager, tag) = (Manager::new("git").unwrap(), TagName::new("x").unwrap());
        let tags = RoleTable::default().assign(&BTreeSet::new(), &NodeTags::default(), &tag, &manager);
        let (node_without_tags, node) = (NodeSpec::default(), NodeSpec { tags, ..NodeSpec::default() });
        let operation = |verb, path: &str| PatchOperation {
            verb,
            path: path.split('/').map(str::to_owned).collect(),
            value: (verb != PatchVerb::Remove).then(|| json!(["y"])),
        };
        let single = |verb, path| vec![operation(verb, path)];
        for (spec, operations, is_applied) in [
            (&node_without_tags, single(PatchVerb::Remove, "tags"), false),
            (&node_without_tags, single(PatchVerb::Remove, "tags/assigned"), false),
            (&node_without_tags, single(PatchVerb::Remove, "tags/assigned/0"), false),
            (&node, single(PatchVerb::Remove, "tags/unassigned"), false),
            (&node, single(PatchVerb::Remove, "tags/assigned"), true),
            (&node, single(PatchVerb::Remove, "tags"), true),
            (&node_without_tags, single(PatchVerb::Replace, "tags/assigned"), true),
            (&node_without_tags, single(PatchVerb::Add, "tags/assigned"), true),
            (
                &node_without_tags,
                vec![operation(PatchVerb::Add, "tags/assigned/-"), operation(PatchVerb::Remove, "tags/assigned")],
                true,
            ),
        ] {
            let (mut document, patch) = (Map::new(), Patch(operations));
            add_to_document(spec, &patch, &mut document);
            assert_eq!(patch.apply(document).is_ok(), is_applied, "{patch:?}");
        }
    }

    /// In this test, the node has the assigned tag `x`. `after` is the field `tags` of the patched document, and
    /// `expected` is this field in the merge patch.
    #[test]
    fn y05_write_merge_patch_omits_unchanged_and_nulls_removed_set() {
        let (manager, tag) = (Manager::new("git").unwrap(), TagName::new("x").unwrap());
        let tags = RoleTable::default().assign(&BTreeSet::new(), &NodeTags::default(), &tag, &manager);
        let node = NodeSpec { tags, ..NodeSpec::default() };
        let operation = |path: &[&str]| PatchOperation {
            verb: PatchVerb::Add,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            value: Some(json!("y")),
        };
        for (path, after, expected) in [
            (&["tags", "unassigned", "-"][..], json!({"assigned": ["x"], "unassigned": ["y"]}), json!({"unassigned": ["y"]})),
            (&["tags", "assigned"], json!({"unassigned": []}), json!({"assigned": null})),
            (&["tags"], json!({"assigned": ["x"]}), json!({"assigned": ["x"], "unassigned": null})),
            (&["tags"], json!(null), json!(null)),
        ] {
            let mut changes = Map::from_iter([("tags".to_owned(), after)]);
            write_merge_patch(&node, &Patch(vec![operation(path)]), &mut changes);
            assert_eq!(changes["tags"], expected, "{path:?}");
        }
    }
}
