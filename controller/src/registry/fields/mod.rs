//! An object's fields by name: one form for a POST, a patch, an apply and a manifest.
//!
//! Whatever way a field comes in, it is a change of the map from names to values, with owners, and obeys
//! the rules that labels obey. A kind only says which fields it has and how each is read and written; what a
//! merge patch or an apply does is written once (`change`). A node's traits and tags are fields of their
//! own here, one an entry, since several authors share them.

mod change;
mod cluster;
mod group;
mod kept;
mod node;
mod release;
mod template;

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stemma_core::lifecycle::{Field as LimitField, Lifecycle};
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Cluster, ClusterTemplate, Extra, FieldOwners, Inherited, NodeGroup};
use stemma_wire::error::{ApiError, ErrorType, quote};

pub use change::{Change, read_body};
pub use kept::{Form, Kept};

use super::Stored;
use crate::cache::model::{Model, Shelved};

/// A kind's fields, as manifests and HTTP name them.
pub trait Fields: Shelved + Stored {
    /// The fields that mean something here, beside `name`, `description`, maps of labels and the lifecycle fields.
    const NAMES: &'static [&'static str];
    /// The fields of another system's body that are kept and given back.
    const KEPT: &'static [Kept];

    /// Whether it stands on a level, and so has labels that go down, annotations and parameters.
    const HAS_LEVELS: bool;

    /// Reads a name.
    ///
    /// # Errors
    /// That it is none.
    fn name(text: &str) -> Result<Self::Name, ApiError>;
    /// What goes down the levels; none for a kind that stands on no level.
    fn inherited(&self) -> Option<&Inherited>;
    /// The same, to change.
    fn inherited_mut(&mut self) -> Option<&mut Inherited>;
    /// The text for people.
    fn description_mut(&mut self) -> &mut String;
    /// The kept fields.
    fn extra_mut(&mut self) -> &mut Extra;
    /// Who gave which field and entry.
    fn owners(&self) -> FieldOwners;
    /// Writes that down.
    fn set_owners(&mut self, owners: FieldOwners);
    /// Sets one of [`Self::NAMES`] (or one of its entries); `None` takes it back to its default.
    ///
    /// # Errors
    /// What is wrong with the value.
    fn set(&mut self, model: &Model, name: &str, value: Option<Value>) -> Result<(), ApiError>;
    /// All fields that are not at their defaults, entries apart.
    fn get(&self, model: &Model) -> Map<String, Value>;
    /// Splits a field into its entries, where it has some; `None` where it is one value.
    ///
    /// # Errors
    /// What is wrong with the value.
    fn entries(_name: &str, _value: &Value) -> Result<Option<Vec<(String, Value)>>, ApiError> {
        Ok(None)
    }
    /// Checks what holds between fields.
    ///
    /// # Errors
    /// What does not.
    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }
}

/// The fields that every kind with levels has: `description`, and the four limits.
pub(crate) const COMMON: &[&str] =
    &["description", "node_drain_timeout", "node_volume_detach_timeout", "node_deletion_timeout", "min_ready_seconds"];

/// The maps beside the fields.
pub(crate) const MAPS: &[&str] = &["labels", "merge_labels", "annotations", "parameters"];

/// Sets any field of an object.
///
/// # Errors
/// What is wrong with the name or the value.
pub(crate) fn set_any<S: Fields>(
    spec: &mut S,
    model: &Model,
    name: &str,
    value: Option<Value>,
) -> Result<(), ApiError> {
    let value = value.filter(|value| !value.is_null());
    if name == "description" {
        *spec.description_mut() = text(name, value.as_ref(), 4096)?.unwrap_or_default();
        return Ok(());
    }
    if let Some(field) = LimitField::ALL.into_iter().find(|field| field.name() == name) {
        let Some(inherited) = spec.inherited_mut() else { return Err(unknown::<S>(name)) };
        return set_limit(&mut inherited.lifecycle, field, value.as_ref());
    }
    if let Some(kept) = S::KEPT.iter().find(|kept| kept.name == name) {
        match value {
            Some(value) => drop(spec.extra_mut().insert(name.to_owned(), kept.read(value)?)),
            None => drop(spec.extra_mut().remove(name)),
        }
        return Ok(());
    }
    spec.set(model, name, value)
}

/// All fields of an object that are not at their defaults.
pub(crate) fn get_all<S: Fields>(spec: &S, model: &Model) -> Map<String, Value> {
    let mut fields = spec.get(model);
    let mut copy = spec.clone();
    let description = std::mem::take(copy.description_mut());
    if !description.is_empty() {
        fields.insert("description".into(), description.into());
    }
    if let Some(inherited) = spec.inherited() {
        for field in LimitField::ALL {
            if let Some(seconds) = inherited.lifecycle.get(field) {
                fields.insert(field.name().into(), seconds.into());
            }
        }
    }
    fields.extend(std::mem::take(copy.extra_mut()));
    fields
}

fn set_limit(lifecycle: &mut Lifecycle, field: LimitField, value: Option<&Value>) -> Result<(), ApiError> {
    let seconds = match value {
        None => None,
        Some(value) => {
            let seconds = value.as_i64().ok_or_else(|| wrong(field.name(), "a whole number of seconds", value))?;
            field.limit(seconds).map_err(|e| invalid(field.name(), e.to_string()))?;
            Some(seconds)
        }
    };
    match field {
        LimitField::NodeDrainTimeout => lifecycle.node_drain_timeout = seconds,
        LimitField::NodeVolumeDetachTimeout => lifecycle.node_volume_detach_timeout = seconds,
        LimitField::NodeDeletionTimeout => lifecycle.node_deletion_timeout = seconds,
        LimitField::MinReadySeconds => lifecycle.min_ready_seconds = seconds,
    }
    Ok(())
}

/// The refusal of a field that the kind does not have.
pub(crate) fn unknown<S: Fields>(name: &str) -> ApiError {
    let own =
        S::NAMES.iter().chain(if S::KIND == stemma_core::object::Kind::Release { &["version"][..] } else { MAPS });
    let known = own.copied().chain(["name"]).chain(COMMON.iter().copied()).collect::<Vec<_>>().join(", ");
    let advice = match name {
        "override_labels" => "it is called merge_labels here, as in Magnum's API".to_owned(),
        _ => format!("{} has: {known}", article(S::KIND.name())),
    };
    ApiError::new(ErrorType::FieldUnknown, format!("Unknown attribute {} of a {}", quote(name), S::KIND))
        .field(name)
        .detail(advice)
}

fn article(kind: &str) -> String {
    format!("a {kind}")
}

/// The refusal of a value that a field cannot have.
pub(crate) fn invalid(field: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, format!("Invalid value of {field}: {reason}")).field(field)
}

/// The same, where something of another JSON type is needed.
pub(crate) fn wrong(field: &str, needed: &str, found: &Value) -> ApiError {
    let found: String = found.to_string().chars().take(64).collect();
    invalid(field, format!("{needed} is needed here, not {found}"))
}

/// The refusal of a reference to something that is not there.
pub(crate) fn dangling(field: &str, kind: stemma_core::object::Kind, name: &str) -> ApiError {
    ApiError::new(ErrorType::ReferenceDangling, format!("there is no {} {}", kind.word(), quote(name)))
        .field(field)
        .detail(format!("create the {} first, or apply it together with this object", kind.word()))
}

/// Reads a typed value; absent is the default.
pub(crate) fn typed<T: DeserializeOwned + Default>(field: &str, value: Option<Value>) -> Result<T, ApiError> {
    value.map_or_else(|| Ok(T::default()), |value| serde_json::from_value(value).map_err(|e| invalid(field, e)))
}

/// Reads a text of bounded length.
pub(crate) fn text(field: &str, value: Option<&Value>, most: usize) -> Result<Option<String>, ApiError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= most => Ok(Some(text.clone())),
        Some(Value::String(_)) => Err(invalid(field, format!("it has at most {most} bytes"))),
        Some(other) => Err(wrong(field, "a text", other)),
    }
}

/// Reads a reference to a release that exists.
pub(crate) fn release_ref(model: &Model, field: &str, value: Option<&Value>) -> Result<Option<ReleaseRef>, ApiError> {
    if let Some(Value::Number(number)) = value {
        let advice = format!("write it as text: \"{number}\" (a bare 2026.10 would be the number 2026.1)");
        return Err(invalid(field, "a release is named NAME or NAME@VERSION, a text").detail(advice));
    }
    let Some(name) = text(field, value, 256)? else { return Ok(None) };
    let reference = ReleaseRef::new(&name).map_err(|e| invalid(field, e))?;
    match model.releases.named(None, &reference.to_string()) {
        Some(_) => Ok(Some(reference)),
        None => Err(dangling(field, stemma_core::object::Kind::Release, &name)),
    }
}

/// Finds a template by what an author wrote.
pub(crate) fn template<'a>(model: &'a Model, field: &str, name: &str) -> Result<&'a Arc<ClusterTemplate>, ApiError> {
    model.templates.find(None, name).ok_or_else(|| dangling(field, stemma_core::object::Kind::ClusterTemplate, name))
}

/// Finds a cluster by what an author wrote.
pub(crate) fn cluster<'a>(model: &'a Model, field: &str, name: &str) -> Result<&'a Arc<Cluster>, ApiError> {
    model.clusters.find(None, name).ok_or_else(|| dangling(field, stemma_core::object::Kind::Cluster, name))
}

/// Finds a group by `CLUSTER/GROUP` or uuid.
pub(crate) fn group<'a>(model: &'a Model, field: &str, name: &str) -> Result<&'a Arc<NodeGroup>, ApiError> {
    let found = match name.split_once('/') {
        Some((cluster_name, group)) => {
            let cluster = cluster(model, field, cluster_name)?;
            model.groups.find(Some(cluster.meta.uuid), group)
        }
        None => name.parse().ok().and_then(|uuid| model.groups.get(uuid)),
    };
    found.ok_or_else(|| {
        dangling(field, stemma_core::object::Kind::NodeGroup, name)
            .detail("a node group is named CLUSTER/GROUP, or by its uuid")
    })
}

/// Writes a field that is not at its default.
pub(crate) fn put<T: Serialize + PartialEq + Default>(fields: &mut Map<String, Value>, name: &str, value: &T) {
    if *value != T::default() {
        let value = serde_json::to_value(value).expect("fields are made of text keys and JSON values");
        fields.insert(name.to_owned(), value);
    }
}
