//! Merges the references of a task's templates, so that each value is read once.
//!
//! Two templates that look up the same nodes get one list of nodes. So a name in one file and an address in the other
//! belong to the same node.

use std::collections::{BTreeMap, BTreeSet};

use super::path::Path;
use super::read::{FieldSet, Read, ReferenceError, remove_nested};
use super::reference::Reference;
use super::syntax;

/// Merges the references of several templates of a task into one sorted list. Look-ups of the same nodes become one
/// look-up with the fields of all. A path is omitted if it lies within another path of the list.
///
/// # Errors
/// [`ReferenceError::TooMany`] if a merged look-up has too many fields.
pub fn merge_references(references: impl IntoIterator<Item = Reference>) -> Result<Vec<Reference>, ReferenceError> {
    let mut plain = BTreeSet::new();
    let mut rooted: BTreeMap<Box<str>, (Read, BTreeSet<Path>)> = BTreeMap::new();
    for reference in references {
        let Some((key, paths)) = reference.read().mergeable_paths() else {
            plain.insert(reference);
            continue;
        };
        rooted.entry(key).or_insert_with(|| (reference.read().clone(), BTreeSet::new())).1.extend(paths);
    }
    for (read, paths) in rooted.into_values() {
        for read in read.with_paths(remove_nested(paths)) {
            plain.insert(Reference::new(read)?);
        }
    }
    Ok(plain.into_iter().collect())
}

/// An input that contains what a reference reads, and more.
pub(super) enum WiderInput {
    /// The input with this text, and the path in its value to what is read.
    Whole(String, Path),
    /// The look-up whose text begins with this one, with at least these fields.
    MoreFields(String, FieldSet),
}

impl Reference {
    /// Returns the inputs that would contain what this reference reads.
    pub(super) fn wider_inputs(&self) -> impl Iterator<Item = WiderInput> + '_ {
        let (path, whole): (Option<&Path>, fn(Path) -> Read) = match self.read() {
            Read::Parameter(path) => (Some(path), Read::Parameter),
            Read::Fact(path) => (Some(path), Read::Fact),
            _ => (None, Read::Parameter),
        };
        let cut = path.into_iter().flat_map(Path::splits);
        let looked_up = self.read().mergeable_paths().zip(self.read().fields().cloned());
        cut.map(move |(first, rest)| WiderInput::Whole(syntax::to_text(&whole(first)), rest))
            .chain(looked_up.map(|((bare, _), fields)| WiderInput::MoreFields(bare.into(), fields)))
    }
}

impl Read {
    /// Returns the key that mergeable reads have in common, and the paths that this read takes. Returns `None` if this
    /// read cannot be merged.
    fn mergeable_paths(&self) -> Option<(Box<str>, Vec<Path>)> {
        match self {
            Self::Parameter(path) => Some(("params".into(), vec![path.clone()])),
            Self::Fact(path) => Some(("facts".into(), vec![path.clone()])),
            Self::Nodes { query, fields } => {
                let bare = Self::Nodes { query: query.clone(), fields: FieldSet::default() };
                Some((syntax::to_text(&bare).into(), fields.iter().cloned().collect()))
            }
            Self::Primary { tag, fields } => {
                let bare = Self::Primary { tag: tag.clone(), fields: FieldSet::default() };
                Some((syntax::to_text(&bare).into(), fields.iter().cloned().collect()))
            }
            Self::Label(_)
            | Self::LabelsWithPrefix(_)
            | Self::Trait(_)
            | Self::Tag(_)
            | Self::Node(_)
            | Self::Cluster(_)
            | Self::Secret(_) => None,
        }
    }

    /// Returns the read with other paths: several reads if the read takes only one path, as a parameter does.
    fn with_paths(self, paths: BTreeSet<Path>) -> Vec<Self> {
        match self {
            Self::Parameter(_) => paths.into_iter().map(Self::Parameter).collect(),
            Self::Fact(_) => paths.into_iter().map(Self::Fact).collect(),
            Self::Nodes { query, .. } => vec![Self::Nodes { query, fields: FieldSet(paths) }],
            Self::Primary { tag, .. } => vec![Self::Primary { tag, fields: FieldSet(paths) }],
            other => vec![other],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_references_returns_one_sorted_list() {
        let read = [
            "params.x.y",
            "nodes(tag='a'){name}",
            "params.x",
            "params['x-y']",
            "labels.a",
            "nodes(tag='a'){address}",
            "nodes(tag='b')",
            "labels.a",
            "primary('a'){name}",
            "facts.cpu.count",
        ];
        let merged = merge_references(read.iter().map(|text| text.parse().unwrap())).unwrap();
        assert_eq!(
            merged.iter().map(Reference::as_str).collect::<Vec<_>>(),
            [
                "facts.cpu.count",
                "labels.a",
                "nodes(tag='a'){address, name}",
                "nodes(tag='b')",
                "params.x",
                "params['x-y']",
                "primary('a'){name}",
            ]
        );
    }
}
