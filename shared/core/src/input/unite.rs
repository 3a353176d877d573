//! The references of a task: those of its templates, each thing that is read once.
//!
//! Two templates that ask for the same nodes get one list of them, so that a name and an address that
//! stand beside each other in two files are of the same node.

use std::collections::{BTreeMap, BTreeSet};

use super::path::Path;
use super::read::{Fields, Read, ReferenceError, outermost};
use super::reference::Reference;
use super::syntax;

/// What several templates of one task read, as one sorted list: look-ups of the same nodes become one with
/// the fields of all, and a path within another that is read whole is left out.
///
/// # Errors
/// [`ReferenceError::TooMany`] where a look-up then has more fields than one may.
pub fn unite(references: impl IntoIterator<Item = Reference>) -> Result<Vec<Reference>, ReferenceError> {
    let mut plain = BTreeSet::new();
    let mut rooted: BTreeMap<Box<str>, (Read, BTreeSet<Path>)> = BTreeMap::new();
    for reference in references {
        let Some((key, paths)) = reference.read().paths() else {
            plain.insert(reference);
            continue;
        };
        rooted.entry(key).or_insert_with(|| (reference.read().clone(), BTreeSet::new())).1.extend(paths);
    }
    for (read, paths) in rooted.into_values() {
        for read in read.with_paths(outermost(paths)) {
            plain.insert(Reference::new(read)?);
        }
    }
    Ok(plain.into_iter().collect())
}

/// An input that holds what a reference reads, and more.
pub(super) enum Wider {
    /// The input of this text, and the path to what is read below its value.
    Whole(String, Path),
    /// The look-up whose text begins so, with at least these fields.
    MoreFields(String, Fields),
}

impl Reference {
    /// The inputs that would hold what this reads.
    pub(super) fn wider(&self) -> impl Iterator<Item = Wider> + '_ {
        let (path, whole): (Option<&Path>, fn(Path) -> Read) = match self.read() {
            Read::Parameter(path) => (Some(path), Read::Parameter),
            Read::Fact(path) => (Some(path), Read::Fact),
            _ => (None, Read::Parameter),
        };
        let cut = path.into_iter().flat_map(Path::splits);
        let looked_up = self.read().paths().zip(self.read().fields().cloned());
        cut.map(move |(first, rest)| Wider::Whole(syntax::print(&whole(first)), rest))
            .chain(looked_up.map(|((bare, _), fields)| Wider::MoreFields(bare.into(), fields)))
    }
}

impl Read {
    /// What this read has in common with others that may be united with it, and its own paths.
    fn paths(&self) -> Option<(Box<str>, Vec<Path>)> {
        match self {
            Self::Parameter(path) => Some(("params".into(), vec![path.clone()])),
            Self::Fact(path) => Some(("facts".into(), vec![path.clone()])),
            Self::Nodes { query, fields } => {
                let bare = Self::Nodes { query: query.clone(), fields: Fields::default() };
                Some((syntax::print(&bare).into(), fields.iter().cloned().collect()))
            }
            Self::Primary { tag, fields } => {
                let bare = Self::Primary { tag: tag.clone(), fields: Fields::default() };
                Some((syntax::print(&bare).into(), fields.iter().cloned().collect()))
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

    /// The reads that are this one with these paths.
    fn with_paths(self, paths: BTreeSet<Path>) -> Vec<Self> {
        match self {
            Self::Parameter(_) => paths.into_iter().map(Self::Parameter).collect(),
            Self::Fact(_) => paths.into_iter().map(Self::Fact).collect(),
            Self::Nodes { query, .. } => vec![Self::Nodes { query, fields: Fields(paths) }],
            Self::Primary { tag, .. } => vec![Self::Primary { tag, fields: Fields(paths) }],
            other => vec![other],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_templates_read_is_one_list() {
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
        let united = unite(read.iter().map(|text| text.parse().unwrap())).unwrap();
        assert_eq!(
            united.iter().map(Reference::as_str).collect::<Vec<_>>(),
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
