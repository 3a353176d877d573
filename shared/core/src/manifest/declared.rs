//! Checks the names of tags and roles in fields that declare such a name by using it. A word that has another meaning
//! in selectors cannot be such a name.
//!
//! Only new names are checked. A name that an older version stored can be written again.

use super::error::{BodyError, check_each};
use crate::name::{Name, NameKind, PRIMARY_PREFIX, TagName};

/// Fails if a tag of a list cannot be declared. A tag that `is_stored` accepts is not checked, because an older version
/// may have stored it. The error contains the index in the list.
pub(super) fn check_declared_tags<'a>(
    tags: impl IntoIterator<Item = &'a TagName>,
    is_stored: impl Fn(&TagName) -> bool,
) -> Result<(), BodyError> {
    check_each(tags, |tag| if is_stored(tag) { Ok(()) } else { check_declared_tag(tag) })
}

/// Checks a list of tags to remove, as [`check_declared_tags`] does. A tag that begins with `primary-` is accepted too:
/// no node has such a tag, so its removal has no effect.
pub(super) fn check_removed_tags<'a>(
    tags: impl IntoIterator<Item = &'a TagName>,
    is_stored: impl Fn(&TagName) -> bool,
) -> Result<(), BodyError> {
    check_declared_tags(tags, |tag| tag.starts_with(PRIMARY_PREFIX) || is_stored(tag))
}

/// Fails if a new tag cannot have this name: it is malformed, begins with `primary-`, or is a word with a meaning in
/// selectors, such as `self`.
pub(super) fn check_declared_tag(name: &TagName) -> Result<(), BodyError> {
    TagName::for_new_declaration(name).map(drop).map_err(|why| BodyError::new("", why.to_string()))
}

/// Fails if a role of a list cannot be declared. A role that `is_stored` accepts is not checked, because an older
/// version may have stored it. The error contains the index in the list.
pub(super) fn check_declared_roles(roles: &[Name], is_stored: impl Fn(&Name) -> bool) -> Result<(), BodyError> {
    check_each(roles, |role| if is_stored(role) { Ok(()) } else { check_declared_role(role) })
}

/// Fails if a new role cannot have this name: it is malformed, or a word with a meaning in selectors, such as `self`.
/// The name may begin with `primary-`, because roles of Fuel's old releases do.
pub(super) fn check_declared_role(name: &Name) -> Result<(), BodyError> {
    Name::for_new_declaration(name, NameKind::Role).map(drop).map_err(|why| BodyError::new("", why.to_string()))
}
