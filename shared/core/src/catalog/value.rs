//! Checks whether a property may have a value.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use regex_lite::{Regex, RegexBuilder};
use serde_json::Value;

use crate::digest::canonical_json;
use crate::finding::join_first;
use crate::name::{closest_match, did_you_mean, truncated};
use crate::object::{ItemSchema, Property, PropertyType};

/// Maximum length of the pattern of a property, in bytes. A longer pattern has no effect.
const MAX_PATTERN_BYTES: usize = 512;
/// Maximum size of the compiled form of a pattern, in bytes. A pattern with a larger form has no effect.
const MAX_COMPILED_BYTES: usize = 32 * 1024;
/// Maximum length of a text that is compared with a pattern, in bytes. A longer text is refused. The cost of a
/// comparison grows with the length of the text times the length of the pattern.
const MAX_TEXT_BYTES: usize = 4096;

/// Maximum number of values that a message lists.
const MAX_LISTED_VALUES: usize = 10;

/// The encoding of the values of a kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueEncoding {
    /// Text or JSON. A text is converted to the property's type. Used for labels, facts, and properties of a node.
    /// Ironic's clients send a number as text or as JSON.
    Text,
    /// JSON only: a text is not converted, except as an item of a list. Used for parameters.
    Json,
}

/// A property with its compiled pattern, for checking many values.
#[derive(Clone, Debug)]
pub(super) struct PropertyRule {
    /// The property whose values are checked.
    pub(super) property: Property,
    /// The compiled pattern. `None` if the property has no pattern, or if the pattern is too long or cannot be compiled
    /// (for example, because only Python accepts it). Values are not matched then.
    pattern: Option<Regex>,
}

impl PropertyRule {
    /// Prepares a property for checking values, and compiles its pattern.
    pub(super) fn new(property: &Property) -> Self {
        let source = property.pattern.as_deref().filter(|pattern| pattern.len() <= MAX_PATTERN_BYTES);
        let pattern = source.and_then(|pattern| RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build().ok());
        Self { property: property.clone(), pattern }
    }

    /// Returns the reason why the property cannot have a value, or `None` if the value is allowed.
    pub(super) fn value_error(&self, value: &Value, encoding: ValueEncoding) -> Option<String> {
        let property = &self.property;
        let Some(value) = typed_value(property.kind, value, encoding) else {
            return Some(format!("{} is not a {}", display_value(value), type_description(property.kind)));
        };
        match &*value {
            Value::Array(items) => list_error(property, items),
            Value::Number(number) => number_error(property, number.as_f64().unwrap_or_default())
                .or_else(|| unlisted_error(property.values.as_deref(), &value)),
            Value::String(text) => self.text_error(text).or_else(|| unlisted_error(property.values.as_deref(), &value)),
            Value::Null | Value::Bool(_) | Value::Object(_) => unlisted_error(property.values.as_deref(), &value),
        }
    }

    /// Returns an error if the length of a text is outside the property's limits, or if the text does not match the
    /// property's pattern. A text over [`MAX_TEXT_BYTES`] is an error if the property has a pattern.
    fn text_error(&self, text: &str) -> Option<String> {
        let length = text.chars().count() as u64;
        if let Some(min_chars) = self.property.min_length.filter(|min_chars| length < *min_chars) {
            return Some(format!("{:?} has fewer than {min_chars} characters", truncated(text)));
        }
        if let Some(max_chars) = self.property.max_length.filter(|max_chars| length > *max_chars) {
            return Some(format!("{:?} has more than {max_chars} characters", truncated(text)));
        }
        let pattern = self.pattern.as_ref()?;
        if text.len() > MAX_TEXT_BYTES {
            return Some(format!(
                "{:?} has more than the {MAX_TEXT_BYTES} bytes that a text with a pattern may have",
                truncated(text)
            ));
        }
        (!pattern.is_match(text)).then(|| format!("{:?} does not match the pattern {pattern}", truncated(text)))
    }
}

/// Returns the value in the property's type, or `None` if the value has another type. If `encoding` is `Text`, a text
/// is converted to the type, and a number or boolean is converted to a text if that is the type.
fn typed_value(kind: PropertyType, value: &Value, encoding: ValueEncoding) -> Option<Cow<'_, Value>> {
    let has_type = match kind {
        PropertyType::Array => value.is_array(),
        PropertyType::Boolean => value.is_boolean(),
        PropertyType::Integer => value.is_i64() || value.is_u64(),
        PropertyType::Number => value.is_number(),
        PropertyType::Object => value.is_object(),
        PropertyType::String => value.is_string(),
    };
    match value {
        _ if has_type => Some(Cow::Borrowed(value)),
        Value::String(text) if encoding == ValueEncoding::Text => parse_typed(kind, text).map(Cow::Owned),
        // The text of a number or boolean, as in a label.
        Value::Number(_) | Value::Bool(_) if encoding == ValueEncoding::Text && kind == PropertyType::String => {
            Some(Cow::Owned(value.to_string().into()))
        }
        _ => None,
    }
}

/// Converts a text to a JSON value of this type, or returns `None` if the text is not such a value. Commas separate the
/// items of a list.
fn parse_typed(kind: PropertyType, text: &str) -> Option<Value> {
    match kind {
        PropertyType::Array => Some(text.split(',').map(|item| Value::from(item.trim())).collect()),
        PropertyType::Boolean => text.parse::<bool>().ok().map(Value::from),
        PropertyType::Integer => text.parse::<i64>().ok().map(Value::from),
        PropertyType::Number => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from),
        PropertyType::Object => serde_json::from_str::<Value>(text).ok().filter(Value::is_object),
        PropertyType::String => Some(text.into()),
    }
}

/// Returns an error if a number is less than the property's minimum or greater than its maximum. Both limits are
/// compared as floats, so a limit of more than 53 bits is rounded.
fn number_error(property: &Property, number: f64) -> Option<String> {
    #[expect(clippy::cast_precision_loss, reason = "a bound beyond 53 bits is compared as near as a float comes")]
    let with_float = |limit: Option<i64>| limit.map(|limit| (limit, limit as f64));
    if let Some((minimum, _)) = with_float(property.minimum).filter(|(_, minimum)| number < *minimum) {
        return Some(format!("{number} is less than {minimum}"));
    }
    let maximum = with_float(property.maximum).filter(|(_, maximum)| number > *maximum);
    maximum.map(|(maximum, _)| format!("{number} is greater than {maximum}"))
}

/// Returns an error if a list has too few, too many or invalid items, or a duplicate although `unique_items` is set.
fn list_error(property: &Property, items: &[Value]) -> Option<String> {
    let count = items.len() as u64;
    if let Some(min_items) = property.min_items.filter(|min_items| count < *min_items) {
        return Some(format!("it has fewer than {min_items} items"));
    }
    if let Some(max_items) = property.max_items.filter(|max_items| count > *max_items) {
        return Some(format!("it has more than {max_items} items"));
    }
    let mut distinct_items = BTreeSet::new();
    let mut find_duplicate = || items.iter().find(|item| !distinct_items.insert(canonical_json(item)));
    if let Some(item) = property.unique_items.filter(|must_be_unique| *must_be_unique).and_then(|_| find_duplicate()) {
        return Some(format!("{} occurs twice", display_value(item)));
    }
    let ItemSchema { kind, values } = property.items.as_ref()?;
    items.iter().find_map(|item| match typed_value(*kind, item, ValueEncoding::Text) {
        Some(item) => unlisted_error(values.as_deref(), &item),
        None => Some(format!("{} is not a {}", display_value(item), type_description(*kind))),
    })
}

/// Returns an error if a value is not among these values. `None` for `values` allows every value.
fn unlisted_error(values: Option<&[String]>, value: &Value) -> Option<String> {
    let values = values?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if values.contains(&text) {
        return None;
    }
    let hint = did_you_mean(closest_match(&text, values.iter().map(String::as_str)));
    Some(format!("{} is not one of {}{hint}", display_value(value), ListedValues(values)))
}

/// Returns a value as a message shows it: as JSON, shortened, with a text in quotes.
fn display_value(value: &Value) -> String {
    value.as_str().map_or_else(|| truncated(&value.to_string()), |text| format!("{:?}", truncated(text)))
}

/// Returns the name of a type for messages. It follows the article "a".
fn type_description(kind: PropertyType) -> &'static str {
    match kind {
        PropertyType::Array => "list",
        PropertyType::Boolean => "boolean: it is true or false",
        PropertyType::Integer => "whole number",
        PropertyType::Number => "number",
        PropertyType::Object => "map",
        PropertyType::String => "text",
    }
}

/// A list of values for a message. Only the first [`MAX_LISTED_VALUES`] values are shown, and the others are counted.
struct ListedValues<'a>(&'a [String]);

impl fmt::Display for ListedValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join_first(self.0.iter().map(String::as_str), MAX_LISTED_VALUES))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the property with this schema and a title.
    fn test_property(schema: Value) -> Property {
        let mut schema = schema;
        schema["title"] = "T".into();
        serde_json::from_value(schema).unwrap()
    }

    #[test]
    fn property_rule_accepts_values_of_type_and_bounds() {
        let tier = json!({"type": "string", "enum": ["gold", "silver"]});
        for (schema, value, expected) in [
            (tier.clone(), json!("gold"), None),
            (tier, json!("sliver"), Some("\"sliver\" is not one of gold, silver (did you mean \"silver\"?)")),
            (json!({"type": "integer", "minimum": 1, "maximum": 8}), json!("8"), None),
            (json!({"type": "integer", "maximum": 8}), json!("9"), Some("9 is greater than 8")),
            (json!({"type": "integer", "minimum": 1}), json!(0), Some("0 is less than 1")),
            (json!({"type": "integer"}), json!(">> 3"), Some("\">> 3\" is not a whole number")),
            (json!({"type": "integer"}), json!("1.5"), Some("\"1.5\" is not a whole number")),
            (json!({"type": "integer", "enum": ["1", "2"]}), json!("3"), Some("3 is not one of 1, 2")),
            (json!({"type": "number"}), json!("1.5"), None),
            (json!({"type": "number"}), json!("NaN"), Some("\"NaN\" is not a number")),
            (json!({"type": "boolean"}), json!("true"), None),
            (json!({"type": "boolean"}), json!("yes"), Some("\"yes\" is not a boolean: it is true or false")),
            (json!({"type": "string", "maxLength": 2}), json!("äöü"), Some("\"äöü\" has more than 2 characters")),
            (json!({"type": "string", "maxLength": 3}), json!("äöü"), None),
            (json!({"type": "string", "minLength": 1}), json!(""), Some("\"\" has fewer than 1 characters")),
            (json!({"type": "string", "pattern": "^a+$"}), json!("ab"), Some("\"ab\" does not match the pattern ^a+$")),
            (json!({"type": "string", "pattern": "(?=python's)"}), json!("ab"), None),
            (json!({"type": "string"}), json!(5), None),
            (json!({"type": "array", "items": {"type": "string", "enum": ["aes"]}}), json!("aes, aes"), None),
            (
                json!({"type": "array", "items": {"type": "string", "enum": ["aes"]}, "uniqueItems": true}),
                json!("aes,aes"),
                Some("\"aes\" occurs twice"),
            ),
            (
                json!({"type": "array", "items": {"type": "string", "enum": ["aes"]}}),
                json!(["mmx"]),
                Some("\"mmx\" is not one of aes"),
            ),
            (json!({"type": "array", "maxItems": 1}), json!("a,b"), Some("it has more than 1 items")),
            (json!({"type": "array", "minItems": 2}), json!("a"), Some("it has fewer than 2 items")),
            (json!({"type": "array", "minItems": 2}), json!("a,b"), None),
            (json!({"type": "array", "maxItems": 2}), json!("a,b"), None),
            (json!({"type": "array", "uniqueItems": true}), json!("a,b"), None),
            (json!({"type": "string", "minLength": 1}), json!("a"), None),
            (json!({"type": "integer", "minimum": 1}), json!(1), None),
            (json!({"type": "integer"}), json!(u64::MAX), None),
            (json!({"type": "object"}), json!("{}"), None),
        ] {
            let error = PropertyRule::new(&test_property(schema.clone())).value_error(&value, ValueEncoding::Text);
            assert_eq!(error.as_deref(), expected, "{schema} {value}");
        }
    }

    #[test]
    fn property_rule_reads_parameter_as_json() {
        for (kind, value, expected) in [
            ("integer", json!(5), None),
            ("integer", json!("5"), Some("\"5\" is not a whole number")),
            ("string", json!(5), Some("5 is not a text")),
        ] {
            let error = PropertyRule::new(&test_property(json!({"type": kind}))).value_error(&value, ValueEncoding::Json);
            assert_eq!(error.as_deref(), expected, "{kind} {value}");
        }
    }

    /// If the property has a pattern, a text above the maximum length is rejected. A pattern that is too long, or too
    /// large when compiled, has no effect.
    #[test]
    fn property_rule_bounds_pattern_matching() {
        let rule_with_pattern = |pattern: &str| PropertyRule::new(&test_property(json!({"type": "string", "pattern": pattern})));
        let long_text = "a".repeat(MAX_TEXT_BYTES + 1);
        let error = rule_with_pattern("^a+$").value_error(&json!(long_text), ValueEncoding::Text).expect("the text is too long");
        assert!(error.ends_with("has more than the 4096 bytes that a text with a pattern may have"), "{error}");
        assert_eq!(rule_with_pattern("^a+$").value_error(&json!(long_text[1..]), ValueEncoding::Text), None);
        // A pattern above the limit has no effect, like one that cannot be compiled.
        for pattern in
            ["(a{500}){500}".to_owned(), "(((a{9}){9}){9}){9}".to_owned(), format!("^{}$", "b".repeat(MAX_PATTERN_BYTES))]
        {
            assert_eq!(rule_with_pattern(&pattern).value_error(&json!("c"), ValueEncoding::Text), None, "{pattern}");
        }
        // A pattern with a few hundred states, as of a list of host names, is checked.
        let error = rule_with_pattern("^([a-z]{1,20}-){1,10}[0-9]{1,4}$").value_error(&json!("rack 1"), ValueEncoding::Text);
        assert!(error.is_some_and(|error| error.starts_with("\"rack 1\" does not match the pattern ")));
    }

    #[test]
    fn listed_values_are_cut_when_too_many() {
        let values: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(ListedValues(&values).to_string(), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
