//! Fields of Ironic's and Magnum's bodies that have no meaning here: taken where they take them, stored, given back.

use serde_json::Value;
use stemma_wire::error::ApiError;

use super::{invalid, wrong};

/// What a kept field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text up to so many characters.
    Text(usize),
    /// A whole number.
    Number,
    /// A truth value, also as a word.
    Truth,
    /// An object.
    Object,
    /// A list.
    List,
}

/// A field that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: &'static str,
    /// What it may hold.
    pub form: Form,
    /// What is given back where it was never set, as JSON text.
    pub default: &'static str,
}

impl Kept {
    /// A field of that name and form, `null` unless set.
    pub const fn new(name: &'static str, form: Form) -> Self {
        Self { name, form, default: "null" }
    }

    /// The same, with a default.
    pub const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// The default as JSON.
    pub fn default_value(&self) -> Value {
        serde_json::from_str(self.default).expect("the tables of kept fields hold JSON texts")
    }

    /// Checks a value.
    ///
    /// # Errors
    /// That it is of another form.
    pub fn read(&self, value: Value) -> Result<Value, ApiError> {
        match (self.form, &value) {
            (Form::Text(most), Value::String(text)) if text.chars().count() > most => {
                Err(invalid(self.name, format!("it has at most {most} characters")))
            }
            (Form::Text(_), Value::String(_)) | (Form::Number, Value::Number(_)) | (Form::Truth, Value::Bool(_)) => {
                Ok(value)
            }
            (Form::Object, Value::Object(_)) | (Form::List, Value::Array(_)) => Ok(value),
            (Form::Number, Value::String(text)) => {
                let number = text.trim().parse::<i64>().map_err(|_| wrong(self.name, "a whole number", &value))?;
                Ok(number.into())
            }
            (Form::Truth, Value::String(_) | Value::Number(_)) => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                truth(&text).map(Value::Bool).ok_or_else(|| wrong(self.name, "true or false", &value))
            }
            (Form::Text(_), _) => Err(wrong(self.name, "a text", &value)),
            (Form::Number, _) => Err(wrong(self.name, "a whole number", &value)),
            (Form::Truth, _) => Err(wrong(self.name, "true or false", &value)),
            (Form::Object, _) => Err(wrong(self.name, "an object", &value)),
            (Form::List, _) => Err(wrong(self.name, "a list", &value)),
        }
    }
}

/// Reads a truth value as `OpenStack` does: `1 t true on y yes`, `0 f false off n no`, in any case, trimmed.
pub fn truth(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "on" | "y" | "yes" => Some(true),
        "0" | "f" | "false" | "off" | "n" | "no" => Some(false),
        _ => None,
    }
}
