//! Labels: inherited, overridden, explained. Annotations and parameters go the same way.
//!
//! Levels are folded one below the other, the template first. What a level *provided* is never copied into the
//! one below: the effective map is computed, so that an edit of any level reaches every host below it, and what its
//! author wrote is never lost. Each step shares with the one above it ([`imbl::OrdMap`]): the hosts of a group that
//! have no labels of their own all hold the group's very map, and one that has three copies three lines.
//!
//! Every key carries its whole line of descent ([`Line`]): each level that spoke, with its owners, also where the
//! key has no value in the end. `explain` reads it and folds nothing again.

mod differences;
mod fold;
mod layer;
mod line;
mod parameter;
mod variable;
mod written;

pub use differences::{Differences, differences};
pub use fold::{EffectiveTooLarge, Fill, Folded};
pub use layer::{BodyShape, InvalidMerge, Layer, MAX_KEYS, TooManyKeys, merge_after, read_merge};
pub use line::{Effect, Effective, Line, Offer, OfferEffect, Standing, Statement};
pub use parameter::{
    InvalidParameter, MAX_PARAMETER_DEPTH, MAX_PARAMETERS, ParameterValue, ParametersTooLarge, check_parameters,
};
pub use variable::{meeting, variable};
pub use written::{FromJson, InvalidEntry, Written, removing};

use crate::key::{AnnotationKey, AnnotationValue, LabelKey, LabelValue};

pub use crate::origin::Level;

/// What effective labels may have together, keys and values, in bytes.
pub const MAX_EFFECTIVE: usize = 64 * 1024;

/// What one level says of labels.
pub type LabelLayer = Layer<LabelKey, LabelValue>;
/// What one level says of annotations; they always merge.
pub type AnnotationLayer = Layer<AnnotationKey, AnnotationValue>;
/// What one level says of parameters; they always merge, a top-level key at a time.
pub type ParameterLayer = Layer<LabelKey, ParameterValue>;

/// Labels folded down to some level.
pub type Labels = Folded<LabelKey, LabelValue>;
/// Annotations folded down to some level.
pub type Annotations = Folded<AnnotationKey, AnnotationValue>;
/// Parameters folded down to some level.
pub type Parameters = Folded<LabelKey, ParameterValue>;

#[cfg(test)]
mod tests;
