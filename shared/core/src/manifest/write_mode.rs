//! How a body is written: by which manager, and the effect on fields that it leaves out.

use crate::labels::BodyShape;
use crate::ownership::{Manager, OwnerMatch};

/// How a manager writes a body.
#[derive(Clone, Copy, Debug)]
pub enum WriteMode<'a> {
    /// Server-side apply: the manager's whole intent.
    Apply {
        /// The manager.
        manager: &'a Manager,
        /// The part of the object for which the body is the manager's whole intent.
        scope: ApplyScope,
        /// True if values of other managers are overwritten.
        force: bool,
        /// The owners from whom this manager first takes over the keys and fields that it applies.
        adopt: Option<&'a OwnerMatch>,
    },
    /// Adds to what the manager applies. Nothing that the body omits is removed, and values that are equal already
    /// keep their owners.
    Add {
        /// The manager.
        manager: &'a Manager,
        /// True if values of other managers are overwritten.
        force: bool,
    },
    /// An update of the fields that the body names.
    Update {
        /// The manager.
        manager: &'a Manager,
        /// The body's shape, which decides the effect of an omitted `merge_labels`.
        shape: BodyShape,
    },
}

impl<'a> WriteMode<'a> {
    /// Returns the manager that writes.
    pub const fn manager(self) -> &'a Manager {
        match self {
            Self::Apply { manager, .. } | Self::Add { manager, .. } | Self::Update { manager, .. } => manager,
        }
    }
}

/// The part of an object for which an apply is its manager's whole intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyScope {
    /// The whole object, as in a manifest. Fields and maps that the body leaves out are given up.
    Object,
    /// The fields and maps that the body names. Others are unchanged.
    NamedFields,
}
