//! Which fields each kind has: how each is read from a body and shown again. One table a kind.
//!
//! `null` reads as the default, for every field. Labels, annotations, parameters, a node's traits and its tags are
//! owned key by key and stand apart, in [`super::write`].

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::{BodyError, no_object};
use super::extra::{self, Kept};
use super::names::Names;
use super::reader::read;
use super::sound::{self, plain};
use crate::lifecycle;
use crate::object::{
    ClusterSpec, ClusterTemplateSpec, Extra, FieldOwners, Inherited, Kind, Matching, NodeGroupSpec, NodeSpec,
    ReleaseSpec,
};

/// What a field's JSON is like, for whoever describes the API or writes a body. `null`, which is the default, goes for every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// True or false.
    Flag,
    /// A whole number.
    Count,
    /// An object.
    Map,
    /// A list of objects.
    Objects,
    /// A list of texts.
    Names,
    /// An object, or a list where one key stands twice.
    MapOrList,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

/// One field of a kind.
pub struct Field<S: 'static> {
    /// Its name in a body.
    pub name: &'static str,
    /// What it is like there.
    pub form: Form,
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
    const EXTRA: &'static [Kept];

    /// Whether a field is one of those that are kept.
    fn is_kept(name: &str) -> bool {
        Self::EXTRA.iter().any(|kept| kept.name == name)
    }
    /// Where those are kept.
    fn extra(&mut self) -> &mut Extra;
    /// The same, to read.
    fn extra_ref(&self) -> &Extra;
    /// Who gave which field.
    fn owners(&mut self) -> &mut FieldOwners;
    /// The maps that go down the levels; a release has none.
    fn inherited(&mut self) -> Option<&mut Inherited>;
    /// The same, to read.
    fn inherited_ref(&self) -> Option<&Inherited>;
    /// A node's own sets, owned entry by entry.
    fn node(&mut self) -> Option<&mut NodeSpec> {
        None
    }
    /// The same, to read.
    fn node_ref(&self) -> Option<&NodeSpec> {
        None
    }
}

/// What a `mode` may be.
const MODES: &[&str] = &["observe", "noop", "apply"];

macro_rules! field {
    // A field of the body's own name, in serde's form or read by a function of its own.
    ($spec:ty, $name:ident: $form:expr $(, $read:expr)?) => {
        field!($spec, $name as stringify!($name) => $form $(, $read)?)
    };
    ($spec:ty, $name:ident as $text:expr => $form:expr) => {
        field!($spec, $name as $text => $form, plain)
    };
    ($spec:ty, $name:ident as $text:expr => $form:expr, $read:expr) => {
        Field {
            name: $text,
            form: $form,
            read: |spec: &mut $spec, raw, names| $read(&mut spec.$name, raw, names),
            show: |spec: &$spec, _| shown(&spec.$name),
        }
    };
}

macro_rules! lifecycle {
    ($spec:ty, $name:ident, $field:ident) => {
        Field {
            name: stringify!($name),
            form: Form::Count,
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

/// The fields of a kind whose maps go down the levels: its own, and the limits of the life cycle.
macro_rules! leveled {
    ($extra:expr, [$($field:expr),+ $(,)?]) => {
        const FIELDS: &'static [Field<Self>] = &[
            $($field,)+
            lifecycle!(Self, node_drain_timeout, NodeDrainTimeout),
            lifecycle!(Self, node_volume_detach_timeout, NodeVolumeDetachTimeout),
            lifecycle!(Self, node_deletion_timeout, NodeDeletionTimeout),
            lifecycle!(Self, min_ready_seconds, MinReadySeconds),
        ];
        const EXTRA: &'static [Kept] = $extra;
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
        fn inherited_ref(&self) -> Option<&Inherited> {
            Some(&self.inherited)
        }
    };
}

impl Fields for ClusterTemplateSpec {
    leveled!(
        extra::TEMPLATE,
        [
            field!(Self, description: Form::Text),
            field!(Self, release: Form::Text),
            field!(Self, host_labels: Form::Map, sound::host_labels),
        ]
    );
}

impl Fields for ClusterSpec {
    leveled!(
        extra::CLUSTER,
        [
            field!(Self, description: Form::Text),
            Field {
                name: "cluster_template",
                form: Form::Text,
                read: read_template,
                show: |spec, names| {
                    spec.cluster_template
                        .map_or(Value::Null, |id| shown(&names.template_name(id).unwrap_or(id.to_string())))
                },
            },
            field!(Self, release: Form::Text),
            field!(Self, host_labels: Form::Map, sound::host_labels),
            field!(Self, tags: Form::Map, sound::tags),
            field!(Self, roles: Form::Map, sound::role_changes),
            field!(Self, rollout: Form::Map),
            field!(Self, paused: Form::Flag),
            field!(Self, primaries: Form::Map),
        ]
    );
}

impl Fields for NodeGroupSpec {
    leveled!(
        extra::GROUP,
        [
            field!(Self, description: Form::Text),
            field!(Self, release: Form::Text),
            field!(Self, host_labels: Form::Map, sound::host_labels),
            field!(Self, roles: Form::Names, sound::role_names),
            field!(Self, requirements: Form::MapOrList, sound::requirements),
            field!(Self, strategy: Form::Map),
            field!(Self, paused: Form::Flag),
            field!(Self, mode: Form::OneOf(MODES)),
            field!(Self, mend_offline: Form::Flag),
            field!(Self, splay_seconds as "splay" => Form::Count),
            field!(Self, silent_after_seconds as "silent_after" => Form::Count),
        ]
    );
}

impl Fields for NodeSpec {
    leveled!(
        extra::NODE,
        [
            field!(Self, description: Form::Text),
            Field {
                name: "nodegroup",
                form: Form::Text,
                read: read_group,
                show: |spec, names| {
                    spec.nodegroup.map_or(Value::Null, |id| shown(&names.group_name(id).unwrap_or(id.to_string())))
                },
            },
            field!(Self, roles: Form::Names, sound::role_names),
            field!(Self, suppressed_traits: Form::Names, sound::suppressed_traits),
            field!(Self, properties: Form::Map),
            field!(Self, instance_info: Form::Map, sound::instance_info),
            field!(Self, mode: Form::OneOf(MODES)),
            field!(Self, hold: Form::Map),
            field!(Self, parked: Form::Flag),
        ]
    );
    fn node(&mut self) -> Option<&mut NodeSpec> {
        Some(self)
    }
    fn node_ref(&self) -> Option<&NodeSpec> {
        Some(self)
    }
}

impl Fields for ReleaseSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description: Form::Text),
        field!(Self, labels: Form::Map, sound::texts),
        field!(Self, annotations: Form::Map),
        field!(Self, imports: Form::Names),
        field!(Self, roles: Form::Map, sound::roles),
        field!(Self, tags: Form::Map, sound::tags),
        field!(Self, tasks: Form::Objects, sound::tasks),
        Field {
            name: "matching",
            form: Form::Map,
            read: |spec, raw, names| plain(&mut spec.matching, raw, names),
            show: |spec, _| if spec.matching == Matching::default() { Value::Null } else { shown(&spec.matching) },
        },
        field!(Self, extensions: Form::Objects),
        field!(Self, foreign: Form::Map),
    ];
    const EXTRA: &'static [Kept] = &[];
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
    fn inherited_ref(&self) -> Option<&Inherited> {
        None
    }
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
    spec.cluster_template = name
        .map(|name| {
            names
                .template(&name)
                .ok_or_else(|| no_object("", (Kind::ClusterTemplate, "cluster template"), &name, names))
        })
        .transpose()?;
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
    let missing = || no_object("", (Kind::NodeGroup, "node group"), &name, names);
    spec.nodegroup = Some(names.group(cluster, group).ok_or_else(missing)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Anybody;
    use super::*;

    /// A value of each form, by hand; for fields whose objects must have something in them there is none.
    fn example(form: Form, name: &str) -> Option<Value> {
        Some(match (form, name) {
            (Form::Text, "nodegroup") => json!("prod/web"),
            (Form::Text, _) => json!("a"),
            (Form::Flag, _) => json!(true),
            (Form::Count, _) => json!(60),
            (Form::Map, "hold" | "strategy" | "rollout" | "host_labels") => return None,
            (Form::Map | Form::MapOrList, _) => json!({}),
            (Form::Objects, _) => json!([]),
            (Form::Names, "suppressed_traits") => json!(["CUSTOM_A"]),
            (Form::Names, _) => json!(["a"]),
            (Form::OneOf(texts), _) => json!(texts[0]),
        })
    }

    /// Whether the JSON of this form may be so, by its kind alone.
    fn is_of(form: Form, value: &Value) -> bool {
        match form {
            Form::Text | Form::OneOf(_) => value.is_string(),
            Form::Flag => value.is_boolean(),
            Form::Count => value.is_u64(),
            Form::Map => value.is_object(),
            Form::MapOrList => value.is_object() || value.is_array(),
            Form::Objects | Form::Names => value.is_array(),
        }
    }

    fn every_field_is_of_its_form<S: Fields + Default>() {
        let names = Anybody::default();
        for field in S::FIELDS {
            let read = |value: &Value| {
                let raw = RawValue::from_string(value.to_string()).expect("a value's text is JSON");
                (field.read)(&mut S::default(), &raw, &names)
            };
            assert!(read(&Value::Null).is_ok(), "{}: null is the default", field.name);
            if let Some(value) = example(field.form, field.name) {
                assert!(read(&value).is_ok(), "{} takes {value}: {:?}", field.name, read(&value));
            }
            for other in [json!(true), json!(7), json!("?"), json!([7]), json!([[]]), json!({"?": [[7]]})] {
                assert!(is_of(field.form, &other) || read(&other).is_err(), "{} takes {other}", field.name);
            }
        }
    }

    #[test]
    fn every_field_reads_the_form_that_it_says() {
        every_field_is_of_its_form::<ClusterTemplateSpec>();
        every_field_is_of_its_form::<ClusterSpec>();
        every_field_is_of_its_form::<NodeSpec>();
        every_field_is_of_its_form::<ReleaseSpec>();
    }
}
