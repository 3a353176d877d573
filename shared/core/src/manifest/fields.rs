//! Which fields each kind has: how each is read from a body and shown again. One table a kind.
//!
//! `null` reads as the default, for every field. Labels, annotations, parameters, a node's traits and its tags are
//! owned key by key and stand apart, in [`super::write`].

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::body::{BodyError, is_null, read};
use super::{extra, task};
use crate::lifecycle;
use crate::name::{Name, TagName};
use crate::object::{
    ClusterId, ClusterSpec, ClusterTemplateSpec, Extra, FieldOwners, GroupId, Inherited, Matching, NodeGroupSpec,
    NodeSpec, ReleaseSpec, TemplateId,
};
use crate::traits::TraitNames;

/// Other objects by name or uuid, as the caller knows them.
pub trait Names {
    /// The cluster template of that name.
    fn template(&self, name: &str) -> Option<TemplateId>;
    /// The cluster of that name.
    fn cluster(&self, name: &str) -> Option<ClusterId>;
    /// The group of that name in that cluster.
    fn group(&self, cluster: &str, group: &str) -> Option<GroupId>;
    /// A template's name.
    fn template_name(&self, id: TemplateId) -> Option<String>;
    /// A group as `CLUSTER/GROUP`.
    fn group_name(&self, id: GroupId) -> Option<String>;
    /// The traits that are known: the standard ones and the site's.
    fn traits(&self) -> &TraitNames;
}

/// One field of a kind.
pub struct Field<S: 'static> {
    /// Its name in a body.
    pub name: &'static str,
    /// Reads it into the spec; `null` is the default.
    pub read: fn(&mut S, &RawValue, &dyn Names) -> Result<(), BodyError>,
    /// Shows it as a body would say it; `null` at its default.
    pub show: fn(&S, &dyn Names) -> Value,
}

/// What every spec that comes from a body knows of itself.
pub trait Fields: Sized + Clone + 'static {
    /// Its fields, but for those that are owned key by key.
    const FIELDS: &'static [Field<Self>];
    /// Fields of Ironic's or Magnum's bodies that are kept and mean nothing.
    const EXTRA: &'static [&'static str];

    /// Where those are kept.
    fn extra(&mut self) -> &mut Extra;
    /// The same, to read.
    fn extra_ref(&self) -> &Extra;
    /// Who gave which field.
    fn owners(&mut self) -> &mut FieldOwners;
    /// The maps that go down the levels; a release has none.
    fn inherited(&mut self) -> Option<&mut Inherited>;
    /// A node's own sets, owned entry by entry.
    fn node(&mut self) -> Option<&mut NodeSpec> {
        None
    }
}

macro_rules! field {
    // A field of the body's own name, in serde's form.
    ($spec:ty, $name:ident) => {
        field!($spec, $name, stringify!($name))
    };
    ($spec:ty, $name:ident, $text:expr) => {
        Field {
            name: $text,
            read: |spec: &mut $spec, raw, _| plain(&mut spec.$name, raw),
            show: |spec: &$spec, _| shown(&spec.$name),
        }
    };
    // A field with a form of its own.
    ($spec:ty, $text:expr, $read:expr, $show:expr) => {
        Field { name: $text, read: $read, show: $show }
    };
}

macro_rules! lifecycle {
    ($spec:ty, $name:ident, $field:ident) => {
        Field {
            name: stringify!($name),
            read: |spec: &mut $spec, raw, _| {
                let seconds: Option<i64> = read(raw)?;
                if let Some(seconds) = seconds {
                    let checked = lifecycle::Field::$field.limit(seconds);
                    checked.map_err(|why| BodyError::new("", why.to_string()))?;
                }
                spec.inherited.lifecycle.$name = seconds.and_then(|seconds| i32::try_from(seconds).ok());
                Ok(())
            },
            show: |spec: &$spec, _| shown(&spec.inherited.lifecycle.$name),
        }
    };
}

macro_rules! leveled {
    ($spec:ty, $extra:expr) => {
        const EXTRA: &'static [&'static str] = $extra;
        fn extra(&mut self) -> &mut Extra {
            &mut self.extra
        }
        fn extra_ref(&self) -> &Extra {
            &self.extra
        }
        fn owners(&mut self) -> &mut FieldOwners {
            &mut self.owners
        }
        fn inherited(&mut self) -> Option<&mut Inherited> {
            Some(&mut self.inherited)
        }
    };
}

impl Fields for ClusterTemplateSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description),
        field!(Self, release),
        field!(Self, host_labels),
        lifecycle!(Self, node_drain_timeout, NodeDrainTimeout),
        lifecycle!(Self, node_volume_detach_timeout, NodeVolumeDetachTimeout),
        lifecycle!(Self, node_deletion_timeout, NodeDeletionTimeout),
        lifecycle!(Self, min_ready_seconds, MinReadySeconds),
    ];
    leveled!(Self, extra::TEMPLATE);
}

impl Fields for ClusterSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description),
        field!(Self, "cluster_template", read_template, |spec, names| {
            spec.cluster_template.map_or(Value::Null, |id| shown(&names.template_name(id).unwrap_or(id.to_string())))
        }),
        field!(Self, release),
        field!(Self, host_labels),
        field!(Self, tags),
        field!(Self, roles),
        field!(Self, rollout),
        field!(Self, paused),
        field!(Self, primaries),
        lifecycle!(Self, node_drain_timeout, NodeDrainTimeout),
        lifecycle!(Self, node_volume_detach_timeout, NodeVolumeDetachTimeout),
        lifecycle!(Self, node_deletion_timeout, NodeDeletionTimeout),
        lifecycle!(Self, min_ready_seconds, MinReadySeconds),
    ];
    leveled!(Self, extra::CLUSTER);
}

impl Fields for NodeGroupSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description),
        field!(Self, release),
        field!(Self, host_labels),
        field!(Self, "roles", |spec, raw, _| read_roles(&mut spec.roles, raw), |spec, _| shown(&spec.roles)),
        field!(Self, requirements),
        field!(Self, strategy),
        field!(Self, paused),
        field!(Self, mode),
        field!(Self, mend_offline),
        field!(Self, splay_seconds, "splay"),
        field!(Self, silent_after_seconds, "silent_after"),
        lifecycle!(Self, node_drain_timeout, NodeDrainTimeout),
        lifecycle!(Self, node_volume_detach_timeout, NodeVolumeDetachTimeout),
        lifecycle!(Self, node_deletion_timeout, NodeDeletionTimeout),
        lifecycle!(Self, min_ready_seconds, MinReadySeconds),
    ];
    leveled!(Self, extra::GROUP);
}

impl Fields for NodeSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description),
        field!(Self, "nodegroup", read_group, |spec, names| {
            spec.nodegroup.map_or(Value::Null, |id| shown(&names.group_name(id).unwrap_or(id.to_string())))
        }),
        field!(Self, "roles", |spec, raw, _| read_roles(&mut spec.roles, raw), |spec, _| shown(&spec.roles)),
        field!(Self, suppressed_traits),
        field!(Self, properties),
        field!(Self, instance_info),
        field!(Self, mode),
        field!(Self, hold),
        field!(Self, parked),
        lifecycle!(Self, node_drain_timeout, NodeDrainTimeout),
        lifecycle!(Self, node_volume_detach_timeout, NodeVolumeDetachTimeout),
        lifecycle!(Self, node_deletion_timeout, NodeDeletionTimeout),
        lifecycle!(Self, min_ready_seconds, MinReadySeconds),
    ];
    leveled!(Self, extra::NODE);
    fn node(&mut self) -> Option<&mut NodeSpec> {
        Some(self)
    }
}

impl Fields for ReleaseSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description),
        field!(Self, labels),
        field!(Self, annotations),
        field!(Self, imports),
        field!(Self, "roles", |spec, raw, _| read_declared_roles(spec, raw), |spec, _| shown(&spec.roles)),
        field!(Self, "tags", |spec, raw, _| read_declared_tags(spec, raw), |spec, _| shown(&spec.tags)),
        field!(
            Self,
            "tasks",
            |spec, raw, _| {
                spec.tasks = task::read_tasks(raw)?;
                Ok(())
            },
            |spec, _| shown(&spec.tasks)
        ),
        field!(Self, "matching", |spec, raw, _| plain(&mut spec.matching, raw), |spec, _| {
            if spec.matching == Matching::default() { Value::Null } else { shown(&spec.matching) }
        }),
        field!(Self, extensions),
        field!(Self, foreign),
    ];
    const EXTRA: &'static [&'static str] = &[];
    fn extra(&mut self) -> &mut Extra {
        &mut self.foreign
    }
    fn extra_ref(&self) -> &Extra {
        &self.foreign
    }
    fn owners(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn inherited(&mut self) -> Option<&mut Inherited> {
        None
    }
}

fn plain<T: Default + serde::de::DeserializeOwned>(field: &mut T, raw: &RawValue) -> Result<(), BodyError> {
    *field = if is_null(raw) { T::default() } else { read(raw)? };
    Ok(())
}

/// A field's JSON; what stands at its default is `null`.
fn shown<T: Serialize>(field: &T) -> Value {
    let value = serde_json::to_value(field).expect("a spec's field is JSON with text as keys");
    let is_empty = match &value {
        Value::Bool(set) => !set,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Null | Value::Number(_) => false,
    };
    if is_empty { Value::Null } else { value }
}

fn read_template(spec: &mut ClusterSpec, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let name: Option<String> = read(raw)?;
    spec.cluster_template =
        name.map(|name| names.template(&name).ok_or_else(|| missing("cluster template", &name))).transpose()?;
    Ok(())
}

fn read_group(spec: &mut NodeSpec, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let Some(name) = read::<Option<String>>(raw)? else {
        spec.nodegroup = None;
        return Ok(());
    };
    let (cluster, group) = name.split_once('/').ok_or_else(|| {
        BodyError::new("", format!("{:?} is no node group: write CLUSTER/GROUP", crate::name::cut(&name)))
    })?;
    spec.nodegroup = Some(names.group(cluster, group).ok_or_else(|| missing("node group", &name))?);
    Ok(())
}

fn missing(what: &str, name: &str) -> BodyError {
    BodyError::new("", format!("there is no {what} {:?}: make it first, or name another", crate::name::cut(name)))
}

fn read_roles(to: &mut Vec<Name>, raw: &RawValue) -> Result<(), BodyError> {
    let roles: Option<Vec<Name>> = read(raw)?;
    let mut roles = roles.unwrap_or_default();
    roles.sort();
    roles.dedup();
    *to = roles;
    Ok(())
}

fn read_declared_roles(spec: &mut ReleaseSpec, raw: &RawValue) -> Result<(), BodyError> {
    plain(&mut spec.roles, raw)?;
    for name in spec.roles.keys() {
        Name::declare(name, crate::name::NameKind::Role)
            .map_err(|why| BodyError::new(name.as_str(), why.to_string()))?;
    }
    Ok(())
}

fn read_declared_tags(spec: &mut ReleaseSpec, raw: &RawValue) -> Result<(), BodyError> {
    plain(&mut spec.tags, raw)?;
    for name in spec.tags.keys() {
        TagName::declare(name).map_err(|why| BodyError::new(name.as_str(), why.to_string()))?;
    }
    Ok(())
}
