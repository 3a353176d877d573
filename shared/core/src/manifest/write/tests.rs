use super::super::document::read_document;
use super::super::task::read_tasks;
use super::super::testing::AnyNameResolver;
use super::*;
use crate::object::{ClusterSpec, InspectionRuleSpec, NamespaceSpec, ReleaseSpec, RulePhase};
use crate::ownership::{Manager, OwnerMatch};

/// Applies these fields as a manager, without force. The time of the write is 7 ms.
fn apply<S: SpecFields>(spec: &mut S, manager_name: &str, fields: &str) -> Result<(), WriteError> {
    let body = JsonBody::parse(fields).unwrap();
    let manager = Manager::new(manager_name).unwrap();
    let mode = WriteMode::Apply { manager: &manager, scope: ApplyScope::Object, force: false, adopt: None };
    write_body(spec, &body, mode, &AnyNameResolver::default(), 7)
}

/// Writes these fields as a manager by a plain write (an update, not an apply). The time of the write is 7 ms.
fn update<S: SpecFields>(spec: &mut S, manager_name: &str, fields: &str, shape: BodyShape) -> Result<(), WriteError> {
    let body = JsonBody::parse(fields).unwrap();
    let manager = Manager::new(manager_name).unwrap();
    write_body(spec, &body, WriteMode::Update { manager: &manager, shape }, &AnyNameResolver::default(), 7)
}

/// Returns the owners of a field, as text.
fn owners_of<S: SpecFields>(spec: &S, field: &str) -> Vec<String> {
    let owners = spec.owners().get(field);
    owners.iter().flat_map(|owners| owners.iter()).map(ToString::to_string).collect()
}

/// A manager that adopts the values of another owner changes them without a conflict. It adopts only the keys and
/// fields in its body. If the owner is given with an operation (`ops:apply`), it adopts only what was written by it.
#[test]
fn apply_adopts_only_values_of_named_owner() {
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "ops", r#"{"description": "a", "labels": {"tier": "gold", "ntp": "x"}}"#).unwrap();
    let git = Manager::new("git").unwrap();
    let [ops_by_update, ops_by_apply] = ["ops:update", "ops:apply"].map(|owner| owner.parse::<OwnerMatch>().unwrap());
    let body = JsonBody::parse(r#"{"description": "b", "labels": {"tier": "iron"}}"#).unwrap();
    let mut write_as = |adopt| {
        let mode = WriteMode::Apply { manager: &git, scope: ApplyScope::Object, force: false, adopt };
        write_body(&mut spec, &body, mode, &AnyNameResolver::default(), 7)
    };
    assert!(write_as(None).is_err());
    assert!(write_as(Some(&ops_by_update)).is_err(), "ops owns the values by an apply, not by an update");
    write_as(Some(&ops_by_apply)).unwrap();
    let owners = |key: &str| -> Vec<String> {
        let map = spec.inherited.labels.provided.as_ref().unwrap();
        let entries = map.iter().filter(|(name, _)| &***name == key);
        entries.flat_map(|(_, entry)| entry.owners.iter().map(ToString::to_string)).collect()
    };
    assert_eq!((owners("tier"), owners("ntp")), (vec!["git:apply".to_owned()], vec!["ops:apply".to_owned()]));
    assert_eq!((spec.description.as_str(), spec.owners["description"].len()), ("b", 1));
}

#[test]
fn y09_add_removes_nothing_and_keeps_owners_of_equal_values() {
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "git", r#"{"description": "a", "paused": false, "labels": {"tier": "gold"}}"#).unwrap();
    apply(&mut spec, "ops", r#"{"keypair": "k", "labels": {"ntp": "x"}}"#).unwrap();
    let spec_before = spec.clone();
    let git = Manager::new("git").unwrap();
    let mut add = |fields: &str, force| {
        let body = JsonBody::parse(fields).unwrap();
        write_body(&mut spec, &body, WriteMode::Add { manager: &git, force }, &AnyNameResolver::default(), 7)
            .map(|()| spec.clone())
    };
    for fields in ["{}", r#"{"keypair": "k", "labels": {"ntp": "x"}, "paused": null}"#, r#"{"labels": {}}"#] {
        assert_eq!(add(fields, true).unwrap(), spec_before, "{fields}");
    }
    assert!(matches!(add(r#"{"keypair": "l"}"#, false), Err(WriteError::Conflicts(_))));
    let spec_after = add(r#"{"keypair": "l", "labels": {"zone": "z"}}"#, true).unwrap();
    assert_eq!((spec_after.owners["keypair"][0].to_string(), spec_after.description), ("git:apply".to_owned(), "a".to_owned()));
    assert_eq!(spec_after.inherited.labels.provided.unwrap().len(), 3);
}

#[test]
fn apply_resets_omitted_field_only_for_owning_manager() {
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "git", r#"{"description": "a", "paused": true, "keypair": "k"}"#).unwrap();
    apply(&mut spec, "ops", r#"{"min_ready_seconds": 5, "description": null}"#).unwrap();
    assert_eq!(spec.description, "a");
    apply(&mut spec, "git", r#"{"description": "b"}"#).unwrap();
    assert_eq!((spec.description.as_str(), spec.paused, spec.extra.is_empty()), ("b", false, true));
    assert_eq!(spec.inherited.lifecycle.min_ready_seconds, Some(5), "the field of another manager");
    assert_eq!(spec.owners.keys().collect::<Vec<_>>(), ["description", "min_ready_seconds"]);
}

/// A manifest without a map that its manager applied before gives up the keys of this manager. A manifest that omits
/// the labels gives up `merge_labels` with them. Labels of another manager remain.
#[test]
fn y05_apply_gives_up_omitted_maps_and_merge_labels() {
    for manifest in [
        r#"{"labels": {"a": "1"}}"#,
        r#"{"labels": {}}"#,
        r#"{"labels": {"a": "1"}, "merge_labels": false}"#,
        r#"{"annotations": {"a": "1"}, "parameters": {"a": 1}}"#,
    ] {
        let mut spec = ClusterSpec::default();
        apply(&mut spec, "git", manifest).unwrap();
        apply(&mut spec, "git", "{}").unwrap();
        assert_eq!(spec, ClusterSpec::default(), "{manifest}");
    }
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "git", r#"{"labels": {"a": "1"}}"#).unwrap();
    apply(&mut spec, "ops", r#"{"labels": {"b": "2"}}"#).unwrap();
    apply(&mut spec, "git", r#"{"description": "x"}"#).unwrap();
    let keys: Vec<_> = spec.inherited.labels.provided.iter().flat_map(OwnedMap::members).map(ToString::to_string).collect();
    assert_eq!((keys, spec.inherited.labels.merge), (vec!["b".to_owned()], Some(true)), "the label of another manager remains");
}

#[test]
fn y05_first_provider_of_labels_owns_merge_labels() {
    let merge_and_owners = |spec: &ClusterSpec| {
        let owners =
            spec.owners.get(MERGE_LABELS).map(|owner_list| owner_list.iter().map(ToString::to_string).collect::<Vec<_>>());
        (spec.inherited.labels.merge, owners.unwrap_or_default())
    };
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "git", r#"{"labels": {"a": "1"}}"#).unwrap();
    assert_eq!(merge_and_owners(&spec), (Some(true), vec!["git:apply".to_owned()]));
    apply(&mut spec, "git", r#"{"labels": {"a": "2"}}"#).unwrap();
    assert_eq!(
        merge_and_owners(&spec),
        (Some(true), vec!["git:apply".to_owned()]),
        "an apply of labels alone does not change merge_labels"
    );
    assert!(apply(&mut spec, "ops", r#"{"merge_labels": false}"#).is_err(), "another manager applied another value");
    let mut spec = ClusterSpec::default();
    update(&mut spec, "bob", r#"{"labels": {"a": "1"}}"#, BodyShape::Native).unwrap();
    assert_eq!(merge_and_owners(&spec), (Some(true), vec!["bob:update".to_owned()]));
    update(&mut spec, "bob", r#"{"labels": null}"#, BodyShape::Native).unwrap();
    assert_eq!(spec, ClusterSpec::default(), "as if no labels had been written");
}

#[test]
fn apply_conflicts_when_value_belongs_to_another_manager() {
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "git", r#"{"description": "a", "labels": {"tier": "gold", "debug": null}}"#).unwrap();
    let spec_before = spec.clone();
    let error =
        apply(&mut spec, "ops", r#"{"description": "b", "labels": {"tier": "silver", "debug": "1", "x": "y"}}"#).unwrap_err();
    let WriteError::Conflicts(conflicts) = &error else { panic!("{error}") };
    let conflict_lines: Vec<_> = conflicts
        .iter()
        .map(|conflict| format!("{}.{} {} {}", conflict.map, conflict.key, conflict.owner, conflict.value))
        .collect();
    assert_eq!(
        conflict_lines,
        ["fields.description git:apply \"a\"", "labels.debug git:apply null", "labels.tier git:apply \"gold\""]
    );
    assert_eq!(spec, spec_before);
    apply(&mut spec, "ops", r#"{"description": "a"}"#).unwrap();
    assert_eq!(spec.owners["description"].len(), 2, "a manager that applies the same value shares the field");
}

#[test]
fn update_changes_only_named_fields() {
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "git", r#"{"description": "a", "labels": {"tier": "gold", "ntp": "x"}}"#).unwrap();
    update(&mut spec, "bob", r#"{"paused": true, "labels": {"tier": "silver", "ntp": "x"}}"#, BodyShape::Native).unwrap();
    assert_eq!(spec.description, "a");
    let labels = spec.inherited.labels.provided.as_ref().unwrap();
    let texts: Vec<_> = labels.iter().map(|(key, entry)| format!("{} {}", key.as_str(), entry.owners[0])).collect();
    assert_eq!(texts, ["ntp git:apply", "tier bob:update"], "keys that are sent unchanged retain their owners");
    update(&mut spec, "bob", r#"{"description": null, "labels": null}"#, BodyShape::Native).unwrap();
    assert_eq!((spec.description.as_str(), &spec.inherited.labels.provided), ("", &None));
    assert_eq!(owners_of(&spec, "description"), ["bob:update"]);
}

#[test]
fn y05_update_owns_field_when_reset_to_default() {
    let mut spec = ClusterSpec::default();
    for fields in [r#"{"paused": false}"#, r#"{"paused": null, "description": ""}"#, r#"{"keypair": null}"#] {
        update(&mut spec, "ann", fields, BodyShape::Native).unwrap();
        assert_eq!(spec, ClusterSpec::default(), "a write that changes nothing takes no ownership: {fields}");
    }
    for (manifest, field, defaults) in [
        (r#"{"paused": true}"#, "paused", &[r#"{"paused": false}"#, r#"{"paused": null}"#][..]),
        (r#"{"description": "a"}"#, "description", &[r#"{"description": ""}"#, r#"{"description": null}"#]),
        (r#"{"keypair": "k"}"#, "keypair", &[r#"{"keypair": null}"#]),
        (r#"{"tags": {"x": {}}}"#, "tags", &[r#"{"tags": {}}"#, r#"{"tags": null}"#]),
        (r#"{"min_ready_seconds": 5}"#, "min_ready_seconds", &[r#"{"min_ready_seconds": null}"#]),
        (r#"{"rollout": {"max_groups": 1}}"#, "rollout", &[r#"{"rollout": null}"#]),
        (r#"{"labels": {"a": "1"}, "merge_labels": false}"#, "merge_labels", &[r#"{"merge_labels": null}"#]),
    ] {
        for default in defaults {
            let mut spec = ClusterSpec::default();
            apply(&mut spec, "git", manifest).unwrap();
            update(&mut spec, "ann", default, BodyShape::Native).unwrap();
            assert_eq!(owners_of(&spec, field), ["ann:update"], "{default}");
            let spec_before = spec.clone();
            assert!(matches!(apply(&mut spec, "git", manifest), Err(WriteError::Conflicts(_))), "{default}");
            update(&mut spec, "bob", default, BodyShape::Native).unwrap();
            assert_eq!(spec, spec_before, "a field that is sent unchanged retains its owner: {default}");
            apply(&mut spec, "git", "{}").unwrap();
            assert_eq!(owners_of(&spec, field), ["ann:update"], "an apply without the field takes no ownership: {default}");
        }
    }
}

#[test]
fn y05_default_value_is_shared_like_any_other_value() {
    let mut spec = ClusterSpec::default();
    apply(&mut spec, "git", r#"{"paused": false}"#).unwrap();
    update(&mut spec, "ann", r#"{"paused": false}"#, BodyShape::Native).unwrap();
    assert_eq!(owners_of(&spec, "paused"), ["git:apply"], "an apply owns a field also with the default value");
    // Older versions stored an owner for such an update.
    spec.owners.insert("paused".to_owned(), [Owner::update(&Manager::new("ann").unwrap())].into());
    assert!(matches!(apply(&mut spec, "git", r#"{"paused": true}"#), Err(WriteError::Conflicts(_))));
    apply(&mut spec, "git", r#"{"paused": false}"#).unwrap();
    assert_eq!(owners_of(&spec, "paused"), ["ann:update", "git:apply"], "a manager that applies the same value shares the field");
    let git = Manager::new("git").unwrap();
    let ann: OwnerMatch = "ann".parse().unwrap();
    let body = JsonBody::parse(r#"{"paused": true}"#).unwrap();
    let mode = WriteMode::Apply { manager: &git, scope: ApplyScope::Object, force: false, adopt: Some(&ann) };
    write_body(&mut spec, &body, mode, &AnyNameResolver::default(), 7).unwrap();
    assert_eq!((spec.paused, owners_of(&spec, "paused")), (true, vec!["git:apply".to_owned()]), "the apply adopts the field");
}

#[test]
fn omitted_merge_labels_depends_on_body_shape() {
    for (shape, merge) in [(BodyShape::Magnum, Some(false)), (BodyShape::Native, Some(true))] {
        let mut spec = ClusterSpec::default();
        update(&mut spec, "bob", r#"{"labels": {"a": "b"}}"#, shape).unwrap();
        assert_eq!(spec.inherited.labels.merge, merge);
    }
}

#[test]
fn each_trait_and_tag_has_separate_owners() {
    let mut node = NodeSpec::default();
    apply(&mut node, "git", r#"{"traits": ["CUSTOM_A", "CUSTOM_B"], "tags": {"assigned": ["x"]}}"#).unwrap();
    update(&mut node, "bob", r#"{"traits": ["CUSTOM_A", "CUSTOM_B", "CUSTOM_C"]}"#, BodyShape::Native).unwrap();
    apply(&mut node, "git", r#"{"traits": ["CUSTOM_A"]}"#).unwrap();
    let traits: Vec<_> = node.traits.members().map(ToString::to_string).collect();
    assert_eq!(traits, ["CUSTOM_A", "CUSTOM_C"], "only the entry that git had added is removed");
    assert!(node.tags.assigned.is_empty(), "a manifest gives up the tags that it omits");
}

/// Returns the tags that are assigned and unassigned, each with its owners.
fn tag_owners(node: &NodeSpec) -> [Vec<String>; 2] {
    [&node.tags.assigned, &node.tags.unassigned].map(|set| {
        let owners = |owners: &[Owner]| owners.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        set.iter().map(|(tag, entry)| format!("{tag} {}", owners(&entry.owners))).collect()
    })
}

#[test]
fn y05_tag_choice_conflicts_when_another_manager_chose_otherwise() {
    let body = |set: &str| format!(r#"{{"tags": {{"{set}": ["x"]}}}}"#);
    let git = Manager::new("git").unwrap();
    let ops: OwnerMatch = "ops".parse().unwrap();
    for (chosen_set, requested_set) in [("unassigned", "assigned"), ("assigned", "unassigned")] {
        let mut node_before = NodeSpec::default();
        apply(&mut node_before, "ops", &body(chosen_set)).unwrap();
        let mut node = node_before.clone();
        let error = apply(&mut node, "git", &body(requested_set)).unwrap_err();
        let WriteError::Conflicts(conflicts) = &error else { panic!("{error}") };
        let conflict_lines: Vec<_> = conflicts
            .iter()
            .map(|conflict| format!("{}.{} {} {}", conflict.map, conflict.key, conflict.owner, conflict.value))
            .collect();
        assert_eq!(conflict_lines, [format!("tags.x ops:apply \"{chosen_set}\"")]);
        assert_eq!(node, node_before);
        let forced_apply = WriteMode::Apply { manager: &git, scope: ApplyScope::Object, force: true, adopt: None };
        let adopting_apply = WriteMode::Apply { manager: &git, scope: ApplyScope::Object, force: false, adopt: Some(&ops) };
        let add = WriteMode::Add { manager: &git, force: true };
        let update_mode = WriteMode::Update { manager: &git, shape: BodyShape::Native };
        for (mode, owner) in
            [(forced_apply, "x git:apply"), (adopting_apply, "x git:apply"), (add, "x git:apply"), (update_mode, "x git:update")]
        {
            let mut node = node_before.clone();
            write_body(&mut node, &JsonBody::parse(&body(requested_set)).unwrap(), mode, &AnyNameResolver::default(), 7).unwrap();
            let mut expected = [vec![owner.to_owned()], Vec::new()];
            if requested_set == "unassigned" {
                expected.reverse();
            }
            assert_eq!(tag_owners(&node), expected, "{mode:?}");
        }
    }
}

#[test]
fn y05_update_of_one_tag_set_moves_only_named_tags() {
    let mut node_before = NodeSpec::default();
    apply(&mut node_before, "git", r#"{"tags": {"assigned": ["a"], "unassigned": ["x", "y"]}}"#).unwrap();
    let to_strings = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
    for (body, assigned, unassigned) in [
        (r#"{"tags": {"assigned": ["a", "x"]}}"#, &["a git:apply", "x ann:update"][..], &["y git:apply"][..]),
        (r#"{"tags": {"unassigned": ["a"]}}"#, &[], &["a ann:update"]),
        (r#"{"tags": {"assigned": null}}"#, &[], &["x git:apply", "y git:apply"]),
        (r#"{"tags": {"unassigned": null}}"#, &["a git:apply"], &[]),
        (r#"{"tags": null}"#, &[], &[]),
        (r#"{"tags": {}}"#, &["a git:apply"], &["x git:apply", "y git:apply"]),
    ] {
        let mut node = node_before.clone();
        update(&mut node, "ann", body, BodyShape::Native).unwrap();
        assert_eq!(tag_owners(&node), [to_strings(assigned), to_strings(unassigned)], "{body}");
    }
    let conflicting_body = r#"{"tags": {"assigned": ["x"], "unassigned": ["x"]}}"#;
    let expected = "tags: the tag 'x' can't be assigned and unassigned at once: name it in one of them";
    for error in [
        apply(&mut node_before.clone(), "git", conflicting_body).unwrap_err(),
        update(&mut node_before.clone(), "git", conflicting_body, BodyShape::Native).unwrap_err(),
    ] {
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn tags_reject_assignment_of_primary_tag() {
    let mut node = NodeSpec::default();
    let error = apply(&mut node, "git", r#"{"tags": {"assigned": ["x", "primary-x"]}}"#).unwrap_err();
    assert!(error.to_string().starts_with("tags.assigned[1]: tag \"primary-x\" is reserved: "), "{error}");
    assert_eq!(node, NodeSpec::default());
    // No node has such a tag, so its removal has no effect and is accepted.
    apply(&mut node, "git", r#"{"tags": {"unassigned": ["primary-x"]}}"#).unwrap();
}

#[test]
fn y05_map_error_contains_path_of_key() {
    for (fields, expected) in [
        (r#"{"labels": {"b": "1", "a": [1]}}"#, "labels.a: a label's value is text, a number, true, false or null"),
        (r#"{"labels": {"a b": "1"}}"#, "labels: key \"a b\" needs a name"),
        (r#"{"labels": 3}"#, "labels: a map of keys and values is needed here"),
        (r#"{"parameters": {"p": {"a": [9007199254740993]}}}"#, "parameters.p.a[0]: this parameter can't be read: "),
    ] {
        let error = apply(&mut ClusterSpec::default(), "git", fields).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn y05_ironic_field_name_is_rejected_with_replacement() {
    let error = apply(&mut NodeSpec::default(), "git", r#"{"maintenance": true}"#).unwrap_err();
    assert_eq!(error.to_string(), "maintenance: is called parked");
}

#[test]
fn magnum_flag_name_is_rejected_with_replacement() {
    let mut spec = ClusterSpec::default();
    let error = apply(&mut spec, "git", r#"{"override_labels": true}"#).unwrap_err();
    assert_eq!(error.to_string(), "override_labels: is called merge_labels");
    let error = apply(&mut spec, "git", r#"{"override-labels": true}"#).unwrap_err();
    assert_eq!(error.to_string(), "override-labels: is called merge_labels");
    // The document is valid without the field.
    assert!(read_document(r#"{"kind": "Cluster", "name": "c"}"#).is_ok());
}

/// The text in `canonical_text` is the form of `number` in canonical JSON (RFC 8785), which hosts receive.
#[test]
fn y04_free_json_whole_number_is_one_value_in_any_notation() {
    for (number, canonical_text) in [("1e2", "100"), ("100.0", "100"), ("-0", "0"), ("1e16", "10000000000000000"), ("1.5", "1.5")]
    {
        for field in ["parameters", "properties", "instance_info", "extra", "driver_info"] {
            let body_with = |number: &str| format!(r#"{{"{field}": {{"a": {{"b": [{number}]}}}}}}"#);
            let mut spec = NodeSpec::default();
            apply(&mut spec, "a", &body_with(number)).unwrap();
            let stored = serde_json::to_string(&spec).unwrap();
            let expected = format!(r#"{{"b":[{canonical_text}]}}"#);
            assert!(stored.contains(&expected), "{field} {number}: {stored}");
            apply(&mut spec, "b", &body_with(canonical_text)).expect("another manager applies the same value");
            // An older version stored the number in the author's notation.
            let older_json = stored.replace(&expected, &format!(r#"{{"b":[{number}]}}"#));
            let older_spec: NodeSpec = serde_json::from_str(&older_json).unwrap();
            assert_eq!(serde_json::to_string(&older_spec).unwrap(), stored, "{field} {number}");
        }
        let tasks_json = format!(
            r#"[{{"id": "a", "type": "shell", "parameters": {{"command": "x", "env": {{"A": {number}}}}}, "foreign": {{"b": [{number}]}}}}]"#
        );
        let tasks = read_tasks(&RawValue::from_string(tasks_json).unwrap()).unwrap();
        assert_eq!(tasks[0].parameters["env"]["A"].to_string(), canonical_text, "{number}");
        assert_eq!(tasks[0].foreign["b"].to_string(), format!("[{canonical_text}]"), "{number}");
        let mut release = ReleaseSpec::default();
        apply(&mut release, "a", &format!(r#"{{"foreign": {{"b": {number}}}}}"#)).unwrap();
        assert_eq!(release.foreign["b"].to_string(), canonical_text, "{number}");
        // As in Ironic, an inspection rule turns numbers into texts. So the numbers retain the notation of the author.
        let mut rule = InspectionRuleSpec::default();
        let body = format!(
            r#"{{"conditions": [{{"op": "eq", "args": {{"values": [{number}, 7]}}}}],
                "actions": [{{"op": "set-attribute", "args": {{"path": "labels/a", "value": {number}}}}}]}}"#
        );
        apply(&mut rule, "a", &body).unwrap();
        let as_written: Value = serde_json::from_str(number).unwrap();
        assert_eq!(rule.conditions[0].args["values"][0], as_written, "{number}");
        assert_eq!(rule.actions[0].args["value"], number, "the value of a label retains the text");
    }
}

/// Regression: rules, unlike other objects, accepted numbers that hosts would receive as other numbers. They also
/// accepted names that are blank or contain control characters.
#[test]
fn y04_new_rule_action_requires_valid_names_and_numbers() {
    let rule_with = |action: &str| format!(r#"{{"actions": [{action}]}}"#);
    let set_attribute =
        |path: &str, value: &str| format!(r#"{{"op": "set-attribute", "args": {{"path": "{path}", "value": {value}}}}}"#);
    let looping = |op: &str, argument: &str, name: &str, item: &str| {
        format!(r#"{{"op": "{op}", "args": {{"{argument}": "{name}", "value": 1}}, "loop": ["a", "{item}"]}}"#)
    };
    let inexact_number = "9007199254740993";
    let with_listed_args = |op: &str, args: &str| format!(r#"{{"op": "{op}", "args": [{args}]}}"#);
    for (action, argument_name, expected) in [
        (set_attribute("properties/p", inexact_number), "value", "past 2^53"),
        (set_attribute("/properties.p", &format!(r#"{{"a": [1, -{inexact_number}]}}"#)), "value.a[1]", "past 2^53"),
        (with_listed_args("set-attribute", &format!(r#""properties/p", {inexact_number}"#)), "value", "past 2^53"),
        (with_listed_args("extend-attribute", &format!(r#""properties/p", {inexact_number}"#)), "value", "past 2^53"),
        (set_attribute(r"properties/a\nb", "1"), "path", "it has a control character"),
        (set_attribute("properties/ ", "1"), "path", "it has no visible character"),
        (set_attribute(r"properties/\u0085", "1"), "path", "it has no visible character"),
        (set_attribute(r"properties/a\u2028b", "1"), "path", "it has a control character"),
        (with_listed_args("extend-attribute", r#""properties/\u200b", 1"#), "path", "it has no visible character"),
        (with_listed_args("set-capability", r#"" ", "1""#), "name", "it has no visible character"),
        (with_listed_args("set-capability", r#""a\nb", "1""#), "name", "it has a control character"),
        (with_listed_args("set-capability", r#""", "1""#), "name", "it has no visible character"),
        (with_listed_args("set-plugin-data", r#""", 1"#), "path", "it has no visible character"),
        (with_listed_args("set-plugin-data", r#""a. .b", 1"#), "path", "it has no visible character"),
        (with_listed_args("extend-plugin-data", r#""a.b\n", 1"#), "path", "it has a control character"),
        (looping("set-attribute", "path", "properties/{item}", " "), "path", "it has no visible character"),
        (looping("set-attribute", "path", "{item}", r"properties/a\tb"), "path", "it has a control character"),
        (looping("set-capability", "name", "{item}", ""), "name", "it has no visible character"),
        (looping("set-plugin-data", "path", "a.{item}", "b..c"), "path", "it has no visible character"),
    ] {
        let result = update(&mut InspectionRuleSpec::default(), "m", &rule_with(&action), BodyShape::Native);
        let Err(WriteError::Body(error)) = result else { panic!("{action} was accepted") };
        assert_eq!(error.field, format!("actions[0].args.{argument_name}"), "{action}: {error}");
        assert!(error.reason.contains(expected), "{action}: {error}");
        // An older version may have stored the action. It is accepted again without a change.
        let mut stored: InspectionRuleSpec = serde_json::from_str(&rule_with(&action)).unwrap();
        let actions_before = stored.actions.clone();
        update(&mut stored, "m", r#"{"description": "x"}"#, BodyShape::Native).unwrap();
        update(&mut stored, "m", &rule_with(&action), BodyShape::Native).unwrap();
        assert_eq!(stored.actions, actions_before, "{action}");
    }
    for action in [
        set_attribute("labels/a", inexact_number),
        set_attribute("properties/a b", "9007199254740992"),
        with_listed_args("del-attribute", r#""properties/ ""#),
        with_listed_args("unset-capability", r#"" ""#),
        with_listed_args("unset-plugin-data", r#""""#),
        looping("set-attribute", "path", "properties/{item}", "{plugin_data[labels][a]}"),
    ] {
        update(&mut InspectionRuleSpec::default(), "m", &rule_with(&action), BodyShape::Native).expect(&action);
    }
}

/// Regression: an update with the phase `main` stored the phase and its owner, although a rule has no other phase.
#[test]
fn y05_unowned_default_phase_is_no_change() {
    let actions = r#""actions": [{"op": "log", "args": {"msg": "x"}}]"#;
    let mut rule = InspectionRuleSpec::default();
    apply(&mut rule, "git", &format!("{{{actions}}}")).unwrap();
    // An absent phase means `main`, so the update changes nothing in either case.
    for phase in [None, Some(RulePhase::Main)] {
        rule.phase = phase;
        let rule_before = rule.clone();
        update(&mut rule, "bob", r#"{"phase": "main"}"#, BodyShape::Native).unwrap();
        assert_eq!(rule, rule_before);
    }
    apply(&mut rule, "git", &format!(r#"{{{actions}, "phase": "main"}}"#)).unwrap();
    assert_eq!(owners_of(&rule, "phase"), ["git:apply"], "a manager that applies the phase owns it");
}

/// Tags in another order are the same value, so the stored order remains and there is no conflict.
#[test]
fn y05_namespace_tags_are_unordered() {
    let tags = |names: &[&str]| {
        serde_json::json!({"tags": names.iter().map(|name| serde_json::json!({"name": name})).collect::<Vec<_>>()}).to_string()
    };
    let names = |spec: &NamespaceSpec| spec.tags.iter().map(|tag| tag.name.clone()).collect::<Vec<_>>();
    let mut spec = NamespaceSpec::default();
    apply(&mut spec, "git", &tags(&["a", "b", "c"])).unwrap();
    update(&mut spec, "bob", &tags(&["c", "b", "a"]), BodyShape::Native).unwrap();
    assert_eq!(names(&spec), ["a", "b", "c"]);
    assert!(owners_of(&spec, "tags").contains(&"git:apply".to_owned()));
    apply(&mut spec, "ops", &tags(&["b", "c", "a"])).expect("another manager applies the same set");
    assert_eq!(names(&spec), ["a", "b", "c"]);
    assert!(apply(&mut spec, "ops", &tags(&["b", "c"])).is_err(), "another set is another value");
    update(&mut spec, "bob", &tags(&["c", "a"]), BodyShape::Native).unwrap();
    assert_eq!(names(&spec), ["c", "a"]);
}

/// Regression: a rule that sets a label or trait that cannot exist was accepted, and failed at each report.
#[test]
fn y05_rule_is_rejected_when_label_or_trait_is_impossible() {
    let error_field = |op: &str, args: Value, items: Value| {
        let body = serde_json::json!({"actions": [{"op": op, "args": args, "loop": items}]}).to_string();
        let mut rule = InspectionRuleSpec::default();
        match apply(&mut rule, "git", &body) {
            Ok(()) => String::new(),
            Err(WriteError::Body(error)) => error.field,
            Err(other) => panic!("{other}"),
        }
    };
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let label = |path: &str, value: &str| serde_json::json!({"path": path, "value": value});
    let no_items = Value::Null;
    for (value, items, field) in [
        ("a\nb", "null", "value"),
        ("a\u{1}", "null", "value"),
        (&*"x".repeat(5_000), "null", "value"),
        ("{item}", r#"["fine", "a\nb"]"#, "value"),
        ("gold", "null", ""),
        ("{item}", r#"["fine"]"#, ""),
        ("{inventory[cpu][count]}", "null", ""),
        ("{item}", r#"["{inventory[cpu][count]}"]"#, ""),
    ] {
        let expected = if field.is_empty() { String::new() } else { format!("actions[0].args.{field}") };
        assert_eq!(error_field("set-attribute", label("labels/a", value), json(items)), expected, "{value:?} {items}");
    }
    for (path, items, is_accepted) in [
        ("labels/{item}", r#"["a b"]"#, false),
        ("labels/{item}", r#"["a", "example.net/b"]"#, true),
        ("labels/{item}", r#"["{node.name}"]"#, true),
        ("labels/{item[name]}", r#"[{"name": "a b"}]"#, false),
        ("labels/l{item}", "[1, 2]", true),
    ] {
        let expected = if is_accepted { "" } else { "actions[0].args.path" };
        assert_eq!(error_field("set-attribute", label(path, "x"), json(items)), expected, "{path} {items}");
    }
    for (name, items, is_accepted) in [
        ("{item}", r#"["CUSTOM_A", "bad"]"#, false),
        ("CUSTOM_{item}", r#"["b c"]"#, false),
        ("CUSTOM_{item}", r#"["A"]"#, true),
        ("{item}", r#"["{node.name}"]"#, true),
    ] {
        let expected = if is_accepted { "" } else { "actions[0].args.name" };
        let args = serde_json::json!({"name": name});
        assert_eq!(error_field("add-trait", args, json(items)), expected, "{name} {items}");
    }
    // An action that removes a label is accepted. It has no value to check.
    assert_eq!(error_field("del-attribute", serde_json::json!({"path": "labels/a"}), no_items), "");
    // An invalid action that is stored may be sent again unchanged.
    let stored_actions = r#"[{"op":"add-trait","args":{"name":"{item}"},"loop":["bad"]}]"#;
    let mut rule = InspectionRuleSpec { actions: serde_json::from_str(stored_actions).unwrap(), ..InspectionRuleSpec::default() };
    apply(&mut rule, "git", &format!(r#"{{"actions": {stored_actions}}}"#)).unwrap();
}
