//! Who owns what a manifest says that is printed.
//!
//! Whoever applies a manifest owns all that it says, and who owned a key alone can no longer take it away by leaving it out. So a manifest of what
//! several own says so in a comment; where a manager is named, what that manager applies is printed alone. What was written by commands and calls is
//! in no manager's part: a plain write is nobody's intent for the whole object.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use stemma_core::finding::first_few;
use stemma_core::ownership::{Manager, Owner};

use crate::args::Kind;
use crate::yaml::is_printed;

/// What names an object in its manifest. Nobody owns it.
const NAMES: [&str; 5] = ["cluster", "kind", "name", "namespace", "version"];
/// How many entries of the same owners a comment names, and how many objects of which a manager applies nothing.
const FEW: usize = 5;
/// What stands between names in the comment, and the quote. A name that holds one of these is put in quotes.
const BETWEEN: [&str; 5] = [" and ", " by ", ", ", ";", "\""];

/// Decides by what an entry is called, `labels.KEY` or a field's name, and by its owners whether it stays.
type Keep<'k> = dyn FnMut(&str, Option<&Value>) -> bool + 'k;

/// Where an answer tells the owners of what stands under a name in a manifest.
enum Told<'o> {
    /// Of each entry of a map or set.
    Entries(&'o Value),
    /// Of a field as a whole; `None`: nobody's.
    Field(Option<&'o Value>),
    /// An older controller does not tell who gave a node its traits and tags.
    Nowhere,
}

/// Cuts a manifest down to what a manager applies of its object, and says whether that is anything: an object of which nothing
/// but its name is said is printed for every manager. A map without entries is nobody's where others say something of the object too.
///
/// # Errors
/// For a namespace of an older controller, which does not tell its owners.
pub(crate) fn cut(manifest: &mut Value, object: &Value, manager: &Manager) -> Result<bool> {
    if object.get("field_owners").is_none() {
        bail!(
            "--manager: this controller is older and does not tell who owns what of a namespace: leave --manager out, and all of it is printed"
        );
    }
    let owner = Owner::apply(manager).to_string();
    let (mut has_own, mut is_shared) = (false, false);
    retain(manifest, object, &mut |_, owners| {
        let is_own = texts(owners).any(|one| one == owner);
        has_own |= is_own;
        is_shared |= !is_own;
        is_own
    });
    if is_shared {
        drop_empty(manifest, object, &owner);
    }
    Ok(has_own || !is_shared)
}

/// The comment above a manifest on who owns what it says; empty where one manager applied all of it.
pub(crate) fn comment(manifest: &Value, object: &Value) -> String {
    let mut by_owners: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    if object.get("field_owners").is_some() {
        retain(&mut manifest.clone(), object, &mut |entry, owners| {
            by_owners.entry(texts(owners).map(shown_owner).collect()).or_default().push(told_apart(entry));
            true
        });
    }
    let is_applied = |owners: &Vec<String>| owners.iter().any(|owner| is_by_apply(owner));
    let is_applied_by_one = |owners: &Vec<String>| owners.len() == 1 && is_applied(owners);
    if by_owners.len() < 2 && by_owners.keys().all(is_applied_by_one) {
        return String::new();
    }
    let who = |owners: &[String]| if owners.is_empty() { "nobody".to_owned() } else { owners.join(" and ") };
    let said = by_owners.iter().map(|(owners, entries)| format!("{} by {}", few(entries), who(owners)));
    let said = said.collect::<Vec<_>>().join("; ");
    let rest = if by_owners.keys().all(is_applied) { "" } else { "; what nobody applied is in no manager's part" };
    format!("# Owned: {said}. Who applies this owns all of it; --manager NAME prints what one manager applies{rest}.\n")
}

/// What to say of objects of which a manager applies nothing; `None` where there are none.
pub(crate) fn not_applied(manager: Option<&Manager>, kind: Kind, names: &[String]) -> Option<String> {
    let manager = manager.filter(|_| !names.is_empty())?;
    let names: Vec<String> = names.iter().map(|name| format!("{}/{}", kind.name(), shown(name))).collect();
    Some(format!(
        "{}: {} applies nothing there (-o yaml shows who owns what; without --manager all of it is printed)",
        few(&names),
        shown(manager)
    ))
}

/// The first of several, and how many there are beside.
fn few(all: &[String]) -> String {
    first_few(all.iter().map(String::as_str), FEW)
}

/// Takes out the maps without entries: who applied one is not recorded. Labels stay with whoever applies how they merge. An apply that leaves
/// a map out takes away its manager's own keys, so it leaves an empty one as it is.
fn drop_empty(manifest: &mut Value, object: &Value, owner: &str) {
    let Some(fields) = manifest.as_object_mut() else { return };
    let is_node = is_node(fields);
    let merges = texts(object.pointer("/field_owners/merge_labels")).any(|one| one == owner);
    fields.retain(|name, value| {
        let is_told_by_entry = matches!(told(object, name, is_node), Told::Entries(_));
        let is_empty = value.as_object().is_some_and(Map::is_empty);
        !is_told_by_entry || !is_empty || (merges && name == "labels")
    });
}

fn is_node(fields: &Map<String, Value>) -> bool {
    fields.get("kind").is_some_and(|kind| kind == Kind::Node.manifest_name())
}

/// Keeps of a manifest what is decided to stay, entry by entry. A map or set goes with its last entry; one that had none stays.
fn retain(manifest: &mut Value, object: &Value, keep: &mut Keep<'_>) {
    let Some(fields) = manifest.as_object_mut() else { return };
    let is_node = is_node(fields);
    fields.retain(|name, value| match (told(object, name, is_node), value) {
        _ if NAMES.contains(&name.as_str()) => true,
        (Told::Nowhere, _) => true,
        (Told::Field(owners), _) => keep(name, owners),
        (Told::Entries(owners), Value::Object(sets)) if name == "tags" => {
            sets.retain(|which, set| retain_entries(&format!("{name}.{which}"), set, &owners[which], keep));
            !sets.is_empty()
        }
        (Told::Entries(owners), entries) => retain_entries(name, entries, owners, keep),
    });
}

fn retain_entries(path: &str, entries: &mut Value, owners: &Value, keep: &mut Keep<'_>) -> bool {
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

fn told<'o>(object: &'o Value, name: &str, is_node: bool) -> Told<'o> {
    let (entries, is_set) = match name {
        "labels" => (object.get("label_owners"), false),
        "annotations" => (object.get("annotation_owners"), false),
        "parameters" => (object.get("parameter_owners"), false),
        "traits" if is_node => (object.pointer("/stored/trait_owners"), true),
        "tags" if is_node => (object.pointer("/stored/tag_owners"), true),
        _ => (None, false),
    };
    match entries {
        Some(owners) => Told::Entries(owners),
        None if is_set => Told::Nowhere,
        None => Told::Field(object.get("field_owners").and_then(|owners| owners.get(name))),
    }
}

/// An owner in the comment: its manager's name, and how it owns.
fn shown_owner(owner: &str) -> String {
    let (manager, how) = owner.rsplit_once(':').map_or((owner, String::new()), |(name, how)| (name, format!(":{how}")));
    told_apart(manager) + &how
}

/// A name in the comment, in quotes where it holds what stands between names there, or a quote.
fn told_apart(name: &str) -> String {
    if BETWEEN.iter().any(|between| name.contains(between)) {
        format!("\"{}\"", shown(&name.replace('\\', "\\\\").replace('"', "\\\"")))
    } else {
        shown(name)
    }
}

/// A name as every reader of YAML takes it in a comment, on its one line.
fn shown(text: &str) -> String {
    let letter =
        |letter: char| if is_printed(letter) { letter.to_string() } else { letter.escape_default().to_string() };
    text.chars().map(letter).collect()
}

/// Whether an owner applied the key, and did not write it otherwise.
pub(crate) fn is_by_apply(owner: &str) -> bool {
    owner.ends_with(":apply")
}

/// The owners of an entry, as an answer shows them.
pub(crate) fn texts(owners: Option<&Value>) -> impl Iterator<Item = &str> {
    owners.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A node of which `m` and `x` apply parts, and a person wrote others.
    fn node() -> (Value, Value) {
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
    fn y07_a_managers_part_is_what_it_applied() {
        let (manifest, object) = node();
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
            assert!(cut(&mut part, &object, &Manager::new(manager).unwrap()).unwrap());
            assert_eq!(part, expected, "{manager}");
        }
        let nobody = Manager::new("git").unwrap();
        assert!(!cut(&mut manifest.clone(), &object, &nobody).unwrap());
        let mut bare = json!({"kind": "Node", "name": "n"});
        assert!(cut(&mut bare, &json!({"field_owners": {}}), &nobody).unwrap(), "it is as much its as another's");
        assert!(cut(&mut json!({"kind": "Namespace"}), &json!({}), &nobody).is_err(), "its owners are not told");
    }

    /// `a` applies fields alone and `b` maps without entries: `a` never applied these.
    #[test]
    fn y07_a_map_without_entries_is_in_no_part_of_who_did_not_apply_it() {
        let merge = |owner: &str| json!({"description": ["a:apply"], "merge_labels": [owner]});
        let alone = json!({"description": ["a:apply"], "merge_labels": ["a:apply"]});
        let empty = json!({"labels": {}, "merge_labels": false, "annotations": {}, "parameters": {}});
        for (manager, owners, own) in [
            ("a", merge("b:apply"), json!({"description": "d"})),
            ("b", merge("b:apply"), json!({"labels": {}, "merge_labels": false})),
            ("b", merge("b:update"), json!({})),
            (
                "a",
                alone,
                json!({"description": "d", "labels": {}, "merge_labels": false, "annotations": {}, "parameters": {}}),
            ),
        ] {
            for kind in ["Cluster", "NodeGroup", "Node"] {
                let names = json!({"kind": kind, "name": "n"});
                let join = |more: [&Value; 2]| {
                    let all = [&names].into_iter().chain(more).filter_map(Value::as_object).flatten();
                    Value::Object(all.map(|(name, value)| (name.clone(), value.clone())).collect())
                };
                let object = json!({"field_owners": owners, "label_owners": {}, "annotation_owners": {}, "parameter_owners": {}});
                let mut part = join([&empty, &json!({"description": "d"})]);
                cut(&mut part, &object, &Manager::new(manager).unwrap()).unwrap();
                assert_eq!(part, join([&own, &json!({})]), "{manager} of a {kind}: {owners}");
            }
        }
        let mut part = json!({"kind": "Release", "name": "r", "labels": {}, "annotations": {}});
        let object = json!({"field_owners": {"labels": ["b:apply"], "annotations": ["a:apply"]}});
        assert!(cut(&mut part, &object, &Manager::new("b").unwrap()).unwrap());
        assert_eq!(part, json!({"kind": "Release", "name": "r", "labels": {}}), "a field as a whole has owners");
    }

    #[test]
    fn y07_a_comment_names_the_owners_where_not_one_manager_applied_all() {
        let (manifest, object) = node();
        let said = comment(&manifest, &object);
        let first = "# Owned: extra by nobody; labels.a, merge_labels, nodegroup, parameters.q, tags.assigned.y and 1 more by m:apply";
        assert!(said.starts_with(first), "{said}");
        let template =
            json!({"kind": "ClusterTemplate", "name": "t", "labels": {"a": "1", "b": "2"}, "description": "d"});
        let owned = |a: &[&str], b: &[&str], description: &[&str]| json!({"field_owners": {"description": description}, "label_owners": {"a": a, "b": b}});
        let ends = "Who applies this owns all of it; --manager NAME prints what one manager applies";
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
            assert_eq!(comment(&template, &object), expected);
        }
    }

    /// Each of these read as two managers, or as another's entries.
    #[test]
    fn y07_a_name_that_holds_what_stands_between_names_is_in_quotes() {
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
            let said = comment(&template, &object);
            assert!(said.contains(&format!("description by {shown}")), "{said}");
            assert!(said.contains(&format!("flavor_id by m:apply and {shown}")), "{said}");
        }
    }

    #[test]
    fn y07_a_long_list_of_what_others_own_is_counted() {
        let names: Vec<String> = (1..=7).map(|number| format!("n{number}")).collect();
        let manager = Manager::new("git").unwrap();
        let said = not_applied(Some(&manager), Kind::Node, &names).unwrap();
        assert!(
            said.starts_with("node/n1, node/n2, node/n3, node/n4, node/n5 and 2 more: git applies nothing"),
            "{said}"
        );
        assert_eq!(not_applied(Some(&manager), Kind::Node, &[]), None);
        assert_eq!(not_applied(None, Kind::Node, &names), None);
    }
}
