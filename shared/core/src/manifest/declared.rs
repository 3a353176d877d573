//! Names that come to be by being written: of tags and roles, none of which may be a word that selectors give another meaning.
//!
//! Only what is new is asked. What an older program stored is not, so that it can be written again as it is.

use super::error::{BodyError, check_each};
use crate::name::{Name, NameKind, PRIMARY_PREFIX, TagName};

/// Tags that are named, each at its place in a list.
pub(super) fn declared_tags<'a>(
    tags: impl IntoIterator<Item = &'a TagName>,
    stood: impl Fn(&TagName) -> bool,
) -> Result<(), BodyError> {
    check_each(tags, |tag| if stood(tag) { Ok(()) } else { declared_tag(tag) })
}

/// Tags that are taken away, each at its place in a list. Nothing has or gives a tag that stands for a primary, so to take one away harms
/// nobody.
pub(super) fn taken_away_tags<'a>(
    tags: impl IntoIterator<Item = &'a TagName>,
    stood: impl Fn(&TagName) -> bool,
) -> Result<(), BodyError> {
    declared_tags(tags, |tag| tag.starts_with(PRIMARY_PREFIX) || stood(tag))
}

/// One tag.
pub(super) fn declared_tag(name: &TagName) -> Result<(), BodyError> {
    TagName::of_new(name).map(drop).map_err(|why| BodyError::new("", why.to_string()))
}

/// Roles that are named, each at its place in a list.
pub(super) fn declared_roles(roles: &[Name], stood: impl Fn(&Name) -> bool) -> Result<(), BodyError> {
    check_each(roles, |role| if stood(role) { Ok(()) } else { declared_role(role) })
}

/// One role. It may begin with `primary-`, as roles of Fuel's old releases do.
pub(super) fn declared_role(name: &Name) -> Result<(), BodyError> {
    Name::of_new(name, NameKind::Role).map(drop).map_err(|why| BodyError::new("", why.to_string()))
}
