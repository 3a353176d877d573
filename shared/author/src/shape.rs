//! What an expression may be, as far as reads depend on it.

use std::collections::BTreeSet;

/// A root that wants a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    Labels,
    Params,
    Facts,
    Node,
    Cluster,
    Traits,
    Tags,
}

/// Look-ups whose nodes a value may be, by number, and which of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookups {
    numbers: BTreeSet<usize>,
    /// Whether it is each node of one look-up: the whole list, the variable of a loop over it, or a primary. Where a template picks some
    /// of them, or one look-up or another, a node that lacks a field may be one that it does not come to.
    is_each: bool,
}

/// What an expression may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A variable that is not set on some way that leads here.
    Unset,
    /// Data: what was read for it is registered.
    Plain,
    /// The text of a label.
    Label(Box<str>),
    /// A root that stands alone.
    Root(Root),
    /// Keys below `params`, `facts`, `node` or `cluster`; at least one.
    Path(Root, Vec<Box<str>>),
    /// The list of nodes of one of these look-ups.
    Nodes(Lookups),
    /// A node of one of these look-ups, or each in its turn, and keys below it.
    Node(Lookups, Vec<Box<str>>),
    /// minijinja's `loop`.
    Loop,
    /// A macro.
    Macro,
    /// A function that is not called.
    Function(&'static str),
    /// Different things on different ways.
    Mixed,
}

impl Root {
    /// The root of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
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

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
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

    /// How to read from it, for errors.
    pub(crate) const fn remedy(self) -> &'static str {
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
    /// Each node of a look-up.
    pub(crate) fn each_of(number: usize) -> Self {
        Self { numbers: [number].into(), is_each: true }
    }

    /// Some of these nodes.
    pub(crate) fn some(&self) -> Self {
        Self { numbers: self.numbers.clone(), is_each: false }
    }

    /// Whether it is each node.
    pub(crate) const fn is_each(&self) -> bool {
        self.is_each
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.numbers.iter().copied()
    }

    fn or(&self, other: &Self) -> Self {
        Self { numbers: &self.numbers | &other.numbers, is_each: false }
    }
}

impl Shape {
    /// The shape of a variable that has one shape on some branches and the other on the rest.
    pub(crate) fn join(self, other: Self) -> Self {
        match (self, other) {
            (left, right) if left == right => left,
            (Self::Unset, shape) | (shape, Self::Unset) => shape,
            (Self::Nodes(left), Self::Nodes(right)) => Self::Nodes(left.or(&right)),
            (Self::Node(left, a), Self::Node(right, b)) if a.is_empty() && b.is_empty() => {
                Self::Node(left.or(&right), Vec::new())
            }
            (Self::Plain | Self::Label(_), Self::Plain | Self::Label(_)) => Self::Plain,
            _ => Self::Mixed,
        }
    }
}
