//! Finds the keys and fields of other managers that an update changes or removes.
//!
//! An update changes what other managers own without a conflict, unless its author requests that it fail instead. A
//! field that only updates returned to its default causes no conflict. So a user who paused and resumed a group does
//! not block the next user who pauses it.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::fields::SpecFields;
use super::maintenance;
use super::names::NameResolver;
use super::write::{MapConflict, WriteError, from_node_tags, is_default, owned_fields};
use crate::labels::Layer;
use crate::ownership::{Conflict, Manager, Operation, OwnedEntry, OwnedMap};

/// Checks that the step from one spec to the next changes nothing that other managers own.
///
/// # Errors
/// [`WriteError::Conflicts`] with every key and field of another manager that the step changes.
pub fn check_update_conflicts<S: SpecFields>(
    before: &S,
    next: &S,
    manager: &Manager,
    names: &dyn NameResolver,
) -> Result<(), WriteError> {
    let mut conflicts = Vec::new();
    if let Some((before, next)) = before.inherited().zip(next.inherited()) {
        conflicts.extend(layer_conflicts("labels", manager, &before.labels, &next.labels));
        conflicts.extend(layer_conflicts("annotations", manager, &before.annotations, &next.annotations));
        conflicts.extend(layer_conflicts("parameters", manager, &before.parameters, &next.parameters));
    }
    if let Some((before, next)) = before.node().zip(next.node()) {
        conflicts.extend(to_map_conflicts("traits", before.traits.conflicts_with(manager, &next.traits)));
        conflicts
            .extend(to_map_conflicts("tags", from_node_tags(&before.tags).conflicts_with(manager, &from_node_tags(&next.tags))));
    }
    let fields = |spec: &S| owned_fields(spec, spec.owners().clone(), names);
    // True if only updates returned the field to its default.
    let is_reset = |name: &str, entry: &OwnedEntry<Value>| {
        let by_plain_writes = entry.owners.iter().all(|owner| owner.operation == Operation::Update);
        by_plain_writes && entry.value.value().is_none_or(|value| is_default(before, name, value, names))
    };
    let owned = fields(before);
    let owned = owned.iter().filter(|(name, entry)| !is_reset(name, entry));
    let owned = OwnedMap::from_entries(owned.map(|(name, entry)| (name.clone(), entry.clone())));
    let mut field_conflicts = to_map_conflicts("fields", owned.conflicts_with(manager, &fields(next)));
    // No body named the reason that is cleared with the maintenance. So the conflict is about `parked`, as that of an
    // apply is.
    if maintenance::clears_reason(before, next) && field_conflicts.iter().any(|one| one.key == maintenance::PARKED) {
        field_conflicts.retain(|one| one.key != maintenance::REASON);
    }
    conflicts.extend(field_conflicts);
    if conflicts.is_empty() { Ok(()) } else { Err(WriteError::Conflicts(conflicts)) }
}

/// Returns the keys of a level's map that the step changes and that other managers own.
fn layer_conflicts<K, V>(map: &'static str, manager: &Manager, before: &Layer<K, V>, next: &Layer<K, V>) -> Vec<MapConflict>
where
    K: Ord + Clone + fmt::Display,
    V: Clone + PartialEq + Serialize,
{
    let nothing = OwnedMap::default();
    let (before, next) = (before.provided.as_ref().unwrap_or(&nothing), next.provided.as_ref().unwrap_or(&nothing));
    to_map_conflicts(map, before.conflicts_with(manager, next))
}

fn to_map_conflicts<K: fmt::Display, V: Serialize>(map: &'static str, conflicts: Vec<Conflict<K, V>>) -> Vec<MapConflict> {
    conflicts.into_iter().map(|one| MapConflict::from_conflict(map, one)).collect()
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

    #[test]
    fn check_update_conflicts_reports_changed_and_removed_values() {
        let mut before = ClusterSpec::default();
        let names = AnyNameResolver::default();
        let [git, bob] = ["git", "bob"].map(|name| Manager::new(name).unwrap());
        let update = |spec: &mut ClusterSpec, manager: &Manager, body: &str| {
            let author = WriteMode::Update { manager, shape: BodyShape::Native };
            write_body(spec, &JsonBody::parse(body).unwrap(), author, &names, 7).unwrap();
        };
        update(&mut before, &git, r#"{"description": "a", "labels": {"tier": "gold", "ntp": null}}"#);
        for (body, by, expected) in [
            (r#"{"labels": {"tier": "gold", "ntp": null, "new": "x"}, "paused": true}"#, &bob, &[][..]),
            (r#"{"labels": {"tier": "iron", "ntp": null}}"#, &git, &[]),
            (r#"{"labels": {"tier": "iron", "ntp": null}}"#, &bob, &["labels.tier git:update \"gold\""]),
            (r#"{"labels": {"tier": "gold"}}"#, &bob, &["labels.ntp git:update null"]),
            (r#"{"description": null}"#, &bob, &["fields.description git:update \"a\""]),
        ] {
            let mut next = before.clone();
            update(&mut next, by, body);
            let found = match check_update_conflicts(&before, &next, by, &names) {
                Err(WriteError::Conflicts(all)) => all,
                other => other.map(|()| Vec::new()).unwrap(),
            };
            let found: Vec<_> = found.iter().map(|one| format!("{}.{} {} {}", one.map, one.key, one.owner, one.value)).collect();
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn y05_check_update_conflicts_ignores_value_reset_by_updates() {
        let names = AnyNameResolver::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Manager::new(name).unwrap());
        let by = |spec: &mut ClusterSpec, author: WriteMode<'_>, body: &str| {
            write_body(spec, &JsonBody::parse(body).unwrap(), author, &names, 7).unwrap();
        };
        let update = |manager| WriteMode::Update { manager, shape: BodyShape::Native };
        let is_taken = |before: &ClusterSpec| {
            let mut next = before.clone();
            by(&mut next, update(&bob), r#"{"paused": true}"#);
            check_update_conflicts(before, &next, &bob, &names).is_err()
        };
        let mut spec = ClusterSpec::default();
        by(&mut spec, update(&ann), r#"{"paused": true}"#);
        by(&mut spec, update(&ann), r#"{"paused": false}"#);
        assert_eq!(spec.owners["paused"][0].to_string(), "ann:update");
        assert!(!is_taken(&spec));
        let mut spec = ClusterSpec::default();
        let apply = WriteMode::Apply { manager: &ann, force: false, adopt: None, scope: ApplyScope::Object };
        by(&mut spec, apply, r#"{"paused": false}"#);
        assert!(is_taken(&spec));
    }

    /// A manifest that ends a maintenance names `parked` alone, and the conflict is about that field.
    #[test]
    fn y05_ending_maintenance_conflicts_on_parked_but_not_reason() {
        let names = AnyNameResolver::default();
        let [git, ann] = ["git", "ann"].map(|name| Manager::new(name).unwrap());
        let mut before = NodeSpec::default();
        let body = JsonBody::parse(r#"{"parked": true, "maintenance_reason": "disk"}"#).unwrap();
        let apply = WriteMode::Apply { manager: &git, force: false, adopt: None, scope: ApplyScope::Object };
        write_body(&mut before, &body, apply, &names, 7).unwrap();
        for (body, taken) in [
            (r#"{"parked": false}"#, &["parked"][..]),
            (r#"{"parked": false, "maintenance_reason": null}"#, &["parked"]),
            (r#"{"parked": false, "maintenance_reason": "fan"}"#, &["maintenance_reason", "parked"]),
            (r#"{"maintenance_reason": "fan"}"#, &["maintenance_reason"]),
            (r#"{"maintenance_reason": null}"#, &["maintenance_reason"]),
        ] {
            let mut next = before.clone();
            let author = WriteMode::Update { manager: &ann, shape: BodyShape::Native };
            write_body(&mut next, &JsonBody::parse(body).unwrap(), author, &names, 8).unwrap();
            let Err(WriteError::Conflicts(found)) = check_update_conflicts(&before, &next, &ann, &names) else {
                panic!("{body} takes nothing");
            };
            assert_eq!(found.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), taken, "{body}");
        }
    }

    /// A number is shown even at its default, where other fields are `null`.
    #[test]
    fn y05_check_update_conflicts_ignores_number_reset_by_updates() {
        let names = AnyNameResolver::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Manager::new(name).unwrap());
        let update = |spec: &mut InspectionRuleSpec, manager: &Manager, body: &str| {
            let author = WriteMode::Update { manager, shape: BodyShape::Native };
            write_body(spec, &JsonBody::parse(body).unwrap(), author, &names, 7).unwrap();
        };
        let actions = r#"{"priority": 5, "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]}"#;
        for (body, is_taken) in [(r#"{"priority": 5}"#, true), (r#"{"priority": 0}"#, false), (r#"{"priority": null}"#, false)] {
            let mut before = InspectionRuleSpec::default();
            update(&mut before, &ann, actions);
            update(&mut before, &ann, body);
            let mut next = before.clone();
            update(&mut next, &bob, r#"{"priority": 7}"#);
            assert_eq!(check_update_conflicts(&before, &next, &bob, &names).is_err(), is_taken, "{body}");
        }
    }
}
