//! A node's tags by hand in patches: two sets of names, whose entries have owners. An answer shows in `tags` what a node has of all sources,
//! and who patches means what is stored.

use serde_json::{Map, Value, json};
use stemma_core::manifest::Fields;

use crate::api::http::patch::{Operation, Patch, Verb};

/// The field.
const TAGS: &str = "tags";

/// Its two sets.
const SETS: [&str; 2] = ["assigned", "unassigned"];

/// The tags that operators gave a node; nothing of another kind.
pub(super) fn tags<S: Fields>(spec: &S) -> Option<Value> {
    let tags = &spec.node_ref()?.tags;
    let [assigned, unassigned] = [&tags.assigned, &tags.unassigned].map(|set| set.members().collect::<Vec<_>>());
    Some(json!({"assigned": assigned, "unassigned": unassigned}))
}

/// Whether a field is that of a node's tags.
pub(super) fn is_tags<S: Fields>(spec: &S, field: &str) -> bool {
    field == TAGS && spec.node_ref().is_some()
}

/// Shows them to a JSON patch where there are any, and to one that reaches into them or replaces them. A set without tags is not there for a
/// removal of it, as none of both is there for a removal of them.
pub(super) fn show<S: Fields>(spec: &S, patch: &Patch, document: &mut Map<String, Value>) {
    let Some(mut tags) = tags(spec) else { return };
    let is_there = SETS.iter().any(|set| tags[*set] != json!([]));
    if let Value::Object(sets) = &mut tags {
        sets.retain(|set, names| *names != json!([]) || !begins_by_removing(patch, set));
    }
    let reaches = |operation: &Operation| {
        operation.path[0] == TAGS && (operation.path.len() > 1 || operation.verb == Verb::Replace)
    };
    if is_there || patch.0.iter().any(reaches) {
        document.insert(TAGS.to_owned(), tags);
    }
}

/// Whether the first that a patch does to one of the sets is to take it away as a whole.
fn begins_by_removing(patch: &Patch, set: &str) -> bool {
    let concerns =
        |operation: &&Operation| operation.path[0] == TAGS && operation.path.get(1).is_none_or(|one| one == set);
    let first = patch.0.iter().find(concerns);
    first.is_some_and(|operation| operation.verb == Verb::Remove && operation.path.len() == 2)
}

/// What a JSON patch made of them, as a merge patch says it: a set that is gone is `null`, and one that the patch does not set stays as it
/// stands, but for what is moved out of it.
pub(super) fn settle<S: Fields>(spec: &S, patch: &Patch, changes: &mut Map<String, Value>) {
    let (Some(stored), Some(Value::Object(sets))) = (tags(spec), changes.get_mut(TAGS)) else { return };
    let is_whole = patch.0.iter().any(|operation| operation.path == [TAGS]);
    for set in SETS {
        if !sets.contains_key(set) {
            sets.insert(set.to_owned(), Value::Null);
        } else if !is_whole && sets[set] == stored[set] {
            sets.remove(set);
        }
    }
}

/// Makes of a merge patch of them what a plain write takes: each set is replaced or taken away as a whole, and `null` of what is no set takes
/// away nothing.
pub(super) fn merge(change: &mut Value) {
    if let Value::Object(sets) = change {
        sets.retain(|set, names| !names.is_null() || SETS.contains(&set.as_str()));
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

    /// A set without tags was there for a removal, and both together were not.
    #[test]
    fn y05_a_set_without_tags_is_not_there_for_its_removal() {
        let (git, x) = (Manager::new("git").unwrap(), TagName::new("x").unwrap());
        let tags = RoleTable::default().assign(&BTreeSet::new(), &NodeTags::default(), &x, &git);
        let (bare, node) = (NodeSpec::default(), NodeSpec { tags, ..NodeSpec::default() });
        let operation = |verb, path: &str| Operation {
            verb,
            path: path.split('/').map(str::to_owned).collect(),
            value: (verb != Verb::Remove).then(|| json!(["y"])),
        };
        let one = |verb, path| vec![operation(verb, path)];
        for (spec, operations, fits) in [
            (&bare, one(Verb::Remove, "tags"), false),
            (&bare, one(Verb::Remove, "tags/assigned"), false),
            (&bare, one(Verb::Remove, "tags/assigned/0"), false),
            (&node, one(Verb::Remove, "tags/unassigned"), false),
            (&node, one(Verb::Remove, "tags/assigned"), true),
            (&node, one(Verb::Remove, "tags"), true),
            (&bare, one(Verb::Replace, "tags/assigned"), true),
            (&bare, one(Verb::Add, "tags/assigned"), true),
            (&bare, vec![operation(Verb::Add, "tags/assigned/-"), operation(Verb::Remove, "tags/assigned")], true),
        ] {
            let (mut document, patch) = (Map::new(), Patch(operations));
            show(spec, &patch, &mut document);
            assert_eq!(patch.apply(document).is_ok(), fits, "{patch:?}");
        }
    }

    #[test]
    fn y05_what_a_patch_leaves_of_a_nodes_tags_is_said_set_by_set() {
        let (git, x) = (Manager::new("git").unwrap(), TagName::new("x").unwrap());
        let tags = RoleTable::default().assign(&BTreeSet::new(), &NodeTags::default(), &x, &git);
        let node = NodeSpec { tags, ..NodeSpec::default() };
        let operation = |path: &[&str]| Operation {
            verb: Verb::Add,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            value: Some(json!("y")),
        };
        for (path, after, said) in [
            (
                &["tags", "unassigned", "-"][..],
                json!({"assigned": ["x"], "unassigned": ["y"]}),
                json!({"unassigned": ["y"]}),
            ),
            (&["tags", "assigned"], json!({"unassigned": []}), json!({"assigned": null})),
            (&["tags"], json!({"assigned": ["x"]}), json!({"assigned": ["x"], "unassigned": null})),
            (&["tags"], json!(null), json!(null)),
        ] {
            let mut changes = Map::from_iter([("tags".to_owned(), after)]);
            settle(&node, &Patch(vec![operation(path)]), &mut changes);
            assert_eq!(changes["tags"], said, "{path:?}");
        }
    }
}
