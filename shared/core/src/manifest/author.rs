//! Who writes a body, and how what it leaves out is meant.

use crate::labels::BodyShape;
use crate::ownership::{Manager, Party};

/// Who writes, and how.
#[derive(Clone, Copy, Debug)]
pub enum Author<'a> {
    /// Server-side apply: the manager's whole intent.
    Apply {
        /// Who.
        manager: &'a Manager,
        /// What the body is the manager's whole intent for.
        scope: Scope,
        /// Whether others' values are taken over.
        force: bool,
        /// Whose keys and fields, of those applied, become this manager's first.
        adopt: Option<&'a Party>,
    },
    /// A part of what the manager applies: nothing that the body leaves out is taken back, and what stands as it says keeps its owners.
    Add {
        /// Who.
        manager: &'a Manager,
        /// Whether others' values are taken over.
        force: bool,
    },
    /// A plain write of the fields that the body names.
    Update {
        /// Who.
        manager: &'a Manager,
        /// The body's shape, which decides what `merge_labels` left out means.
        shape: BodyShape,
    },
}

impl<'a> Author<'a> {
    /// Who writes.
    pub const fn manager(self) -> &'a Manager {
        match self {
            Self::Apply { manager, .. } | Self::Add { manager, .. } | Self::Update { manager, .. } => manager,
        }
    }
}

/// What an apply is its manager's whole intent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The object, as a manifest: fields and maps that it leaves out are given up.
    Object,
    /// The fields and maps that the body names: others stay as they are.
    Named,
}
