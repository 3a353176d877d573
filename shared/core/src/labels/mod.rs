//! Labels: inherited, overridden, explained. Annotations and parameters work in the same way.
//!
//! The levels are merged one after the other, beginning with the template. The map that a level *provides* is never
//! copied into the level below, because the effective map is computed. So an edit of any level reaches every host below
//! the level, and the text that its author wrote is never lost. The map of each level shares data with the map above it
//! ([`imbl::OrdMap`]). The hosts of a group that have no labels of their own share the group's map. A host with three
//! labels copies three entries.
//!
//! Every key has its whole [`Provenance`]: each level that provided an entry, with its owners, even if the key has no
//! effective value. `explain` reads the provenance and need not merge the levels again.

mod diff;
mod effective;
mod json;
mod layer;
mod parameter;
mod provenance;
mod variable;

pub use diff::{MapDiff, map_diff};
pub use effective::{EffectiveMap, EffectiveTooLarge, FillSource};
pub use json::{FromJson, IntentJson, InvalidEntry, to_merge_patch};
pub use layer::{BodyShape, InvalidMerge, Layer, MAX_KEYS, TooManyKeys, merge_labels_after_write, parse_merge_labels};
pub use parameter::{
    InvalidParameter, MAX_PARAMETER_DEPTH, MAX_PARAMETERS_BYTES, ParameterValue, ParametersTooLarge, check_parameters,
};
pub use provenance::{Effective, FillCandidate, FillEffect, KeyState, LevelEffect, LevelEntry, Provenance};
pub use variable::{colliding_keys, variable_name};

use crate::key::{AnnotationKey, AnnotationValue, LabelKey, LabelValue};

pub use crate::origin::Level;

/// Maximum size of the effective labels of a level, keys and values together, in bytes.
pub const MAX_EFFECTIVE_BYTES: usize = 64 * 1024;

/// The labels of one level.
pub type LabelLayer = Layer<LabelKey, LabelValue>;
/// The annotations of one level. They are always merged into the inherited annotations.
pub type AnnotationLayer = Layer<AnnotationKey, AnnotationValue>;
/// The parameters of one level. They are always merged into the inherited parameters, by top-level key.
pub type ParameterLayer = Layer<LabelKey, ParameterValue>;

/// The effective labels at some level: those of this level and the levels above, merged. The labels of a node can also
/// contain labels of inspection rules and of its host.
pub type Labels = EffectiveMap<LabelKey, LabelValue>;
/// The effective annotations at some level: those of this level and the levels above, merged.
pub type Annotations = EffectiveMap<AnnotationKey, AnnotationValue>;
/// The effective parameters at some level: those of this level and the levels above, merged.
pub type Parameters = EffectiveMap<LabelKey, ParameterValue>;

#[cfg(test)]
mod tests;
