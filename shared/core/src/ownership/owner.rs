//! The owners of keys: a manager with its operation, apply or update.

use crate::name::{checked_text, has_control, is_blank, truncated, written_as_text};
use std::str::FromStr;

/// Maximum length of a manager's name, in bytes, as in Kubernetes.
pub const MAX_MANAGER_BYTES: usize = 128;

checked_text! {
    /// The name that an author writes under: 1 to 128 bytes without control characters.
    Manager: InvalidOwner;
}

/// The operation by which a manager became the owner of a key. If a manager both applies and updates, it is two owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A server-side apply.
    Apply,
    /// A plain write.
    Update,
}

/// An owner of a key, written as `M:apply` or `M:update`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[debug("{:?}", self.to_string())]
#[display("{manager}{}", operation.suffix())]
pub struct Owner {
    /// The manager.
    pub manager: Manager,
    /// The operation.
    pub operation: Operation,
}

/// A manager in a transfer of keys, as the old or the new owner, with or without an operation.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{manager}{}", operation.map_or("", Operation::suffix))]
pub struct OwnerMatch {
    /// The manager.
    pub manager: Manager,
    /// The operation. In the old owner, `None` matches the keys that the manager applied and those that it updated. In
    /// the new owner, `None` means the operation of the previous owner.
    pub operation: Option<Operation>,
}

/// The error for an invalid manager or owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOwner {
    /// The name is empty, too long, or has control characters.
    #[error("manager {0:?} must have 1 to {MAX_MANAGER_BYTES} bytes and no control characters")]
    Manager(String),
    /// The name has no visible characters.
    #[error("manager {0:?} is blank: use a name with visible characters")]
    Blank(String),
    /// The name of a manager ends in `:apply` or `:update`, as only the text of an owner may.
    #[error("manager {0:?} must not end in ':apply' or ':update'")]
    Owner(String),
    /// The text ends in neither `:apply` nor `:update`.
    #[error("owner {0:?} must end in ':apply' or ':update'")]
    Operation(String),
}

impl Manager {
    /// Parses the name of a manager in a store or a request. It accepts every name that older versions accepted.
    ///
    /// # Errors
    /// [`InvalidOwner::Manager`].
    pub fn new(text: &str) -> Result<Self, InvalidOwner> {
        if text.is_empty() || text.len() > MAX_MANAGER_BYTES || text.chars().any(char::is_control) {
            return Err(InvalidOwner::Manager(truncated(text)));
        }
        Ok(Self(text.into()))
    }

    /// Parses the name of a manager in a new write. Unlike [`Manager::new`], it refuses a name without visible
    /// characters, a name with a line or paragraph separator (U+2028, U+2029), and a name that ends in `:apply` or
    /// `:update` in any letter case, as the text of an owner does. Older versions accepted such names.
    ///
    /// # Errors
    /// [`InvalidOwner::Manager`], [`InvalidOwner::Blank`], [`InvalidOwner::Owner`].
    pub fn new_visible(text: &str) -> Result<Self, InvalidOwner> {
        if text.is_empty() || has_control(text) {
            return Err(InvalidOwner::Manager(truncated(text)));
        }
        if is_blank(text) {
            return Err(InvalidOwner::Blank(truncated(text)));
        }
        // The ending is refused in capital letters too, because a reader would mistake `x:Apply` for an owner.
        if Operation::split(&text.to_ascii_lowercase()).is_some() {
            return Err(InvalidOwner::Owner(truncated(text)));
        }
        Self::new(text)
    }
}

impl Operation {
    /// Returns the end of the text of an owner with this operation, such as `:apply`.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Apply => ":apply",
            Self::Update => ":update",
        }
    }

    /// Splits the text of an owner into the manager and the operation. Returns `None` if the text ends in no operation.
    fn split(text: &str) -> Option<(&str, Self)> {
        [Self::Apply, Self::Update]
            .into_iter()
            .find_map(|operation| text.strip_suffix(operation.suffix()).map(|manager| (manager, operation)))
    }
}

impl Owner {
    /// Returns the owner of keys that the manager applied.
    pub fn apply(manager: &Manager) -> Self {
        Self { manager: manager.clone(), operation: Operation::Apply }
    }

    /// Returns the owner of keys that the manager updated.
    pub fn update(manager: &Manager) -> Self {
        Self { manager: manager.clone(), operation: Operation::Update }
    }
}

impl FromStr for Owner {
    type Err = InvalidOwner;
    fn from_str(text: &str) -> Result<Self, InvalidOwner> {
        let (manager, operation) = Operation::split(text).ok_or_else(|| InvalidOwner::Operation(truncated(text)))?;
        Ok(Self { manager: Manager::new(manager)?, operation })
    }
}

written_as_text!(Owner);

impl FromStr for OwnerMatch {
    type Err = InvalidOwner;
    /// Parses `M`, `M:apply` or `M:update`.
    fn from_str(text: &str) -> Result<Self, InvalidOwner> {
        let (manager, operation) = Operation::split(text).map_or((text, None), |(manager, operation)| (manager, Some(operation)));
        Ok(Self { manager: Manager::new(manager)?, operation })
    }
}

impl OwnerMatch {
    /// Returns whether an owner has this manager and this operation. Without an operation, every owner with this
    /// manager matches.
    pub fn matches(&self, owner: &Owner) -> bool {
        self.manager == owner.manager && self.operation.is_none_or(|operation| operation == owner.operation)
    }
}
