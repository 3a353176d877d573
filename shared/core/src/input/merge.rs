//! Merges the references of a task's templates, so that each value is read once.
//!
//! Two templates that look up the same nodes receive the same list of nodes. So a name in one file and an address in
//! the other file belong to the same node.

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
    let mut merged = BTreeSet::new();
    let mut mergeable: BTreeMap<Box<str>, (Read, BTreeSet<Path>)> = BTreeMap::new();
    for reference in references {
        let Some((key, paths)) = reference.read().mergeable_paths() else {
            merged.insert(reference);
            continue;
        };
        // Each entry is one of the reads with this key, and the paths of all of them.
        mergeable.entry(key).or_insert_with(|| (reference.read().clone(), BTreeSet::new())).1.extend(paths);
    }
    for (read, paths) in mergeable.into_values() {
        for read in read.with_paths(remove_nested(paths)) {
            merged.insert(Reference::new(read)?);
        }
    }
    Ok(merged.into_iter().collect())
}

/// An input that contains the value that a reference reads, and more.
pub(super) enum WiderInput {
    /// The input whose reference has this text. The path leads from the input's value to the value that is read.
    Whole(String, Path),
    /// The look-up whose reference begins with this text, provided that the look-up has at least these fields.
    MoreFields(String, FieldSet),
}

impl Reference {
    /// Returns the inputs that would contain the value that this reference reads. For a parameter or fact, these are
    /// the values that enclose the value. For a look-up, this is a look-up of the same nodes with more fields.
    pub(super) fn wider_inputs(&self) -> impl Iterator<Item = WiderInput> + '_ {
        let (path, to_read): (Option<&Path>, fn(Path) -> Read) = match self.read() {
            Read::Parameter(path) => (Some(path), Read::Parameter),
            Read::Fact(path) => (Some(path), Read::Fact),
            // The function is not called without a path.
            _ => (None, Read::Parameter),
        };
        let cuts = path.into_iter().flat_map(Path::splits);
        let lookup = self.read().mergeable_paths().zip(self.read().fields().cloned());
        cuts.map(move |(outer_path, inner_path)| WiderInput::Whole(syntax::to_text(&to_read(outer_path)), inner_path))
            .chain(lookup.map(|((text_without_fields, _), fields)| WiderInput::MoreFields(text_without_fields.into(), fields)))
    }
}

impl Read {
    /// Returns a key that is equal for all reads that can be merged with each other, and the paths that this read
    /// reads. Returns `None` if this read cannot be merged.
    fn mergeable_paths(&self) -> Option<(Box<str>, Vec<Path>)> {
        match self {
            Self::Parameter(path) => Some(("params".into(), vec![path.clone()])),
            Self::Fact(path) => Some(("facts".into(), vec![path.clone()])),
            Self::Nodes { query, fields } => {
                let without_fields = Self::Nodes { query: query.clone(), fields: FieldSet::default() };
                Some((syntax::to_text(&without_fields).into(), fields.iter().cloned().collect()))
            }
            Self::Primary { tag, fields } => {
                let without_fields = Self::Primary { tag: tag.clone(), fields: FieldSet::default() };
                Some((syntax::to_text(&without_fields).into(), fields.iter().cloned().collect()))
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

    /// Replaces the paths of this read. A parameter or a fact has a single path, so one read for each path is returned.
    /// A read that cannot be merged is returned unchanged.
    fn with_paths(self, paths: BTreeSet<Path>) -> Vec<Self> {
        match self {
            Self::Parameter(_) => paths.into_iter().map(Self::Parameter).collect(),
            Self::Fact(_) => paths.into_iter().map(Self::Fact).collect(),
            Self::Nodes { query, .. } => vec![Self::Nodes { query, fields: FieldSet(paths) }],
            Self::Primary { tag, .. } => vec![Self::Primary { tag, fields: FieldSet(paths) }],
            unchanged => vec![unchanged],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Duplicates are removed, fields of the same look-up are combined, and `params.x` replaces `params.x.y` within it.
    #[test]
    fn merge_references_returns_one_sorted_list() {
        let texts = [
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
        let merged = merge_references(texts.iter().map(|text| text.parse().unwrap())).unwrap();
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
