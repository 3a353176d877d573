//! The kinds of values that an expression may have, as far as reads depend on them.

use std::collections::BTreeSet;

/// A root: a name such as `labels`, through which a template or condition reads inputs. Only a part of a root can be
/// read: a key such as `labels.tier`, or whether `traits` or `tags` contain a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TemplateRoot {
    Labels,
    Params,
    Facts,
    Node,
    Cluster,
    Traits,
    Tags,
}

/// The look-ups that a value may come from. The value is a node, or a list of nodes, of one of these look-ups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookups {
    numbers: BTreeSet<usize>,
    /// True if the value is the whole list of one look-up, each of its nodes in turn, or a primary. False if a template
    /// selects some of the nodes, or one of two look-ups: it may then never reach a node that lacks a field.
    is_each_node: bool,
}

/// The kind of value that an expression may have. It determines which inputs are read when the value is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// No value: a variable that is not set, or the missing `else` of an `if` expression.
    Unset,
    /// Plain data. The inputs in it are already registered.
    Plain,
    /// The value of a label, which is a text. The shape contains the key of the label.
    Label(Box<str>),
    /// A root without a key.
    Root(TemplateRoot),
    /// A value below `params`, `facts`, `node` or `cluster`: the root, and at least one key.
    Path(TemplateRoot, Vec<Box<str>>),
    /// A list of nodes of one of these look-ups.
    Nodes(Lookups),
    /// A node of one of these look-ups, or each of its nodes in turn. The keys are the path of a field of the node.
    /// They are empty for the node itself.
    Node(Lookups, Vec<Box<str>>),
    /// The variable `loop` of minijinja.
    Loop,
    /// A macro itself, without a call.
    Macro,
    /// A function itself, without a call.
    Function(&'static str),
    /// A value whose kind depends on which branch of the template ran before.
    Ambiguous,
}

impl TemplateRoot {
    /// Returns the root with this name, if any.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "labels" => Self::Labels,
            "params" => Self::Params,
            "facts" => Self::Facts,
            "node" => Self::Node,
            "cluster" => Self::Cluster,
            "traits" => Self::Traits,
            "tags" => Self::Tags,
            _ => return None,
        })
    }

    /// Returns the name of the root in templates.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Params => "params",
            Self::Facts => "facts",
            Self::Node => "node",
            Self::Cluster => "cluster",
            Self::Traits => "traits",
            Self::Tags => "tags",
        }
    }

    /// Returns how to read from the root, for the advice of an error.
    pub(crate) const fn usage(self) -> &'static str {
        match self {
            Self::Labels => "name one: `labels.ntp`, `labels['a/b']`, or `labels_with_prefix('x/')`",
            Self::Params => "name one: `params.x`",
            Self::Facts => "name one: `facts.cpu.count`",
            Self::Node => "name a field: `node.name`",
            Self::Cluster => "name a field: `cluster.name`",
            Self::Traits => "check for one: `'HW_CPU_X86_AVX2' in traits`",
            Self::Tags => "check for one: `'mysql' in tags`",
        }
    }
}

impl Lookups {
    /// Returns the look-ups for a value that is the whole list of one look-up, each of its nodes in turn, or a primary.
    pub(crate) fn each_node(number: usize) -> Self {
        Self { numbers: [number].into(), is_each_node: true }
    }

    /// Returns the same look-ups for a value that is only some of their nodes.
    pub(crate) fn some_nodes(&self) -> Self {
        Self { numbers: self.numbers.clone(), is_each_node: false }
    }

    /// Returns whether the value is the whole list of one look-up, each of its nodes in turn, or a primary.
    pub(crate) const fn is_each_node(&self) -> bool {
        self.is_each_node
    }

    /// Returns the number of each look-up: its index among the look-ups of the template or condition.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.numbers.iter().copied()
    }

    /// Returns the look-ups of a value that comes from one of two branches.
    fn union(&self, other: &Self) -> Self {
        Self { numbers: &self.numbers | &other.numbers, is_each_node: false }
    }
}

impl Shape {
    /// Returns the shape of a value after one of two branches, if it is not known which one is taken. `self` is its
    /// shape if the first branch is taken, and `other` its shape if the second is taken.
    pub(crate) fn join(self, other: Self) -> Self {
        match (self, other) {
            (left, right) if left == right => left,
            (Self::Unset, shape) | (shape, Self::Unset) => shape,
            (Self::Nodes(left), Self::Nodes(right)) => Self::Nodes(left.union(&right)),
            (Self::Node(left, left_keys), Self::Node(right, right_keys)) if left_keys.is_empty() && right_keys.is_empty() => {
                Self::Node(left.union(&right), Vec::new())
            }
            (Self::Plain | Self::Label(_), Self::Plain | Self::Label(_)) => Self::Plain,
            _ => Self::Ambiguous,
        }
    }
}
