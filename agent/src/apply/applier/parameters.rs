//! Reading a task's parameters: each type has a struct, and an error names the field.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::apply::task::{HostTask, TaskError};

/// The parameters as a type's own struct.
pub(super) fn read<T: DeserializeOwned>(task: &HostTask) -> Result<T, TaskError> {
    serde_json::from_value(Value::Object(task.task.parameters.clone()))
        .map_err(|error| TaskError::new(format!("parameters: {error}")))
}

/// A mode in octal digits, as text: a bare number in YAML is decimal to one reader and octal to the next.
pub(super) fn mode(field: &str, text: &str) -> Result<u32, TaskError> {
    let octal = (3..=5).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if octal && mode <= 0o7777 => Ok(mode),
        _ => Err(TaskError::new(format!("parameters.{field}: {text:?} is no mode; write octal digits as \"0644\""))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_text() {
        for (text, read) in [("0644", Some(0o644)), ("755", Some(0o755)), ("04755", Some(0o4755))] {
            assert_eq!(mode("mode", text).ok(), read, "{text}");
        }
        for text in ["", "644x", "0o644", "0800", "17777", "u=rw", "+644"] {
            assert!(mode("mode", text).unwrap_err().message.contains("write octal digits"), "{text}");
        }
    }
}
