//! In place, or rolled out: the class of every field of every kind, in one place.
//!
//! What changes only what is *known* about a host flows at once; what changes what a host *runs* goes through the
//! budget of its group. Each spec is taken apart by name below, so that a new field
//! does not compile until somebody has said which it is.

use std::fmt;

use serde::Serialize;

use crate::labels::Layer;
use crate::object::{
    ClusterSpec, ClusterTemplateSpec, Inherited, NodeGroupSpec, NodeSpec, PrimarySpec, ReleaseSpec, ReleaseTagsSpec,
};
use crate::ownership::{Intent, OwnedMap};
use crate::task::Mode;

/// How a change of a field reaches hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// No host is told: it is for people, or decides about other objects alone.
    Nowhere,
    /// At once, on every host below; starts no task. Where a task reads it, that task goes by digest.
    InPlace,
    /// Labels at once, tasks by digest.
    LabelsAtOnce,
    /// Where it changes a host's task digest, within the group's budget.
    RolledOut,
    /// Within the group's budget, though no digest changes.
    RolledOutWithoutDigest,
}

/// A field that differs, and how that reaches hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FieldChange {
    /// The field, as manifests name it.
    pub field: &'static str,
    /// How it reaches hosts.
    pub class: Class,
}

/// A spec whose fields are classified.
pub trait Classified {
    /// The fields that differ, in the order of the spec.
    fn changes(&self, old: &Self) -> Vec<FieldChange>;
}

impl Class {
    /// The reason, in words, as `diff` shows it.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Nowhere => "no host is told",
            Self::InPlace => "in place: on every host below at once, starts no task by itself",
            Self::LabelsAtOnce => "labels at once, tasks where the digest changes",
            Self::RolledOut => "rolled out where the digest changes",
            Self::RolledOutWithoutDigest => "rolled out, though no digest changes",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

/// What a level says, its owners left aside: who owns a key changes no host.
#[derive(PartialEq)]
struct Said<K: Ord, V> {
    merge: Option<bool>,
    provided: Option<Intent<K, V>>,
}

impl<K: Ord + Clone, V: Clone> Said<K, V> {
    fn of(layer: &Layer<K, V>) -> Self {
        Self { merge: layer.merge, provided: layer.provided.as_ref().map(OwnedMap::intent) }
    }
}

/// Collects the fields that differ.
#[derive(Default)]
struct Found(Vec<FieldChange>);

impl Found {
    fn field<T: PartialEq>(&mut self, field: &'static str, old: &T, new: &T, class: Class) {
        if old != new {
            self.0.push(FieldChange { field, class });
        }
    }

    fn inherited(&mut self, old: &Inherited, new: &Inherited) {
        let Inherited { labels, annotations, parameters, lifecycle } = new;
        self.field("labels", &Said::of(&old.labels), &Said::of(labels), Class::InPlace);
        self.field("annotations", &Said::of(&old.annotations), &Said::of(annotations), Class::InPlace);
        self.field("parameters", &Said::of(&old.parameters), &Said::of(parameters), Class::RolledOut);
        self.field("lifecycle", &old.lifecycle, lifecycle, Class::InPlace);
    }

    /// Towards noop or observe a mode is in place, towards apply it takes a lease.
    fn mode(&mut self, old: Option<Mode>, new: Option<Mode>) {
        let in_force = |mode: Option<Mode>| mode.unwrap_or(Mode::Apply);
        let class = if in_force(new) > in_force(old) { Class::RolledOutWithoutDigest } else { Class::InPlace };
        self.field("mode", &old, &new, class);
    }
}

impl Classified for ReleaseSpec {
    fn changes(&self, old: &Self) -> Vec<FieldChange> {
        let Self {
            description,
            labels,
            annotations,
            imports,
            roles,
            tags,
            tasks,
            matching,
            extensions,
            foreign,
            owners: _,
        } = self;
        let mut found = Found::default();
        found.field("description", &old.description, description, Class::Nowhere);
        found.field("labels", &old.labels, labels, Class::Nowhere);
        found.field("annotations", &old.annotations, annotations, Class::Nowhere);
        found.field("imports", &old.imports, imports, Class::RolledOut);
        found.field("roles", &old.roles, roles, Class::RolledOut);
        found.field("tags", &old.tags, tags, Class::RolledOut);
        found.field("tasks", &old.tasks, tasks, Class::RolledOut);
        found.field("matching", &old.matching, matching, Class::RolledOut);
        found.field("extensions", &old.extensions, extensions, Class::Nowhere);
        found.field("foreign", &old.foreign, foreign, Class::Nowhere);
        found.0
    }
}

impl Classified for ReleaseTagsSpec {
    fn changes(&self, old: &Self) -> Vec<FieldChange> {
        let Self { tags } = self;
        let mut found = Found::default();
        found.field("tags", &old.tags, tags, Class::RolledOut);
        found.0
    }
}

impl Classified for ClusterTemplateSpec {
    fn changes(&self, old: &Self) -> Vec<FieldChange> {
        let Self { description, inherited, release, host_labels, extra, owners: _ } = self;
        let mut found = Found::default();
        found.field("description", &old.description, description, Class::Nowhere);
        found.inherited(&old.inherited, inherited);
        found.field("release", &old.release, release, Class::RolledOut);
        found.field("host_labels", &old.host_labels, host_labels, Class::InPlace);
        found.field("extra", &old.extra, extra, Class::Nowhere);
        found.0
    }
}

impl Classified for ClusterSpec {
    fn changes(&self, old: &Self) -> Vec<FieldChange> {
        let Self {
            description,
            inherited,
            cluster_template,
            release,
            host_labels,
            tags,
            roles,
            rollout,
            paused,
            primaries,
            extra,
            owners: _,
        } = self;
        let mut found = Found::default();
        found.field("description", &old.description, description, Class::Nowhere);
        found.inherited(&old.inherited, inherited);
        found.field("cluster_template", &old.cluster_template, cluster_template, Class::LabelsAtOnce);
        found.field("release", &old.release, release, Class::RolledOut);
        found.field("host_labels", &old.host_labels, host_labels, Class::InPlace);
        found.field("tags", &old.tags, tags, Class::RolledOut);
        found.field("roles", &old.roles, roles, Class::RolledOut);
        found.field("rollout", &old.rollout, rollout, Class::InPlace);
        found.field("paused", &old.paused, paused, Class::InPlace);
        found.field("primaries", &old.primaries, primaries, Class::RolledOut);
        found.field("extra", &old.extra, extra, Class::Nowhere);
        found.0
    }
}

impl Classified for NodeGroupSpec {
    fn changes(&self, old: &Self) -> Vec<FieldChange> {
        let Self {
            cluster,
            description,
            inherited,
            release,
            host_labels,
            roles,
            requirements,
            strategy,
            paused,
            mode,
            mend_offline,
            splay_seconds,
            silent_after_seconds,
            extra,
            owners: _,
        } = self;
        let mut found = Found::default();
        found.field("cluster", &old.cluster, cluster, Class::LabelsAtOnce);
        found.field("description", &old.description, description, Class::Nowhere);
        found.inherited(&old.inherited, inherited);
        found.field("release", &old.release, release, Class::RolledOut);
        found.field("host_labels", &old.host_labels, host_labels, Class::InPlace);
        found.field("roles", &old.roles, roles, Class::RolledOut);
        found.field("requirements", &old.requirements, requirements, Class::InPlace);
        found.field("strategy", &old.strategy, strategy, Class::InPlace);
        found.field("paused", &old.paused, paused, Class::InPlace);
        found.mode(old.mode, *mode);
        found.field("mend_offline", &old.mend_offline, mend_offline, Class::InPlace);
        found.field("splay", &old.splay_seconds, splay_seconds, Class::InPlace);
        found.field("silent_after", &old.silent_after_seconds, silent_after_seconds, Class::InPlace);
        found.field("extra", &old.extra, extra, Class::Nowhere);
        found.0
    }
}

impl Classified for NodeSpec {
    fn changes(&self, old: &Self) -> Vec<FieldChange> {
        let Self {
            description,
            inherited,
            nodegroup,
            roles,
            tags,
            traits,
            suppressed_traits,
            properties,
            instance_info,
            mode,
            hold,
            parked,
            extra,
            owners: _,
        } = self;
        let mut found = Found::default();
        found.field("description", &old.description, description, Class::Nowhere);
        found.inherited(&old.inherited, inherited);
        found.field("nodegroup", &old.nodegroup, nodegroup, Class::LabelsAtOnce);
        found.field("roles", &old.roles, roles, Class::RolledOut);
        found.field("tags", &old.tags, tags, Class::RolledOut);
        found.field("traits", &old.traits.intent(), &traits.intent(), Class::InPlace);
        found.field("suppressed_traits", &old.suppressed_traits, suppressed_traits, Class::InPlace);
        found.field("properties", &old.properties, properties, Class::InPlace);
        found.field("instance_info", &old.instance_info, instance_info, Class::InPlace);
        found.mode(old.mode, *mode);
        found.field("hold", &old.hold, hold, Class::InPlace);
        found.field("parked", &old.parked, parked, Class::InPlace);
        found.field("extra", &old.extra, extra, Class::Nowhere);
        found.0
    }
}

impl Classified for PrimarySpec {
    fn changes(&self, old: &Self) -> Vec<FieldChange> {
        let Self { cluster, node, since, epoch } = self;
        let mut found = Found::default();
        found.field("cluster", &old.cluster, cluster, Class::RolledOut);
        found.field("node", &old.node, node, Class::RolledOut);
        found.field("since", &old.since, since, Class::Nowhere);
        found.field("epoch", &old.epoch, epoch, Class::Nowhere);
        found.0
    }
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
