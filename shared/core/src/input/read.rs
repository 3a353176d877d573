//! What can be read, and of whom.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::path::Path;

/// The most bytes of a literal in a reference: a label's key with its prefix has 317.
pub(crate) const MAX_LITERAL: usize = 512;

/// The most names in a look-up, and fields read of its result.
pub const MAX_NAMES: usize = 64;

/// What a reference reads, and what its [`Input`](super::Input)'s value then is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// `labels.ntp`, `labels['a/b']`: the effective label, a string.
    Label(Box<str>),
    /// `labels_with_prefix('x/')`: an object of the effective labels whose key begins so, by whole key; empty if none does.
    LabelsWithPrefix(Box<str>),
    /// `params.x`, `params.x.y`: the parameter of the first key, and what stands in it at the rest of the path.
    Parameter(Path),
    /// `'HW_CPU_X86_AVX2' in traits`: a boolean, never absent.
    Trait(Box<str>),
    /// `'mysql' in tags`: a boolean, never absent. The tag as selectors match it.
    Tag(Box<str>),
    /// `facts.cpu.count`: a stable fact of the host itself ([`facts`](super::facts)).
    Fact(Path),
    /// `node.name`: a field of the host itself ([`fields::NODE`](super::fields::NODE)).
    Node(Path),
    /// `cluster.name` ([`fields::CLUSTER`](super::fields::CLUSTER)).
    Cluster(Path),
    /// `nodes(tag='mysql')`: an array of the cluster's nodes that match, by name (digits compared as
    /// numbers), each an object made by [`Fields::project`].
    Nodes {
        /// Which nodes.
        query: Query,
        /// Which fields of them are read.
        fields: Fields,
    },
    /// `primary('mysql')`: the node that holds the tag as primary, made by [`Fields::project`]; absent if none does.
    Primary {
        /// The plain tag.
        tag: Box<str>,
        /// Which fields of the node are read.
        fields: Fields,
    },
    /// `secret('NAME')`: always [`Input::Secret`](super::Input::Secret).
    Secret(Box<str>),
}

/// Which nodes of the cluster a look-up means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// `nodes(tag=…)`: those that hold one of these tags.
    Tag(Names),
    /// `nodes(role=…)`: those that have one of these roles.
    Role(Names),
    /// `nodes(tag=…, or_role=…)`: those that hold one of the tags or have one of the roles.
    TagOrRole {
        /// The tags.
        tags: Names,
        /// The roles.
        roles: Names,
    },
}

/// Names and `/patterns/` of a look-up, a union: sorted, each once, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(Box<[Box<str>]>);

/// The fields that are read of a look-up's nodes; none where only their number is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub(super) BTreeSet<Path>);

/// A text or a read is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text is not one that a reference has.
    #[error(
        "{text:?} is no reference; it reads as `labels.ntp`, `params.x`, `'NAME' in traits` or `nodes(tag='x'){{name}}`"
    )]
    Syntax {
        /// The text, cut to 64 characters.
        text: String,
    },
    /// A key or name is empty, too long, or has control characters.
    #[error("{literal:?} cannot be read: a key or name has 1 to {MAX_LITERAL} bytes and no control characters")]
    Literal {
        /// The key or name, cut to 64 characters.
        literal: String,
    },
    /// Too many names or fields.
    #[error("a look-up takes at most {MAX_NAMES} names and {MAX_NAMES} fields")]
    TooMany,
}

impl Read {
    /// The fields that are read of a look-up's nodes; `None` for what is no such look-up.
    pub fn fields(&self) -> Option<&Fields> {
        match self {
            Self::Nodes { fields, .. } | Self::Primary { fields, .. } => Some(fields),
            Self::Label(_)
            | Self::LabelsWithPrefix(_)
            | Self::Parameter(_)
            | Self::Trait(_)
            | Self::Tag(_)
            | Self::Fact(_)
            | Self::Node(_)
            | Self::Cluster(_)
            | Self::Secret(_) => None,
        }
    }

    /// Whether a node answers it by itself alone, whatever the levels above say.
    pub(crate) fn is_of_node(&self) -> bool {
        match self {
            Self::Trait(_) | Self::Fact(_) | Self::Node(_) => true,
            Self::Label(_)
            | Self::LabelsWithPrefix(_)
            | Self::Parameter(_)
            | Self::Tag(_)
            | Self::Cluster(_)
            | Self::Secret(_)
            | Self::Nodes { .. }
            | Self::Primary { .. } => false,
        }
    }

    pub(super) fn check(&self) -> Result<(), ReferenceError> {
        match self {
            Self::Label(name)
            | Self::LabelsWithPrefix(name)
            | Self::Trait(name)
            | Self::Tag(name)
            | Self::Secret(name) => check_literal(name),
            Self::Parameter(path) | Self::Fact(path) | Self::Node(path) | Self::Cluster(path) => check_path(path),
            Self::Nodes { query, fields } => {
                query.names().try_for_each(check_literal)?;
                fields.check()
            }
            Self::Primary { tag, fields } => {
                check_literal(tag)?;
                fields.check()
            }
        }
    }
}

fn check_path(path: &Path) -> Result<(), ReferenceError> {
    path.keys().iter().try_for_each(|key| check_literal(key))
}

fn check_literal(literal: &str) -> Result<(), ReferenceError> {
    if (1..=MAX_LITERAL).contains(&literal.len()) && !literal.contains(char::is_control) {
        return Ok(());
    }
    Err(ReferenceError::Literal { literal: literal.chars().take(64).collect() })
}

impl Query {
    /// All names and patterns, tags before roles.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (first, second): (&Names, Option<&Names>) = match self {
            Self::Tag(names) | Self::Role(names) => (names, None),
            Self::TagOrRole { tags, roles } => (tags, Some(roles)),
        };
        first.as_slice().iter().chain(second.map_or(&[][..], Names::as_slice)).map(|name| &**name)
    }
}

impl Names {
    /// A union of names and `/patterns/`; `None` for none or more than [`MAX_NAMES`].
    pub fn new(names: impl IntoIterator<Item = Box<str>>) -> Option<Self> {
        let names: BTreeSet<Box<str>> = names.into_iter().collect();
        (1..=MAX_NAMES).contains(&names.len()).then(|| Self(names.into_iter().collect()))
    }

    /// The names and patterns, sorted.
    pub fn as_slice(&self) -> &[Box<str>] {
        &self.0
    }
}

impl Fields {
    /// The fields in order.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter()
    }

    /// Whether no field is read, only the number of nodes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether each of these fields is one of `more`, or lies within one of them.
    pub fn is_within(&self, more: &Self) -> bool {
        self.0.iter().all(|field| more.0.iter().any(|other| field.is_within(other)))
    }

    /// A node as a template sees it: an object of the fields that are read and no others. A field that
    /// `value_of` does not know is left out; the maps on the way to it are there, so that `is defined` works.
    pub fn project(&self, mut value_of: impl FnMut(&Path) -> Option<Value>) -> Value {
        let mut node = Map::new();
        for field in &self.0 {
            field.place(value_of(field), &mut node);
        }
        Value::Object(node)
    }

    fn check(&self) -> Result<(), ReferenceError> {
        if self.0.len() > MAX_NAMES {
            return Err(ReferenceError::TooMany);
        }
        self.0.iter().try_for_each(check_path)
    }
}

/// Those that lie within another are left out.
impl FromIterator<Path> for Fields {
    fn from_iter<I: IntoIterator<Item = Path>>(fields: I) -> Self {
        Self(outermost(fields.into_iter().collect()))
    }
}

/// The paths without those that lie within another: in order, what lies within a path follows it.
pub(super) fn outermost(paths: BTreeSet<Path>) -> BTreeSet<Path> {
    let mut kept: BTreeSet<Path> = BTreeSet::new();
    for path in paths {
        if !kept.last().is_some_and(|last| path.is_within(last)) {
            kept.insert(path);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(keys: &[&str]) -> Path {
        Path::new(keys.iter().copied()).expect("a path of the test")
    }

    #[test]
    fn a_node_is_seen_by_the_fields_that_are_read() {
        let fields: Fields =
            [path(&["name"]), path(&["labels", "zone"]), path(&["labels", "gone"]), path(&["facts", "x"])]
                .into_iter()
                .collect();
        let node = fields.project(|field| match field.keys()[field.keys().len() - 1].as_ref() {
            "name" => Some(json!("web-1")),
            "zone" => Some(json!("a")),
            _ => None,
        });
        assert_eq!(node, json!({"facts": {}, "labels": {"zone": "a"}, "name": "web-1"}));
    }

    #[test]
    fn a_field_within_another_is_that_other() {
        let fields: Fields = [path(&["facts", "cpu"]), path(&["facts", "cpu", "count"])].into_iter().collect();
        assert_eq!(fields.iter().collect::<Vec<_>>(), [&path(&["facts", "cpu"])]);
    }
}
