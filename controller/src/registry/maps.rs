//! Writes to one map of an object (labels, annotations or parameters) by its keys.
//!
//! A body with fields is written by core's `manifest`. This module has the other operations: a JSON patch of the map or
//! of its keys, tombstones, and the transfer of keys to another owner.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::value::RawValue;
use stemma_core::labels::{
    BodyShape, FromJson, IntentJson, InvalidEntry, Layer, check_parameters, merge_labels_after_write, to_merge_patch,
};
use stemma_core::manifest::check_own_annotations;
use stemma_core::object::{Inherited, Timestamp};
use stemma_core::ownership::{Intent, Manager, OwnedMap, OwnerMatch, ProvidedValue};
use stemma_wire::error::{ApiError, ErrorType};

/// The name of an inherited map of an object: labels, annotations or parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapName {
    /// The map `labels`.
    Labels,
    /// The map `annotations`.
    Annotations,
    /// The map `parameters`.
    Parameters,
}

/// A write to one map of an object: its labels, annotations or parameters.
#[derive(Clone, Copy, Debug)]
pub enum MapWrite<'a> {
    /// Replaces the object's whole map.
    Replace(&'a RawValue),
    /// Sets single keys. The value `null` removes what this level provides for the key, a value or a tombstone.
    SetKeys(&'a RawValue),
    /// Adds tombstones at this level, so that these keys are not inherited.
    AddTombstones(&'a [String]),
    /// Transfers these keys to another owner.
    HandOver {
        /// The owner that must own the keys now.
        from: &'a OwnerMatch,
        /// The new owner.
        to: &'a OwnerMatch,
        /// The keys that are transferred.
        keys: &'a [String],
    },
}

impl MapName {
    /// All maps.
    pub const ALL: [Self; 3] = [Self::Labels, Self::Annotations, Self::Parameters];

    /// Returns the name of the map, as in paths and bodies of the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Annotations => "annotations",
            Self::Parameters => "parameters",
        }
    }

    /// Returns the map with this name, or `None` if no map has it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|map| map.name() == name)
    }

    /// Applies a write to this map of a level. New and changed entries get the time `now`.
    ///
    /// # Errors
    /// Fails if an entry is invalid, if there are too many entries, if annotations or parameters are too large in
    /// total, or if one of the transferred keys is not owned by `from`.
    pub fn write(
        self,
        inherited: &mut Inherited,
        write: MapWrite<'_>,
        manager: &Manager,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        match self {
            Self::Labels => {
                let old_merge = inherited.labels.merge;
                inherited.labels = change_map(self, &inherited.labels, write, manager, now)?;
                // The write contains no `merge_labels` and provides labels. Without a stored value, it becomes true.
                inherited.labels.merge = merge_labels_after_write(old_merge, None, true, BodyShape::Native);
            }
            Self::Annotations => {
                inherited.annotations = change_map(self, &inherited.annotations, write, manager, now)?;
                check_own_annotations(inherited).map_err(|e| self.refusal(e))?;
            }
            Self::Parameters => {
                inherited.parameters = change_map(self, &inherited.parameters, write, manager, now)?;
                if let Some(provided) = &inherited.parameters.provided {
                    check_parameters(provided).map_err(|e| self.refusal(e))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the API error for an invalid entry of this map, or for a map that is too large.
    fn refusal(self, reason: impl fmt::Display) -> ApiError {
        let kind = match self {
            Self::Labels => ErrorType::LabelInvalid,
            Self::Annotations | Self::Parameters => ErrorType::FieldInvalid,
        };
        let message = format!("Invalid input for {}: {reason}", self.name());
        ApiError::new(kind, message).field(self.name()).reason(reason.to_string())
    }
}

/// Returns the map of a level after a write. New and changed entries get the time `now`. Fails in the same cases as
/// [`MapName::write`], but does not check the total size.
fn change_map<K, V>(
    map: MapName,
    layer: &Layer<K, V>,
    write: MapWrite<'_>,
    manager: &Manager,
    now: Timestamp,
) -> Result<Layer<K, V>, ApiError>
where
    K: Ord + Clone + fmt::Display + FromStr<Err: fmt::Display>,
    V: Clone + PartialEq + FromJson,
{
    let empty = OwnedMap::default();
    let current = layer.provided.as_ref().unwrap_or(&empty);
    let mut new_map = match write {
        MapWrite::Replace(json) => current.update(manager, &read_map(map, json)?),
        MapWrite::SetKeys(json) => current.patch(manager, &to_merge_patch(read_map(map, json)?)),
        MapWrite::AddTombstones(keys) => {
            let tombstones: BTreeMap<K, _> =
                parse_keys(map, keys)?.into_iter().map(|key| (key, Some(ProvidedValue::Tombstone))).collect();
            current.patch(manager, &tombstones)
        }
        MapWrite::HandOver { from, to, keys } => {
            let keys = parse_keys(map, keys)?;
            current
                .transfer(from, to, keys.iter())
                .map_err(|e| ApiError::new(ErrorType::LabelConflict, e.to_string()).field(map.name()))?
        }
    };
    new_map.set_missing_times(now.0);
    let new_map = Layer { provided: Some(new_map), merge: layer.merge };
    new_map.check_key_count().map_err(|e| map.refusal(e))?;
    Ok(new_map)
}

/// Parses a body as a map. The body `null` gives an empty map. The error names the invalid entry.
fn read_map<K: Ord + FromStr<Err: fmt::Display>, V: FromJson>(map: MapName, json: &RawValue) -> Result<Intent<K, V>, ApiError> {
    let to_error = |e: InvalidEntry| map.refusal(&e).field(e.field(map.name())).reason(e.reason());
    Ok(IntentJson::from_json(json).map_err(to_error)?.map(|intent| intent.0).unwrap_or_default())
}

/// Parses the texts of keys. The error names the first invalid key.
fn parse_keys<K: FromStr<Err: fmt::Display>>(map: MapName, keys: &[String]) -> Result<Vec<K>, ApiError> {
    keys.iter().map(|key| key.parse().map_err(|e: K::Err| map.refusal(e))).collect()
}
