//! Checks for empty values: blank texts, and maps with an empty key.

use serde_json::value::RawValue;

use super::error::{BodyError, check_each};
use crate::json::{items, members, parse_string};
use crate::name::{has_control, is_blank, truncated};

/// Returns whether a JSON value is a blank text: empty, or without a visible character. As a name in a selector, such a
/// text would select nothing, or everything.
pub(super) fn is_blank_text(value: &RawValue) -> bool {
    let json = value.get();
    json.starts_with('"') && parse_string(json).is_ok_and(|text| is_blank(&text))
}

/// Fails if a JSON value is a text without a visible character.
pub(super) fn check_not_blank(value: &RawValue) -> Result<(), BodyError> {
    if is_blank_text(value) { Err(BodyError::new("", "is empty: name something, or leave it out")) } else { Ok(()) }
}

/// Fails if a key of a map has no visible character, or contains a control character.
pub(super) fn check_key(key: &str) -> Result<(), BodyError> {
    if is_blank(key) {
        return Err(BodyError::new("", "has an entry whose key is empty: give it a name, or remove it"));
    }
    if has_control(key) {
        let why = format!("has an entry whose key {:?} has a control character: give it another name", truncated(key));
        return Err(BodyError::new("", why));
    }
    Ok(())
}

/// Fails if a name has no visible character, or contains a character that controls a terminal or ends a line.
pub(super) fn check_name_characters(text: &str) -> Result<(), BodyError> {
    if is_blank(text) {
        return Err(BodyError::new("", "is empty: name something, or leave it out"));
    }
    check_no_control(text)
}

/// Fails if a name that becomes part of a URL path is `.` or `..`. Clients remove these segments from a URL before they
/// send it (RFC 3986, 5.2.4), so the object could never be requested.
pub(super) fn check_path_segment(text: &str) -> Result<(), BodyError> {
    if matches!(text, "." | "..") {
        let why =
            format!("{text:?} has a special meaning in a path, so it could not be requested by this name: choose another name");
        return Err(BodyError::new("", why));
    }
    Ok(())
}

/// Fails if a name contains a character that controls a terminal or ends a line.
pub(super) fn check_no_control(text: &str) -> Result<(), BodyError> {
    if has_control(text) {
        let why = format!("{:?} has a control character, which no name has: leave it out", truncated(text));
        return Err(BodyError::new("", why));
    }
    Ok(())
}

/// Fails if a JSON value contains a blank text, a blank key or a key with a control character, at any depth. A blank
/// text usually comes from a variable that its author did not set.
pub(super) fn check_no_blank_text(value: &RawValue) -> Result<(), BodyError> {
    match value.get().as_bytes().first() {
        Some(b'{') => members(value).unwrap_or_default().iter().try_for_each(|(key, item)| {
            check_key(key)?;
            check_no_blank_text(item).map_err(|error| error.prefixed(key))
        }),
        Some(b'[') => check_each(items(value), check_no_blank_text),
        _ => check_not_blank(value),
    }
}
