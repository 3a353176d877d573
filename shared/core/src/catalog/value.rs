//! Whether a value is one that a property may have.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use regex_lite::{Regex, RegexBuilder};
use serde_json::Value;

use crate::digest::canonical_json;
use crate::finding::first_few;
use crate::name::{cut, near, suggest};
use crate::object::{Items, Property, PropertyType};

/// The longest pattern that is looked at, in bytes, and what its compiled form may take.
const MAX_PATTERN: usize = 512;
const MAX_COMPILED: usize = 32 * 1024;
/// The longest text that is compared with a pattern, in bytes: what that costs grows with the product of both.
const MAX_TEXT: usize = 4096;

/// How many values a sentence lists.
const MOST_LISTED: usize = 10;

/// In what form a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Text, or JSON: a label, and a property of a machine, whose numbers Ironic's clients send as either.
    Text,
    /// JSON: a parameter.
    Json,
}

/// A property, ready to be asked of many values.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// The property.
    pub(super) property: Property,
    /// Its pattern. What Python takes and this does not is kept in the property, and says nothing.
    pattern: Option<Regex>,
}

impl Rule {
    /// The rule of a property.
    pub(super) fn of(property: &Property) -> Self {
        let written = property.pattern.as_deref().filter(|pattern| pattern.len() <= MAX_PATTERN);
        let pattern = written.and_then(|pattern| RegexBuilder::new(pattern).size_limit(MAX_COMPILED).build().ok());
        Self { property: property.clone(), pattern }
    }

    /// Says why a value is none of the property's; nothing where it is.
    pub(super) fn unfit(&self, value: &Value, written: Written) -> Option<String> {
        let property = &self.property;
        let Some(value) = typed(property.kind, value, written) else {
            return Some(format!("{} is no {}", shown(value), words(property.kind)));
        };
        match &*value {
            Value::Array(items) => of_list(property, items),
            Value::Number(number) => of_number(property, number.as_f64().unwrap_or_default())
                .or_else(|| listed(property.values.as_deref(), &value)),
            Value::String(text) => self.of_text(text).or_else(|| listed(property.values.as_deref(), &value)),
            Value::Null | Value::Bool(_) | Value::Object(_) => listed(property.values.as_deref(), &value),
        }
    }

    fn of_text(&self, text: &str) -> Option<String> {
        let length = text.chars().count() as u64;
        if let Some(least) = self.property.min_length.filter(|least| length < *least) {
            return Some(format!("{:?} has fewer than {least} characters", cut(text)));
        }
        if let Some(most) = self.property.max_length.filter(|most| length > *most) {
            return Some(format!("{:?} has more than {most} characters", cut(text)));
        }
        let pattern = self.pattern.as_ref()?;
        if text.len() > MAX_TEXT {
            return Some(format!(
                "{:?} has more than the {MAX_TEXT} bytes that a text with a pattern may have",
                cut(text)
            ));
        }
        (!pattern.is_match(text)).then(|| format!("{:?} has not the pattern {pattern}", cut(text)))
    }
}

/// The value as its type has it; nothing where it is of another.
fn typed(kind: PropertyType, value: &Value, written: Written) -> Option<Cow<'_, Value>> {
    let is_it = match kind {
        PropertyType::Array => value.is_array(),
        PropertyType::Boolean => value.is_boolean(),
        PropertyType::Integer => value.is_i64() || value.is_u64(),
        PropertyType::Number => value.is_number(),
        PropertyType::Object => value.is_object(),
        PropertyType::String => value.is_string(),
    };
    match value {
        _ if is_it => Some(Cow::Borrowed(value)),
        Value::String(text) if written == Written::Text => read(kind, text).map(Cow::Owned),
        // As a label's, the text of a number or flag.
        Value::Number(_) | Value::Bool(_) if written == Written::Text && kind == PropertyType::String => {
            Some(Cow::Owned(value.to_string().into()))
        }
        _ => None,
    }
}

/// A text read as a type; a list is one with commas.
fn read(kind: PropertyType, text: &str) -> Option<Value> {
    match kind {
        PropertyType::Array => Some(text.split(',').map(|item| Value::from(item.trim())).collect()),
        PropertyType::Boolean => text.parse::<bool>().ok().map(Value::from),
        PropertyType::Integer => text.parse::<i64>().ok().map(Value::from),
        PropertyType::Number => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from),
        PropertyType::Object => serde_json::from_str::<Value>(text).ok().filter(Value::is_object),
        PropertyType::String => Some(text.into()),
    }
}

fn of_number(property: &Property, number: f64) -> Option<String> {
    #[expect(clippy::cast_precision_loss, reason = "a bound beyond 53 bits is compared as near as a float comes")]
    let bound = |bound: Option<i64>| bound.map(|bound| (bound, bound as f64));
    if let Some((least, _)) = bound(property.minimum).filter(|(_, least)| number < *least) {
        return Some(format!("{number} is less than {least}"));
    }
    let most = bound(property.maximum).filter(|(_, most)| number > *most);
    most.map(|(most, _)| format!("{number} is greater than {most}"))
}

fn of_list(property: &Property, items: &[Value]) -> Option<String> {
    let count = items.len() as u64;
    if let Some(least) = property.min_items.filter(|least| count < *least) {
        return Some(format!("it has fewer than {least} items"));
    }
    if let Some(most) = property.max_items.filter(|most| count > *most) {
        return Some(format!("it has more than {most} items"));
    }
    let mut seen = BTreeSet::new();
    let mut twice = || items.iter().find(|item| !seen.insert(canonical_json(item)));
    if let Some(item) = property.unique_items.filter(|unique| *unique).and_then(|_| twice()) {
        return Some(format!("{} stands there twice", shown(item)));
    }
    let Items { kind, values } = property.items.as_ref()?;
    items.iter().find_map(|item| match typed(*kind, item, Written::Text) {
        Some(item) => listed(values.as_deref(), &item),
        None => Some(format!("{} is no {}", shown(item), words(*kind))),
    })
}

/// Says that a value is none of those that are listed.
fn listed(values: Option<&[String]>, value: &Value) -> Option<String> {
    let values = values?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if values.contains(&text) {
        return None;
    }
    let meant = suggest(near(&text, values.iter().map(String::as_str)));
    Some(format!("{} is none of {}{meant}", shown(value), List(values)))
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| cut(&value.to_string()), |text| format!("{:?}", cut(text)))
}

fn words(kind: PropertyType) -> &'static str {
    match kind {
        PropertyType::Array => "list",
        PropertyType::Boolean => "boolean: it is true or false",
        PropertyType::Integer => "whole number",
        PropertyType::Number => "number",
        PropertyType::Object => "map",
        PropertyType::String => "text",
    }
}

/// The first of a list, in a sentence.
struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&first_few(self.0.iter().map(String::as_str), MOST_LISTED))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn property(schema: Value) -> Property {
        let mut schema = schema;
        schema["title"] = "T".into();
        serde_json::from_value(schema).unwrap()
    }

    #[test]
    fn a_value_is_of_its_propertys_type_and_within_its_bounds() {
        let tier = json!({"type": "string", "enum": ["gold", "silver"]});
        for (schema, value, expected) in [
            (tier.clone(), json!("gold"), None),
            (tier, json!("sliver"), Some("\"sliver\" is none of gold, silver (did you mean \"silver\"?)")),
            (json!({"type": "integer", "minimum": 1, "maximum": 8}), json!("8"), None),
            (json!({"type": "integer", "maximum": 8}), json!("9"), Some("9 is greater than 8")),
            (json!({"type": "integer", "minimum": 1}), json!(0), Some("0 is less than 1")),
            (json!({"type": "integer"}), json!(">> 3"), Some("\">> 3\" is no whole number")),
            (json!({"type": "integer"}), json!("1.5"), Some("\"1.5\" is no whole number")),
            (json!({"type": "integer", "enum": ["1", "2"]}), json!("3"), Some("3 is none of 1, 2")),
            (json!({"type": "number"}), json!("1.5"), None),
            (json!({"type": "number"}), json!("NaN"), Some("\"NaN\" is no number")),
            (json!({"type": "boolean"}), json!("true"), None),
            (json!({"type": "boolean"}), json!("yes"), Some("\"yes\" is no boolean: it is true or false")),
            (json!({"type": "string", "maxLength": 2}), json!("äöü"), Some("\"äöü\" has more than 2 characters")),
            (json!({"type": "string", "maxLength": 3}), json!("äöü"), None),
            (json!({"type": "string", "minLength": 1}), json!(""), Some("\"\" has fewer than 1 characters")),
            (json!({"type": "string", "pattern": "^a+$"}), json!("ab"), Some("\"ab\" has not the pattern ^a+$")),
            (json!({"type": "string", "pattern": "(?=python's)"}), json!("ab"), None),
            (json!({"type": "string"}), json!(5), None),
            (json!({"type": "array", "items": {"type": "string", "enum": ["aes"]}}), json!("aes, aes"), None),
            (
                json!({"type": "array", "items": {"type": "string", "enum": ["aes"]}, "uniqueItems": true}),
                json!("aes,aes"),
                Some("\"aes\" stands there twice"),
            ),
            (
                json!({"type": "array", "items": {"type": "string", "enum": ["aes"]}}),
                json!(["mmx"]),
                Some("\"mmx\" is none of aes"),
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
            let found = Rule::of(&property(schema.clone())).unfit(&value, Written::Text);
            assert_eq!(found.as_deref(), expected, "{schema} {value}");
        }
    }

    #[test]
    fn a_parameter_is_of_its_type_as_it_stands() {
        for (kind, value, expected) in [
            ("integer", json!(5), None),
            ("integer", json!("5"), Some("\"5\" is no whole number")),
            ("string", json!(5), Some("5 is no text")),
        ] {
            let found = Rule::of(&property(json!({"type": kind}))).unfit(&value, Written::Json);
            assert_eq!(found.as_deref(), expected, "{kind} {value}");
        }
    }

    #[test]
    fn a_pattern_is_looked_at_within_bounds() {
        let with = |pattern: &str| Rule::of(&property(json!({"type": "string", "pattern": pattern})));
        let long = "a".repeat(MAX_TEXT + 1);
        let said = with("^a+$").unfit(&json!(long), Written::Text).expect("it is too long");
        assert!(said.ends_with("has more than the 4096 bytes that a text with a pattern may have"), "{said}");
        assert_eq!(with("^a+$").unfit(&json!(long[1..]), Written::Text), None);
        // One that is larger than is looked at says nothing, as one that is none here.
        for pattern in
            ["(a{500}){500}".to_owned(), "(((a{9}){9}){9}){9}".to_owned(), format!("^{}$", "b".repeat(MAX_PATTERN))]
        {
            assert_eq!(with(&pattern).unfit(&json!("c"), Written::Text), None, "{pattern}");
        }
        // One of a few hundred states, as of a list of host names, is looked at.
        let said = with("^([a-z]{1,20}-){1,10}[0-9]{1,4}$").unfit(&json!("rack 1"), Written::Text);
        assert!(said.is_some_and(|said| said.starts_with("\"rack 1\" has not the pattern ")));
    }

    #[test]
    fn a_long_list_of_values_is_cut() {
        let values: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(List(&values).to_string(), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
