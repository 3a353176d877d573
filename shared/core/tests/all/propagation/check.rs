//! Checks the effect of an edit against the propagation of its field (how the change reaches hosts), and against the
//! recorded users of the field.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::change::{ClassifyFields, FieldChange, Propagation};
use stemma_core::fleet::FleetChange;
use stemma_core::object::{Kind, Object, Spec};
use stemma_core::unimplemented::UnimplementedFields;

use super::site::{NodeStates, PropagationSite};

/// A field, its propagation (how a change reaches hosts), and an edit of the field that shows the propagation.
pub(super) type EditRow<S> = (&'static str, Propagation, fn(&mut S));

/// The kinds and fields whose edit sets something that nothing uses yet, each with the field that the finding names.
pub(super) const UNIMPLEMENTED: &[(Kind, &str, &str)] = &[
    (Kind::ClusterTemplate, "lifecycle", "node_drain_timeout"),
    (Kind::Cluster, "lifecycle", "node_drain_timeout"),
    (Kind::Cluster, "rollout", "rollout"),
    (Kind::NodeGroup, "lifecycle", "node_drain_timeout"),
    (Kind::NodeGroup, "strategy", "strategy"),
    (Kind::NodeGroup, "mend_offline", "mend_offline"),
    (Kind::Node, "lifecycle", "node_drain_timeout"),
];

/// The users of fields that are not sent to hosts. An item has the kind, the user, and the fields for this user.
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

/// Checks that the edit sets exactly the unused fields that [`UNIMPLEMENTED`] lists for the field. Checks that
/// [`UNUSED_BY_HOSTS`] lists every other field that is not sent to hosts, and no further field.
pub(super) fn check_unimplemented<S: Spec + UnimplementedFields>(field: &str, propagation: Propagation, old: &S, new: &S) {
    let unused_fields = |spec: &S| spec.unimplemented_fields().into_iter().map(|(field, _)| field).collect::<BTreeSet<_>>();
    let new_unused: Vec<_> = unused_fields(new).difference(&unused_fields(old)).cloned().collect();
    let table_rows = UNIMPLEMENTED.iter().filter(|(kind, row_field, _)| (*kind, *row_field) == (S::KIND, field));
    let expected: Vec<_> = table_rows.map(|(.., unused_field)| *unused_field).collect();
    assert_eq!(new_unused, expected, "{} {field}: exactly the listed unused fields are set", S::KIND);
    let is_for_others = UNUSED_BY_HOSTS.iter().any(|(kind, _, fields)| *kind == S::KIND && fields.contains(&field));
    assert_eq!(
        is_for_others,
        propagation == Propagation::ControllerOnly && expected.is_empty(),
        "{} {field}: the table lists a user exactly for a used field that no host receives",
        S::KIND
    );
}

/// Checks the rows with [`edited_values`], and each edit with [`check_unimplemented`]. Returns each field with its
/// propagation and the edited spec.
pub(super) fn edited_versions<S: Spec + ClassifyFields + UnimplementedFields>(
    old: &S,
    edit_rows: &[EditRow<S>],
) -> Vec<(&'static str, Propagation, S)> {
    let edited = edited_values(old, edit_rows);
    for (field, propagation, new) in &edited {
        check_unimplemented(field, *propagation, old, new);
    }
    edited
}

/// Checks that the rows cover every field of the type, and that each edit changes only its field, with the listed
/// propagation. Returns each field with its propagation and the edited value. A change of `owners` alone has no
/// propagation. The field `inherited` has one row for each of its four parts.
pub(super) fn edited_values<S: ClassifyFields + Clone + PartialEq>(
    old: &S,
    edit_rows: &[EditRow<S>],
) -> Vec<(&'static str, Propagation, S)> {
    let covered_fields: BTreeSet<&str> = edit_rows.iter().map(|(field, ..)| *field).collect();
    let inherited_fields = ["labels", "annotations", "parameters", "lifecycle"];
    for field in <S as ClassifyFields>::FIELDS {
        let required_fields: &[&str] = if *field == "inherited" { &inherited_fields } else { &[*field] };
        assert!(required_fields.iter().all(|field| covered_fields.contains(field)), "{field} is not changed by this test");
    }
    let edit_field = |(field, propagation, edit): &EditRow<S>| {
        let mut new = old.clone();
        edit(&mut new);
        assert!(new != *old, "{field} is changed");
        let expected = FieldChange { field, propagation: *propagation };
        let expected = if *field == "owners" { vec![] } else { vec![expected] };
        assert_eq!(new.changes(old), expected, "{field}");
        (*field, *propagation, new)
    };
    edit_rows.iter().map(edit_field).collect()
}

/// Checks the effect of one change on nodes. `dirty` contains the nodes that were marked dirty (to be resolved again).
/// The nodes in `below`, and no others, must be affected in the way that the propagation requires: another known part
/// or another task digest. With `InPlaceAndRolledOut`, these nodes get another known part, and at least one node of the
/// site gets another task digest. With `ControllerOnly`, no node may be affected. Each affected node must be in
/// `dirty`. `label` names the change in error messages.
pub(super) fn check_dirty_nodes(
    label: &str,
    propagation: Propagation,
    below: &[&str],
    dirty: &BTreeSet<String>,
    old_states: &NodeStates,
    new_states: &NodeStates,
) {
    let nodes_with_other = |part: fn(&(String, Option<String>)) -> String| -> BTreeSet<&str> {
        let changed_nodes = old_states.iter().filter(|(name, state)| part(state) != part(&new_states[*name]));
        changed_nodes.map(|(name, _)| name.as_str()).collect()
    };
    let changed_known = nodes_with_other(|(known, _)| known.clone());
    let changed_digests = nodes_with_other(|(_, task_digest)| task_digest.clone().unwrap_or_default());
    let dirty: BTreeSet<&str> = dirty.iter().map(String::as_str).collect();
    let below: BTreeSet<&str> = below.iter().copied().collect();
    let no_nodes = BTreeSet::new();
    match propagation {
        Propagation::ControllerOnly => {
            assert_eq!((&dirty, &changed_known, &changed_digests), (&no_nodes, &no_nodes, &no_nodes), "{label}");
        }
        Propagation::InPlace | Propagation::InPlaceByKey | Propagation::RolledOutWithoutDigest => {
            assert_eq!((&dirty, &changed_known, &changed_digests), (&below, &below, &no_nodes), "{label}");
        }
        Propagation::InPlaceAndRolledOut => {
            assert_eq!((&changed_known, changed_digests.is_empty()), (&below, false), "{label}");
            assert!(dirty.is_superset(&below) && dirty.is_superset(&changed_digests), "{label}: {dirty:?} {changed_digests:?}");
        }
        Propagation::RolledOut => {
            assert_eq!((&changed_known, &changed_digests), (&no_nodes, &below), "{label}");
            assert!(dirty.is_superset(&changed_digests), "{label}: {dirty:?} {changed_digests:?}");
        }
    }
}

/// Makes each edit of an object in a new site, and checks its effect. `change` makes a change of the fleet from the
/// edited object. `below` returns for a field the nodes that its edit should affect.
pub(super) fn check_object_edits<S: Spec + ClassifyFields + UnimplementedFields>(
    old: &Object<S>,
    edit_rows: &[EditRow<S>],
    change: fn(Arc<Object<S>>) -> FleetChange,
    below: impl Fn(&str) -> &'static [&'static str],
) {
    for (field, propagation, spec) in edited_versions(&old.spec, edit_rows) {
        let mut site = PropagationSite::new();
        let old_states = site.node_states();
        let dirty = site.apply(change(Arc::new(Object { meta: old.meta.clone(), spec })));
        check_dirty_nodes(&format!("{} {field}", S::KIND), propagation, below(field), &dirty, &old_states, &site.node_states());
    }
}

/// All nodes of the site.
pub(super) const ALL_NODES: &[&str] = &["db-1", "db-2", "web-1"];
/// The nodes of the group `dbs`.
pub(super) const DB_NODES: &[&str] = &["db-1", "db-2"];
