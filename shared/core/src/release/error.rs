//! Why a release is refused.

use std::borrow::Cow;

use crate::condition::AuthorError;
use crate::name::{InvalidName, ReleaseRef};
use crate::release::select::InvalidPattern;

/// One reason for which a release can't be stored. All that are found are given at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// A name that is none, or is reserved.
    #[error("{field}: {reason}")]
    Name {
        /// The path of the field.
        field: String,
        /// Why.
        reason: InvalidName,
    },
    /// Two tasks of one id.
    #[error("task {id:?} is there twice: {first} and {second} both have it; rename one")]
    Twice {
        /// The id.
        id: String,
        /// Where it is, as `site@1`.
        first: String,
        /// Where it is again.
        second: String,
    },
    /// A role or tag that an import has too, and says otherwise.
    #[error("{what} {name:?} of {import} is declared otherwise here; leave one of the two out, or make them equal")]
    Redeclared {
        /// `role` or `tag`.
        what: &'static str,
        /// The name.
        name: String,
        /// The import.
        import: String,
    },
    /// A release that is imported and not there.
    #[error("imports {0}, which is not stored; store it first, or mend the name")]
    UnknownImport(ReleaseRef),
    /// Releases that import each other.
    #[error("imports go round: {}", path.iter().map(ToString::to_string).collect::<Vec<_>>().join(" -> "))]
    ImportCycle {
        /// The releases, the first one at the end again.
        path: Vec<ReleaseRef>,
    },
    /// A task that does not exist.
    #[error("{field}: no task {name:?}{}; write the id of a task of this release or its imports", crate::name::suggest(.near.as_deref()))]
    UnknownTask {
        /// The path of the field.
        field: String,
        /// What was named.
        name: String,
        /// A task of a like name.
        near: Option<String>,
    },
    /// A role's or tag's name that is not declared, where only a declared one can stand.
    #[error("{field}: no {what} {name:?} in this release; declare it under {what}s, or mend the name")]
    Undeclared {
        /// The path of the field.
        field: String,
        /// `role` or `tag`.
        what: &'static str,
        /// What was named.
        name: String,
    },
    /// A group within a group.
    #[error("{field}: {name:?} is a group; a group lists tasks, not groups")]
    GroupInGroup {
        /// The path of the field.
        field: String,
        /// The inner group.
        name: String,
    },
    /// A pattern that can't be read.
    #[error("{field}: {reason}")]
    Pattern {
        /// The path of the field.
        field: String,
        /// Why.
        reason: InvalidPattern,
    },
    /// Tasks that wait for each other.
    #[error("tasks wait for each other: {}; take one of these dependencies away", path.join(" -> "))]
    Cycle {
        /// The ids, the first one at the end again; `a -> b` where a comes before b.
        path: Vec<String>,
    },
    /// A template or condition that can't be stored.
    #[error("{field}: {reason}")]
    Author {
        /// The path of the field.
        field: String,
        /// Where in the text, and why.
        reason: AuthorError,
    },
    /// A field that the task's type can't have.
    #[error("{field}: {reason}")]
    Field {
        /// The path of the field.
        field: String,
        /// Why, and what to do.
        reason: String,
    },
}

impl ReleaseError {
    /// The path of the field that it is about, where it is about one. A task's begins with `task ID `; of a cycle it is the
    /// first task's, of an id that stands twice the id's.
    pub fn field(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Name { field, .. }
            | Self::UnknownTask { field, .. }
            | Self::Undeclared { field, .. }
            | Self::GroupInGroup { field, .. }
            | Self::Pattern { field, .. }
            | Self::Author { field, .. }
            | Self::Field { field, .. } => Some(field.into()),
            Self::UnknownImport(_) | Self::ImportCycle { .. } => Some("imports".into()),
            Self::Twice { id, .. } => Some(format!("task {id} id").into()),
            Self::Cycle { path } => path.first().map(|id| format!("task {id} requires").into()),
            Self::Redeclared { what, name, .. } => Some(format!("{what}s.{name}").into()),
        }
    }
}
