//! What an expression may stand for, as far as reads depend on it.

use std::collections::BTreeSet;

/// A root of which only a key can be read.
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

/// The look-ups, by number, whose nodes a value may be, and whether it is each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookups {
    numbers: BTreeSet<usize>,
    /// True if the value is each node of one look-up: the whole list, the variable of a loop over it, or a primary. If
    /// a template picks some of the nodes, or one of two look-ups, it may never reach a node that lacks a field.
    is_each_node: bool,
}

/// What an expression may stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A variable that is not set on some path to here.
    Unset,
    /// Data. Its reads are already registered.
    Plain,
    /// The text of a label.
    Label(Box<str>),
    /// A root without a key.
    Root(TemplateRoot),
    /// Keys below `params`, `facts`, `node` or `cluster`; at least one.
    Path(TemplateRoot, Vec<Box<str>>),
    /// The list of nodes of one of these look-ups.
    Nodes(Lookups),
    /// A node of one of these look-ups, or each in turn, and keys below it.
    Node(Lookups, Vec<Box<str>>),
    /// minijinja's `loop`.
    Loop,
    /// A macro.
    Macro,
    /// A function that is not called here.
    Function(&'static str),
    /// Different things on different paths.
    Ambiguous,
}

impl TemplateRoot {
    /// Returns the root of this name.
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
            Self::Traits => "ask for one: `'HW_CPU_X86_AVX2' in traits`",
            Self::Tags => "ask for one: `'mysql' in tags`",
        }
    }
}

impl Lookups {
    /// Returns the look-up for a value that is each of its nodes.
    pub(crate) fn each_node(number: usize) -> Self {
        Self { numbers: [number].into(), is_each_node: true }
    }

    /// Returns the same look-ups for a value that is only some of their nodes.
    pub(crate) fn some_nodes(&self) -> Self {
        Self { numbers: self.numbers.clone(), is_each_node: false }
    }

    /// Returns whether the value is each node of one look-up.
    pub(crate) const fn is_each_node(&self) -> bool {
        self.is_each_node
    }

    /// Returns the numbers of the look-ups.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.numbers.iter().copied()
    }

    /// Returns the look-ups of a value that comes from one of two branches.
    fn union(&self, other: &Self) -> Self {
        Self { numbers: &self.numbers | &other.numbers, is_each_node: false }
    }
}

impl Shape {
    /// Returns the shape of a variable that has one shape after some branches and the other after the rest.
    pub(crate) fn join(self, other: Self) -> Self {
        match (self, other) {
            (left, right) if left == right => left,
            (Self::Unset, shape) | (shape, Self::Unset) => shape,
            (Self::Nodes(left), Self::Nodes(right)) => Self::Nodes(left.union(&right)),
            (Self::Node(left, a), Self::Node(right, b)) if a.is_empty() && b.is_empty() => {
                Self::Node(left.union(&right), Vec::new())
            }
            (Self::Plain | Self::Label(_), Self::Plain | Self::Label(_)) => Self::Plain,
            _ => Self::Ambiguous,
        }
    }
}
