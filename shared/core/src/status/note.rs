//! The state of a node's next task set, and the notes that are shown in addition to the node's state.

use serde::Serialize;

use super::SetBy;

/// The state of a node's next task set, in the form that decides the node's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextTaskSet {
    /// The task set that the node should have is the one that was last released to it. A node that cannot be resolved
    /// has this value too, because the task set that it should have is unknown.
    #[default]
    Current,
    /// Nothing withholds the next task set. The next reconcile releases it, unless its record would exceed a limit.
    Due,
    /// A hold, a pause or another cause withholds the next task set from the node.
    Withheld(WithheldBy),
}

/// The cause that withholds a node's next task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithheldBy {
    /// A hold, set by an operator or on the host.
    Held(SetBy),
    /// The node's nodegroup or cluster is paused.
    Paused,
    /// The evaluation of a condition was stopped after too many steps. So it is unknown whether a task that the node
    /// runs should still run.
    Undecided,
    /// The node does not meet a requirement of its nodegroup, or of its instance before its first tasks are released.
    Requirement,
    /// The node's agent does not know a task type or a parameter of the next task set, or has not reported yet what it
    /// knows.
    Agent,
}

impl WithheldBy {
    /// Returns the reason that is shown with the state of a node whose next task set is withheld for this cause. The
    /// text completes a sentence that ends in "because".
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Held(SetBy::Operator) => "an operator holds it: it keeps its task set, and a newer one waits",
            Self::Held(SetBy::Host) => "it is held on its host: it keeps its task set, and a newer one waits",
            Self::Paused => "its nodegroup or cluster is paused, and a newer task set waits",
            Self::Undecided => "the condition of a task that it runs is undecided: it keeps its task set, and a newer one waits",
            Self::Agent => "its agent does not know all task types of its next task set, and it keeps the one that it has",
            Self::Requirement => "it does not meet what its next task set requires, and keeps the one that it has",
        }
    }
}

/// The knowledge whether a node's host has confirmed the latest desired state that was published for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostConfirmation {
    /// Nothing was sent to the host, or the controller does not know which desired state the host has confirmed.
    #[default]
    Unknown,
    /// The host has confirmed the latest desired state.
    Confirmed,
    /// The host has not confirmed the latest desired state.
    Unconfirmed,
}

/// A note that is shown in addition to a node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, Serialize)]
#[display("{}", self.name())]
#[serde(into = "&'static str")]
pub enum StatusNote {
    /// A hold is in force, whether or not a task set waits.
    Held,
    /// The host has not confirmed the latest desired state of the node.
    Untold,
    /// The host has objects that its tasks left and that no task manages now, or a clean-up that has yet to succeed.
    Orphaned,
}

impl StatusNote {
    /// All notes, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Held, Self::Untold, Self::Orphaned];

    /// Returns the name of the note in JSON and in the API. The name never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Untold => "untold",
            Self::Orphaned => "orphaned",
        }
    }
}

impl From<StatusNote> for &'static str {
    fn from(note: StatusNote) -> Self {
        note.name()
    }
}
