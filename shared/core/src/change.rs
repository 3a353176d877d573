//! In place, or rolled out: the class of every field of every kind, in one place.
//!
//! What changes only what is *known* about a host flows at once; what changes what a host *runs* goes through the
//! budget of its group. The fleet asks here whom a change reaches. The table takes each spec apart by name, so that a new
//! field does not compile until somebody has said which it is.

use std::collections::BTreeMap;

use crate::labels::Layer;
use crate::name::{Name, TagName};
use crate::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, DecidedTags, FieldOwners, Inherited, InspectionRuleSpec, Kind,
    NamespaceSpec, NodeGroupSpec, NodeSpec, NodeTags, Object, Observation, PrimarySpec, PrincipalSpec, ReleaseSpec,
    ReleaseTagsSpec, SaidOnHost, Spec, TagSpec,
};
use crate::ownership::{OwnedMap, OwnedSet};
use crate::task::Mode;
use crate::traits::Trait;

/// How a change of a field reaches hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// No host is told: it is for people, or decides in the controller alone.
    Nowhere,
    /// At once, on every host below; starts no task. Where a task reads it, that task goes by digest.
    InPlace,
    /// The same, on the hosts below whose own value of a key it changes.
    InPlaceByKey,
    /// At once what is known, on every host below; tasks by digest.
    InPlaceAndRolledOut,
    /// Where it changes a host's task digest, within the group's budget.
    RolledOut,
    /// Within the group's budget, though no digest changes.
    RolledOutWithoutDigest,
}

/// Whom a change reaches: of the hosts below where it was made, or the one that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// No host.
    Nobody,
    /// Every host, whatever it says itself.
    Everyone,
    /// The hosts whose own value of a key it changes.
    ByKey,
    /// The hosts whose tasks or requirements read what it changes, or on whom tasks are placed by it.
    ByTasks,
}

/// A field that differs, and how that reaches hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldChange {
    /// The field, as manifests name it.
    pub field: &'static str,
    /// How it reaches hosts.
    pub class: Class,
}

/// What differs between two contents of a release, of which the fleet knows the compiled form alone: the class of all that counts there.
pub(crate) const OF_RELEASE: &[FieldChange] = &[FieldChange { field: "tasks", class: Class::RolledOut }];

/// An inspection rule that is new or gone: what it gives is known of hosts at once.
pub(crate) const OF_RULE: &[FieldChange] = &[FieldChange { field: "actions", class: Class::InPlace }];

/// What operators or a host say, each field classified.
pub trait Classified {
    /// The names of the fields.
    const FIELDS: &'static [&'static str];
    /// The fields that differ, in the order of the spec. Who owns a field changes nothing.
    fn changes(&self, old: &Self) -> Vec<FieldChange>;
}

/// What differs between two forms of an object: its name, and the fields of its spec.
pub fn changes<S: Spec + Classified>(old: &Object<S>, new: &Object<S>) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    if old.meta.name != new.meta.name {
        changes.push(FieldChange { field: "name", class: of_name(S::KIND) });
    }
    if old.spec != new.spec {
        changes.append(&mut new.spec.changes(&old.spec));
    }
    changes
}

/// A name is told as the origin of what comes from the object, and templates read those of nodes, groups and clusters.
const fn of_name(kind: Kind) -> Class {
    match kind {
        Kind::ClusterTemplate | Kind::InspectionRule => Class::InPlace,
        Kind::Cluster | Kind::NodeGroup | Kind::Node => Class::InPlaceAndRolledOut,
        Kind::Release | Kind::ReleaseTags | Kind::Primary => Class::RolledOut,
        Kind::Namespace | Kind::Revision | Kind::Secret | Kind::Expectation | Kind::Allocation | Kind::Principal => {
            Class::Nowhere
        }
    }
}

impl Class {
    /// Whom it reaches.
    pub const fn reach(self) -> Reach {
        match self {
            Self::Nowhere => Reach::Nobody,
            Self::InPlace | Self::InPlaceAndRolledOut | Self::RolledOutWithoutDigest => Reach::Everyone,
            Self::InPlaceByKey => Reach::ByKey,
            Self::RolledOut => Reach::ByTasks,
        }
    }

    /// Whether tasks may fall to other hosts by it.
    pub(crate) const fn decides_tasks(self) -> bool {
        match self {
            Self::InPlaceAndRolledOut | Self::RolledOut => true,
            Self::Nowhere | Self::InPlace | Self::InPlaceByKey | Self::RolledOutWithoutDigest => false,
        }
    }
}

/// The table. A row is a field with its class, or with the method of [`Differences`] that classifies it; a name in
/// manifests that is another than the field's stands after it.
macro_rules! classified {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    // Who gave a field changes no host.
    (@row $found:ident, $old:expr, $new:expr, $name:expr, by owners) => { let _: &FieldOwners = $new; };
    (@row $found:ident, $old:expr, $new:expr, $name:expr, by mode) => { $found.mode(*$old, *$new) };
    (@row $found:ident, $old:expr, $new:expr, $name:expr, by $method:ident) => { $found.$method($old, $new) };
    (@row $found:ident, $old:expr, $new:expr, $name:expr, $class:ident) => {
        $found.field($name, $old, $new, Class::$class)
    };
    ($($spec:ident { $($field:ident $($name:literal)?: $($rule:ident)+),+ $(,)? })+) => {$(
        impl Classified for $spec {
            const FIELDS: &'static [&'static str] = &[$(classified!(@name $field $($name)?)),+];

            fn changes(&self, old: &Self) -> Vec<FieldChange> {
                let mut found = Differences::default();
                let Self { $($field),+ } = self;
                $(classified!(@row found, &old.$field, $field, classified!(@name $field $($name)?), $($rule)+);)+
                found.0
            }
        }
    )+};
}

classified! {
    ReleaseSpec {
        description: Nowhere,
        labels: Nowhere,
        annotations: Nowhere,
        imports: RolledOut,
        roles: RolledOut,
        tags: RolledOut,
        tasks: RolledOut,
        matching: RolledOut,
        extensions: RolledOut,
        foreign: Nowhere,
        owners: by owners,
    }
    ReleaseTagsSpec {
        tags: by tags,
    }
    NamespaceSpec {
        display_name: Nowhere,
        description: Nowhere,
        visibility: Nowhere,
        protected: Nowhere,
        owner: Nowhere,
        labels: Nowhere,
        resource_type_associations: Nowhere,
        properties: Nowhere,
        objects: Nowhere,
        tags: Nowhere,
        dates: Nowhere,
        owners: by owners,
    }
    InspectionRuleSpec {
        description: Nowhere,
        priority: InPlace,
        phase: Nowhere,
        sensitive: InPlace,
        grants: InPlace,
        conditions: InPlace,
        actions: InPlace,
        labels: Nowhere,
        owners: by owners,
    }
    ClusterTemplateSpec {
        description: Nowhere,
        inherited: by inherited,
        release: RolledOut,
        host_labels: InPlace,
        extra: Nowhere,
        owners: by owners,
    }
    ClusterSpec {
        description: Nowhere,
        inherited: by inherited,
        cluster_template: InPlaceAndRolledOut,
        release: RolledOut,
        host_labels: InPlace,
        tags: by tags,
        roles: RolledOut,
        rollout: Nowhere,
        paused: InPlace,
        primaries: RolledOut,
        extra: Nowhere,
        owners: by owners,
    }
    NodeGroupSpec {
        cluster: InPlaceAndRolledOut,
        description: Nowhere,
        inherited: by inherited,
        release: RolledOut,
        host_labels: InPlace,
        roles: RolledOut,
        requirements: InPlace,
        strategy: Nowhere,
        paused: InPlace,
        mode: by mode,
        mend_offline: InPlace,
        splay_seconds "splay": InPlace,
        silent_after_seconds "silent_after": InPlace,
        extra: Nowhere,
        owners: by owners,
    }
    NodeSpec {
        description: Nowhere,
        inherited: by inherited,
        nodegroup: InPlaceAndRolledOut,
        roles: RolledOut,
        tags: by tags_by_hand,
        traits: by traits,
        suppressed_traits: InPlace,
        properties: InPlace,
        instance_info: InPlace,
        provision_state: Nowhere,
        mode: by mode,
        hold: InPlace,
        parked: InPlace,
        extra: Nowhere,
        owners: by owners,
    }
    AllocationSpec {
        resource_class: Nowhere,
        traits: Nowhere,
        requirements: Nowhere,
        candidate_nodes: Nowhere,
        nodegroup: Nowhere,
        owner: Nowhere,
        within: Nowhere,
        decision: Nowhere,
        extra: Nowhere,
        owners: by owners,
    }
    PrincipalSpec {
        role: Nowhere,
        cluster: Nowhere,
        description: Nowhere,
        certificates: Nowhere,
        tokens: Nowhere,
        takes_unlisted: Nowhere,
    }
    PrimarySpec {
        cluster: RolledOut,
        node: RolledOut,
        since: Nowhere,
        epoch: Nowhere,
    }
    Observation {
        facts: RolledOut,
        traits: InPlace,
        labels: InPlaceByKey,
        not_taken: Nowhere,
    }
    SaidOnHost {
        paused: InPlace,
        hold: InPlace,
        parked: InPlace,
    }
}

/// Collects the fields that differ.
#[derive(Default)]
struct Differences(Vec<FieldChange>);

impl Differences {
    fn field<T: PartialEq + ?Sized>(&mut self, field: &'static str, old: &T, new: &T, class: Class) {
        self.add(field, old != new, class);
    }

    fn add(&mut self, field: &'static str, differs: bool, class: Class) {
        if differs {
            self.0.push(FieldChange { field, class });
        }
    }

    fn inherited(&mut self, old: &Inherited, new: &Inherited) {
        let Inherited { labels, annotations, parameters, lifecycle } = new;
        self.add("labels", !says_same(&old.labels, labels), Class::InPlaceByKey);
        self.add("annotations", !says_same(&old.annotations, annotations), Class::InPlaceByKey);
        self.add("parameters", !says_same(&old.parameters, parameters), Class::RolledOut);
        self.field("lifecycle", &old.lifecycle, lifecycle, Class::InPlace);
    }

    /// Towards noop or observe a mode is in place, towards apply it takes a lease.
    fn mode(&mut self, old: Option<Mode>, new: Option<Mode>) {
        let class = if new.unwrap_or_default() > old.unwrap_or_default() {
            Class::RolledOutWithoutDigest
        } else {
            Class::InPlace
        };
        self.field("mode", &old, &new, class);
    }

    /// Probes are known at once; who has a tag, and who holds it, decides tasks; a title is for people.
    fn tags(&mut self, old: &BTreeMap<TagName, TagSpec>, new: &BTreeMap<TagName, TagSpec>) {
        let decides = |(tag, spec): (&TagName, &TagSpec)| {
            let TagSpec { has_primary, role, title: _, ready: _ } = spec;
            (tag.clone(), *has_primary, role.clone())
        };
        self.add("tags", !old.iter().map(decides).eq(new.iter().map(decides)), Class::RolledOut);
        let ready =
            |(tag, spec): (&TagName, &TagSpec)| (!spec.ready.is_empty()).then(|| (tag.clone(), spec.ready.clone()));
        self.add("tags.ready", !old.iter().filter_map(ready).eq(new.iter().filter_map(ready)), Class::InPlace);
        let title =
            |(tag, spec): (&TagName, &TagSpec)| (!spec.title.is_empty()).then(|| (tag.clone(), spec.title.clone()));
        self.add("tags.title", !old.iter().filter_map(title).eq(new.iter().filter_map(title)), Class::Nowhere);
    }

    fn tags_by_hand(&mut self, old: &NodeTags, new: &NodeTags) {
        let NodeTags { assigned, unassigned, decided } = new;
        let gives = |decided: &BTreeMap<Name, DecidedTags>| {
            decided.iter().map(|(role, made)| (role.clone(), made.tags.clone())).collect::<Vec<_>>()
        };
        let same = is_same_intent(&old.assigned, assigned)
            && is_same_intent(&old.unassigned, unassigned)
            && gives(&old.decided) == gives(decided);
        self.add("tags", !same, Class::RolledOut);
    }

    fn traits(&mut self, old: &OwnedSet<Trait>, new: &OwnedSet<Trait>) {
        self.add("traits", !is_same_intent(old, new), Class::InPlace);
    }
}

/// Whether two forms of a level say the same, whoever owns it.
fn says_same<K: Ord, V: PartialEq>(old: &Layer<K, V>, new: &Layer<K, V>) -> bool {
    let Layer { provided, merge } = new;
    let same = match (&old.provided, provided) {
        (Some(old), Some(new)) => is_same_intent(old, new),
        (old, new) => old.is_none() && new.is_none(),
    };
    same && old.merge == *merge
}

fn is_same_intent<K: Ord, V: PartialEq>(old: &OwnedMap<K, V>, new: &OwnedMap<K, V>) -> bool {
    let said = |map| OwnedMap::iter(map).map(|(key, entry)| (key, &entry.said));
    said(old).eq(said(new))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::object::ClusterId;

    #[test]
    fn a_mode_flows_down_at_once_and_up_within_the_budget() {
        let group = |mode| NodeGroupSpec { mode, ..NodeGroupSpec::new(ClusterId(Uuid::nil())) };
        for (old, new, class) in [
            (None, Some(Mode::Noop), Class::InPlace),
            (Some(Mode::Noop), None, Class::RolledOutWithoutDigest),
            (Some(Mode::Observe), Some(Mode::Noop), Class::RolledOutWithoutDigest),
            (Some(Mode::Noop), Some(Mode::Observe), Class::InPlace),
        ] {
            assert_eq!(group(new).changes(&group(old)), [FieldChange { field: "mode", class }], "{old:?} {new:?}");
        }
        assert!(group(None).changes(&group(None)).is_empty());
    }

    #[test]
    fn only_what_differs_is_named() {
        let old = ClusterSpec::default();
        let new = ClusterSpec { paused: true, description: "x".into(), ..ClusterSpec::default() };
        let found = new.changes(&old);
        let names: Vec<_> = found.iter().map(|change| (change.field, change.class)).collect();
        assert_eq!(names, [("description", Class::Nowhere), ("paused", Class::InPlace)]);
    }
}
