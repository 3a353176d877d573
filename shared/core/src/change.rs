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

/// The way in which the change of a field reaches hosts. Some changes are sent at once. Others are rolled out within
/// the budget of the node group, which limits the number of its hosts that change at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Propagation {
    /// Nothing is sent to a host. The field is for people, or only the controller uses it. An inspection rule may
    /// nevertheless read the field of a node, and the values that the rule then sets reach the host.
    ControllerOnly,
    /// The change is sent at once to every host below the object, and starts no task by itself. If a task reads the
    /// field, the task digest of the host changes, and the new task set is rolled out.
    InPlace,
    /// The change is sent at once, like `InPlace`, but only to the hosts below whose effective value of a key changes.
    InPlaceByKey,
    /// The known part is sent at once to every host below the object. Changed tasks are rolled out within the budget.
    InPlaceAndRolledOut,
    /// The change is applied within the budget of the node group, if the host's task digest changes.
    RolledOut,
    /// The change, such as a higher mode, is applied within the budget of the node group, although no digest changes.
    RolledOutWithoutDigest,
}

/// The hosts that a change affects, among the hosts below the changed object. For a report, the only such host is the
/// host that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostScope {
    /// No host.
    Nobody,
    /// Every host below the object, even if a nearer level sets the same field.
    Everyone,
    /// The hosts whose effective value of a key changes.
    ByKey,
    /// The hosts that have a task or requirement which reads the field, and the hosts that get or lose a task by the
    /// change. Every host below the object, if another release applies now.
    ByTasks,
}

/// A field whose value has changed, and the propagation of the change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldChange {
    /// Name of the field in manifests.
    pub field: &'static str,
    /// The way in which the change reaches hosts.
    pub propagation: Propagation,
}

/// The field change that represents any change of a release. The fleet has only the compiled form of a release, so it
/// cannot compare single fields.
pub(crate) const RELEASE_CHANGES: &[FieldChange] = &[FieldChange { field: "tasks", propagation: Propagation::RolledOut }];

/// The field change that represents an inspection rule that is added or removed. What the rule sets belongs to the
/// known part of a node, and is sent to hosts at once.
pub(crate) const RULE_CHANGES: &[FieldChange] = &[FieldChange { field: "actions", propagation: Propagation::InPlace }];

/// A spec, or data that a host reports, in which each field has a [`Propagation`].
pub trait ClassifyFields {
    /// The names of the fields in manifests, in the order of the spec. All inherited fields are one entry, `inherited`.
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

/// Returns the propagation of a change of an object's name. The name is sent to hosts as the origin of what the object
/// provides. Templates read the names of nodes, groups and clusters.
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
    /// Returns the hosts that a change with this propagation affects.
    pub const fn host_scope(self) -> HostScope {
        match self {
            Self::ControllerOnly => HostScope::Nobody,
            Self::InPlace | Self::InPlaceAndRolledOut | Self::RolledOutWithoutDigest => HostScope::Everyone,
            Self::InPlaceByKey => HostScope::ByKey,
            Self::RolledOut => HostScope::ByTasks,
        }
    }

    /// Returns whether a change with this propagation may place tasks on hosts that did not run them before.
    pub(crate) const fn may_move_tasks(self) -> bool {
        match self {
            Self::InPlaceAndRolledOut | Self::RolledOut => true,
            Self::ControllerOnly | Self::InPlace | Self::InPlaceByKey | Self::RolledOutWithoutDigest => false,
        }
    }
}

/// Implements [`ClassifyFields`]. A row is a field with its propagation, or with `by` and the method of
/// [`FieldDiffCollector`] that finds its changes. A literal after the field is its name in manifests, if that differs.
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

            /// Compares field by field. The rule of a row is a propagation, or a method of the collector for the field.
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
        remove_orphans: InPlace,
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
        tags: by node_tags,
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

/// Collects the changed fields of one object, each with its propagation.
#[derive(Default)]
struct FieldDiffCollector(Vec<FieldChange>);

impl FieldDiffCollector {
    /// Adds a field with this propagation if its old and its new value differ.
    fn field<T: PartialEq + ?Sized>(&mut self, field: &'static str, old: &T, new: &T, propagation: Propagation) {
        self.add(field, old != new, propagation);
    }

    /// Adds a field with this propagation if `differs` is true.
    fn add(&mut self, field: &'static str, differs: bool, propagation: Propagation) {
        if differs {
            self.0.push(FieldChange { field, propagation });
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

    /// Adds a change of the mode. A lower mode is sent at once, so that the host stops running tasks. A higher mode
    /// makes hosts run tasks, so it is applied within the budget of the group.
    fn mode(&mut self, old: Option<Mode>, new: Option<Mode>) {
        let propagation = if new.unwrap_or_default() > old.unwrap_or_default() {
            Propagation::RolledOutWithoutDigest
        } else {
            Propagation::InPlace
        };
        self.field("mode", &old, &new, propagation);
    }

    /// Adds the changes of the tags of a release or cluster. Which tags exist, and their `role` and `has_primary`,
    /// decide which tasks run, so a change of these is rolled out. Ready probes (the checks of a tag on its hosts) are
    /// sent at once. A title is only for people.
    fn tags(&mut self, old: &BTreeMap<TagName, TagSpec>, new: &BTreeMap<TagName, TagSpec>) {
        let placement = |(tag, spec): (&TagName, &TagSpec)| {
            let TagSpec { has_primary, role, title: _, ready: _ } = spec;
            (tag.clone(), *has_primary, role.clone())
        };
        self.add("tags", !old.iter().map(placement).eq(new.iter().map(placement)), Propagation::RolledOut);
        let probes = |(tag, spec): (&TagName, &TagSpec)| (!spec.ready.is_empty()).then(|| (tag.clone(), spec.ready.clone()));
        self.add("tags.ready", !old.iter().filter_map(probes).eq(new.iter().filter_map(probes)), Propagation::InPlace);
        let title = |(tag, spec): (&TagName, &TagSpec)| (!spec.title.is_empty()).then(|| (tag.clone(), spec.title.clone()));
        self.add("tags.title", !old.iter().filter_map(title).eq(new.iter().filter_map(title)), Propagation::ControllerOnly);
    }

    /// Adds the field `tags` of a node if one of these differs: the tags that operators assigned or unassigned, or the
    /// tags that extensions decided for each role.
    fn node_tags(&mut self, old: &NodeTags, new: &NodeTags) {
        let NodeTags { assigned, unassigned, decided } = new;
        let tags_by_role = |decided: &BTreeMap<Name, DecidedTags>| {
            decided.iter().map(|(role, decision)| (role.clone(), decision.tags.clone())).collect::<Vec<_>>()
        };
        let has_same_tags = is_same_intent(&old.assigned, assigned)
            && is_same_intent(&old.unassigned, unassigned)
            && tags_by_role(&old.decided) == tags_by_role(decided);
        self.add("tags", !has_same_tags, Propagation::RolledOut);
    }

    /// Adds a change of the traits that operators set on a node. A change of their owners is not a difference.
    fn traits(&mut self, old: &OwnedSet<Trait>, new: &OwnedSet<Trait>) {
        self.add("traits", !is_same_intent(old, new), Propagation::InPlace);
    }
}

/// Returns whether two versions of what a level provides have equal values and the same merge mode. Owners are not
/// compared.
fn has_same_values<K: Ord, V: PartialEq>(old: &Layer<K, V>, new: &Layer<K, V>) -> bool {
    let Layer { provided, merge } = new;
    let is_provided_equal = match (&old.provided, provided) {
        (Some(old), Some(new)) => is_same_intent(old, new),
        (old, new) => old.is_none() && new.is_none(),
    };
    is_provided_equal && old.merge == *merge
}

/// Returns whether two maps have the same keys and values. The owners of the keys are not compared.
fn is_same_intent<K: Ord, V: PartialEq>(old: &OwnedMap<K, V>, new: &OwnedMap<K, V>) -> bool {
    let values = |map| OwnedMap::iter(map).map(|(key, entry)| (key, &entry.value));
    values(old).eq(values(new))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::object::ClusterId;

    /// The modes are, from the lowest: observe, noop, apply. `None` means apply. A lower mode reaches hosts at once,
    /// and a higher mode is rolled out.
    #[test]
    fn mode_change_is_in_place_when_mode_becomes_lower() {
        let group = |mode| NodeGroupSpec { mode, ..NodeGroupSpec::new(ClusterId(Uuid::nil())) };
        for (old, new, propagation) in [
            (None, Some(Mode::Noop), Propagation::InPlace),
            (Some(Mode::Noop), None, Propagation::RolledOutWithoutDigest),
            (Some(Mode::Observe), Some(Mode::Noop), Propagation::RolledOutWithoutDigest),
            (Some(Mode::Noop), Some(Mode::Observe), Propagation::InPlace),
        ] {
            assert_eq!(group(new).changes(&group(old)), [FieldChange { field: "mode", propagation }], "{old:?} {new:?}");
        }
        assert!(group(None).changes(&group(None)).is_empty());
    }

    #[test]
    fn changes_lists_only_differing_fields() {
        let old = ClusterSpec::default();
        let new = ClusterSpec { paused: true, description: "x".into(), ..ClusterSpec::default() };
        let changes = new.changes(&old);
        let names: Vec<_> = changes.iter().map(|change| (change.field, change.propagation)).collect();
        assert_eq!(names, [("description", Propagation::ControllerOnly), ("paused", Propagation::InPlace)]);
    }
}
