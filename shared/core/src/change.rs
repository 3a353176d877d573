//! How a change of each field of an object reaches hosts: in place, or rolled out.
//!
//! A change of what is *known* about a host is sent at once. A change of what a host *runs* goes through the budget of
//! its group. The fleet asks this module which hosts a change affects. The table destructures each spec, so that a new
//! field does not compile until it has a propagation.

use std::collections::BTreeMap;

use crate::labels::Layer;
use crate::name::{Name, TagName};
use crate::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, DecidedTags, FieldOwners, Inherited, InspectionRuleSpec, Kind,
    NamespaceSpec, NodeGroupSpec, NodeSpec, NodeTags, Object, Observation, PrimarySpec, PrincipalSpec, ReleaseSpec,
    ReleaseTagsSpec, ReportedState, Spec, TagSpec,
};
use crate::ownership::{OwnedMap, OwnedSet};
use crate::task::Mode;
use crate::traits::Trait;

/// How a change of a field reaches hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Propagation {
    /// Nothing is sent to a host. The field is for people, or is used in the controller only.
    ControllerOnly,
    /// Sent at once to every host below. Starts no task. A task that reads the field follows by digest.
    InPlace,
    /// Like `InPlace`, but only for hosts below whose own value of a key changes.
    InPlaceByKey,
    /// The known part is sent at once to every host below. Tasks follow by digest.
    InPlaceAndRolledOut,
    /// Applied within the group's budget if the host's task digest changes.
    RolledOut,
    /// Applied within the group's budget, although no digest changes.
    RolledOutWithoutDigest,
}

/// The hosts that a change affects, of those below the changed object or of the one that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostScope {
    /// No host.
    Nobody,
    /// Every host, whatever it sets itself.
    Everyone,
    /// The hosts whose own value of a key changes.
    ByKey,
    /// The hosts whose tasks or requirements read the field, or whose tasks are placed by it.
    ByTasks,
}

/// A field that differs, and its propagation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldChange {
    /// Name of the field in manifests.
    pub field: &'static str,
    /// How it reaches hosts.
    pub propagation: Propagation,
}

/// The change between two contents of a release. The fleet stores only the compiled form of a release, so one entry
/// covers every field of it that affects hosts.
pub(crate) const RELEASE_CHANGES: &[FieldChange] = &[FieldChange { field: "tasks", propagation: Propagation::RolledOut }];

/// The change when an inspection rule is added or removed. What the rule sets is known about hosts at once.
pub(crate) const RULE_CHANGES: &[FieldChange] = &[FieldChange { field: "actions", propagation: Propagation::InPlace }];

/// Data of operators or hosts with a propagation for each field.
pub trait ClassifyFields {
    /// Names of the fields.
    const FIELDS: &'static [&'static str];
    /// Returns the fields of `self` that differ from those of `old`, in the order of the spec. A change of a field's
    /// owners is not a difference.
    fn changes(&self, old: &Self) -> Vec<FieldChange>;
}

/// Returns the differences between two versions of an object: its name and the fields of its spec.
pub fn changes<S: Spec + ClassifyFields>(old: &Object<S>, new: &Object<S>) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    if old.meta.name != new.meta.name {
        changes.push(FieldChange { field: "name", propagation: name_propagation(S::KIND) });
    }
    if old.spec != new.spec {
        changes.append(&mut new.spec.changes(&old.spec));
    }
    changes
}

/// Returns the propagation of an object's name. The name is sent as the origin of what the object provides, and
/// templates read the names of nodes, groups and clusters.
const fn name_propagation(kind: Kind) -> Propagation {
    match kind {
        Kind::ClusterTemplate | Kind::InspectionRule => Propagation::InPlace,
        Kind::Cluster | Kind::NodeGroup | Kind::Node => Propagation::InPlaceAndRolledOut,
        Kind::Release | Kind::ReleaseTags | Kind::Primary => Propagation::RolledOut,
        Kind::Namespace | Kind::Revision | Kind::Secret | Kind::Expectation | Kind::Allocation | Kind::Principal => {
            Propagation::ControllerOnly
        }
    }
}

impl Propagation {
    /// Returns the hosts that a change affects.
    pub const fn host_scope(self) -> HostScope {
        match self {
            Self::ControllerOnly => HostScope::Nobody,
            Self::InPlace | Self::InPlaceAndRolledOut | Self::RolledOutWithoutDigest => HostScope::Everyone,
            Self::InPlaceByKey => HostScope::ByKey,
            Self::RolledOut => HostScope::ByTasks,
        }
    }

    /// Returns whether a change may place tasks on other hosts.
    pub(crate) const fn may_move_tasks(self) -> bool {
        match self {
            Self::InPlaceAndRolledOut | Self::RolledOut => true,
            Self::ControllerOnly | Self::InPlace | Self::InPlaceByKey | Self::RolledOutWithoutDigest => false,
        }
    }
}

/// Implements [`ClassifyFields`]. A row is a field with its propagation, or with `by` and the method of
/// [`FieldDiffCollector`] that finds it. A literal after the field is its name in manifests, if that differs.
macro_rules! classified {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    // Owners of fields affect no host.
    (@row $found:ident, $old:expr, $new:expr, $name:expr, by owners) => { let _: &FieldOwners = $new; };
    (@row $found:ident, $old:expr, $new:expr, $name:expr, by mode) => { $found.mode(*$old, *$new) };
    (@row $found:ident, $old:expr, $new:expr, $name:expr, by $method:ident) => { $found.$method($old, $new) };
    (@row $found:ident, $old:expr, $new:expr, $name:expr, $class:ident) => {
        $found.field($name, $old, $new, Propagation::$class)
    };
    ($($spec:ident { $($field:ident $($name:literal)?: $($rule:ident)+),+ $(,)? })+) => {$(
        impl ClassifyFields for $spec {
            const FIELDS: &'static [&'static str] = &[$(classified!(@name $field $($name)?)),+];

            fn changes(&self, old: &Self) -> Vec<FieldChange> {
                let mut found = FieldDiffCollector::default();
                let Self { $($field),+ } = self;
                $(classified!(@row found, &old.$field, $field, classified!(@name $field $($name)?), $($rule)+);)+
                found.0
            }
        }
    )+};
}

classified! {
    ReleaseSpec {
        description: ControllerOnly,
        labels: ControllerOnly,
        annotations: ControllerOnly,
        imports: RolledOut,
        roles: RolledOut,
        tags: RolledOut,
        tasks: RolledOut,
        matching: RolledOut,
        extensions: RolledOut,
        foreign: ControllerOnly,
        owners: by owners,
    }
    ReleaseTagsSpec {
        tags: by tags,
    }
    NamespaceSpec {
        display_name: ControllerOnly,
        description: ControllerOnly,
        visibility: ControllerOnly,
        protected: ControllerOnly,
        owner: ControllerOnly,
        labels: ControllerOnly,
        resource_type_associations: ControllerOnly,
        properties: ControllerOnly,
        objects: ControllerOnly,
        tags: ControllerOnly,
        dates: ControllerOnly,
        owners: by owners,
    }
    InspectionRuleSpec {
        description: ControllerOnly,
        priority: InPlace,
        phase: ControllerOnly,
        sensitive: InPlace,
        grants: InPlace,
        conditions: InPlace,
        actions: InPlace,
        labels: ControllerOnly,
        owners: by owners,
    }
    ClusterTemplateSpec {
        description: ControllerOnly,
        inherited: by inherited,
        release: RolledOut,
        host_labels: InPlace,
        extra: ControllerOnly,
        owners: by owners,
    }
    ClusterSpec {
        description: ControllerOnly,
        inherited: by inherited,
        cluster_template: InPlaceAndRolledOut,
        release: RolledOut,
        host_labels: InPlace,
        tags: by tags,
        roles: RolledOut,
        rollout: ControllerOnly,
        paused: InPlace,
        primaries: RolledOut,
        extra: ControllerOnly,
        owners: by owners,
    }
    NodeGroupSpec {
        cluster: InPlaceAndRolledOut,
        description: ControllerOnly,
        inherited: by inherited,
        release: RolledOut,
        host_labels: InPlace,
        roles: RolledOut,
        requirements: InPlace,
        strategy: ControllerOnly,
        paused: InPlace,
        mode: by mode,
        mend_offline: InPlace,
        splay_seconds "splay": InPlace,
        silent_after_seconds "silent_after": InPlace,
        extra: ControllerOnly,
        owners: by owners,
    }
    NodeSpec {
        description: ControllerOnly,
        inherited: by inherited,
        nodegroup: InPlaceAndRolledOut,
        roles: RolledOut,
        tags: by tags_by_hand,
        traits: by traits,
        suppressed_traits: InPlace,
        properties: InPlace,
        instance_info: InPlace,
        provision_state: ControllerOnly,
        mode: by mode,
        hold: InPlace,
        parked: InPlace,
        extra: ControllerOnly,
        owners: by owners,
    }
    AllocationSpec {
        resource_class: ControllerOnly,
        traits: ControllerOnly,
        requirements: ControllerOnly,
        candidate_nodes: ControllerOnly,
        nodegroup: ControllerOnly,
        owner: ControllerOnly,
        within: ControllerOnly,
        decision: ControllerOnly,
        extra: ControllerOnly,
        owners: by owners,
    }
    PrincipalSpec {
        role: ControllerOnly,
        cluster: ControllerOnly,
        description: ControllerOnly,
        certificates: ControllerOnly,
        tokens: ControllerOnly,
        takes_unlisted: ControllerOnly,
    }
    PrimarySpec {
        cluster: RolledOut,
        node: RolledOut,
        since: ControllerOnly,
        epoch: ControllerOnly,
    }
    Observation {
        facts: RolledOut,
        traits: InPlace,
        labels: InPlaceByKey,
        not_taken: ControllerOnly,
    }
    ReportedState {
        paused: InPlace,
        hold: InPlace,
        parked: InPlace,
    }
}

/// Collects the fields that differ.
#[derive(Default)]
struct FieldDiffCollector(Vec<FieldChange>);

impl FieldDiffCollector {
    fn field<T: PartialEq + ?Sized>(&mut self, field: &'static str, old: &T, new: &T, class: Propagation) {
        self.add(field, old != new, class);
    }

    fn add(&mut self, field: &'static str, differs: bool, class: Propagation) {
        if differs {
            self.0.push(FieldChange { field, propagation: class });
        }
    }

    /// Adds the changed parts of what a level provides: labels, annotations, parameters and lifecycle fields.
    fn inherited(&mut self, old: &Inherited, new: &Inherited) {
        let Inherited { labels, annotations, parameters, lifecycle } = new;
        self.add("labels", !has_same_values(&old.labels, labels), Propagation::InPlaceByKey);
        self.add("annotations", !has_same_values(&old.annotations, annotations), Propagation::InPlaceByKey);
        self.add("parameters", !has_same_values(&old.parameters, parameters), Propagation::RolledOut);
        self.field("lifecycle", &old.lifecycle, lifecycle, Propagation::InPlace);
    }

    /// Adds a change of the mode. A lower mode is in place, so that a host stops at once. A higher one makes hosts run
    /// tasks, so it is applied within the group's budget.
    fn mode(&mut self, old: Option<Mode>, new: Option<Mode>) {
        let class = if new.unwrap_or_default() > old.unwrap_or_default() {
            Propagation::RolledOutWithoutDigest
        } else {
            Propagation::InPlace
        };
        self.field("mode", &old, &new, class);
    }

    /// Adds the changes of tags. The role of a tag and its primary decide tasks. Probes are known at once. A title is
    /// for people.
    fn tags(&mut self, old: &BTreeMap<TagName, TagSpec>, new: &BTreeMap<TagName, TagSpec>) {
        let decides = |(tag, spec): (&TagName, &TagSpec)| {
            let TagSpec { has_primary, role, title: _, ready: _ } = spec;
            (tag.clone(), *has_primary, role.clone())
        };
        self.add("tags", !old.iter().map(decides).eq(new.iter().map(decides)), Propagation::RolledOut);
        let ready = |(tag, spec): (&TagName, &TagSpec)| (!spec.ready.is_empty()).then(|| (tag.clone(), spec.ready.clone()));
        self.add("tags.ready", !old.iter().filter_map(ready).eq(new.iter().filter_map(ready)), Propagation::InPlace);
        let title = |(tag, spec): (&TagName, &TagSpec)| (!spec.title.is_empty()).then(|| (tag.clone(), spec.title.clone()));
        self.add("tags.title", !old.iter().filter_map(title).eq(new.iter().filter_map(title)), Propagation::ControllerOnly);
    }

    /// Adds a change of the tags of a node: assigned and unassigned by an operator, or decided by an extension.
    fn tags_by_hand(&mut self, old: &NodeTags, new: &NodeTags) {
        let NodeTags { assigned, unassigned, decided } = new;
        let gives = |decided: &BTreeMap<Name, DecidedTags>| {
            decided.iter().map(|(role, decision)| (role.clone(), decision.tags.clone())).collect::<Vec<_>>()
        };
        let same = is_same_intent(&old.assigned, assigned)
            && is_same_intent(&old.unassigned, unassigned)
            && gives(&old.decided) == gives(decided);
        self.add("tags", !same, Propagation::RolledOut);
    }

    fn traits(&mut self, old: &OwnedSet<Trait>, new: &OwnedSet<Trait>) {
        self.add("traits", !is_same_intent(old, new), Propagation::InPlace);
    }
}

/// Returns whether two versions of a level have equal values. Owners are not compared.
fn has_same_values<K: Ord, V: PartialEq>(old: &Layer<K, V>, new: &Layer<K, V>) -> bool {
    let Layer { provided, merge } = new;
    let same = match (&old.provided, provided) {
        (Some(old), Some(new)) => is_same_intent(old, new),
        (old, new) => old.is_none() && new.is_none(),
    };
    same && old.merge == *merge
}

fn is_same_intent<K: Ord, V: PartialEq>(old: &OwnedMap<K, V>, new: &OwnedMap<K, V>) -> bool {
    let values = |map| OwnedMap::iter(map).map(|(key, entry)| (key, &entry.value));
    values(old).eq(values(new))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::object::ClusterId;

    #[test]
    fn mode_change_is_in_place_when_towards_noop() {
        let group = |mode| NodeGroupSpec { mode, ..NodeGroupSpec::new(ClusterId(Uuid::nil())) };
        for (old, new, class) in [
            (None, Some(Mode::Noop), Propagation::InPlace),
            (Some(Mode::Noop), None, Propagation::RolledOutWithoutDigest),
            (Some(Mode::Observe), Some(Mode::Noop), Propagation::RolledOutWithoutDigest),
            (Some(Mode::Noop), Some(Mode::Observe), Propagation::InPlace),
        ] {
            assert_eq!(group(new).changes(&group(old)), [FieldChange { field: "mode", propagation: class }], "{old:?} {new:?}");
        }
        assert!(group(None).changes(&group(None)).is_empty());
    }

    #[test]
    fn changes_lists_only_differing_fields() {
        let old = ClusterSpec::default();
        let new = ClusterSpec { paused: true, description: "x".into(), ..ClusterSpec::default() };
        let found = new.changes(&old);
        let names: Vec<_> = found.iter().map(|change| (change.field, change.propagation)).collect();
        assert_eq!(names, [("description", Propagation::ControllerOnly), ("paused", Propagation::InPlace)]);
    }
}
