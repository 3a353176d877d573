//! Which fields each kind has: how each is read from a body and shown again, and what a person must know to write it. One
//! table a kind.
//!
//! `null` reads as the default, for every field. Labels, annotations, parameters, a node's traits and its tags are
//! owned key by key: they stand apart, in [`super::parts`], and are written by [`super::write`].

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
use super::extra::Kept;
use super::names::Names;
use crate::field::{Form, Help, Part};
use crate::object::{Extra, FieldOwners, Inherited, NodeSpec, Timestamp};

/// One field of a kind.
pub struct Field<S: 'static> {
    /// Its name in a body.
    pub name: &'static str,
    /// What it is like there.
    pub form: Form,
    /// For people.
    pub help: Help,
    /// Reads it into the spec; `null` is the default.
    pub read: fn(&mut S, &RawValue, &dyn Names) -> Result<(), BodyError>,
    /// Shows it as a body would say it; `null` at its default.
    pub show: fn(&S, &dyn Names) -> Value,
}

/// What every spec that comes from a body knows of itself.
pub trait Fields: Sized + Clone + 'static {
    /// Its fields, but for those that are owned key by key.
    const FIELDS: &'static [Field<Self>];
    /// Those.
    const KEYED: &'static [&'static [Part]] = &[];
    /// What names it: read before the body is written.
    const NAMED_BY: &'static [Part];
    /// Fields of Ironic's or Magnum's bodies that are kept and mean nothing.
    const EXTRA: &'static [Kept] = &[];
    /// Fields that some objects of the kind show to nobody.
    const VEILED: &'static [&'static str] = &[];

    /// Whether it is one of those objects.
    fn is_veiled(&self) -> bool {
        false
    }
    /// Checks what only all fields together tell.
    ///
    /// # Errors
    /// [`BodyError`].
    fn check(&self) -> Result<(), BodyError> {
        Ok(())
    }

    /// Whether a field is one of those that are kept.
    fn is_kept(name: &str) -> bool {
        Self::EXTRA.iter().any(|kept| kept.name == name)
    }
    /// Where those are kept.
    fn extra(&mut self) -> &mut Extra {
        unreachable!("a kind that keeps none has nowhere to keep them")
    }
    /// The same, to read.
    fn extra_ref(&self) -> &Extra {
        static NONE: LazyLock<Extra> = LazyLock::new(Extra::new);
        &NONE
    }
    /// Who gave which field.
    fn owners(&mut self) -> &mut FieldOwners;
    /// The same, to read.
    fn owners_ref(&self) -> &FieldOwners;
    /// The maps that go down the levels, of a kind that is one.
    fn inherited(&mut self) -> Option<&mut Inherited> {
        None
    }
    /// The same, to read.
    fn inherited_ref(&self) -> Option<&Inherited> {
        None
    }
    /// A node's own sets, owned entry by entry.
    fn node(&mut self) -> Option<&mut NodeSpec> {
        None
    }
    /// The same, to read.
    fn node_ref(&self) -> Option<&NodeSpec> {
        None
    }
    /// Dates what stands in it and is another than before.
    fn stamp(&mut self, _before: &Self, _now: Timestamp) {}
}

macro_rules! field {
    // A field of the body's own name, in serde's form or read by a function of its own.
    ($spec:ty, $name:ident: $form:expr, $help:expr $(, $read:expr)?) => {
        field!($spec, $name as stringify!($name) => $form, $help $(, $read)?)
    };
    ($spec:ty, $name:ident as $text:expr => $form:expr, $help:expr) => {
        field!($spec, $name as $text => $form, $help, $crate::manifest::sound::plain)
    };
    ($spec:ty, $name:ident as $text:expr => $form:expr, $help:expr, $read:expr) => {
        Field {
            name: $text,
            form: $form,
            help: $help,
            read: |spec: &mut $spec, raw, names| $read(&mut spec.$name, raw, names),
            show: |spec: &$spec, _| shown(&spec.$name),
        }
    };
}

macro_rules! lifecycle {
    ($spec:ty, $name:ident, $field:ident, $help:expr) => {
        Field {
            name: stringify!($name),
            form: Form::Count,
            help: $help,
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

/// The fields of a kind whose maps go down the levels: its own, and the limits of the life cycle. The first argument says whether
/// there is a level above it.
macro_rules! leveled {
    ($inherited:literal, $extra:expr, $named_by:expr, $keyed:expr, [$($field:expr),+ $(,)?]) => {
        const FIELDS: &'static [Field<Self>] = &[
            $($field,)+
            lifecycle!(Self, node_drain_timeout, NodeDrainTimeout, help::DRAIN.inherited($inherited)),
            lifecycle!(Self, node_volume_detach_timeout, NodeVolumeDetachTimeout, help::VOLUMES.inherited($inherited)),
            lifecycle!(Self, node_deletion_timeout, NodeDeletionTimeout, help::DELETION.inherited($inherited)),
            lifecycle!(Self, min_ready_seconds, MinReadySeconds, help::READY.inherited($inherited)),
        ];
        const KEYED: &'static [&'static [Part]] = $keyed;
        const NAMED_BY: &'static [Part] = $named_by;
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
        fn owners_ref(&self) -> &FieldOwners {
            &self.owners
        }
        fn inherited(&mut self) -> Option<&mut Inherited> {
            Some(&mut self.inherited)
        }
        fn inherited_ref(&self) -> Option<&Inherited> {
            Some(&self.inherited)
        }
    };
}

use {field, leveled, lifecycle};

/// The roles of a group or node.
const ROLE_NAMES: Form = Form::up_to(64, &Form::Names);
/// What several kinds say of a field alike.
mod help {
    use crate::field::Help;

    pub(super) const DESCRIPTION: Help = Help::new("", "For people.", r#""Web servers""#);
    pub(super) const ROLES: Help = Help::new("[]", "Roles; a node has its own and its group's.", r#"["web"]"#);
    pub(super) const MODE: Help = Help::new(
        "apply",
        "How far hosts go: observe, check (noop), or apply; a node's own goes before its group's.",
        r#""noop""#,
    );
    pub(super) const PAUSED: Help = Help::new("false", "No new task set is given; labels flow.", "true");
    // What the levels say alike.
    pub(super) const RELEASE: Help =
        Help::new("none", "What its hosts run: NAME@VERSION, or NAME of one without a version.", r#""site@2026.11""#);
    pub(super) const HOST_LABELS: Help = Help::new(
        "none",
        "Which labels flow to the host label map; the nearest level's, as a whole.",
        r#"{"patterns": ["tier|zone"]}"#,
    );
    pub(super) const DRAIN: Help = Help::new("no limit", "Seconds for a node's drain; 0: no limit.", "600");
    pub(super) const VOLUMES: Help =
        Help::new("no limit", "Seconds for the release of a node's volumes; 0: no limit.", "300");
    pub(super) const DELETION: Help =
        Help::new("10", "Seconds for the cleanup of a node that is deleted; 0: no limit.", "60");
    pub(super) const READY: Help =
        Help::new("0", "Seconds that a node stays ready before it counts as available.", "30");
}

/// A field's JSON; what stands at its default is `null`, but for a number. An object that is there and has no member is not at its
/// default: `hold: {}` holds.
fn shown<T: Serialize + Default + PartialEq>(field: &T) -> Value {
    let value = serde_json::to_value(field).expect("a spec's field is JSON with text as keys");
    if *field == T::default() && !value.is_number() { Value::Null } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};

    fn default_of<F: Fields>(name: &str) -> Option<String> {
        F::FIELDS.iter().find(|field| field.name == name).map(|field| field.help.default_text())
    }

    #[test]
    fn w14_the_default_of_what_comes_down_is_the_level_aboves_where_there_is_one() {
        let limits = [
            ("node_drain_timeout", "no limit"),
            ("node_volume_detach_timeout", "no limit"),
            ("node_deletion_timeout", "10"),
            ("min_ready_seconds", "0"),
        ];
        for (field, default) in limits.into_iter().chain([("release", "none"), ("host_labels", "none")]) {
            let below = format!("the level's above, else {default}");
            assert_eq!(default_of::<ClusterTemplateSpec>(field).as_deref(), Some(default), "{field}");
            assert_eq!(default_of::<ClusterSpec>(field).as_deref(), Some(below.as_str()), "{field}");
            assert_eq!(default_of::<NodeGroupSpec>(field).as_deref(), Some(below.as_str()), "{field}");
        }
        for (field, default) in limits.into_iter().chain([("mode", "apply")]) {
            let below = format!("the level's above, else {default}");
            assert_eq!(default_of::<NodeSpec>(field).as_deref(), Some(below.as_str()), "{field}");
        }
        assert_eq!(default_of::<NodeGroupSpec>("mode").as_deref(), Some("apply"));
        let silent_after = NodeGroupSpec::SILENT_AFTER_SECONDS.to_string();
        assert_eq!(default_of::<NodeGroupSpec>("silent_after"), Some(silent_after));
    }
}
