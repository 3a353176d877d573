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

/// One field of a kind.
pub struct Field<S: 'static> {
    /// The name of the field in a body.
    pub name: &'static str,
    /// The JSON type of the field.
    pub kind: FieldType,
    /// The help text of the field.
    pub help: Help,
    /// Reads the field's JSON into the spec; `null` gives the default.
    pub read: fn(&mut S, &RawValue, &dyn NameResolver) -> Result<(), BodyError>,
    /// Returns the field as a body would contain it; `null` if it is at its default.
    pub show: fn(&S, &dyn NameResolver) -> Value,
}

/// A spec that is read from a body, with the table of its fields.
pub trait SpecFields: Sized + Clone + 'static {
    /// The fields of the kind, except those that are owned key by key.
    const FIELDS: &'static [Field<Self>];
    /// The fields that are owned key by key.
    const KEYED_FIELDS: &'static [&'static [FieldDef]] = &[];
    /// The fields that identify the object. They are removed from the body before it is written.
    const IDENTITY_FIELDS: &'static [FieldDef];
    /// Passthrough fields of Ironic's or Magnum's bodies.
    const PASSTHROUGH_FIELDS: &'static [PassthroughField] = &[];
    /// Fields that are hidden from everybody in sensitive objects.
    const SENSITIVE_FIELDS: &'static [&'static str] = &[];

    /// Returns whether this object is sensitive.
    fn is_sensitive(&self) -> bool {
        false
    }
    /// Checks the rules that involve several fields.
    ///
    /// # Errors
    /// [`BodyError`].
    fn check(&self) -> Result<(), BodyError> {
        Ok(())
    }

    /// Returns whether a field is a passthrough field.
    fn is_passthrough(name: &str) -> bool {
        Self::PASSTHROUGH_FIELDS.iter().any(|kept| kept.name == name)
    }
    /// Returns the passthrough fields for changing them.
    fn extra_mut(&mut self) -> &mut Extra {
        unreachable!("a kind that keeps none has nowhere to keep them")
    }
    /// Returns the passthrough fields.
    fn extra(&self) -> &Extra {
        static NONE: LazyLock<Extra> = LazyLock::new(Extra::new);
        &NONE
    }
    /// Returns the owners of each field for changing them.
    fn owners_mut(&mut self) -> &mut FieldOwners;
    /// Returns the owners of each field.
    fn owners(&self) -> &FieldOwners;
    /// Returns the maps that are inherited down the levels for changing them; `None` if the kind is not a level.
    fn inherited_mut(&mut self) -> Option<&mut Inherited> {
        None
    }
    /// Returns the maps that are inherited down the levels; `None` if the kind is not a level.
    fn inherited(&self) -> Option<&Inherited> {
        None
    }
    /// Returns a node's spec, whose sets are owned entry by entry, for changing it; `None` for other kinds.
    fn node_mut(&mut self) -> Option<&mut NodeSpec> {
        None
    }
    /// Returns a node's spec; `None` for other kinds.
    fn node(&self) -> Option<&NodeSpec> {
        None
    }
    /// Sets the dates of the parts that differ from `before`.
    fn update_dates(&mut self, _before: &Self, _now: Timestamp) {}
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

/// Generates a lifecycle field, which is stored among the inherited fields of its level.
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

/// Generates the tables of a kind whose maps are inherited down the levels: its own fields, and the limits of the life
/// cycle. The first argument is true if there is a level above it.
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

/// Type of the roles of a group or node.
const ROLE_LIST: FieldType = FieldType::up_to(64, &FieldType::Names);
/// Help texts that several kinds share.
mod help {
    use crate::field::Help;

    pub(super) const DESCRIPTION: Help = Help::new("", "For people.", r#""Web servers""#);
    pub(super) const ROLES: Help = Help::new("[]", "Roles; a node has its own and its group's.", r#"["web"]"#);
    pub(super) const MODE: Help = Help::new(
        "apply",
        "What hosts do: observe, check (noop), or apply; a node's own mode comes before its group's.",
        r#""noop""#,
    );
    pub(super) const PAUSED: Help = Help::new("false", "No new task set is released; labels still flow.", "true");
    // Shared by the levels.
    pub(super) const RELEASE: Help =
        Help::new("none", "The release that its hosts run: NAME@VERSION, or NAME if it has no version.", r#""site@2026.11""#);
    pub(super) const HOST_LABELS: Help = Help::new(
        "none",
        "Which labels flow to the host label map; the nearest level's rule applies as a whole.",
        r#"{"patterns": ["tier|zone"]}"#,
    );
    pub(super) const DRAIN: Help = Help::new("no limit", "Seconds for a node's drain; 0: no limit.", "600");
    pub(super) const VOLUMES: Help = Help::new("no limit", "Seconds for the release of a node's volumes; 0: no limit.", "300");
    pub(super) const DELETION: Help = Help::new("10", "Seconds for the cleanup of a node that is deleted; 0: no limit.", "60");
    pub(super) const READY: Help = Help::new("0", "Seconds that a node stays ready before it counts as available.", "30");
}

/// Returns a field's JSON. A value at its default is `null`, except a number. An object without members is not at its
/// default: `hold: {}` holds.
fn to_json<T: Serialize + Default + PartialEq>(field: &T) -> Value {
    let value = serde_json::to_value(field).expect("a spec's field is JSON with text as keys");
    if *field == T::default() && !value.is_number() { Value::Null } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};

    fn default_of_field<F: SpecFields>(name: &str) -> Option<String> {
        F::FIELDS.iter().find(|field| field.name == name).map(|field| field.help.default_text())
    }

    #[test]
    fn w14_field_default_is_inherited_where_kind_has_level_above() {
        let limits = [
            ("node_drain_timeout", "no limit"),
            ("node_volume_detach_timeout", "no limit"),
            ("node_deletion_timeout", "10"),
            ("min_ready_seconds", "0"),
        ];
        for (field, default) in limits.into_iter().chain([("release", "none"), ("host_labels", "none")]) {
            let below = format!("the value of the level above, else {default}");
            assert_eq!(default_of_field::<ClusterTemplateSpec>(field).as_deref(), Some(default), "{field}");
            assert_eq!(default_of_field::<ClusterSpec>(field).as_deref(), Some(below.as_str()), "{field}");
            assert_eq!(default_of_field::<NodeGroupSpec>(field).as_deref(), Some(below.as_str()), "{field}");
        }
        for (field, default) in limits.into_iter().chain([("mode", "apply")]) {
            let below = format!("the value of the level above, else {default}");
            assert_eq!(default_of_field::<NodeSpec>(field).as_deref(), Some(below.as_str()), "{field}");
        }
        assert_eq!(default_of_field::<NodeGroupSpec>("mode").as_deref(), Some("apply"));
        let silent_after = NodeGroupSpec::DEFAULT_SILENT_AFTER_SECONDS.to_string();
        assert_eq!(default_of_field::<NodeGroupSpec>("silent_after"), Some(silent_after));
    }
}
