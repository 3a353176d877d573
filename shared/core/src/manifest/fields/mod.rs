//! The fields of each kind, one table per kind: how a field is read from a body and shown again, and what an author
//! must know to set it.
//!
//! `null` is read as the default, for every field. Labels, annotations, parameters, a node's traits and its tags are
//! owned key by key, so they are not in these tables. They are defined in [`super::field_defs`] and written by
//! [`super::write`].

mod allocation;
mod levels;
mod namespace;
mod node;
mod release;
mod rule;

use std::sync::LazyLock;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::BodyError;
use super::names::NameResolver;
use super::passthrough::PassthroughField;
use crate::field::{FieldDef, FieldType, Help};
use crate::object::{Extra, FieldOwners, Inherited, NodeSpec, Timestamp};

/// One field of a kind of object, as a row of the table of the kind's fields.
pub struct Field<S: 'static> {
    /// The name of the field in a body.
    pub name: &'static str,
    /// The JSON type of the field.
    pub kind: FieldType,
    /// The help text of the field.
    pub help: Help,
    /// The function that reads the field's JSON into a spec. `null` sets the field to its default.
    pub read: fn(&mut S, &RawValue, &dyn NameResolver) -> Result<(), BodyError>,
    /// The function that returns the field's value as a body would contain it. A field at its default is `null`, except
    /// a number.
    pub show: fn(&S, &dyn NameResolver) -> Value,
}

/// A spec that is read from a body, with the table of its fields.
pub trait SpecFields: Sized + Clone + 'static {
    /// The fields of the kind that none of the tables below contains.
    const FIELDS: &'static [Field<Self>];
    /// The tables of the maps whose keys have their own owners, such as labels, and of `merge_labels` and `reports`.
    const KEYED_FIELDS: &'static [&'static [FieldDef]] = &[];
    /// The fields that identify the object, and `include` of a release. They are removed before a body is written.
    const IDENTITY_FIELDS: &'static [FieldDef];
    /// Fields of Ironic's or Magnum's bodies that are stored and returned. Few have an effect, such as
    /// `resource_class`.
    const PASSTHROUGH_FIELDS: &'static [PassthroughField] = &[];
    /// The names of the fields that responses hide from everybody if the object is sensitive.
    const SENSITIVE_FIELDS: &'static [&'static str] = &[];

    /// Returns whether responses hide the [`Self::SENSITIVE_FIELDS`] of this object from everybody.
    fn is_sensitive(&self) -> bool {
        false
    }
    /// Checks the rules that involve several fields.
    ///
    /// # Errors
    /// [`BodyError`] for the first rule that the spec breaks.
    fn check(&self) -> Result<(), BodyError> {
        Ok(())
    }

    /// Returns whether the field with this name is one of the [`Self::PASSTHROUGH_FIELDS`].
    fn is_passthrough(name: &str) -> bool {
        Self::PASSTHROUGH_FIELDS.iter().any(|field| field.name == name)
    }
    /// Returns the stored passthrough fields, to change them. A kind that has passthrough fields must override this.
    fn extra_mut(&mut self) -> &mut Extra {
        unreachable!("a kind without passthrough fields cannot store one")
    }
    /// Returns the stored passthrough fields, with their values.
    fn extra(&self) -> &Extra {
        static NONE: LazyLock<Extra> = LazyLock::new(Extra::new);
        &NONE
    }
    /// Returns the owners of each field, to change them.
    fn owners_mut(&mut self) -> &mut FieldOwners;
    /// Returns the owners of each field.
    fn owners(&self) -> &FieldOwners;
    /// Returns the maps and lifecycle fields of this level, to change them. `None` if the kind is not a level.
    fn inherited_mut(&mut self) -> Option<&mut Inherited> {
        None
    }
    /// Returns the maps and lifecycle fields of this level. `None` if the kind is not a level.
    fn inherited(&self) -> Option<&Inherited> {
        None
    }
    /// Returns the spec as a node's spec, to change its traits and tags. `None` for other kinds.
    fn node_mut(&mut self) -> Option<&mut NodeSpec> {
        None
    }
    /// Returns the spec as a node's spec. `None` for other kinds.
    fn node(&self) -> Option<&NodeSpec> {
        None
    }
    /// Sets the dates of the items of a namespace that are new or changed since `_previous`, the spec before the write,
    /// and removes those of deleted items. Other kinds have no such dates and do nothing.
    fn update_dates(&mut self, _previous: &Self, _now: Timestamp) {}
}

macro_rules! field {
    // A field that has the same name in the body, read in serde's form or by its own function.
    ($spec:ty, $name:ident: $form:expr, $help:expr $(, $read:expr)?) => {
        field!($spec, $name as stringify!($name) => $form, $help $(, $read)?)
    };
    ($spec:ty, $name:ident as $text:expr => $form:expr, $help:expr) => {
        field!($spec, $name as $text => $form, $help, $crate::manifest::validate::read_plain)
    };
    ($spec:ty, $name:ident as $text:expr => $form:expr, $help:expr, $read:expr) => {
        Field {
            name: $text,
            kind: $form,
            help: $help,
            read: |spec: &mut $spec, raw, names| $read(&mut spec.$name, raw, names),
            show: |spec: &$spec, _| to_json(&spec.$name),
        }
    };
}

/// Generates the table row of a lifecycle field, such as `node_drain_timeout`.
macro_rules! lifecycle {
    ($spec:ty, $name:ident, $field:ident, $help:expr) => {
        Field {
            name: stringify!($name),
            kind: FieldType::Count,
            help: $help,
            read: |spec: &mut $spec, raw, _| {
                let seconds: Option<i64> = read_json(raw)?;
                if let Some(seconds) = seconds {
                    let checked = lifecycle::LifecycleField::$field.limit(seconds);
                    checked.map_err(|why| BodyError::new("", why.to_string()))?;
                }
                spec.inherited.lifecycle.$name = seconds.and_then(|seconds| i32::try_from(seconds).ok());
                Ok(())
            },
            show: |spec: &$spec, _| to_json(&spec.inherited.lifecycle.$name),
        }
    };
}

/// Generates the tables of fields of a level (its own fields, then the lifecycle fields), and the methods that return
/// its maps and owners. The first argument is true if the kind has a level above it, whose values it inherits.
macro_rules! level_fields {
    ($inherited:literal, $extra:expr, $named_by:expr, $keyed:expr, [$($field:expr),+ $(,)?]) => {
        const FIELDS: &'static [Field<Self>] = &[
            $($field,)+
            lifecycle!(Self, node_drain_timeout, NodeDrainTimeout, help::DRAIN.with_inherited($inherited)),
            lifecycle!(Self, node_volume_detach_timeout, NodeVolumeDetachTimeout, help::VOLUMES.with_inherited($inherited)),
            lifecycle!(Self, node_deletion_timeout, NodeDeletionTimeout, help::DELETION.with_inherited($inherited)),
            lifecycle!(Self, min_ready_seconds, MinReadySeconds, help::READY.with_inherited($inherited)),
        ];
        const KEYED_FIELDS: &'static [&'static [FieldDef]] = $keyed;
        const IDENTITY_FIELDS: &'static [FieldDef] = $named_by;
        const PASSTHROUGH_FIELDS: &'static [PassthroughField] = $extra;
        fn extra_mut(&mut self) -> &mut Extra {
            &mut self.extra
        }
        fn extra(&self) -> &Extra {
            &self.extra
        }
        fn owners_mut(&mut self) -> &mut FieldOwners {
            &mut self.owners
        }
        fn owners(&self) -> &FieldOwners {
            &self.owners
        }
        fn inherited_mut(&mut self) -> Option<&mut Inherited> {
            Some(&mut self.inherited)
        }
        fn inherited(&self) -> Option<&Inherited> {
            Some(&self.inherited)
        }
    };
}

use {field, level_fields, lifecycle};

/// The type of the field `roles` of a group or node: at most 64 names.
const ROLE_LIST: FieldType = FieldType::up_to(64, &FieldType::Names);
/// Help texts that several kinds share.
mod help {
    use crate::field::Help;

    pub(super) const DESCRIPTION: Help = Help::new("", "For people.", r#""Web servers""#);
    pub(super) const ROLES: Help = Help::new("[]", "Roles; a node has its own and its group's.", r#"["web"]"#);
    pub(super) const MODE: Help = Help::new(
        "apply",
        "The mode of hosts: observe, check (noop), or apply; the mode of a node overrides the mode of its group.",
        r#""noop""#,
    );
    pub(super) const PAUSED: Help = Help::new("false", "No new task set is released; labels still change.", "true");
    // Shared by the levels.
    pub(super) const RELEASE: Help =
        Help::new("none", "The release that its hosts run: NAME@VERSION, or NAME if it has no version.", r#""site@2026.11""#);
    pub(super) const HOST_LABELS: Help = Help::new(
        "none",
        "The rules for the labels that are copied to the host label map, a file on the host; the nearest level's rule applies as a whole.",
        r#"{"patterns": ["tier|zone"]}"#,
    );
    pub(super) const DRAIN: Help = Help::new("no limit", "Seconds for a node's drain; 0: no limit.", "600");
    pub(super) const VOLUMES: Help = Help::new("no limit", "Seconds for the release of a node's volumes; 0: no limit.", "300");
    pub(super) const DELETION: Help = Help::new("10", "Seconds for the cleanup of a node that is deleted; 0: no limit.", "60");
    pub(super) const READY: Help = Help::new("0", "Seconds that a node stays ready before it counts as available.", "30");
}

/// Returns the JSON of a field as a body would contain it. A value at its default becomes `null`, except a number. An
/// optional object without members is not a default: `hold: {}` is a hold without an end.
fn to_json<T: Serialize + Default + PartialEq>(field: &T) -> Value {
    let value = serde_json::to_value(field).expect("a spec's field is JSON with text as keys");
    if *field == T::default() && !value.is_number() { Value::Null } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};

    /// Returns the default of a field as the reference shows it, or `None` if the kind has no such field.
    fn default_of_field<F: SpecFields>(name: &str) -> Option<String> {
        F::FIELDS.iter().find(|field| field.name == name).map(|field| field.help.default_text())
    }

    /// The reference describes the default of a field as inherited for clusters, groups and nodes. For a template, and
    /// for a field that is not inherited, it shows the default itself.
    #[test]
    fn w14_field_default_is_inherited_where_kind_has_level_above() {
        let lifecycle_defaults = [
            ("node_drain_timeout", "no limit"),
            ("node_volume_detach_timeout", "no limit"),
            ("node_deletion_timeout", "10"),
            ("min_ready_seconds", "0"),
        ];
        for (field, default) in lifecycle_defaults.into_iter().chain([("release", "none"), ("host_labels", "none")]) {
            let inherited_default = format!("the value of the level above, else {default}");
            assert_eq!(default_of_field::<ClusterTemplateSpec>(field).as_deref(), Some(default), "{field}");
            assert_eq!(default_of_field::<ClusterSpec>(field).as_deref(), Some(inherited_default.as_str()), "{field}");
            assert_eq!(default_of_field::<NodeGroupSpec>(field).as_deref(), Some(inherited_default.as_str()), "{field}");
        }
        for (field, default) in lifecycle_defaults.into_iter().chain([("mode", "apply")]) {
            let inherited_default = format!("the value of the level above, else {default}");
            assert_eq!(default_of_field::<NodeSpec>(field).as_deref(), Some(inherited_default.as_str()), "{field}");
        }
        assert_eq!(default_of_field::<NodeGroupSpec>("mode").as_deref(), Some("apply"));
        let silent_after = NodeGroupSpec::DEFAULT_SILENT_AFTER_SECONDS.to_string();
        assert_eq!(default_of_field::<NodeGroupSpec>("silent_after"), Some(silent_after));
    }
}
