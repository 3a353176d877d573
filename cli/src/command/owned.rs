//! The owners of what a printed manifest contains.
//!
//! A manager that applies a manifest owns all of it. The former sole owner of a key can then no longer remove it by
//! leaving it out. So a manifest with several owners has a comment that lists them, and `--manager` prints only the
//! part that this manager applies. Values written by commands and calls are in no manager's part: a plain write is
//! nobody's intent for the whole object.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use stemma_core::finding::join_first;
use stemma_core::ownership::{Manager, Owner};

use crate::args::KindArg;
use crate::yaml::is_printable;

/// Fields that name an object in its manifest. They have no owner.
const NAME_FIELDS: [&str; 5] = ["cluster", "kind", "name", "namespace", "version"];
/// Maximum number of entries that a comment lists for the same owners, and of objects that a manager does not apply.
const MAX_NAMES: usize = 5;
/// Separators between names in the comment, and the quote. A name that contains one of these is quoted.
const SEPARATORS: [&str; 5] = [" and ", " by ", ", ", ";", "\""];

/// Decides whether an entry stays, by its path (`labels.KEY` or a field's name) and its owners.
type KeepFn<'k> = dyn FnMut(&str, Option<&Value>) -> bool + 'k;

/// The place in a response of the owners of a manifest's field.
enum OwnerLookup<'o> {
    /// The owners of each entry of a map or set.
    Entries(&'o Value),
    /// The owners of the whole field, or `None` if it has no owner.
    Whole(Option<&'o Value>),
    /// Not in the response. An older controller does not send the owners of a node's traits and tags.
    Unknown,
}

/// Cuts a manifest down to the part that a manager applies. Returns whether there is anything to print. An object with
/// nothing but its name is printed for every manager. If others own parts of the object, an empty map belongs to
/// nobody.
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
    let (mut has_own, mut is_shared) = (false, false);
    retain(manifest, object, &mut |_, owners| {
        let is_own = owner_names(owners).any(|text| text == owner);
        has_own |= is_own;
        is_shared |= !is_own;
        is_own
    });
    if is_shared {
        drop_empty_maps(manifest, object, &owner);
    }
    Ok(has_own || !is_shared)
}

/// Returns the comment above a manifest that lists its owners. It is empty if one manager applied all of it.
pub(crate) fn owners_comment(manifest: &Value, object: &Value) -> String {
    let mut by_owners: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    if object.get("field_owners").is_some() {
        retain(&mut manifest.clone(), object, &mut |entry, owners| {
            by_owners.entry(owner_names(owners).map(owner_text).collect()).or_default().push(quoted_name(entry));
            true
        });
    }
    let is_applied = |owners: &Vec<String>| owners.iter().any(|owner| is_by_apply(owner));
    let is_applied_by_one = |owners: &Vec<String>| owners.len() == 1 && is_applied(owners);
    if by_owners.len() < 2 && by_owners.keys().all(is_applied_by_one) {
        return String::new();
    }
    let listed = |owners: &[String]| if owners.is_empty() { "nobody".to_owned() } else { owners.join(" and ") };
    let groups = by_owners.iter().map(|(owners, entries)| format!("{} by {}", first_names(entries), listed(owners)));
    let text = groups.collect::<Vec<_>>().join("; ");
    let rest = if by_owners.keys().all(is_applied) { "" } else { "; what nobody applied is in no manager's part" };
    format!(
        "# Owned: {text}. A manager that applies this owns all of it; --manager NAME prints what one manager applies{rest}.\n"
    )
}

/// Returns the warning for objects of which a manager applies nothing, or `None` if there are none.
pub(crate) fn not_applied_message(manager: Option<&Manager>, kind: KindArg, names: &[String]) -> Option<String> {
    let manager = manager.filter(|_| !names.is_empty())?;
    let names: Vec<String> = names.iter().map(|name| format!("{}/{}", kind.name(), comment_text(name))).collect();
    Some(format!(
        "{}: {} applies nothing there (-o yaml shows who owns what; without --manager all of it is printed)",
        first_names(&names),
        comment_text(manager)
    ))
}

/// Returns the first names, and the number of the others.
fn first_names(names: &[String]) -> String {
    join_first(names.iter().map(String::as_str), MAX_NAMES)
}

/// Removes empty maps, because it is not recorded who applied one. Empty labels stay if the owner applies
/// `merge_labels`. An apply that leaves out a map removes only its manager's own keys, so the stored empty map stays
/// unchanged.
fn drop_empty_maps(manifest: &mut Value, object: &Value, owner: &str) {
    let Some(fields) = manifest.as_object_mut() else { return };
    let is_node = is_node(fields);
    let merges = owner_names(object.pointer("/field_owners/merge_labels")).any(|text| text == owner);
    fields.retain(|name, value| {
        let has_entry_owners = matches!(field_owners(object, name, is_node), OwnerLookup::Entries(_));
        let is_empty = value.as_object().is_some_and(Map::is_empty);
        !has_entry_owners || !is_empty || (merges && name == "labels")
    });
}

fn is_node(fields: &Map<String, Value>) -> bool {
    fields.get("kind").is_some_and(|kind| kind == KindArg::Node.manifest_name())
}

/// Removes the entries of a manifest that `keep` rejects. A map or set is removed with its last entry. One that was
/// empty stays.
fn retain(manifest: &mut Value, object: &Value, keep: &mut KeepFn<'_>) {
    let Some(fields) = manifest.as_object_mut() else { return };
    let is_node = is_node(fields);
    fields.retain(|name, value| match (field_owners(object, name, is_node), value) {
        _ if NAME_FIELDS.contains(&name.as_str()) => true,
        (OwnerLookup::Unknown, _) => true,
        (OwnerLookup::Whole(owners), _) => keep(name, owners),
        (OwnerLookup::Entries(owners), Value::Object(sets)) if name == "tags" => {
            sets.retain(|key, set| retain_entries(&format!("{name}.{key}"), set, &owners[key], keep));
            !sets.is_empty()
        }
        (OwnerLookup::Entries(owners), entries) => retain_entries(name, entries, owners, keep),
    });
}

/// Removes the entries of one map or set that `keep` rejects. Returns whether the map or set itself stays.
fn retain_entries(path: &str, entries: &mut Value, owners: &Value, keep: &mut KeepFn<'_>) -> bool {
    let mut keeps = |entry: &str| keep(&format!("{path}.{entry}"), owners.get(entry));
    match entries {
        Value::Array(members) if !members.is_empty() => {
            members.retain(|member| member.as_str().is_none_or(&mut keeps));
            !members.is_empty()
        }
        Value::Object(map) if !map.is_empty() => {
            map.retain(|key, _| keeps(key));
            !map.is_empty()
        }
        _ => true,
    }
}

/// Returns where the response has the owners of a field of a manifest.
fn field_owners<'o>(object: &'o Value, name: &str, is_node: bool) -> OwnerLookup<'o> {
    let (entries, is_set) = match name {
        "labels" => (object.get("label_owners"), false),
        "annotations" => (object.get("annotation_owners"), false),
        "parameters" => (object.get("parameter_owners"), false),
        "traits" if is_node => (object.pointer("/stored/trait_owners"), true),
        "tags" if is_node => (object.pointer("/stored/tag_owners"), true),
        _ => (None, false),
    };
    match entries {
        Some(owners) => OwnerLookup::Entries(owners),
        None if is_set => OwnerLookup::Unknown,
        None => OwnerLookup::Whole(object.get("field_owners").and_then(|owners| owners.get(name))),
    }
}

/// Returns an owner for the comment: the manager's name, and how it owns.
fn owner_text(owner: &str) -> String {
    let (manager, how) = owner.rsplit_once(':').map_or((owner, String::new()), |(name, how)| (name, format!(":{how}")));
    quoted_name(manager) + &how
}

/// Quotes a name for the comment if it contains a separator or a quote.
fn quoted_name(name: &str) -> String {
    if SEPARATORS.iter().any(|separator| name.contains(separator)) {
        format!("\"{}\"", comment_text(&name.replace('\\', "\\\\").replace('"', "\\\"")))
    } else {
        comment_text(name)
    }
}

/// Escapes a name so that it stays on one line of a YAML comment.
fn comment_text(text: &str) -> String {
    let letter = |letter: char| if is_printable(letter) { letter.to_string() } else { letter.escape_default().to_string() };
    text.chars().map(letter).collect()
}

/// Returns whether an owner applied the key, rather than wrote it in another way.
pub(crate) fn is_by_apply(owner: &str) -> bool {
    owner.ends_with(":apply")
}

/// Returns the owners of an entry as texts.
pub(crate) fn owner_names(owners: Option<&Value>) -> impl Iterator<Item = &str> {
    owners.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a node of which `m` and `x` apply parts, and other parts were written by hand.
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
        let nobody = Manager::new("git").unwrap();
        assert!(!cut_to_manager(&mut manifest.clone(), &object, &nobody).unwrap());
        let mut bare = json!({"kind": "Node", "name": "n"});
        assert!(cut_to_manager(&mut bare, &json!({"field_owners": {}}), &nobody).unwrap(), "it is as much its as another's");
        assert!(cut_to_manager(&mut json!({"kind": "Namespace"}), &json!({}), &nobody).is_err(), "its owners are not told");
    }

    /// `a` applies only fields, and `b` only empty maps. So `a` never applied these maps.
    #[test]
    fn y07_cut_to_manager_drops_empty_map_of_other_manager() {
        let merge = |owner: &str| json!({"description": ["a:apply"], "merge_labels": [owner]});
        let alone = json!({"description": ["a:apply"], "merge_labels": ["a:apply"]});
        let empty = json!({"labels": {}, "merge_labels": false, "annotations": {}, "parameters": {}});
        for (manager, owners, own) in [
            ("a", merge("b:apply"), json!({"description": "d"})),
            ("b", merge("b:apply"), json!({"labels": {}, "merge_labels": false})),
            ("b", merge("b:update"), json!({})),
            ("a", alone, json!({"description": "d", "labels": {}, "merge_labels": false, "annotations": {}, "parameters": {}})),
        ] {
            for kind in ["Cluster", "NodeGroup", "Node"] {
                let names = json!({"kind": kind, "name": "n"});
                let join = |more: [&Value; 2]| {
                    let all = [&names].into_iter().chain(more).filter_map(Value::as_object).flatten();
                    Value::Object(all.map(|(name, value)| (name.clone(), value.clone())).collect())
                };
                let object = json!({"field_owners": owners, "label_owners": {}, "annotation_owners": {}, "parameter_owners": {}});
                let mut part = join([&empty, &json!({"description": "d"})]);
                cut_to_manager(&mut part, &object, &Manager::new(manager).unwrap()).unwrap();
                assert_eq!(part, join([&own, &json!({})]), "{manager} of a {kind}: {owners}");
            }
        }
        let mut part = json!({"kind": "Release", "name": "r", "labels": {}, "annotations": {}});
        let object = json!({"field_owners": {"labels": ["b:apply"], "annotations": ["a:apply"]}});
        assert!(cut_to_manager(&mut part, &object, &Manager::new("b").unwrap()).unwrap());
        assert_eq!(part, json!({"kind": "Release", "name": "r", "labels": {}}), "a field as a whole has owners");
    }

    #[test]
    fn y07_owners_comment_lists_owners_when_managers_differ() {
        let (manifest, object) = sample_node();
        let said = owners_comment(&manifest, &object);
        let first =
            "# Owned: extra by nobody; labels.a, merge_labels, nodegroup, parameters.q, tags.assigned.y and 1 more by m:apply";
        assert!(said.starts_with(first), "{said}");
        let template = json!({"kind": "ClusterTemplate", "name": "t", "labels": {"a": "1", "b": "2"}, "description": "d"});
        let owned = |a: &[&str], b: &[&str], description: &[&str]| json!({"field_owners": {"description": description}, "label_owners": {"a": a, "b": b}});
        let ends = "A manager that applies this owns all of it; --manager NAME prints what one manager applies";
        let in_none = "; what nobody applied is in no manager's part";
        for (object, expected) in [
            (owned(&["m:apply"], &["m:apply"], &["m:apply"]), String::new()),
            (json!({}), String::new()),
            (
                owned(&["m:apply"], &["x:apply"], &["x:apply"]),
                format!("# Owned: labels.a by m:apply; description, labels.b by x:apply. {ends}.\n"),
            ),
            (
                owned(&["m:apply", "x:apply"], &["x:apply"], &["x:apply"]),
                format!("# Owned: labels.a by m:apply and x:apply; description, labels.b by x:apply. {ends}.\n"),
            ),
            (
                owned(&["m:update"], &["m:update"], &["m:update"]),
                format!("# Owned: description, labels.a, labels.b by m:update. {ends}{in_none}.\n"),
            ),
            (
                owned(&[], &["m:apply"], &["m:apply"]),
                format!("# Owned: labels.a by nobody; description, labels.b by m:apply. {ends}{in_none}.\n"),
            ),
            (
                owned(&["a\nb\u{2028}:apply"], &["m:apply"], &["m:apply"]),
                format!("# Owned: labels.a by a\\nb\\u{{2028}}:apply; description, labels.b by m:apply. {ends}.\n"),
            ),
        ] {
            assert_eq!(owners_comment(&template, &object), expected);
        }
    }

    /// Each of these could be read as two managers, or as the entries of another owner.
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
            let said = owners_comment(&template, &object);
            assert!(said.contains(&format!("description by {shown}")), "{said}");
            assert!(said.contains(&format!("flavor_id by m:apply and {shown}")), "{said}");
        }
    }

    #[test]
    fn y07_owners_comment_counts_entries_when_list_is_long() {
        let names: Vec<String> = (1..=7).map(|number| format!("n{number}")).collect();
        let manager = Manager::new("git").unwrap();
        let said = not_applied_message(Some(&manager), KindArg::Node, &names).unwrap();
        assert!(said.starts_with("node/n1, node/n2, node/n3, node/n4, node/n5 and 2 more: git applies nothing"), "{said}");
        assert_eq!(not_applied_message(Some(&manager), KindArg::Node, &[]), None);
        assert_eq!(not_applied_message(None, KindArg::Node, &names), None);
    }
}
