//! What of a node is to come yet, and what is so beside its state.

use serde::Serialize;

use super::Side;

/// Where a node stands with its next task set, as its state shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// It has what it is to have.
    #[default]
    Current,
    /// The next one is released to it with the next pass.
    Due,
    /// Something keeps it from the node.
    Kept(Keeper),
}

/// What keeps a node's next task set from it, the first that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// A hold.
    Held(Side),
    /// Its nodegroup or cluster is paused.
    Paused,
    /// The condition of a task that it runs takes more steps than it may.
    Undecided,
    /// It does not meet a requirement of its nodegroup, or lacks what its instance wants.
    Requirement,
}

impl Keeper {
    /// Why the node is held, as its state's reason.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Held(Side::Operator) => "an operator holds it: it keeps its task set, and a newer one waits",
            Self::Held(Side::Host) => "it is held on its host: it keeps its task set, and a newer one waits",
            Self::Paused => "its nodegroup or cluster is paused, and a newer task set waits",
            Self::Undecided => {
                "the condition of a task that it runs is undecided: it keeps its task set, and a newer one waits"
            }
            Self::Requirement => "it does not meet what its next task set requires, and keeps the one that it has",
        }
    }
}

/// Whether a node's host holds what it was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// There is nothing to be told, or nobody knows.
    #[default]
    Unknown,
    /// It said so.
    Yes,
    /// It has not said so.
    No,
}

/// What is so of a node beside its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, Serialize)]
#[display("{}", self.name())]
#[serde(into = "&'static str")]
pub enum Note {
    /// A hold is in force, whether or not a task set waits.
    Held,
    /// Its host has not confirmed what it was told.
    Untold,
    /// Its host keeps paths that tasks of it wrote and no task keeps now.
    Orphaned,
}

impl Note {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Held, Self::Untold, Self::Orphaned];

    /// The stable name, as it stands in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Untold => "untold",
            Self::Orphaned => "orphaned",
        }
    }
}

impl From<Note> for &'static str {
    fn from(note: Note) -> Self {
        note.name()
    }
}
