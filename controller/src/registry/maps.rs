//! Writes to one map of an object: labels, annotations or parameters, that name it by its keys.
//!
//! A body that names fields goes through core's `manifest`; here is what else a map has: the operations of a JSON patch on it and on its
//! keys, tombstones, and handing ownership over.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::value::RawValue;
use stemma_core::labels::{BodyShape, FromJson, InvalidEntry, Layer, Written, check_parameters, merge_after, removing};
use stemma_core::manifest::check_own_annotations;
use stemma_core::object::{Inherited, Timestamp};
use stemma_core::ownership::{Intent, Manager, OwnedMap, Party, Said};
use stemma_wire::error::{ApiError, ErrorType};

/// One of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapName {
    /// `labels`.
    Labels,
    /// `annotations`.
    Annotations,
    /// `parameters`.
    Parameters,
}

/// What is done to a map.
#[derive(Clone, Copy, Debug)]
pub enum MapWrite<'a> {
    /// The object's whole new map.
    Replace(&'a RawValue),
    /// Single keys with their new values; `null` takes away what is provided here.
    Keys(&'a RawValue),
    /// These keys are not inherited here.
    Stop(&'a [String]),
    /// These keys have another owner from now on.
    HandOver {
        /// Who gives.
        from: &'a Party,
        /// Who takes.
        to: &'a Party,
        /// What.
        keys: &'a [String],
    },
}

impl MapName {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Labels, Self::Annotations, Self::Parameters];

    /// The name in paths and bodies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Annotations => "annotations",
            Self::Parameters => "parameters",
        }
    }

    /// The map of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|map| map.name() == name)
    }

    /// Does something to this map of a level.
    ///
    /// # Errors
    /// The first entry that is none; too many; keys that `from` does not own.
    pub fn write(
        self,
        inherited: &mut Inherited,
        write: MapWrite<'_>,
        manager: &Manager,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        match self {
            Self::Labels => {
                let merge = inherited.labels.merge;
                inherited.labels = change(self, &inherited.labels, write, manager, now)?;
                inherited.labels.merge = merge_after(merge, None, true, BodyShape::Own);
            }
            Self::Annotations => {
                inherited.annotations = change(self, &inherited.annotations, write, manager, now)?;
                check_own_annotations(inherited).map_err(|e| self.refused(e))?;
            }
            Self::Parameters => {
                inherited.parameters = change(self, &inherited.parameters, write, manager, now)?;
                if let Some(provided) = &inherited.parameters.provided {
                    check_parameters(provided).map_err(|e| self.refused(e))?;
                }
            }
        }
        Ok(())
    }

    fn refused(self, reason: impl fmt::Display) -> ApiError {
        let kind = match self {
            Self::Labels => ErrorType::LabelInvalid,
            Self::Annotations | Self::Parameters => ErrorType::FieldInvalid,
        };
        let message = format!("Invalid input for {}: {reason}", self.name());
        ApiError::new(kind, message).field(self.name()).reason(reason.to_string())
    }
}

fn change<K, V>(
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
    let present = layer.provided.as_ref().unwrap_or(&empty);
    let mut next = match write {
        MapWrite::Replace(said) => present.update(manager, &read(map, said)?),
        MapWrite::Keys(said) => present.patch(manager, &removing(read(map, said)?)),
        MapWrite::Stop(keys) => {
            let stops: BTreeMap<K, _> =
                keys_of(map, keys)?.into_iter().map(|key| (key, Some(Said::Tombstone))).collect();
            present.patch(manager, &stops)
        }
        MapWrite::HandOver { from, to, keys } => {
            let keys = keys_of(map, keys)?;
            present
                .hand_over(from, to, keys.iter())
                .map_err(|e| ApiError::new(ErrorType::LabelConflict, e.to_string()).field(map.name()))?
        }
    };
    next.stamp(now.0);
    let next = Layer { provided: Some(next), merge: layer.merge };
    next.check().map_err(|e| map.refused(e))?;
    Ok(next)
}

fn read<K: Ord + FromStr<Err: fmt::Display>, V: FromJson>(
    map: MapName,
    said: &RawValue,
) -> Result<Intent<K, V>, ApiError> {
    let refused = |e: InvalidEntry| map.refused(&e).field(e.field(map.name())).reason(e.reason());
    Ok(Written::from_json(said).map_err(refused)?.map(|written| written.0).unwrap_or_default())
}

fn keys_of<K: FromStr<Err: fmt::Display>>(map: MapName, keys: &[String]) -> Result<Vec<K>, ApiError> {
    keys.iter().map(|key| key.parse().map_err(|e: K::Err| map.refused(e))).collect()
}
