//! Limits the size of fields, and refuses blank names, invalid keys and inexact numbers. The body of a write is checked
//! before its fields are parsed, because a short text of some fields needs much time or memory to parse. The object is
//! checked after a write, because many small writes can each add one entry.
//!
//! Both checks use the same bounds: those of the field's [`FieldType`] or [`PassthroughType`].
//!
//! If an older version stored a value that the checks refuse, a write may replace it by a value that is not larger. A
//! write that makes it larger is refused.

use std::fmt::Display;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::is_null;
use super::empty::{check_key, check_name_characters, check_no_blank_text, check_not_blank, is_blank_text};
use super::error::{BodyError, BodyErrorKind, check_each};
use super::field_defs::{LEVEL_FIELDS, NODE_FIELDS};
use super::fields::SpecFields;
use super::names::NameResolver;
use super::passthrough::{PassthroughField, PassthroughType};
use crate::field::{DescribeFields, FieldBound, FieldDef, FieldType, Help};
use crate::json::{self, compact_bytes, item_count, items, members, parse_string};
use crate::labels::Layer;
use crate::name::truncated;
use crate::object::{MAX_TAGS, NodeTags, ReleaseTagsSpec, TagSpec};
use crate::ownership::OwnedSet;

/// The empty text, as JSON.
const EMPTY_TEXT: &str = r#""""#;

/// Checks the value that a body provides for a field against the field's type and bound. `stored_value` returns the
/// stored value. If the stored value fails these checks too, a value that is not larger is accepted.
///
/// # Errors
/// [`BodyError`] with the path of the error within the field.
pub(super) fn check_body_field(field: &FieldDef, sent: &RawValue, stored_value: impl FnOnce() -> Value) -> Result<(), BodyError> {
    accept_unless_larger(|value| check_field(field, value), sent, stored_value)
}

/// Checks the value that a body provides for a passthrough field, which is a field of Ironic or Magnum. `old` returns
/// the stored value. If the stored value is invalid too, a value that is not larger is accepted.
///
/// # Errors
/// [`BodyError`] with the path of the error within the field.
pub(super) fn check_passthrough(field: &PassthroughField, sent: &RawValue, old: impl FnOnce() -> Value) -> Result<(), BodyError> {
    accept_unless_larger(|value| check_passthrough_type(field.kind, value), sent, old)
}

/// Checks the size of a passthrough field, and its names, texts, keys and numbers as its type demands.
fn check_passthrough_type(field_type: PassthroughType, value: &RawValue) -> Result<(), BodyError> {
    check_length(field_type.bound(), value)?;
    match field_type {
        PassthroughType::NameOrNone(_) if value.get() == EMPTY_TEXT => Ok(()),
        PassthroughType::Name(_) | PassthroughType::NameOrNone(_) => check_name_text(value),
        PassthroughType::Object => check_collection(FieldType::Map, field_type.bound(), value),
        PassthroughType::List => check_each(items(value), check_not_blank),
        PassthroughType::Text(_) => check_empty_or_visible(value),
        // The types of these values are checked when they are read.
        PassthroughType::Uuid | PassthroughType::Number | PassthroughType::Flag | PassthroughType::Any => Ok(()),
    }
}

/// Checks the value that a body provides for a field whose keys each have their own owners, such as `labels`.
/// `stored_value` returns the stored value. A field without a definition is accepted.
///
/// # Errors
/// [`BodyError`] with the path of the error, beginning with the field.
pub(super) fn check_keyed_field(name: &str, sent: &RawValue, stored_value: impl FnOnce() -> Value) -> Result<(), BodyError> {
    let field = LEVEL_FIELDS.iter().chain(NODE_FIELDS).find(|def| def.name == name);
    field.map_or(Ok(()), |def| check_body_field(def, sent, stored_value)).map_err(|error| error.prefixed(name))
}

/// Checks the bounds of all fields of an object after a write. `old` is the spec before the write, if there was one.
///
/// # Errors
/// [`BodyError`] for the first field that exceeds its bound, unless the old value does so too and is not smaller.
pub fn check_bounds<S: SpecFields>(old: Option<&S>, new: &S, names: &dyn NameResolver) -> Result<(), BodyError> {
    // `json` returns the value of a field as a body would contain it.
    for field in S::FIELDS {
        let def = FieldDef::new(field.name, field.kind, field.help);
        let json = |spec: &S| (field.show)(spec, names);
        let result = check_if_set(&json(new), |value| check_body_field(&def, value, || old.map_or(Value::Null, json)));
        result.map_err(|error| error.prefixed(field.name))?;
    }
    for field in S::PASSTHROUGH_FIELDS {
        let json = |spec: &S| spec.extra().get(field.name).cloned().unwrap_or(Value::Null);
        let result = check_if_set(&json(new), |value| check_passthrough(field, value, || old.map_or(Value::Null, json)));
        result.map_err(|error| error.prefixed(field.name))?;
    }
    for field in S::KEYED_FIELDS.iter().copied().flatten() {
        let json = |spec: &S| keyed_field_json(spec, field.name);
        check_if_set(&json(new), |value| check_keyed_field(field.name, value, || old.map_or(Value::Null, json)))?;
    }
    Ok(())
}

/// Checks the number and size of the tags that are declared in addition to those of a release. Each request adds one
/// tag, so the check of a request's body does not limit the number.
///
/// # Errors
/// [`BodyError`] if the tags exceed their bound, unless the old tags exceed it too and the new ones are not larger.
pub fn check_release_tags_bounds(old_tags: Option<&ReleaseTagsSpec>, new_tags: &ReleaseTagsSpec) -> Result<(), BodyError> {
    const TAG_MAP: &FieldType = &FieldType::MapOf(TagSpec::FIELD_DEFS);
    // The help text is needed only to create the definition. Nobody sees it.
    const TAGS_FIELD: FieldDef = FieldDef::new("tags", FieldType::up_to(MAX_TAGS, TAG_MAP), Help::new("{}", "The tags.", "{}"));
    let tags_json = |ReleaseTagsSpec { tags }: &ReleaseTagsSpec| serde_json::to_value(tags).expect("tags are JSON");
    let result = check_body_field(&TAGS_FIELD, &raw_value(&tags_json(new_tags)), || old_tags.map_or(Value::Null, tags_json));
    result.map_err(|error| error.prefixed(TAGS_FIELD.name))
}

/// Returns the JSON that a body would contain for a field whose keys each have their own owners, such as `labels`.
/// `null` if the spec lacks the field, and for `merge_labels`, which is a flag.
pub(super) fn keyed_field_json<S: SpecFields>(spec: &S, name: &str) -> Value {
    match (name, spec.inherited(), spec.node()) {
        ("labels", Some(level), _) => layer_json(&level.labels),
        ("annotations", Some(level), _) => layer_json(&level.annotations),
        ("parameters", Some(level), _) => layer_json(&level.parameters),
        ("traits", _, Some(node)) => set_json(&node.traits),
        ("tags", _, Some(node)) => {
            // The tags that an extension decided are not part of a body.
            let NodeTags { assigned, unassigned, decided: _ } = &node.tags;
            json!({"assigned": set_json(assigned), "unassigned": set_json(unassigned)})
        }
        // `merge_labels` is a flag, and no spec contains `reports`.
        _ => Value::Null,
    }
}

/// Checks the value that a field has after a write. `null` means that the field is unset, and is accepted.
fn check_if_set(value: &Value, check: impl FnOnce(&RawValue) -> Result<(), BodyError>) -> Result<(), BodyError> {
    if value.is_null() { Ok(()) } else { check(&raw_value(value)) }
}

/// Runs `check` on a sent value. An error is ignored if `check` fails for the stored value too and the sent value is
/// not larger, so that a value that an older version accepted can be sent back or reduced.
fn accept_unless_larger(
    check: impl Fn(&RawValue) -> Result<(), BodyError>,
    sent: &RawValue,
    stored_value: impl FnOnce() -> Value,
) -> Result<(), BodyError> {
    let Err(error) = check(sent) else { return Ok(()) };
    let stored_value = raw_value(&stored_value());
    let is_larger = compact_bytes(sent.get()) > compact_bytes(stored_value.get());
    if is_larger || check(&stored_value).is_ok() { Err(error) } else { Ok(()) }
}

/// Checks a value against the type and the bound of its field. `null` is accepted, because it unsets the field. A
/// required text must have a visible character. An optional text may be empty, but must not have only blanks.
fn check_field(field: &FieldDef, value: &RawValue) -> Result<(), BodyError> {
    if is_null(value) {
        return Ok(());
    }
    let (field_type, bound) = (field.field_type.plain(), field.field_type.bound());
    let must_not_be_blank = field_type == FieldType::Text && !bound.allows_empty;
    if must_not_be_blank && field.is_required() && is_blank_text(value) {
        return Err(BodyError::with_kind(BodyErrorKind::MissingField, "", "is empty, but is required"));
    }
    check_length(bound, value)?;
    check_seconds(field_type, value)?;
    if must_not_be_blank {
        check_empty_or_visible(value)?;
    }
    let count = item_count(value);
    if count > bound.max_entries {
        let max = bound.max_entries;
        return Err(BodyError::new("", format!("it has {count} entries, and the maximum is {max}: leave some out")));
    }
    check_collection(field_type, bound, value)
}

/// Fails if the field is a duration in seconds and the value is not a whole number in the range of the field.
fn check_seconds(field_type: FieldType, value: &RawValue) -> Result<(), BodyError> {
    let FieldType::Seconds(min_seconds, max_seconds) = field_type else { return Ok(()) };
    let seconds: Option<u64> = serde_json::from_str(value.get()).ok();
    if seconds.is_some_and(|seconds| (min_seconds..=max_seconds).contains(&seconds)) {
        return Ok(());
    }
    Err(BodyError::new("", format!("takes {min_seconds} to {max_seconds} whole seconds, not {}", truncated(value.get()))))
}

/// Fails if a text, or any other value as JSON, is longer than the bound. White space and unnecessary escapes are not
/// counted. A value that is short enough as sent is accepted at once, because white space and escapes only make a value
/// longer. A text that cannot be parsed is accepted here, because the function that parses the field refuses it.
fn check_length(bound: FieldBound, value: &RawValue) -> Result<(), BodyError> {
    let json = value.get();
    if json.len() <= bound.max_bytes {
        return Ok(());
    }
    let bytes = if json.starts_with('"') { parse_string(json).map_or(0, |text| text.len()) } else { compact_bytes(json) };
    if bytes <= bound.max_bytes {
        return Ok(());
    }
    Err(BodyError::new("", format!("it has {bytes} bytes, and the maximum is {}: make it shorter", bound.max_bytes)))
}

/// Checks the entries of a list or map. A value of another type is accepted here, because the function that parses the
/// field refuses it.
fn check_collection(field_type: FieldType, bound: FieldBound, value: &RawValue) -> Result<(), BodyError> {
    match field_type {
        FieldType::TextOrList if value.get().starts_with('"') => check_text(bound, value),
        FieldType::Names | FieldType::TextOrList => check_text_list(bound, value),
        FieldType::Map | FieldType::MapOrList => {
            check_keys(bound, value)?;
            check_nested_keys(value)?;
            // The bound allows empty keys only for the maps of levels, whose numbers are checked when they are read.
            if bound.allows_empty { Ok(()) } else { check_numbers(value) }
        }
        FieldType::Object(member_fields) => check_members(member_fields, value),
        FieldType::MapOf(member_fields) => {
            check_keys(bound, value)?;
            let entries = members(value).unwrap_or_default();
            entries.iter().try_for_each(|(key, member)| check_members(member_fields, member).map_err(|error| error.prefixed(key)))
        }
        FieldType::ListOf(member_fields) => check_each(items(value), |member| check_members(member_fields, member)),
        FieldType::Objects => check_no_blank_text(value),
        FieldType::Text
        | FieldType::Time
        | FieldType::Seconds(..)
        | FieldType::Flag
        | FieldType::Count
        | FieldType::Number
        | FieldType::Parameters
        | FieldType::Share
        | FieldType::OneOf(_)
        | FieldType::Any
        | FieldType::UpTo(..) => Ok(()),
    }
}

/// Checks each member of an object against its definition in `fields`. A member without a definition is accepted here,
/// because the function that parses the field refuses it.
fn check_members(fields: &[FieldDef], value: &RawValue) -> Result<(), BodyError> {
    members(value).unwrap_or_default().iter().try_for_each(|(name, member)| {
        // Fuel writes hyphens in names, such as `cross-depends`.
        let name_with_underscores = name.replace('-', "_");
        let field = fields.iter().find(|def| def.has_name(name) || def.has_name(&name_with_underscores));
        field.map_or(Ok(()), |def| check_field(def, member)).map_err(|error| error.prefixed(name))
    })
}

/// Checks each text of a list. An item of another type is accepted here, because the function that parses the field
/// refuses it.
fn check_text_list(bound: FieldBound, list: &RawValue) -> Result<(), BodyError> {
    check_each(items(list), |item| if item.get().starts_with('"') { check_text(bound, item) } else { Ok(()) })
}

/// Checks one text of a list: its length, and that it has a visible character unless the bound allows an empty text.
fn check_text(bound: FieldBound, item: &RawValue) -> Result<(), BodyError> {
    if !bound.allows_empty {
        check_not_blank(item)?;
    }
    // The limit for one entry of the list applies, not the limit for the whole list.
    check_length(bound.max_bytes(bound.max_entry_bytes), item)
}

/// Checks that a name is not blank and has no control characters. A value of another type is accepted here, because the
/// function that parses the field refuses it.
fn check_name_text(value: &RawValue) -> Result<(), BodyError> {
    if !value.get().starts_with('"') {
        return Ok(());
    }
    parse_string(value.get()).map_or(Ok(()), |text| check_name_characters(&text))
}

/// Fails if a value contains a whole number that hosts would receive as another number, because canonical JSON (RFC
/// 8785), which hosts receive, prints numbers as doubles.
fn check_numbers(value: &RawValue) -> Result<(), BodyError> {
    // A value that cannot be parsed is refused later, by the function that parses the field.
    let Ok(parsed) = json::parse_value(value) else { return Ok(()) };
    match json::find_inexact(&parsed) {
        Some((path, error)) => Err(BodyError::new(path.trim_start_matches('.'), error.to_string())),
        None => Ok(()),
    }
}

/// Fails if a text has only blanks, because a person sees such a text as empty. An empty text is accepted, because it
/// clears the field.
fn check_empty_or_visible(value: &RawValue) -> Result<(), BodyError> {
    if is_blank_text(value) && value.get() != EMPTY_TEXT {
        return Err(BodyError::new("", "contains only blanks: write something, or leave it out"));
    }
    Ok(())
}

/// Fails if the value is or contains a map that has a blank key or a key with a control character, at any depth. An
/// empty key often means that the author's script wrote the body with a variable that was not set.
fn check_inner_keys(value: &RawValue) -> Result<(), BodyError> {
    if value.get().starts_with('{') {
        members(value).unwrap_or_default().iter().try_for_each(|(key, _)| check_key(key))?;
    }
    check_nested_keys(value)
}

/// Checks the keys of all maps inside a map or list, at any depth. The keys of the outer map itself are not checked.
fn check_nested_keys(value: &RawValue) -> Result<(), BodyError> {
    match value.get().as_bytes().first() {
        Some(b'{') => {
            let members = members(value).unwrap_or_default();
            members.iter().try_for_each(|(key, member)| check_inner_keys(member).map_err(|error| error.prefixed(key)))
        }
        Some(b'[') => check_each(items(value), check_inner_keys),
        _ => Ok(()),
    }
}

/// Checks the keys of a map: their lengths and, unless the bound allows an empty key, their characters.
fn check_keys(bound: FieldBound, map: &RawValue) -> Result<(), BodyError> {
    members(map).unwrap_or_default().iter().try_for_each(|(key, _)| {
        if !bound.allows_empty {
            check_key(key)?;
        }
        if key.len() <= bound.max_entry_bytes {
            return Ok(());
        }
        let (bytes, max_bytes) = (key.len(), bound.max_entry_bytes);
        Err(BodyError::new("", format!("has a key of {bytes} bytes, and the maximum is {max_bytes}: make it shorter")))
    })
}

/// Converts a value to its JSON text.
fn raw_value(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// Returns the JSON that a body would contain for a map that a level provides: `null` if the level provides no map, and
/// `null` for a key with a tombstone.
pub(super) fn layer_json<K: Ord + Display, V: Serialize>(layer: &Layer<K, V>) -> Value {
    let Some(map) = &layer.provided else { return Value::Null };
    let to_json = |value: &V| serde_json::to_value(value).expect("a provided value is JSON");
    let entries = map.iter().map(|(key, entry)| (key.to_string(), entry.value.value().map_or(Value::Null, to_json)));
    Value::Object(entries.collect::<Map<String, Value>>())
}

/// Returns the members of a set as a JSON list of texts.
fn set_json<K: Ord + Display>(set: &OwnedSet<K>) -> Value {
    set.members().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::testing::AnyNameResolver;
    use super::super::write::{WriteError, write_body};
    use super::super::write_mode::WriteMode;
    use super::super::{JsonBody, passthrough};
    use super::*;
    use crate::labels::BodyShape;
    use crate::name::TagName;
    use crate::object::{AllocationSpec, ClusterSpec, NodeGroupSpec, NodeSpec};
    use crate::ownership::Manager;

    fn tag_specs(count: usize) -> BTreeMap<TagName, TagSpec> {
        (0..count).map(|n| (TagName::new(&format!("t{n}")).unwrap(), TagSpec::default())).collect()
    }

    fn cluster_with_tags(count: usize) -> ClusterSpec {
        ClusterSpec { tags: tag_specs(count), ..ClusterSpec::default() }
    }

    /// Writes a body into a spec as an update, and returns the message if the body is invalid.
    fn update<S: SpecFields>(spec: &mut S, body: &Value) -> Result<(), String> {
        let author = WriteMode::Update { manager: &Manager::new("test").unwrap(), shape: BodyShape::Native };
        let body = JsonBody::parse(&body.to_string()).unwrap();
        match write_body(spec, &body, author, &AnyNameResolver::default(), 0) {
            Ok(()) => Ok(()),
            Err(WriteError::Body(error)) => Err(error.to_string()),
            Err(WriteError::Conflicts(conflicts)) => panic!("{conflicts:?}"),
        }
    }

    /// Regression test: an empty key of a map inside another value, and a text with only blanks, were accepted.
    #[test]
    fn x06_update_rejects_empty_key_at_any_depth_and_blank_text() {
        let update_node = |body: &Value| update(&mut NodeSpec::default(), body);
        for field in ["extra", "properties", "instance_info", "driver_info", "parameters"] {
            for inner in [json!({"": 1}), json!([{"": 1}]), json!({"b": {" ": 1}}), json!({"\u{200b}": 1})] {
                let error = update_node(&json!({field: {"a": inner}})).unwrap_err();
                let is_placed = error.starts_with(&format!("{field}.a"));
                assert!(is_placed && error.contains("has an entry whose key is empty"), "{inner}: {error}");
            }
        }
        for body in [
            json!({"description": " "}),
            json!({"description": "\u{200b}"}),
            json!({"hold": {"reason": "\t"}}),
            json!({"protected_reason": "  "}),
        ] {
            let error = update_node(&body).unwrap_err();
            assert!(error.contains("contains only blanks"), "{body}: {error}");
        }
        for body in [json!({"description": ""}), json!({"extra": {"a": {"b": ""}, "c": [1, "", {}]}})] {
            assert_eq!(update_node(&body), Ok(()), "{body}");
        }
    }

    /// Texts that are neither names nor keys may have control characters. A key must also not be too long.
    #[test]
    fn y04_update_rejects_control_character_in_names_and_keys() {
        let update_node = |body: &Value| update(&mut NodeSpec::default(), body);
        for text in ["a\nb", "a\0", "a\u{7f}", "a\u{85}b", "a\u{2028}"] {
            for name in ["resource_class", "owner", "lessee", "shard", "driver", "instance_name", "conductor_group"] {
                let error = update_node(&json!({name: text})).unwrap_err();
                assert!(error.starts_with(&format!("{name}: ")) && error.contains("control character"), "{error}");
            }
            for field in ["extra", "properties", "instance_info", "driver_info"] {
                for value in [json!({text: 1}), json!({"a": {text: 1}}), json!({"a": [{text: 1}]})] {
                    let error = update_node(&json!({field: value})).unwrap_err();
                    assert!(error.starts_with(field) && error.contains("control character"), "{error}");
                }
            }
            let allocation = update(&mut AllocationSpec::default(), &json!({"resource_class": text}));
            assert!(allocation.is_err_and(|error| error.contains("control character")), "{text:?}");
        }
        assert_eq!(update_node(&json!({"extra": {"a": "b\n"}, "maintenance_reason": "a\nb", "conductor_group": ""})), Ok(()));
        let long = update_node(&json!({"extra": {"k".repeat(513): 1}})).unwrap_err();
        assert!(long.starts_with("extra: has a key of 513 bytes"), "{long}");
    }

    /// A field with free JSON refuses a number of 2^53 or more that a double (IEEE 754) rounds, and one that is too
    /// large or too small for a double. Up to 2^53 a double holds every whole number, and above it only some of them.
    #[test]
    fn y04_free_json_fields_reject_inexact_numbers() {
        for field in ["parameters", "properties", "extra", "instance_info"] {
            let update_field = |number: &str| {
                let body = JsonBody::parse(&format!(r#"{{"{field}": {{"a": [{number}]}}}}"#)).unwrap();
                let author = WriteMode::Update { manager: &Manager::new("test").unwrap(), shape: BodyShape::Native };
                write_body(&mut NodeSpec::default(), &body, author, &AnyNameResolver::default(), 0)
                    .map_err(|body_error| body_error.to_string())
            };
            for number in ["9007199254740992", "-9007199254740992", "1.10", "1e2", "0", "-0", "0e9", "5e-324"] {
                assert_eq!(update_field(number), Ok(()), "{field} {number}");
            }
            for number in [
                "9007199254740993",
                "-9007199254740993",
                "18446744073709551616",
                "9007199254740993.0",
                "9007199254740993e0",
                "-9007199254740992.5",
                "123456789012345678e3",
                "1e400",
                "-1e400",
                "1e-400",
            ] {
                let error = update_field(number).unwrap_err();
                let is_placed = error.starts_with(field) && error.contains("number out of range");
                assert!(is_placed, "{field} {number}: {error}");
            }
        }
    }

    /// Older versions stored names with control characters, inexact numbers and too long durations. An update may leave
    /// such a value unchanged or make it smaller, but not larger.
    #[test]
    fn y04_update_accepts_invalid_stored_value_unless_larger() {
        let mut spec = NodeSpec::default();
        spec.properties.insert("a\nb".into(), json!(9_007_199_254_740_993_u64));
        spec.extra.insert("resource_class".into(), json!("a\nb"));
        let whole = json!({"properties": {"a\nb": 9_007_199_254_740_993_u64}, "resource_class": "a\nb"});
        assert_eq!(update(&mut spec, &whole), Ok(()));
        assert!(update(&mut spec, &json!({"properties": {"a\nb": 9_007_199_254_740_993_u64, "c": 1}})).is_err());
        assert_eq!(update(&mut spec, &json!({"properties": {"a": 1}, "resource_class": "a"})), Ok(()));
        let mut group = NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        group.splay_seconds = Some(4_000_000_000);
        assert_eq!(update(&mut group, &json!({"splay": 4_000_000_000_u32, "description": "x"})), Ok(()));
        let expected = "splay: takes 0 to 31622400 whole seconds, not 31622401".to_owned();
        assert_eq!(update(&mut NodeGroupSpec::new(group.cluster), &json!({"splay": 31_622_401})), Err(expected));
    }

    /// The number of tags in a cluster after a write must not exceed 256, or the greater number before the write.
    #[test]
    fn x03_check_bounds_limits_value_after_write() {
        let check = |old_count: Option<usize>, new_count: usize| {
            let old = old_count.map(cluster_with_tags);
            check_bounds(old.as_ref(), &cluster_with_tags(new_count), &AnyNameResolver::default())
                .map_err(|error| error.to_string())
        };
        let too_many = |count: usize| Err(format!("tags: it has {count} entries, and the maximum is 256: leave some out"));
        for (old_count, new_count, expected) in [
            (None, 256, Ok(())),
            (None, 257, too_many(257)),
            (Some(256), 257, too_many(257)),
            // An older version accepted 300 tags.
            (Some(300), 299, Ok(())),
            (Some(300), 300, Ok(())),
            (Some(300), 301, too_many(301)),
        ] {
            assert_eq!(check(old_count, new_count), expected, "{old_count:?} {new_count}");
        }
    }

    #[test]
    fn x03_check_release_tags_bounds_limits_tag_count() {
        let extra_tags = |count: usize| ReleaseTagsSpec { tags: tag_specs(count) };
        assert_eq!(check_release_tags_bounds(None, &extra_tags(4096)), Ok(()));
        let error = check_release_tags_bounds(Some(&extra_tags(4096)), &extra_tags(4097)).unwrap_err();
        assert_eq!(error.to_string(), "tags: it has 4097 entries, and the maximum is 4096: leave some out");
    }

    #[test]
    fn x03_bounds_accept_oversized_value_when_not_larger() {
        let body = |count: usize| {
            let tags: Map<String, Value> = (0..count).map(|n| (format!("t{n}"), json!({}))).collect();
            json!({"tags": tags})
        };
        for (count, is_accepted) in [(300, true), (280, true), (301, false)] {
            let mut spec = cluster_with_tags(300);
            assert_eq!(update(&mut spec, &body(count)).is_ok(), is_accepted, "{count}");
            assert_eq!(spec.tags.len(), if is_accepted { count } else { 300 });
        }
    }

    /// In this test, a node with 257 assigned tags, 257 unassigned tags or 257 traits is refused, because the maximum
    /// of each of these fields is 256 entries. 256 assigned tags are accepted.
    #[test]
    fn x03_bounds_limit_tags_and_traits_of_node() {
        let names: Vec<String> = (0..257).map(|n| format!("t{n}")).collect();
        for (body, field) in [
            (json!({"tags": {"assigned": names}}), "tags.assigned"),
            (json!({"tags": {"unassigned": names}}), "tags.unassigned"),
            (json!({"traits": names}), "traits"),
        ] {
            let expected = format!("{field}: it has 257 entries, and the maximum is 256: leave some out");
            assert_eq!(update(&mut NodeSpec::default(), &body), Err(expected));
        }
        let mut node = NodeSpec::default();
        update(&mut node, &json!({"tags": {"assigned": names[1..]}, "labels": {"a": "b", "c": null}})).unwrap();
        assert_eq!(check_bounds(None, &node, &AnyNameResolver::default()), Ok(()));
        assert_eq!(keyed_field_json(&node, "labels"), json!({"a": "b", "c": null}));
        assert_eq!(keyed_field_json(&node, "tags")["assigned"].as_array().map(Vec::len), Some(256));
    }

    #[test]
    fn x03_passthrough_type_bounds_field() {
        let tables =
            [passthrough::TEMPLATE, passthrough::CLUSTER, passthrough::GROUP, passthrough::ALLOCATION, passthrough::NODE];
        for field in tables.into_iter().flatten() {
            let max_bytes = field.kind.bound().max_bytes;
            assert!(max_bytes <= 64 * 1024, "{}", field.name);
            // The braces, the key and the quotes of this map are 8 bytes.
            let check = |bytes: usize| check_passthrough(field, &raw_value(&json!({"a": "x".repeat(bytes - 8)})), || Value::Null);
            assert_eq!(check(max_bytes), Ok(()), "{}", field.name);
            let expected = format!("it has {} bytes, and the maximum is {max_bytes}: make it shorter", max_bytes + 1);
            assert_eq!(check(max_bytes + 1).map_err(|error| error.to_string()), Err(expected), "{}", field.name);
        }
        let expected = "extra: it has 65537 bytes, and the maximum is 65536: make it shorter".to_owned();
        assert_eq!(update(&mut NodeSpec::default(), &json!({"extra": {"a": "x".repeat(65_529)}})), Err(expected));
    }

    #[test]
    fn x03_f08_allocation_rejects_more_traits_than_a_node_can_have() {
        let body = |count: usize| json!({"traits": (0..count).map(|n| format!("CUSTOM_{n}")).collect::<Vec<_>>()});
        assert_eq!(update(&mut AllocationSpec::default(), &body(50)), Ok(()));
        let expected = "traits: it has 200000 entries, and the maximum is 50: leave some out".to_owned();
        assert_eq!(update(&mut AllocationSpec::default(), &body(200_000)), Err(expected));
    }

    #[test]
    fn y04_seconds_are_rejected_with_one_message() {
        let group = || NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        for value in [json!(-1), json!(1.0), json!(31_622_401), json!(true), json!("1"), json!(" 1"), json!([1]), json!({})] {
            let expected = format!("splay: takes 0 to 31622400 whole seconds, not {value}");
            assert_eq!(update(&mut group(), &json!({"splay": value})), Err(expected), "{value}");
        }
        assert_eq!(update(&mut group(), &json!({"splay": 31_622_400})), Ok(()));
    }

    /// The JSON text of the field in this test has at most 65,536 bytes. White space and unnecessary escapes are not
    /// counted, but the brackets and quotes are.
    #[test]
    fn check_length_ignores_white_space_and_escapes() {
        let field = FieldDef::new("a", FieldType::Any, Help::new("", "A.", "1"));
        let check = |json: String| check_field(&field, &RawValue::from_string(json).unwrap()).is_ok();
        assert!(check(format!("[{}1]", " ".repeat(70_000))));
        assert!(check(format!("[\"{}\"]", "\\u0041".repeat(60_000))));
        assert!(!check(format!("[\"{}\"]", "A".repeat(65_533))));
    }

    /// The rollout strategy of a group refuses an empty selector of canaries and an empty day of a window. A tag
    /// refuses an empty unit in `ready`.
    #[test]
    fn x06_rollout_rejects_empty_selector_and_empty_day() {
        let group = || NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        let expected = "is empty: name something, or leave it out";
        for empty in ["", " ", "\u{200b}"] {
            for (strategy, place) in [
                (json!({"canary": {"selector": empty}}), "canary.selector"),
                (json!({"canary": {"selector": ["a=b", empty]}}), "canary.selector[1]"),
                (json!({"canary": empty}), "canary"),
                (json!({"windows": [{"days": ["Mon", empty]}]}), "windows[0].days[1]"),
            ] {
                let result = update(&mut group(), &json!({"strategy": strategy}));
                assert_eq!(result, Err(format!("strategy.{place}: {expected}")), "{strategy}");
            }
        }
        for strategy in [json!({"canary": {"selector": "a=b"}}), json!({"canary": 1, "windows": []}), json!(null)] {
            assert_eq!(update(&mut group(), &json!({"strategy": strategy})), Ok(()));
        }
        let ready = json!({"tags": {"web": {"ready": [{"unit": ""}]}}});
        assert_eq!(update(&mut ClusterSpec::default(), &ready), Err(format!("tags.web.ready[0].unit: {expected}")));
    }

    /// A list of names refuses a blank entry, and a map refuses a blank key. A text in one of Ironic's maps may be
    /// empty.
    #[test]
    fn x06_lists_and_maps_reject_empty_entry() {
        let group = || NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        let expected = "is empty: name something, or leave it out";
        for empty in ["", " ", "\t"] {
            for (body, place) in [
                (json!({"host_labels": {"patterns": ["a", empty]}}), "host_labels.patterns[1]"),
                (json!({"host_labels": {"accept": [empty]}}), "host_labels.accept[0]"),
                (json!({"host_labels": {"annotations": [empty]}}), "host_labels.annotations[0]"),
                (json!({"roles": [empty]}), "roles[0]"),
            ] {
                assert_eq!(update(&mut group(), &body), Err(format!("{place}: {expected}")), "{body}");
            }
            let primaries = update(&mut ClusterSpec::default(), &json!({"primaries": {"mysql": empty}}));
            let expected = "primaries.mysql: is empty: name a node, or leave the tag out".to_owned();
            assert_eq!(primaries, Err(expected));
        }
        // The values in Ironic's maps are stored unchanged.
        let ironic_maps = json!({"extra": {"a": {"b": ""}}, "properties": {"a": ""}, "instance_info": {"b": [""]}});
        assert_eq!(update(&mut NodeSpec::default(), &ironic_maps), Ok(()));
        let expected = "has an entry whose key is empty: give it a name, or remove it";
        for map in ["extra", "driver_info", "properties", "instance_info"] {
            assert_eq!(update(&mut NodeSpec::default(), &json!({map: {"": 1}})), Err(format!("{map}: {expected}")));
        }
        let owner_result = update(&mut AllocationSpec::default(), &json!({"owner": " "}));
        let expected = "owner: contains only blanks: write something, or leave it out";
        assert_eq!(owner_result, Err(expected.to_owned()));
    }

    #[test]
    fn x06_passthrough_name_rejects_empty_text() {
        let check = |name: &str, value: Value, existing: Value| {
            let field = passthrough::NODE.iter().chain(passthrough::GROUP).find(|field| field.name == name).unwrap();
            check_passthrough(field, &raw_value(&value), || existing).map_err(|error| error.to_string())
        };
        let expected = Err("is empty: name something, or leave it out".to_owned());
        for name in ["resource_class", "driver", "owner", "lessee", "instance_name", "shard", "chassis_uuid", "image_id"] {
            for empty in ["", " "] {
                assert_eq!(check(name, json!(empty), Value::Null), expected, "{name}");
            }
            assert_eq!(check(name, json!("a"), Value::Null), Ok(()));
            // A stored empty name is accepted again: an older version accepted it.
            assert_eq!(check(name, json!(""), json!("")), Ok(()), "{name}");
        }
        // `conductor_group` is empty by default. The other fields are texts for people, not names.
        for name in ["conductor_group", "maintenance_reason", "protected_reason", "retired_reason"] {
            assert_eq!(check(name, json!(""), Value::Null), Ok(()), "{name}");
        }
        let list_result = check("node_addresses", json!(["10.0.0.1", ""]), Value::Null);
        assert_eq!(list_result, Err("[1]: is empty: name something, or leave it out".to_owned()));
        let empty = update(&mut NodeSpec::default(), &json!({"instance_uuid": ""}));
        assert_eq!(empty, Err("instance_uuid: a uuid is needed here, not \"\": give one, or null".to_owned()));
        // An entry that an older version accepted can be removed.
        let old_value = json!({"": 1, "a": 2});
        assert_eq!(check("extra", json!({"a": 2}), old_value.clone()), Ok(()));
        assert_eq!(check("extra", old_value.clone(), old_value), Ok(()));
    }
}
