//! How a body is written: by which manager, and the effect on fields that it leaves out.

use crate::labels::BodyShape;
use crate::ownership::{Manager, OwnerMatch};

/// The way in which a manager writes a body.
#[derive(Clone, Copy, Debug)]
pub enum WriteMode<'a> {
    /// A server-side apply: the body is the whole intent of the manager for the part of the object in `scope`.
    Apply {
        /// The manager that applies the body.
        manager: &'a Manager,
        /// The part of the object for which the body is the manager's whole intent.
        scope: ApplyScope,
        /// True if the write overwrites values of other owners. False if such a value is a conflict.
        force: bool,
        /// The owners that this manager replaces, before the apply, for the keys and fields in the body. `None` if the
        /// manager replaces no owner.
        adopt: Option<&'a OwnerMatch>,
    },
    /// An addition to the keys and fields that the manager applied before. Nothing that the body omits is removed. A
    /// key or field that already has the value retains its owners.
    Add {
        /// The manager that adds the keys and fields.
        manager: &'a Manager,
        /// True if the write overwrites values of other owners. False if such a value is a conflict.
        force: bool,
    },
    /// A plain write of the fields and maps in the body, without conflicts. A map replaces the stored map as a whole.
    Update {
        /// The manager that makes the update.
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
    /// The whole object, as in a manifest. The manager no longer owns the fields and maps that the body omits.
    Object,
    /// Only the fields and maps in the body. The manager's other fields and maps are unchanged.
    NamedFields,
}
