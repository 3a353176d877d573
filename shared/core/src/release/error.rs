//! Reasons why a release is rejected.

use std::borrow::Cow;

use crate::condition::AuthorError;
use crate::name::{InvalidName, ReleaseRef};
use crate::release::name_selector::InvalidPattern;

/// A reason why a release cannot be stored. All reasons that are found are returned together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// An invalid or reserved name of a role, tag or task that the release itself declares.
    #[error("{field}: {reason}")]
    Name {
        /// The path of the field that has the name, such as `roles.web`.
        field: String,
        /// The reason why the name is invalid.
        reason: InvalidName,
    },
    /// Two tasks with the same id.
    #[error("task {id:?} is defined twice, in {first} and in {second}; rename one")]
    DuplicateTask {
        /// The id of both tasks.
        id: String,
        /// The release of the first task, such as `site@1`.
        first: String,
        /// The release of the second task.
        second: String,
    },
    /// A role or tag with two different declarations: in the release and in an import, or in two imports.
    #[error("{what} {name:?} differs from the one in {import}; remove one of the two, or make them equal")]
    Redeclared {
        /// The kind of the name: `role` or `tag`.
        what: &'static str,
        /// The name of the role or tag.
        name: String,
        /// The release with the second declaration, such as `site@1`: an import, or the rejected release itself.
        import: String,
    },
    /// An imported release that does not exist, or that could not be compiled.
    #[error("imports {0}, which is not stored; store it first, or correct the name")]
    UnknownImport(ReleaseRef),
    /// Releases that import each other.
    #[error("imports form a cycle: {}", path.iter().map(ToString::to_string).collect::<Vec<_>>().join(" -> "))]
    ImportCycle {
        /// The releases, with the first one repeated at the end.
        path: Vec<ReleaseRef>,
    },
    /// The id of a task that neither the release nor an import has, in a field that names a task.
    #[error("{field}: no task {name:?}{}; write the id of a task of this release or its imports", crate::name::did_you_mean(.near.as_deref()))]
    UnknownTask {
        /// The path of the field that refers to the task, such as `task a requires[0]`.
        field: String,
        /// The id in the field.
        name: String,
        /// The most similar id of an existing task, or `None` if no id is similar.
        near: Option<String>,
    },
    /// A group of tasks that lists another group.
    #[error("{field}: {name:?} is a group; a group lists tasks, not groups")]
    GroupInGroup {
        /// The path of the field that lists the other group, such as `task a tasks[0]`.
        field: String,
        /// The id of the listed group.
        name: String,
    },
    /// A pattern that is too long or cannot be parsed.
    #[error("{field}: {reason}")]
    Pattern {
        /// The path of the field that has the pattern.
        field: String,
        /// The reason why the pattern is invalid.
        reason: InvalidPattern,
    },
    /// Tasks that wait for each other.
    #[error("tasks wait for each other: {}; remove one of these dependencies", path.join(" -> "))]
    Cycle {
        /// The ids of the tasks in order, with the first id repeated at the end. In `a -> b`, task b waits for task a.
        path: Vec<String>,
    },
    /// A template or condition that cannot be stored.
    #[error("{field}: {reason}")]
    Author {
        /// The path of the field that has the template or condition.
        field: String,
        /// The position of the error in the text, and the reason.
        reason: AuthorError,
    },
    /// An error in a field of a new or changed task. Hosts would reject the task or read the field in another way than
    /// its author meant, all users of a host could read a secret, or the field contains a name that no object can have.
    #[error("{field}: {reason}")]
    Field {
        /// The path of the field, such as `task a parameters.path`.
        field: String,
        /// The reason, and how to correct the field.
        reason: String,
    },
}

impl ReleaseError {
    /// Returns the path of the field that the error is about. The path of a task's field begins with `task ID `, except
    /// for an invalid id, whose path is like `tasks[0].id`. A cycle is reported at the `requires` of its first task,
    /// and a duplicate id at the field `id` of the task. Returns `None` only for a cycle without tasks.
    pub fn field(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Name { field, .. }
            | Self::UnknownTask { field, .. }
            | Self::GroupInGroup { field, .. }
            | Self::Pattern { field, .. }
            | Self::Author { field, .. }
            | Self::Field { field, .. } => Some(field.into()),
            Self::UnknownImport(_) | Self::ImportCycle { .. } => Some("imports".into()),
            Self::DuplicateTask { id, .. } => Some(format!("task {id} id").into()),
            Self::Cycle { path } => path.first().map(|id| format!("task {id} requires").into()),
            Self::Redeclared { what, name, .. } => Some(format!("{what}s.{name}").into()),
        }
    }
}
