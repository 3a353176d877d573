//! The owners of the parts of a printed manifest.
//!
//! A manager that applies a manifest owns all of it. The former sole owner of a key can then no longer remove the key
//! by leaving it out. So a manifest with several owners has a comment that lists them, and `--manager` prints only the
//! part that this manager applies. Values written by commands and calls are in no manager's part: a plain write is not
//! an intent for the whole object.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use stemma_core::finding::join_first;
use stemma_core::ownership::{Manager, Owner};

use crate::args::KindArg;
use crate::yaml::is_printable;

/// Fields that identify an object in its manifest. They have no owner.
const NAME_FIELDS: [&str; 5] = ["cluster", "kind", "name", "namespace", "version"];
/// Maximum number of names that a message lists: entries with the same owners, or objects of which a manager applies
/// nothing.
const MAX_NAMES: usize = 5;
/// Separators between names in the comment about owners, and the quotation mark. A name that contains one of these
/// texts is quoted.
const SEPARATORS: [&str; 5] = [" and ", " by ", ", ", ";", "\""];

/// A function that decides whether an entry of a manifest remains. Its arguments are the path of the entry
/// (`labels.KEY` or a field's name) and the owners of the entry.
type KeepFn<'k> = dyn FnMut(&str, Option<&Value>) -> bool + 'k;

/// The owners of a field of a manifest, as a response contains them.
enum OwnerLookup<'o> {
    /// The owners of each entry, for labels, annotations and parameters, and for the traits and tags of a node.
    Entries(&'o Value),
    /// The owners of the whole field, or `None` if it has no owner.
    Whole(Option<&'o Value>),
    /// The response does not contain the owners. An older controller does not send those of a node's traits and tags.
    Unknown,
}

/// Removes from a manifest everything that a manager does not apply. Returns whether the rest should be printed: the
/// manager applies a part of it, or the manifest contains only the object's name. If a part is removed, empty maps are
/// removed too, as [`drop_empty_maps`] describes.
///
/// # Errors
/// For a namespace of an older controller, which does not send its owners.
pub(crate) fn cut_to_manager(manifest: &mut Value, object: &Value, manager: &Manager) -> Result<bool> {
    if object.get("field_owners").is_none() {
        bail!(
            "--manager: this controller is too old to report the owners of a namespace's fields: omit --manager to print all of it"
        );
    }
    let owner = Owner::apply(manager).to_string();
    let (mut has_applied_part, mut is_shared) = (false, false);
    // An entry remains if the manager applied it.
    retain_fields(manifest, object, &mut |_, owners| {
        let is_applied = owner_names(owners).any(|text| text == owner);
        has_applied_part |= is_applied;
        is_shared |= !is_applied;
        is_applied
    });
    if is_shared {
        drop_empty_maps(manifest, object, &owner);
    }
    Ok(has_applied_part || !is_shared)
}

/// Returns the comment above a manifest that lists its owners. The comment is empty if one manager applied all of the
/// manifest, or if the response contains no owners.
pub(crate) fn owners_comment(manifest: &Value, object: &Value) -> String {
    let mut by_owners: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    if object.get("field_owners").is_some() {
        // Nothing is removed here. The function only visits each entry, to group the entries by owners.
        retain_fields(&mut manifest.clone(), object, &mut |entry, owners| {
            by_owners.entry(owner_names(owners).map(owner_text).collect()).or_default().push(quoted_name(entry));
            true
        });
    }
    // No comment is necessary if there are no entries, or if one manager applied all of them.
    let is_applied = |owners: &Vec<String>| owners.iter().any(|owner| is_by_apply(owner));
    let is_applied_by_one = |owners: &Vec<String>| owners.len() == 1 && is_applied(owners);
    if by_owners.len() < 2 && by_owners.keys().all(is_applied_by_one) {
        return String::new();
    }
    let owners_text = |owners: &[String]| if owners.is_empty() { "nobody".to_owned() } else { owners.join(" and ") };
    let groups = by_owners.iter().map(|(owners, entries)| format!("{} by {}", first_names(entries), owners_text(owners)));
    let text = groups.collect::<Vec<_>>().join("; ");
    let unapplied_note = if by_owners.keys().all(is_applied) { "" } else { "; what nobody applied is in no manager's part" };
    format!(
        "# Owned: {text}. A manager that applies this owns all of it; --manager NAME prints what one manager applies{unapplied_note}.\n"
    )
}

/// Returns the message that a manager applies nothing of these objects. Returns `None` without a manager or objects.
pub(crate) fn not_applied_message(manager: Option<&Manager>, kind: KindArg, names: &[String]) -> Option<String> {
    let manager = manager.filter(|_| !names.is_empty())?;
    let names: Vec<String> = names.iter().map(|name| format!("{}/{}", kind.name(), comment_text(name))).collect();
    Some(format!(
        "{}: {} applies nothing there (-o yaml shows who owns what; without --manager all of it is printed)",
        first_names(&names),
        comment_text(manager)
    ))
}

/// Returns the first [`MAX_NAMES`] names, and the number of the others.
fn first_names(names: &[String]) -> String {
    join_first(names.iter().map(String::as_str), MAX_NAMES)
}

/// Removes the empty maps whose keys have owners of their own, because no response contains who applied such a map
/// while it is empty. Empty labels remain if `owner` applies `merge_labels`. An apply of a manifest without the map
/// removes only keys of its own manager, so it leaves a stored empty map unchanged.
fn drop_empty_maps(manifest: &mut Value, object: &Value, owner: &str) {
    let Some(fields) = manifest.as_object_mut() else { return };
    let is_node = is_node(fields);
    let applies_merge_labels = owner_names(object.pointer("/field_owners/merge_labels")).any(|text| text == owner);
    fields.retain(|name, value| {
        let has_entry_owners = matches!(field_owners(object, name, is_node), OwnerLookup::Entries(_));
        let is_empty = value.as_object().is_some_and(Map::is_empty);
        !has_entry_owners || !is_empty || (applies_merge_labels && name == "labels")
    });
}

/// Returns whether these are the fields of a node's manifest.
fn is_node(fields: &Map<String, Value>) -> bool {
    fields.get("kind").is_some_and(|kind| kind == KindArg::Node.manifest_name())
}

/// Removes the entries of a manifest that `should_keep` rejects, and the maps and sets that become empty by this. The
/// fields of [`NAME_FIELDS`], and fields with unknown owners, remain.
fn retain_fields(manifest: &mut Value, object: &Value, should_keep: &mut KeepFn<'_>) {
    let Some(fields) = manifest.as_object_mut() else { return };
    let is_node = is_node(fields);
    fields.retain(|name, value| match (field_owners(object, name, is_node), value) {
        _ if NAME_FIELDS.contains(&name.as_str()) => true,
        (OwnerLookup::Unknown, _) => true,
        (OwnerLookup::Whole(owners), _) => should_keep(name, owners),
        (OwnerLookup::Entries(owners), Value::Object(lists)) if name == "tags" => {
            lists.retain(|key, list| retain_entries(&format!("{name}.{key}"), list, &owners[key], should_keep));
            !lists.is_empty()
        }
        (OwnerLookup::Entries(owners), entries) => retain_entries(name, entries, owners, should_keep),
    });
}

/// Removes the entries of one map or set that `should_keep` rejects. Returns whether the map or set itself remains in
/// the manifest.
fn retain_entries(path: &str, entries: &mut Value, owners: &Value, should_keep: &mut KeepFn<'_>) -> bool {
    let mut should_keep_entry = |entry: &str| should_keep(&format!("{path}.{entry}"), owners.get(entry));
    match entries {
        Value::Array(members) if !members.is_empty() => {
            members.retain(|member| member.as_str().is_none_or(&mut should_keep_entry));
            !members.is_empty()
        }
        Value::Object(map) if !map.is_empty() => {
            map.retain(|key, _| should_keep_entry(key));
            !map.is_empty()
        }
        _ => true,
    }
}

/// Returns the owners of a field of a manifest, from the response. `is_node` is true for the manifest of a node.
fn field_owners<'o>(object: &'o Value, name: &str, is_node: bool) -> OwnerLookup<'o> {
    let (entries, is_node_list) = match name {
        "labels" => (object.get("label_owners"), false),
        "annotations" => (object.get("annotation_owners"), false),
        "parameters" => (object.get("parameter_owners"), false),
        "traits" if is_node => (object.pointer("/stored/trait_owners"), true),
        "tags" if is_node => (object.pointer("/stored/tag_owners"), true),
        _ => (None, false),
    };
    match entries {
        Some(owners) => OwnerLookup::Entries(owners),
        None if is_node_list => OwnerLookup::Unknown,
        None => OwnerLookup::Whole(object.get("field_owners").and_then(|owners| owners.get(name))),
    }
}

/// Returns an owner, such as `git:apply`, for the comment about owners. The name of the manager is quoted if necessary.
fn owner_text(owner: &str) -> String {
    let (manager, kind) = owner.rsplit_once(':').map_or((owner, String::new()), |(name, kind)| (name, format!(":{kind}")));
    quoted_name(manager) + &kind
}

/// Returns a name for the comment about owners, quoted if it contains a separator or a quotation mark.
fn quoted_name(name: &str) -> String {
    if SEPARATORS.iter().any(|separator| name.contains(separator)) {
        format!("\"{}\"", comment_text(&name.replace('\\', "\\\\").replace('"', "\\\"")))
    } else {
        comment_text(name)
    }
}

/// Escapes the unprintable characters of a name, so that the name stays on one line of a YAML comment.
fn comment_text(text: &str) -> String {
    let escape = |letter: char| if is_printable(letter) { letter.to_string() } else { letter.escape_default().to_string() };
    text.chars().map(escape).collect()
}

/// Returns whether an owner, such as `git:apply`, owns a key by an apply, and not by another kind of write.
pub(crate) fn is_by_apply(owner: &str) -> bool {
    owner.ends_with(":apply")
}

/// Returns the owners of an entry as texts, such as `git:apply`.
pub(crate) fn owner_names(owners: Option<&Value>) -> impl Iterator<Item = &str> {
    owners.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the manifest of a node, and the response with its owners. The managers `m` and `x` apply parts of the
    /// node, and other parts were written by hand.
    fn sample_node() -> (Value, Value) {
        let manifest = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "description": "d", "extra": {"a": 1},
            "labels": {"a": "1", "b": null, "c": "3"}, "merge_labels": true, "annotations": {}, "parameters": {"p": [1], "q": 2},
            "traits": ["CUSTOM_A", "CUSTOM_B"], "tags": {"assigned": ["x", "y"], "unassigned": ["z"]}});
        let object = json!({
            "field_owners": {"nodegroup": ["m:apply"], "description": ["x:apply"], "merge_labels": ["m:apply"]},
            "label_owners": {"a": ["m:apply"], "b": ["m:apply", "x:apply"], "c": ["m:update"]},
            "annotation_owners": {}, "parameter_owners": {"p": ["x:apply"], "q": ["m:apply"]},
            "stored": {"trait_owners": {"CUSTOM_A": ["x:apply"], "CUSTOM_B": ["m:apply"]},
                "tag_owners": {"assigned": {"x": ["x:apply"], "y": ["m:apply"]}, "unassigned": {"z": ["x:apply"]}}},
        });
        (manifest, object)
    }

    #[test]
    fn y07_cut_to_manager_keeps_applied_fields() {
        let (manifest, object) = sample_node();
        for (manager, expected) in [
            (
                "m",
                json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "labels": {"a": "1", "b": null}, "merge_labels": true,
                    "parameters": {"q": 2}, "traits": ["CUSTOM_B"], "tags": {"assigned": ["y"]}}),
            ),
            (
                "x",
                json!({"kind": "Node", "name": "n", "description": "d", "labels": {"b": null},
                    "parameters": {"p": [1]}, "traits": ["CUSTOM_A"], "tags": {"assigned": ["x"], "unassigned": ["z"]}}),
            ),
        ] {
            let mut part = manifest.clone();
            assert!(cut_to_manager(&mut part, &object, &Manager::new(manager).unwrap()).unwrap());
            assert_eq!(part, expected, "{manager}");
        }
        let other_manager = Manager::new("git").unwrap();
        assert!(!cut_to_manager(&mut manifest.clone(), &object, &other_manager).unwrap());
        let mut name_only = json!({"kind": "Node", "name": "n"});
        assert!(
            cut_to_manager(&mut name_only, &json!({"field_owners": {}}), &other_manager).unwrap(),
            "an object without other parts is printed for each manager"
        );
        assert!(
            cut_to_manager(&mut json!({"kind": "Namespace"}), &json!({}), &other_manager).is_err(),
            "the response contains no owners"
        );
    }

    /// The part of `a` contains no empty map if another manager owns `merge_labels`. The owner of an empty map is not
    /// recorded, but the manager that applies `merge_labels` has the empty labels. If `a` owns everything, its part has
    /// all empty maps.
    #[test]
    fn y07_cut_to_manager_drops_empty_map_of_other_manager() {
        let merge_by = |owner: &str| json!({"description": ["a:apply"], "merge_labels": [owner]});
        let by_a = json!({"description": ["a:apply"], "merge_labels": ["a:apply"]});
        let empty_maps = json!({"labels": {}, "merge_labels": false, "annotations": {}, "parameters": {}});
        for (manager, owners, expected) in [
            ("a", merge_by("b:apply"), json!({"description": "d"})),
            ("b", merge_by("b:apply"), json!({"labels": {}, "merge_labels": false})),
            ("b", merge_by("b:update"), json!({})),
            ("a", by_a, json!({"description": "d", "labels": {}, "merge_labels": false, "annotations": {}, "parameters": {}})),
        ] {
            for kind in ["Cluster", "NodeGroup", "Node"] {
                let name_fields = json!({"kind": kind, "name": "n"});
                // Returns a manifest with the name fields and these other fields.
                let join = |others: [&Value; 2]| {
                    let maps = [&name_fields].into_iter().chain(others).filter_map(Value::as_object).flatten();
                    Value::Object(maps.map(|(name, value)| (name.clone(), value.clone())).collect())
                };
                let object = json!({"field_owners": owners, "label_owners": {}, "annotation_owners": {}, "parameter_owners": {}});
                let mut part = join([&empty_maps, &json!({"description": "d"})]);
                cut_to_manager(&mut part, &object, &Manager::new(manager).unwrap()).unwrap();
                assert_eq!(part, join([&expected, &json!({})]), "{manager} of a {kind}: {owners}");
            }
        }
        let mut part = json!({"kind": "Release", "name": "r", "labels": {}, "annotations": {}});
        let object = json!({"field_owners": {"labels": ["b:apply"], "annotations": ["a:apply"]}});
        assert!(cut_to_manager(&mut part, &object, &Manager::new("b").unwrap()).unwrap());
        assert_eq!(part, json!({"kind": "Release", "name": "r", "labels": {}}), "the owners of a whole field are recorded");
    }

    /// The comment lists the entries of each owner. It is empty if one manager applied everything, or if the response
    /// contains no owners.
    #[test]
    fn y07_owners_comment_lists_owners_when_managers_differ() {
        let (manifest, object) = sample_node();
        let comment = owners_comment(&manifest, &object);
        let expected_start =
            "# Owned: extra by nobody; labels.a, merge_labels, nodegroup, parameters.q, tags.assigned.y and 1 more by m:apply";
        assert!(comment.starts_with(expected_start), "{comment}");
        let template = json!({"kind": "ClusterTemplate", "name": "t", "labels": {"a": "1", "b": "2"}, "description": "d"});
        let owned = |a: &[&str], b: &[&str], description: &[&str]| json!({"field_owners": {"description": description}, "label_owners": {"a": a, "b": b}});
        let advice = "A manager that applies this owns all of it; --manager NAME prints what one manager applies";
        let unapplied_note = "; what nobody applied is in no manager's part";
        for (object, expected) in [
            (owned(&["m:apply"], &["m:apply"], &["m:apply"]), String::new()),
            (json!({}), String::new()),
            (
                owned(&["m:apply"], &["x:apply"], &["x:apply"]),
                format!("# Owned: labels.a by m:apply; description, labels.b by x:apply. {advice}.\n"),
            ),
            (
                owned(&["m:apply", "x:apply"], &["x:apply"], &["x:apply"]),
                format!("# Owned: labels.a by m:apply and x:apply; description, labels.b by x:apply. {advice}.\n"),
            ),
            (
                owned(&["m:update"], &["m:update"], &["m:update"]),
                format!("# Owned: description, labels.a, labels.b by m:update. {advice}{unapplied_note}.\n"),
            ),
            (
                owned(&[], &["m:apply"], &["m:apply"]),
                format!("# Owned: labels.a by nobody; description, labels.b by m:apply. {advice}{unapplied_note}.\n"),
            ),
            (
                owned(&["a\nb\u{2028}:apply"], &["m:apply"], &["m:apply"]),
                format!("# Owned: labels.a by a\\nb\\u{{2028}}:apply; description, labels.b by m:apply. {advice}.\n"),
            ),
        ] {
            assert_eq!(owners_comment(&template, &object), expected);
        }
    }

    /// Without quotation marks, a name with a separator could be read as two managers, or as an entry of another owner.
    #[test]
    fn y07_quoted_name_quotes_name_with_separator() {
        let template = json!({"kind": "ClusterTemplate", "name": "t", "description": "d", "flavor_id": "f"});
        for (owner, shown) in [
            ("a and b:apply", "\"a and b\":apply"),
            ("a by b:apply", "\"a by b\":apply"),
            ("a, b:update", "\"a, b\":update"),
            ("a;b:apply", "\"a;b\":apply"),
            ("a\"b:apply", "\"a\\\"b\":apply"),
            ("a \\ by b:apply", "\"a \\\\ by b\":apply"),
            ("a,b:apply", "a,b:apply"),
            ("x: y:apply", "x: y:apply"),
            ("band by\n:apply", "band by\\n:apply"),
        ] {
            let object = json!({"field_owners": {"description": [owner], "flavor_id": ["m:apply", owner]}});
            let comment = owners_comment(&template, &object);
            assert!(comment.contains(&format!("description by {shown}")), "{comment}");
            assert!(comment.contains(&format!("flavor_id by m:apply and {shown}")), "{comment}");
        }
    }

    #[test]
    fn y07_not_applied_message_counts_objects_when_list_is_long() {
        let names: Vec<String> = (1..=7).map(|number| format!("n{number}")).collect();
        let manager = Manager::new("git").unwrap();
        let message = not_applied_message(Some(&manager), KindArg::Node, &names).unwrap();
        assert!(message.starts_with("node/n1, node/n2, node/n3, node/n4, node/n5 and 2 more: git applies nothing"), "{message}");
        assert_eq!(not_applied_message(Some(&manager), KindArg::Node, &[]), None);
        assert_eq!(not_applied_message(None, KindArg::Node, &names), None);
    }
}
