//! Who owns a key: a manager, by applying or by updating.

use crate::name::{checked_text, cut, has_control, is_blank, written_as_text};
use std::str::FromStr;

/// The longest name of a manager, in bytes, as Kubernetes has it.
pub const MAX_MANAGER: usize = 128;

checked_text! {
    /// The name that an author writes under: 1 to 128 bytes without control characters.
    Manager: InvalidOwner;
}

/// How an author came to own a key. The same manager's applies and updates are two owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By a plain write.
    Update,
}

/// An owner of a key; `M:apply` as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[debug("{:?}", self.to_string())]
#[display("{manager}{}", operation.suffix())]
pub struct Owner {
    /// Who.
    pub manager: Manager,
    /// By what.
    pub operation: Operation,
}

/// One side of a hand-over: a manager, all that it owns or what it owns by one operation.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{manager}{}", operation.map_or("", Operation::suffix))]
pub struct Party {
    /// Who.
    pub manager: Manager,
    /// By what; `None`: by either, and on the receiving side as it was.
    pub operation: Option<Operation>,
}

/// A text that is no manager or owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOwner {
    /// Empty, too long, or with control characters.
    #[error("manager {0:?} must have 1 to {MAX_MANAGER} bytes and no control characters")]
    Manager(String),
    /// Nothing in it can be seen.
    #[error("manager {0:?} is of blanks alone: give it a name that can be seen")]
    Blank(String),
    /// The name of an owner, where a manager's is needed.
    #[error("manager {0:?} ends as an owner does: leave ':apply' or ':update' out")]
    Owner(String),
    /// Neither `:apply` nor `:update` at its end.
    #[error("owner {0:?} must end in ':apply' or ':update'")]
    Operation(String),
}

impl Manager {
    /// Reads a manager's name.
    ///
    /// # Errors
    /// [`InvalidOwner::Manager`].
    pub fn new(text: &str) -> Result<Self, InvalidOwner> {
        if text.is_empty() || text.len() > MAX_MANAGER || text.chars().any(char::is_control) {
            return Err(InvalidOwner::Manager(cut(text)));
        }
        Ok(Self(text.into()))
    }

    /// The same of a name that somebody gives itself: it must be seen, and be no owner's. A store may have others, of an older program.
    ///
    /// # Errors
    /// [`InvalidOwner::Manager`], [`InvalidOwner::Blank`], [`InvalidOwner::Owner`].
    pub fn of_new(text: &str) -> Result<Self, InvalidOwner> {
        if text.is_empty() || has_control(text) {
            return Err(InvalidOwner::Manager(cut(text)));
        }
        if is_blank(text) {
            return Err(InvalidOwner::Blank(cut(text)));
        }
        // In capitals too: a person would take `x:Apply` for an owner.
        if Operation::split(&text.to_ascii_lowercase()).is_some() {
            return Err(InvalidOwner::Owner(cut(text)));
        }
        Self::new(text)
    }
}

impl Operation {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Apply => ":apply",
            Self::Update => ":update",
        }
    }

    fn split(text: &str) -> Option<(&str, Self)> {
        [Self::Apply, Self::Update]
            .into_iter()
            .find_map(|operation| text.strip_suffix(operation.suffix()).map(|manager| (manager, operation)))
    }
}

impl Owner {
    /// The manager's applies.
    pub fn apply(manager: &Manager) -> Self {
        Self { manager: manager.clone(), operation: Operation::Apply }
    }

    /// The manager's updates.
    pub fn update(manager: &Manager) -> Self {
        Self { manager: manager.clone(), operation: Operation::Update }
    }
}

impl FromStr for Owner {
    type Err = InvalidOwner;
    fn from_str(text: &str) -> Result<Self, InvalidOwner> {
        let (manager, operation) = Operation::split(text).ok_or_else(|| InvalidOwner::Operation(cut(text)))?;
        Ok(Self { manager: Manager::new(manager)?, operation })
    }
}

written_as_text!(Owner);

impl FromStr for Party {
    type Err = InvalidOwner;
    /// Reads `M`, `M:apply` or `M:update`.
    fn from_str(text: &str) -> Result<Self, InvalidOwner> {
        let (manager, operation) =
            Operation::split(text).map_or((text, None), |(manager, operation)| (manager, Some(operation)));
        Ok(Self { manager: Manager::new(manager)?, operation })
    }
}

impl Party {
    /// Whether it is this owner, or one of the two that a manager is.
    pub fn is(&self, owner: &Owner) -> bool {
        self.manager == owner.manager && self.operation.is_none_or(|operation| operation == owner.operation)
    }
}
