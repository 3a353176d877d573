//! Names that come to be by being written: of tags and roles, none of which may be a word that selectors give another meaning.
//!
//! Only what is new is asked. What an older program stored is not, so that it can be written again as it is.

use super::error::BodyError;
use crate::name::{Name, NameKind, TagName};

/// Tags that are named, each at its place in a list.
pub(super) fn declared_tags<'a>(
    tags: impl IntoIterator<Item = &'a TagName>,
    stood: impl Fn(&TagName) -> bool,
) -> Result<(), BodyError> {
    let mut tags = tags.into_iter().enumerate().filter(|(_, tag)| !stood(tag));
    tags.try_for_each(|(at, tag)| declared_tag(tag).map_err(|error| error.within(&format!("[{at}]"))))
}

/// One tag.
pub(super) fn declared_tag(name: &TagName) -> Result<(), BodyError> {
    TagName::of_new(name).map(drop).map_err(|why| BodyError::new("", why.to_string()))
}

/// Roles that are named, each at its place in a list.
pub(super) fn declared_roles(roles: &[Name], stood: impl Fn(&Name) -> bool) -> Result<(), BodyError> {
    let mut roles = roles.iter().enumerate().filter(|(_, role)| !stood(role));
    roles.try_for_each(|(at, role)| declared_role(role).map_err(|error| error.within(&format!("[{at}]"))))
}

/// One role. It may begin with `primary-`, as roles of Fuel's old releases do.
pub(super) fn declared_role(name: &Name) -> Result<(), BodyError> {
    Name::of_new(name, NameKind::Role).map(drop).map_err(|why| BodyError::new("", why.to_string()))
}
