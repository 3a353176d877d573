//! What a template or a condition can read, and from which objects.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::path::Path;

/// Maximum length of a key or a name in a reference, in bytes. A label key with its domain has at most 317 bytes.
pub(crate) const MAX_LITERAL_BYTES: usize = 512;

/// Maximum number of names in one argument of a look-up, and of fields that are read from the nodes that it finds.
pub const MAX_NAMES: usize = 64;

/// What a reference reads. A variant's comment shows such a reference, and the value of its [`Input`](super::Input).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// `labels.ntp`, `labels['a/b']`: the effective label, a string.
    Label(Box<str>),
    /// `labels_with_prefix('x/')`: an object with the effective labels whose key begins with the prefix. It maps whole
    /// keys to values, and is empty if no label matches.
    LabelsWithPrefix(Box<str>),
    /// `params.x`, `params.x.y`: a value in the parameters. The first key is the parameter, and the other keys lead
    /// into its value.
    Parameter(Path),
    /// `'HW_CPU_X86_AVX2' in traits`: a boolean, never absent. True if the node has the trait.
    Trait(Box<str>),
    /// `'mysql' in tags`: a boolean, never absent. True if a task with the tag selector `mysql` would select the node.
    /// The name can also be that of a primary: `primary-mysql` is true on the primary of the tag `mysql`. If the
    /// release has primary matching `replaces`, `mysql` is false there.
    Tag(Box<str>),
    /// `facts.cpu.count`: a stable fact of the host itself ([`facts`](super::facts)). `facts.cpu`: an object with all
    /// facts of the host below this path.
    Fact(Path),
    /// `node.name`: a field of the host itself ([`fields::NODE_FIELDS`](super::fields::NODE_FIELDS)).
    Node(Path),
    /// `cluster.name`: a field of the host's cluster ([`fields::CLUSTER_FIELDS`](super::fields::CLUSTER_FIELDS)).
    Cluster(Path),
    /// `nodes(tag='mysql')`: an array of the cluster's nodes that match, sorted by name (digits compared as numbers).
    /// Each is an object with the fields that the template reads, built by [`FieldSet::project`].
    Nodes {
        /// The nodes to find.
        query: NodeQuery,
        /// The fields to read from these nodes.
        fields: FieldSet,
    },
    /// `primary('mysql')`: the node that is the primary of the tag, as an object built by [`FieldSet::project`]. Absent
    /// if the tag has no primary.
    Primary {
        /// The name of the tag. It must not be a pattern.
        tag: Box<str>,
        /// The fields to read from the node.
        fields: FieldSet,
    },
    /// `secret('NAME')`: always [`Input::Secret`](super::Input::Secret).
    Secret(Box<str>),
}

/// The nodes of the cluster that a look-up selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeQuery {
    /// `nodes(tag=…)`: the nodes with a matching tag. The name `primary-mysql` matches the primary of the tag `mysql`.
    Tag(NamePatterns),
    /// `nodes(role=…)`: the nodes with a role that one of these names or patterns matches.
    Role(NamePatterns),
    /// `nodes(tag=…, or_role=…)`: the nodes that have a matching tag or a matching role.
    TagOrRole {
        /// The names and patterns of the tags.
        tags: NamePatterns,
        /// The names and patterns of the roles.
        roles: NamePatterns,
    },
}

/// The names and `/patterns/` of a look-up. A node matches if at least one of them matches. Sorted, without duplicates,
/// not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePatterns(Box<[Box<str>]>);

/// The fields to read from the nodes of a look-up. Empty if only the number of nodes, or whether one exists, is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(pub(super) BTreeSet<Path>);

/// An error in a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text is not a reference in canonical form.
    #[error("{text:?} is not a reference, such as `labels.ntp`, `params.x`, `'NAME' in traits` or `nodes(tag='x'){{name}}`")]
    Syntax {
        /// The text, cut to 64 characters.
        text: String,
    },
    /// A key or name is empty, too long, or has control characters.
    #[error("{literal:?} cannot be read: a key or name has 1 to {MAX_LITERAL_BYTES} bytes and no control characters")]
    Literal {
        /// The key or name, cut to 64 characters.
        literal: String,
    },
    /// A look-up has more than [`MAX_NAMES`] fields.
    #[error("a look-up takes at most {MAX_NAMES} names and {MAX_NAMES} fields")]
    TooMany,
}

impl Read {
    /// Returns the fields that `nodes(…)` or `primary(…)` reads from the nodes that it finds, or `None` for other
    /// reads.
    pub fn fields(&self) -> Option<&FieldSet> {
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

    /// Returns whether the value is a trait, a fact or a field of the node itself, even if its group decides the field.
    pub(crate) fn is_node_local(&self) -> bool {
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

    /// Checks the lengths and characters of all keys and names.
    pub(super) fn check(&self) -> Result<(), ReferenceError> {
        match self {
            Self::Label(name) | Self::LabelsWithPrefix(name) | Self::Trait(name) | Self::Tag(name) | Self::Secret(name) => {
                check_literal(name)
            }
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

/// Fails if a key or name is empty, too long, or has a control character.
fn check_literal(literal: &str) -> Result<(), ReferenceError> {
    if (1..=MAX_LITERAL_BYTES).contains(&literal.len()) && !literal.contains(char::is_control) {
        return Ok(());
    }
    Err(ReferenceError::Literal { literal: literal.chars().take(64).collect() })
}

impl NodeQuery {
    /// Returns all names and patterns of the query. Those of tags precede those of roles.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (first, second): (&NamePatterns, Option<&NamePatterns>) = match self {
            Self::Tag(names) | Self::Role(names) => (names, None),
            Self::TagOrRole { tags, roles } => (tags, Some(roles)),
        };
        first.as_slice().iter().chain(second.map_or(&[][..], NamePatterns::as_slice)).map(|name| &**name)
    }
}

impl NamePatterns {
    /// Creates a set of names and `/patterns/`. Returns `None` if the set is empty or has more than [`MAX_NAMES`]
    /// entries.
    pub fn new(names: impl IntoIterator<Item = Box<str>>) -> Option<Self> {
        let names: BTreeSet<Box<str>> = names.into_iter().collect();
        (1..=MAX_NAMES).contains(&names.len()).then(|| Self(names.into_iter().collect()))
    }

    /// Returns the names and patterns, sorted.
    pub fn as_slice(&self) -> &[Box<str>] {
        &self.0
    }
}

impl FieldSet {
    /// Returns the fields, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter()
    }

    /// Returns whether the look-up reads no field. Only the number of nodes is read then, or whether a primary exists.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether each of these fields is a field of `wider_set`, or lies within a field of `wider_set`.
    pub fn is_within(&self, wider_set: &Self) -> bool {
        self.0.iter().all(|field| wider_set.0.iter().any(|wider_field| field.is_within(wider_field)))
    }

    /// Builds a node that a look-up found, as a template sees it: an object with these fields only. A field for which
    /// `value_of` returns `None` is omitted. The maps that would enclose the field are created nevertheless, so that a
    /// template can test the field with `is defined`.
    pub fn project(&self, mut value_of: impl FnMut(&Path) -> Option<Value>) -> Value {
        let mut node = Map::new();
        for field in &self.0 {
            field.insert_into(value_of(field), &mut node);
        }
        Value::Object(node)
    }

    /// Checks the number of fields, and the lengths and characters of their keys.
    fn check(&self) -> Result<(), ReferenceError> {
        if self.0.len() > MAX_NAMES {
            return Err(ReferenceError::TooMany);
        }
        self.0.iter().try_for_each(check_path)
    }
}

/// Collects fields. A field that lies within another field is omitted.
impl FromIterator<Path> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Path>>(fields: I) -> Self {
        Self(remove_nested(fields.into_iter().collect()))
    }
}

/// Removes each path that lies within another path. In sorted order, all paths within a path directly follow it as one
/// block, so each path is compared only with the last path of the result.
pub(super) fn remove_nested(paths: BTreeSet<Path>) -> BTreeSet<Path> {
    let mut outer_paths: BTreeSet<Path> = BTreeSet::new();
    for path in paths {
        if !outer_paths.last().is_some_and(|outer_path| path.is_within(outer_path)) {
            outer_paths.insert(path);
        }
    }
    outer_paths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(keys: &[&str]) -> Path {
        Path::new(keys.iter().copied()).expect("a path of the test")
    }

    /// In this test, the node has no value for `labels.gone` and `facts.x`. The map `facts` is created nevertheless.
    #[test]
    fn project_returns_only_requested_fields() {
        let fields: FieldSet =
            [path(&["name"]), path(&["labels", "zone"]), path(&["labels", "gone"]), path(&["facts", "x"])].into_iter().collect();
        let node = fields.project(|field| match field.keys()[field.keys().len() - 1].as_ref() {
            "name" => Some(json!("web-1")),
            "zone" => Some(json!("a")),
            _ => None,
        });
        assert_eq!(node, json!({"facts": {}, "labels": {"zone": "a"}, "name": "web-1"}));
    }

    #[test]
    fn field_set_drops_nested_field() {
        let fields: FieldSet = [path(&["facts", "cpu"]), path(&["facts", "cpu", "count"])].into_iter().collect();
        assert_eq!(fields.iter().collect::<Vec<_>>(), [&path(&["facts", "cpu"])]);
    }
}
