//! Checks the effect of an edit against the propagation of its field, and against what uses the field.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::change::{ClassifyFields, FieldChange, Propagation};
use stemma_core::fleet::FleetChange;
use stemma_core::object::{Kind, Object, Spec};
use stemma_core::unimplemented::UnimplementedFields;

use super::site::{NodeStates, PropagationSite};

/// A field, its propagation, and an edit that makes a difference in the site.
pub(super) type EditRow<S> = (&'static str, Propagation, fn(&mut S));

/// The rows whose edit sets something that nothing uses yet, with the field that the finding names.
pub(super) const UNIMPLEMENTED: &[(Kind, &str, &str)] = &[
    (Kind::ClusterTemplate, "lifecycle", "node_drain_timeout"),
    (Kind::Cluster, "lifecycle", "node_drain_timeout"),
    (Kind::Cluster, "rollout", "rollout"),
    (Kind::NodeGroup, "lifecycle", "node_drain_timeout"),
    (Kind::NodeGroup, "strategy", "strategy"),
    (Kind::NodeGroup, "mend_offline", "mend_offline"),
    (Kind::Node, "lifecycle", "node_drain_timeout"),
];

/// What uses the fields that are neither sent to hosts nor unused.
pub(super) const UNUSED_BY_HOSTS: &[(Kind, &str, &[&str])] = &[
    (Kind::Release, "people", &["description", "labels", "annotations", "owners"]),
    (Kind::Release, "the system that it came from", &["foreign"]),
    (Kind::ClusterTemplate, "people and Magnum's clients", &["description", "extra", "owners"]),
    (Kind::Cluster, "people and Magnum's clients", &["description", "extra", "owners"]),
    (Kind::NodeGroup, "people and Magnum's clients", &["description", "extra", "owners"]),
    (Kind::Node, "people and Ironic's clients", &["description", "provision_state", "extra", "owners"]),
    (Kind::Namespace, "people and Glance's clients", &["display_name", "description", "visibility", "owner", "labels"]),
    (Kind::Namespace, "people and Glance's clients", &["dates", "owners"]),
    (Kind::Namespace, "the catalogue", &["protected", "resource_type_associations", "properties", "objects", "tags"]),
    (Kind::InspectionRule, "people and Ironic's clients", &["description", "phase", "labels", "owners"]),
    (Kind::Allocation, "the choice of a node", &["resource_class", "traits", "requirements", "candidate_nodes"]),
    (Kind::Allocation, "the choice of a node", &["nodegroup", "owner", "within", "decision"]),
    (Kind::Allocation, "people and Ironic's clients", &["extra", "owners"]),
    (Kind::Principal, "the listener", &["role", "cluster", "certificates", "tokens", "takes_unlisted"]),
    (Kind::Principal, "people", &["description"]),
    (Kind::Primary, "the next choice", &["since", "epoch"]),
];

/// Checks that an edit sets an unused field only if the table above lists it, and that for each other field that is not
/// sent to hosts a user is listed.
pub(super) fn check_unimplemented<S: Spec + UnimplementedFields>(field: &str, class: Propagation, old: &S, new: &S) {
    let given = |spec: &S| spec.unimplemented_fields().into_iter().map(|(field, _)| field).collect::<BTreeSet<_>>();
    let found: Vec<_> = given(new).difference(&given(old)).cloned().collect();
    let of_field = UNIMPLEMENTED.iter().filter(|(kind, row, _)| (*kind, *row) == (S::KIND, field));
    let expected: Vec<_> = of_field.map(|(.., idle)| *idle).collect();
    assert_eq!(found, expected, "{} {field} is idle", S::KIND);
    let is_for_others = UNUSED_BY_HOSTS.iter().any(|(kind, _, fields)| *kind == S::KIND && fields.contains(&field));
    assert_eq!(
        is_for_others,
        class == Propagation::ControllerOnly && expected.is_empty(),
        "{} {field}: what acts on it?",
        S::KIND
    );
}

/// Checks that the rows cover every field. Returns the edited version of each row.
pub(super) fn edited_versions<S: Spec + ClassifyFields + UnimplementedFields>(
    old: &S,
    rows: &[EditRow<S>],
) -> Vec<(&'static str, Propagation, S)> {
    let edited = edited_observations(old, rows);
    for (field, class, new) in &edited {
        check_unimplemented(field, *class, old, new);
    }
    edited
}

/// Like `edited_versions`, for data that a host reports.
pub(super) fn edited_observations<S: ClassifyFields + Clone + PartialEq>(
    old: &S,
    rows: &[EditRow<S>],
) -> Vec<(&'static str, Propagation, S)> {
    let named: BTreeSet<&str> = rows.iter().map(|(field, ..)| *field).collect();
    let inherited = ["labels", "annotations", "parameters", "lifecycle"];
    for field in <S as ClassifyFields>::FIELDS {
        let all: &[&str] = if *field == "inherited" { &inherited } else { &[*field] };
        assert!(all.iter().all(|field| named.contains(field)), "{field} is not changed by this test");
    }
    let edited = |(field, class, edit): &EditRow<S>| {
        let mut new = old.clone();
        edit(&mut new);
        assert!(new != *old, "{field} is changed");
        let expected = FieldChange { field, propagation: *class };
        let expected = if *field == "owners" { vec![] } else { vec![expected] };
        assert_eq!(new.changes(old), expected, "{field}");
        (*field, *class, new)
    };
    rows.iter().map(edited).collect()
}

/// Checks that the nodes below are affected as the propagation says, and others are not.
pub(super) fn check_dirty_nodes(
    what: &str,
    class: Propagation,
    below: &[&str],
    reached: &BTreeSet<String>,
    before: &NodeStates,
    after: &NodeStates,
) {
    let differs = |part: fn(&(String, Option<String>)) -> String| -> BTreeSet<&str> {
        let other = before.iter().filter(|(name, answer)| part(answer) != part(&after[*name]));
        other.map(|(name, _)| name.as_str()).collect()
    };
    let told = differs(|(told, _)| told.clone());
    let digests = differs(|(_, digest)| digest.clone().unwrap_or_default());
    let reached: BTreeSet<&str> = reached.iter().map(String::as_str).collect();
    let below: BTreeSet<&str> = below.iter().copied().collect();
    let none = BTreeSet::new();
    match class {
        Propagation::ControllerOnly => assert_eq!((&reached, &told, &digests), (&none, &none, &none), "{what}"),
        Propagation::InPlace | Propagation::InPlaceByKey | Propagation::RolledOutWithoutDigest => {
            assert_eq!((&reached, &told, &digests), (&below, &below, &none), "{what}");
        }
        Propagation::InPlaceAndRolledOut => {
            assert_eq!((&told, digests.is_empty()), (&below, false), "{what}");
            assert!(reached.is_superset(&below) && reached.is_superset(&digests), "{what}: {reached:?} {digests:?}");
        }
        Propagation::RolledOut => {
            assert_eq!((&told, &digests), (&none, &below), "{what}");
            assert!(reached.is_superset(&digests), "{what}: {reached:?} {digests:?}");
        }
    }
}

/// Applies each edited version of an object to a fresh site. `below` returns the nodes that the edit should affect.
pub(super) fn check_object_edits<S: Spec + ClassifyFields + UnimplementedFields>(
    old: &Object<S>,
    rows: &[EditRow<S>],
    change: fn(Arc<Object<S>>) -> FleetChange,
    below: impl Fn(&str) -> &'static [&'static str],
) {
    for (field, class, spec) in edited_versions(&old.spec, rows) {
        let mut site = PropagationSite::new();
        let before = site.node_states();
        let reached = site.apply(change(Arc::new(Object { meta: old.meta.clone(), spec })));
        check_dirty_nodes(&format!("{} {field}", S::KIND), class, below(field), &reached, &before, &site.node_states());
    }
}

pub(super) const ALL_NODES: &[&str] = &["db-1", "db-2", "web-1"];
pub(super) const DB_NODES: &[&str] = &["db-1", "db-2"];
