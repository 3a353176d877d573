//! What says nothing: a text of blanks, a key without a name.

use serde_json::value::RawValue;

use super::error::{BodyError, check_each};
use crate::json::{items, members, text};
use crate::name::{cut, has_control, is_blank};

/// Whether it is a text of nothing: where one names something, it would stand for nothing, or for everything.
pub(super) fn is_empty(value: &RawValue) -> bool {
    let json = value.get();
    json.starts_with('"') && text(json).is_ok_and(|text| is_blank(&text))
}

/// Refuses a text that says nothing.
pub(super) fn check_not_empty(value: &RawValue) -> Result<(), BodyError> {
    if is_empty(value) { Err(BodyError::new("", "is empty: name something, or leave it out")) } else { Ok(()) }
}

/// Refuses a key that says nothing.
pub(super) fn check_key(key: &str) -> Result<(), BodyError> {
    if is_blank(key) {
        return Err(BodyError::new("", "has an entry whose key is empty: give it a name, or take it out"));
    }
    if has_control(key) {
        let why = format!("has an entry whose key {:?} has a control character: give it another name", cut(key));
        return Err(BodyError::new("", why));
    }
    Ok(())
}

/// Refuses a text that is to name something and is empty, or has what controls a terminal or ends a line.
pub(super) fn check_naming(text: &str) -> Result<(), BodyError> {
    if is_blank(text) {
        return Err(BodyError::new("", "is empty: name something, or leave it out"));
    }
    check_no_control(text)
}

/// Refuses a name that is to stand in a path and is a step of it: clients take `.` and `..` out of an address before they send it (RFC 3986,
/// 5.2.4), so nobody could ask for what is called so.
pub(super) fn check_segment(text: &str) -> Result<(), BodyError> {
    if matches!(text, "." | "..") {
        let why = format!("{text:?} is a step of a path and no name, so nothing could ask for it: choose another name");
        return Err(BodyError::new("", why));
    }
    Ok(())
}

/// Refuses a text that is to name something and has what controls a terminal or ends a line.
pub(super) fn check_no_control(text: &str) -> Result<(), BodyError> {
    if has_control(text) {
        let why = format!("{:?} has a control character, which no name has: leave it out", cut(text));
        return Err(BodyError::new("", why));
    }
    Ok(())
}

/// Refuses settings in which a key or a text is empty, on whatever level: none of them means anything.
pub(super) fn check_says_something(value: &RawValue) -> Result<(), BodyError> {
    match value.get().as_bytes().first() {
        Some(b'{') => members(value).unwrap_or_default().iter().try_for_each(|(key, one)| {
            check_key(key)?;
            check_says_something(one).map_err(|error| error.within(key))
        }),
        Some(b'[') => check_each(items(value), check_says_something),
        _ => check_not_empty(value),
    }
}
