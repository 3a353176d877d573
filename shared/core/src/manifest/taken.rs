//! What a plain write takes from other managers: keys and fields that it changes or takes away, and that another manager owns.
//!
//! A plain write is never a conflict by itself. Whoever makes it may ask that it be refused where it would take something. A field that
//! plain writes alone brought back to its default is nothing to take: who pauses and resumes stands in nobody's way who pauses next.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::fields::Fields;
use super::maintenance;
use super::names::Names;
use super::write::{MapConflict, WriteError, by_hand, is_default, owned_fields};
use crate::labels::Layer;
use crate::ownership::{Conflict, Entry, Manager, Operation, OwnedMap};

/// Checks that the step from one spec to the next takes nothing from other managers.
///
/// # Errors
/// [`WriteError::Conflicts`] with all that it takes.
pub fn check_taken<S: Fields>(before: &S, next: &S, manager: &Manager, names: &dyn Names) -> Result<(), WriteError> {
    let mut taken = Vec::new();
    if let Some((before, next)) = before.inherited_ref().zip(next.inherited_ref()) {
        taken.extend(of_map("labels", manager, &before.labels, &next.labels));
        taken.extend(of_map("annotations", manager, &before.annotations, &next.annotations));
        taken.extend(of_map("parameters", manager, &before.parameters, &next.parameters));
    }
    if let Some((before, next)) = before.node_ref().zip(next.node_ref()) {
        taken.extend(conflicts("traits", before.traits.taken(manager, &next.traits)));
        taken.extend(conflicts("tags", by_hand(&before.tags).taken(manager, &by_hand(&next.tags))));
    }
    let fields = |spec: &S| owned_fields(spec, spec.owners_ref().clone(), names);
    // Plain writes alone brought it back to its default.
    let is_back = |name: &str, entry: &Entry<Value>| {
        let by_plain_writes = entry.owners.iter().all(|owner| owner.operation == Operation::Update);
        by_plain_writes && entry.said.value().is_none_or(|value| is_default(before, name, value, names))
    };
    let held = fields(before);
    let held = held.iter().filter(|(name, entry)| !is_back(name, entry));
    let held = OwnedMap::from_entries(held.map(|(name, entry)| (name.clone(), entry.clone())));
    let mut of_fields = conflicts("fields", held.taken(manager, &fields(next)));
    // Nobody wrote of a reason that goes with a maintenance: the conflict is about the end, as that of an apply is.
    if maintenance::takes_reason(before, next) && of_fields.iter().any(|one| one.key == maintenance::PARKED) {
        of_fields.retain(|one| one.key != maintenance::REASON);
    }
    taken.extend(of_fields);
    if taken.is_empty() { Ok(()) } else { Err(WriteError::Conflicts(taken)) }
}

fn of_map<K, V>(map: &'static str, manager: &Manager, before: &Layer<K, V>, next: &Layer<K, V>) -> Vec<MapConflict>
where
    K: Ord + Clone + fmt::Display,
    V: Clone + PartialEq + Serialize,
{
    let nothing = OwnedMap::default();
    let (before, next) = (before.provided.as_ref().unwrap_or(&nothing), next.provided.as_ref().unwrap_or(&nothing));
    conflicts(map, before.taken(manager, next))
}

fn conflicts<K: fmt::Display, V: Serialize>(map: &'static str, taken: Vec<Conflict<K, V>>) -> Vec<MapConflict> {
    taken.into_iter().map(|one| MapConflict::of(map, one)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::author::{Author, Scope};
    use super::super::body::Body;
    use super::super::testing::Anybody;
    use super::super::write::write;
    use super::*;
    use crate::labels::BodyShape;
    use crate::object::{ClusterSpec, InspectionRuleSpec, NodeSpec};

    #[test]
    fn what_another_manager_owns_is_taken_by_a_change_and_by_taking_it_away() {
        let mut before = ClusterSpec::default();
        let names = Anybody::default();
        let [git, bob] = ["git", "bob"].map(|name| Manager::new(name).unwrap());
        let update = |spec: &mut ClusterSpec, manager: &Manager, body: &str| {
            let author = Author::Update { manager, shape: BodyShape::Own };
            write(spec, &Body::parse(body).unwrap(), author, &names, 7).unwrap();
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
            let found = match check_taken(&before, &next, by, &names) {
                Err(WriteError::Conflicts(all)) => all,
                other => other.map(|()| Vec::new()).unwrap(),
            };
            let found: Vec<_> =
                found.iter().map(|one| format!("{}.{} {} {}", one.map, one.key, one.owner, one.value)).collect();
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn y05_what_was_brought_back_by_plain_writes_is_nothing_to_take_and_what_a_manifest_says_is() {
        let names = Anybody::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Manager::new(name).unwrap());
        let by = |spec: &mut ClusterSpec, author: Author<'_>, body: &str| {
            write(spec, &Body::parse(body).unwrap(), author, &names, 7).unwrap();
        };
        let update = |manager| Author::Update { manager, shape: BodyShape::Own };
        let is_taken = |before: &ClusterSpec| {
            let mut next = before.clone();
            by(&mut next, update(&bob), r#"{"paused": true}"#);
            check_taken(before, &next, &bob, &names).is_err()
        };
        let mut spec = ClusterSpec::default();
        by(&mut spec, update(&ann), r#"{"paused": true}"#);
        by(&mut spec, update(&ann), r#"{"paused": false}"#);
        assert_eq!(spec.owners["paused"][0].to_string(), "ann:update");
        assert!(!is_taken(&spec));
        let mut spec = ClusterSpec::default();
        let apply = Author::Apply { manager: &ann, force: false, adopt: None, scope: Scope::Object };
        by(&mut spec, apply, r#"{"paused": false}"#);
        assert!(is_taken(&spec));
    }

    /// A manifest that ends a maintenance names `parked` alone, and is a conflict about that.
    #[test]
    fn y05_the_end_of_a_maintenance_takes_parked_and_not_the_reason_that_goes_with_it() {
        let names = Anybody::default();
        let [git, ann] = ["git", "ann"].map(|name| Manager::new(name).unwrap());
        let mut before = NodeSpec::default();
        let body = Body::parse(r#"{"parked": true, "maintenance_reason": "disk"}"#).unwrap();
        let apply = Author::Apply { manager: &git, force: false, adopt: None, scope: Scope::Object };
        write(&mut before, &body, apply, &names, 7).unwrap();
        for (body, taken) in [
            (r#"{"parked": false}"#, &["parked"][..]),
            (r#"{"parked": false, "maintenance_reason": null}"#, &["parked"]),
            (r#"{"parked": false, "maintenance_reason": "fan"}"#, &["maintenance_reason", "parked"]),
            (r#"{"maintenance_reason": "fan"}"#, &["maintenance_reason"]),
            (r#"{"maintenance_reason": null}"#, &["maintenance_reason"]),
        ] {
            let mut next = before.clone();
            let author = Author::Update { manager: &ann, shape: BodyShape::Own };
            write(&mut next, &Body::parse(body).unwrap(), author, &names, 8).unwrap();
            let Err(WriteError::Conflicts(found)) = check_taken(&before, &next, &ann, &names) else {
                panic!("{body} takes nothing");
            };
            assert_eq!(found.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), taken, "{body}");
        }
    }

    /// A number is shown at its default too, where other fields are `null`.
    #[test]
    fn y05_a_number_that_was_brought_back_by_plain_writes_is_nothing_to_take() {
        let names = Anybody::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Manager::new(name).unwrap());
        let update = |spec: &mut InspectionRuleSpec, manager: &Manager, body: &str| {
            let author = Author::Update { manager, shape: BodyShape::Own };
            write(spec, &Body::parse(body).unwrap(), author, &names, 7).unwrap();
        };
        let actions = r#"{"priority": 5, "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]}"#;
        for (body, is_taken) in
            [(r#"{"priority": 5}"#, true), (r#"{"priority": 0}"#, false), (r#"{"priority": null}"#, false)]
        {
            let mut before = InspectionRuleSpec::default();
            update(&mut before, &ann, actions);
            update(&mut before, &ann, body);
            let mut next = before.clone();
            update(&mut next, &bob, r#"{"priority": 7}"#);
            assert_eq!(check_taken(&before, &next, &bob, &names).is_err(), is_taken, "{body}");
        }
    }
}
