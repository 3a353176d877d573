//! Finds the keys and fields of other managers that an update (a plain write, not an apply) changes or removes.
//!
//! By default an update overwrites keys and fields that other managers own. If its author requests it, the update fails
//! with a conflict instead. A field that only updates returned to its default causes no conflict. So a user who paused
//! and resumed a group does not block the next user who pauses the group.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::fields::SpecFields;
use super::maintenance;
use super::names::NameResolver;
use super::write::{MapConflict, WriteError, hide_sensitive_values, is_default, owned_fields, tag_choices};
use crate::labels::Layer;
use crate::ownership::{Conflict, Manager, Operation, OwnedEntry, OwnedMap};

/// Checks that an update by `manager` from `old` to `new` changes nothing that other managers own. A field is excluded
/// if only updates wrote it and its value is the default. If there is a conflict because the update unparks a node, the
/// maintenance reason that the update clears is excluded too.
///
/// # Errors
/// [`WriteError::Conflicts`] with every other key and field of another manager that the update changes or removes.
pub fn check_update_conflicts<S: SpecFields>(
    old: &S,
    new: &S,
    manager: &Manager,
    names: &dyn NameResolver,
) -> Result<(), WriteError> {
    let mut conflicts = Vec::new();
    if let Some((old, new)) = old.inherited().zip(new.inherited()) {
        conflicts.extend(layer_conflicts("labels", manager, &old.labels, &new.labels));
        conflicts.extend(layer_conflicts("annotations", manager, &old.annotations, &new.annotations));
        conflicts.extend(layer_conflicts("parameters", manager, &old.parameters, &new.parameters));
    }
    if let Some((old, new)) = old.node().zip(new.node()) {
        conflicts.extend(to_map_conflicts("traits", old.traits.conflicts_with(manager, &new.traits)));
        conflicts.extend(to_map_conflicts("tags", tag_choices(&old.tags).conflicts_with(manager, &tag_choices(&new.tags))));
    }
    let fields = |spec: &S| owned_fields(spec, spec.owners().clone(), names);
    // True if the field has its default value, and only updates own it.
    let is_reset = |name: &str, entry: &OwnedEntry<Value>| {
        let has_only_updates = entry.owners.iter().all(|owner| owner.operation == Operation::Update);
        has_only_updates && entry.value.value().is_none_or(|value| is_default(old, name, value, names))
    };
    let old_fields = fields(old);
    let old_fields = old_fields.iter().filter(|(name, entry)| !is_reset(name, entry));
    let old_fields = OwnedMap::from_entries(old_fields.map(|(name, entry)| (name.clone(), entry.clone())));
    let mut field_conflicts = to_map_conflicts("fields", old_fields.conflicts_with(manager, &fields(new)));
    // The end of a maintenance also clears the maintenance reason, even if the body does not name it. So only the
    // conflict about `parked` is reported, as for an apply.
    if maintenance::clears_reason(old, new) && field_conflicts.iter().any(|conflict| conflict.key == maintenance::PARKED_FIELD) {
        field_conflicts.retain(|conflict| conflict.key != maintenance::REASON_FIELD);
    }
    conflicts.extend(field_conflicts);
    if conflicts.is_empty() { Ok(()) } else { Err(WriteError::Conflicts(hide_sensitive_values(conflicts, old))) }
}

/// Returns the conflicts about the keys of a level's map that an update by `manager` changes or removes and that other
/// managers own. `map` is the name of the map, such as `labels`.
fn layer_conflicts<K, V>(map: &'static str, manager: &Manager, old: &Layer<K, V>, new: &Layer<K, V>) -> Vec<MapConflict>
where
    K: Ord + Clone + fmt::Display,
    V: Clone + PartialEq + Serialize,
{
    let empty = OwnedMap::default();
    let (old, new) = (old.provided.as_ref().unwrap_or(&empty), new.provided.as_ref().unwrap_or(&empty));
    to_map_conflicts(map, old.conflicts_with(manager, new))
}

/// Adds the name of the map to each conflict.
fn to_map_conflicts<K: fmt::Display, V: Serialize>(map: &'static str, conflicts: Vec<Conflict<K, V>>) -> Vec<MapConflict> {
    conflicts.into_iter().map(|conflict| MapConflict::from_conflict(map, conflict)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::body::JsonBody;
    use super::super::testing::AnyNameResolver;
    use super::super::write::write_body;
    use super::super::write_mode::{ApplyScope, WriteMode};
    use super::*;
    use crate::labels::BodyShape;
    use crate::object::{ClusterSpec, InspectionRuleSpec, NodeSpec};

    /// Writes a body into an object as a plain write of this manager.
    fn update<S: SpecFields>(spec: &mut S, manager: &Manager, body: &str) {
        let mode = WriteMode::Update { manager, shape: BodyShape::Native };
        write_body(spec, &JsonBody::parse(body).unwrap(), mode, &AnyNameResolver::default(), 7).unwrap();
    }

    #[test]
    fn check_update_conflicts_reports_changed_and_removed_values() {
        let mut old_spec = ClusterSpec::default();
        let names = AnyNameResolver::default();
        let [git, bob] = ["git", "bob"].map(|name| Manager::new(name).unwrap());
        update(&mut old_spec, &git, r#"{"description": "a", "labels": {"tier": "gold", "ntp": null}}"#);
        for (body, writer, expected) in [
            (r#"{"labels": {"tier": "gold", "ntp": null, "new": "x"}, "paused": true}"#, &bob, &[][..]),
            (r#"{"labels": {"tier": "iron", "ntp": null}}"#, &git, &[]),
            (r#"{"labels": {"tier": "iron", "ntp": null}}"#, &bob, &["labels.tier git:update \"gold\""]),
            (r#"{"labels": {"tier": "gold"}}"#, &bob, &["labels.ntp git:update null"]),
            (r#"{"description": null}"#, &bob, &["fields.description git:update \"a\""]),
        ] {
            let mut new_spec = old_spec.clone();
            update(&mut new_spec, writer, body);
            let found_conflicts = match check_update_conflicts(&old_spec, &new_spec, writer, &names) {
                Err(WriteError::Conflicts(conflicts)) => conflicts,
                other => other.map(|()| Vec::new()).unwrap(),
            };
            let found_conflicts: Vec<_> = found_conflicts
                .iter()
                .map(|conflict| format!("{}.{} {} {}", conflict.map, conflict.key, conflict.owner, conflict.value))
                .collect();
            assert_eq!(found_conflicts, expected, "{body}");
        }
    }

    /// A field that updates returned to its default causes no conflict with an update by another manager. A field whose
    /// default another manager applied causes a conflict.
    #[test]
    fn y05_check_update_conflicts_ignores_value_reset_by_updates() {
        let names = AnyNameResolver::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Manager::new(name).unwrap());
        let write = |spec: &mut ClusterSpec, mode: WriteMode<'_>, body: &str| {
            write_body(spec, &JsonBody::parse(body).unwrap(), mode, &names, 7).unwrap();
        };
        let update = |manager| WriteMode::Update { manager, shape: BodyShape::Native };
        let has_conflict = |old_spec: &ClusterSpec| {
            let mut new_spec = old_spec.clone();
            write(&mut new_spec, update(&bob), r#"{"paused": true}"#);
            check_update_conflicts(old_spec, &new_spec, &bob, &names).is_err()
        };
        let mut spec = ClusterSpec::default();
        write(&mut spec, update(&ann), r#"{"paused": true}"#);
        write(&mut spec, update(&ann), r#"{"paused": false}"#);
        assert_eq!(spec.owners["paused"][0].to_string(), "ann:update");
        assert!(!has_conflict(&spec));
        let mut spec = ClusterSpec::default();
        let apply = WriteMode::Apply { manager: &ann, force: false, adopt: None, scope: ApplyScope::Object };
        write(&mut spec, apply, r#"{"paused": false}"#);
        assert!(has_conflict(&spec));
    }

    /// An update that unparks a node conflicts about `parked`, and not about the reason that it clears.
    #[test]
    fn y05_ending_maintenance_conflicts_on_parked_but_not_reason() {
        let names = AnyNameResolver::default();
        let [git, ann] = ["git", "ann"].map(|name| Manager::new(name).unwrap());
        let mut old_spec = NodeSpec::default();
        let body = JsonBody::parse(r#"{"parked": true, "maintenance_reason": "disk"}"#).unwrap();
        let apply = WriteMode::Apply { manager: &git, force: false, adopt: None, scope: ApplyScope::Object };
        write_body(&mut old_spec, &body, apply, &names, 7).unwrap();
        for (body, expected) in [
            (r#"{"parked": false}"#, &["parked"][..]),
            (r#"{"parked": false, "maintenance_reason": null}"#, &["parked"]),
            (r#"{"parked": false, "maintenance_reason": "fan"}"#, &["maintenance_reason", "parked"]),
            (r#"{"maintenance_reason": "fan"}"#, &["maintenance_reason"]),
            (r#"{"maintenance_reason": null}"#, &["maintenance_reason"]),
        ] {
            let mut new_spec = old_spec.clone();
            update(&mut new_spec, &ann, body);
            let Err(WriteError::Conflicts(conflicts)) = check_update_conflicts(&old_spec, &new_spec, &ann, &names) else {
                panic!("{body} has no conflict");
            };
            assert_eq!(conflicts.iter().map(|conflict| conflict.key.as_str()).collect::<Vec<_>>(), expected, "{body}");
        }
    }

    /// The actions of a sensitive rule are hidden from everybody, so a conflict does not contain them.
    #[test]
    fn check_update_conflicts_hides_values_of_sensitive_rule() {
        let names = AnyNameResolver::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Manager::new(name).unwrap());
        let mut old_spec = InspectionRuleSpec::default();
        update(&mut old_spec, &ann, r#"{"sensitive": true, "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]}"#);
        let mut new_spec = old_spec.clone();
        update(&mut new_spec, &bob, r#"{"actions": [{"op": "add-trait", "args": {"name": "CUSTOM_XEON"}}]}"#);
        let Err(WriteError::Conflicts(conflicts)) = check_update_conflicts(&old_spec, &new_spec, &bob, &names) else {
            panic!("the actions belong to ann");
        };
        let values: Vec<_> = conflicts.iter().map(|conflict| (conflict.key.as_str(), &conflict.value)).collect();
        assert_eq!(values, [("actions", &Value::Null)]);
    }

    /// A priority that updates returned to its default causes no conflict, although a number at its default is not
    /// `null` as other fields are.
    #[test]
    fn y05_check_update_conflicts_ignores_number_reset_by_updates() {
        let names = AnyNameResolver::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Manager::new(name).unwrap());
        let actions = r#"{"priority": 5, "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]}"#;
        for (body, has_conflict) in
            [(r#"{"priority": 5}"#, true), (r#"{"priority": 0}"#, false), (r#"{"priority": null}"#, false)]
        {
            let mut old_spec = InspectionRuleSpec::default();
            update(&mut old_spec, &ann, actions);
            update(&mut old_spec, &ann, body);
            let mut new_spec = old_spec.clone();
            update(&mut new_spec, &bob, r#"{"priority": 7}"#);
            assert_eq!(check_update_conflicts(&old_spec, &new_spec, &bob, &names).is_err(), has_conflict, "{body}");
        }
    }
}
