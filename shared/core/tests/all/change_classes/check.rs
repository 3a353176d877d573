//! What an edit does, held to the class of its field and to who acts on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::change::{Class, Classified, FieldChange};
use stemma_core::fleet::Change;
use stemma_core::idle::Idle;
use stemma_core::object::{Kind, Object, Spec};

use super::site::{Answers, Site};

/// A field, its class, and an edit that changes it so that it makes a difference in the site below.
pub(super) type Row<S> = (&'static str, Class, fn(&mut S));

/// The rows of a kind whose edit gives something that nothing acts on, with what is said to be so.
pub(super) const IDLE: &[(Kind, &str, &str)] = &[
    (Kind::ClusterTemplate, "lifecycle", "node_drain_timeout"),
    (Kind::Cluster, "lifecycle", "node_drain_timeout"),
    (Kind::Cluster, "rollout", "rollout"),
    (Kind::NodeGroup, "lifecycle", "node_drain_timeout"),
    (Kind::NodeGroup, "strategy", "strategy"),
    (Kind::NodeGroup, "mend_offline", "mend_offline"),
    (Kind::Node, "lifecycle", "node_drain_timeout"),
];

/// For whom the fields of a kind are of which no host is told and that are not idle.
pub(super) const FOR_OTHERS: &[(Kind, &str, &[&str])] = &[
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

/// Sees that an edit gives what nothing acts on where `IDLE` says so and nowhere else, and that no field is left for which nobody knows
/// what acts on it.
pub(super) fn check_acts<S: Spec + Idle>(field: &str, class: Class, old: &S, new: &S) {
    let given = |spec: &S| spec.idle().into_iter().map(|(field, _)| field).collect::<BTreeSet<_>>();
    let found: Vec<_> = given(new).difference(&given(old)).cloned().collect();
    let of_field = IDLE.iter().filter(|(kind, row, _)| (*kind, *row) == (S::KIND, field));
    let expected: Vec<_> = of_field.map(|(.., idle)| *idle).collect();
    assert_eq!(found, expected, "{} {field} is idle", S::KIND);
    let is_for_others = FOR_OTHERS.iter().any(|(kind, _, fields)| *kind == S::KIND && fields.contains(&field));
    assert_eq!(is_for_others, class == Class::Nowhere && expected.is_empty(), "{} {field}: what acts on it?", S::KIND);
}

/// Checks that the rows name every field, and gives those that an object differs in after each edit.
pub(super) fn each<S: Spec + Classified + Idle>(old: &S, rows: &[Row<S>]) -> Vec<(&'static str, Class, S)> {
    let edited = each_said(old, rows);
    for (field, class, new) in &edited {
        check_acts(field, *class, old, new);
    }
    edited
}

/// The same of what a host says.
pub(super) fn each_said<S: Classified + Clone + PartialEq>(old: &S, rows: &[Row<S>]) -> Vec<(&'static str, Class, S)> {
    let named: BTreeSet<&str> = rows.iter().map(|(field, ..)| *field).collect();
    let inherited = ["labels", "annotations", "parameters", "lifecycle"];
    for field in <S as Classified>::FIELDS {
        let all: &[&str] = if *field == "inherited" { &inherited } else { &[*field] };
        assert!(all.iter().all(|field| named.contains(field)), "{field} is not changed by this test");
    }
    let edited = |(field, class, edit): &Row<S>| {
        let mut new = old.clone();
        edit(&mut new);
        assert!(new != *old, "{field} is changed");
        let expected = FieldChange { field, class: *class };
        let expected = if *field == "owners" { vec![] } else { vec![expected] };
        assert_eq!(new.changes(old), expected, "{field}");
        (*field, *class, new)
    };
    rows.iter().map(edited).collect()
}

/// Sees that what the class says happened to the nodes below, and nothing to others.
pub(super) fn check(
    what: &str,
    class: Class,
    below: &[&str],
    reached: &BTreeSet<String>,
    before: &Answers,
    after: &Answers,
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
        Class::Nowhere => assert_eq!((&reached, &told, &digests), (&none, &none, &none), "{what}"),
        Class::InPlace | Class::InPlaceByKey | Class::RolledOutWithoutDigest => {
            assert_eq!((&reached, &told, &digests), (&below, &below, &none), "{what}");
        }
        Class::InPlaceAndRolledOut => {
            assert_eq!((&told, digests.is_empty()), (&below, false), "{what}");
            assert!(reached.is_superset(&below) && reached.is_superset(&digests), "{what}: {reached:?} {digests:?}");
        }
        Class::RolledOut => {
            assert_eq!((&told, &digests), (&none, &below), "{what}");
            assert!(reached.is_superset(&digests), "{what}: {reached:?} {digests:?}");
        }
    }
}

/// Puts an object in each of its edited forms into a fresh site. `below` says whom an edit should reach.
pub(super) fn put_each<S: Spec + Classified + Idle>(
    old: &Object<S>,
    rows: &[Row<S>],
    change: fn(Arc<Object<S>>) -> Change,
    below: impl Fn(&str) -> &'static [&'static str],
) {
    for (field, class, spec) in each(&old.spec, rows) {
        let mut site = Site::new();
        let before = site.answers();
        let reached = site.apply(change(Arc::new(Object { meta: old.meta.clone(), spec })));
        check(&format!("{} {field}", S::KIND), class, below(field), &reached, &before, &site.answers());
    }
}

pub(super) const ALL: &[&str] = &["db-1", "db-2", "web-1"];
pub(super) const DBS: &[&str] = &["db-1", "db-2"];
