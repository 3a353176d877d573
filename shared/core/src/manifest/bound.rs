//! Limits the size of fields. A body is checked before its fields are parsed, because some fields cost more to parse
//! than their length, and large bodies exploit that. The object is checked after a write, because many small writes can
//! each add one entry.
//!
//! Both checks use the same table: the bound of a field is that of its [`FieldType`].
//!
//! A value of an older version that exceeds its bound may stay or become smaller. It may not grow.

use std::fmt::Display;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::is_null;
use super::empty::{check_key, check_name_characters, check_no_empty_text, check_not_empty, is_empty_text};
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

/// Checks the value that a body provides for a field. `old` returns the stored value.
///
/// # Errors
/// [`BodyError`] with the place within the field.
pub(super) fn check_body_field(field: &FieldDef, sent: &RawValue, old: impl FnOnce() -> Value) -> Result<(), BodyError> {
    accept_if_smaller(|value| check_field(field, value), sent, old)
}

/// Checks the value that a body provides for a passthrough field.
///
/// # Errors
/// [`BodyError`].
pub(super) fn check_passthrough(field: &PassthroughField, sent: &RawValue, old: impl FnOnce() -> Value) -> Result<(), BodyError> {
    accept_if_smaller(|value| check_passthrough_type(field.kind, value), sent, old)
}

/// Checks the value of a passthrough field: its size, and that names, texts and keys are not empty.
fn check_passthrough_type(form: PassthroughType, value: &RawValue) -> Result<(), BodyError> {
    check_length(form.bound(), value)?;
    match form {
        PassthroughType::NameOrNone(_) if value.get() == EMPTY_TEXT => Ok(()),
        PassthroughType::Name(_) | PassthroughType::NameOrNone(_) => check_name_text(value),
        PassthroughType::Object => check_collection(FieldType::Map, form.bound(), value),
        PassthroughType::List => check_each(items(value), check_not_empty),
        PassthroughType::Text(_) => check_not_blank(value),
        PassthroughType::Uuid | PassthroughType::Number | PassthroughType::Flag | PassthroughType::Any => Ok(()),
    }
}

/// Checks the value that a body provides for a field that is owned key by key.
///
/// # Errors
/// [`BodyError`] with the field.
pub(super) fn check_keyed_field(name: &str, sent: &RawValue, old: impl FnOnce() -> Value) -> Result<(), BodyError> {
    let field = LEVEL_FIELDS.iter().chain(NODE_FIELDS).find(|part| part.name == name);
    field.map_or(Ok(()), |part| check_body_field(part, sent, old)).map_err(|error| error.prefixed(name))
}

/// Checks all fields of an object after a write.
///
/// # Errors
/// [`BodyError`] for the first field that holds more than it may, and more than before.
pub fn check_bounds<S: SpecFields>(before: Option<&S>, after: &S, names: &dyn NameResolver) -> Result<(), BodyError> {
    for field in S::FIELDS {
        let def = FieldDef::new(field.name, field.kind, field.help);
        let get = |spec: &S| (field.show)(spec, names);
        let checked = check_remaining(&get(after), |value| check_body_field(&def, value, || before.map_or(Value::Null, get)));
        checked.map_err(|error| error.prefixed(field.name))?;
    }
    for field in S::PASSTHROUGH_FIELDS {
        let get = |spec: &S| spec.extra().get(field.name).cloned().unwrap_or(Value::Null);
        let checked = check_remaining(&get(after), |value| check_passthrough(field, value, || before.map_or(Value::Null, get)));
        checked.map_err(|error| error.prefixed(field.name))?;
    }
    for field in S::KEYED_FIELDS.iter().copied().flatten() {
        let get = |spec: &S| keyed_field_json(spec, field.name);
        check_remaining(&get(after), |value| check_keyed_field(field.name, value, || before.map_or(Value::Null, get)))?;
    }
    Ok(())
}

/// Checks the tags that are declared in addition to those of a release. They are added one by one, so no body is
/// checked for their number.
///
/// # Errors
/// As [`check_bounds`].
pub fn check_release_tags_bounds(before: Option<&ReleaseTagsSpec>, after: &ReleaseTagsSpec) -> Result<(), BodyError> {
    const TAG_MAP: &FieldType = &FieldType::MapOf(TagSpec::FIELD_DEFS);
    const TAGS_FIELD: FieldDef = FieldDef::new("tags", FieldType::up_to(MAX_TAGS, TAG_MAP), Help::new("{}", "The tags.", "{}"));
    let get = |ReleaseTagsSpec { tags }: &ReleaseTagsSpec| serde_json::to_value(tags).expect("tags are JSON");
    let checked = check_body_field(&TAGS_FIELD, &raw_value(&get(after)), || before.map_or(Value::Null, get));
    checked.map_err(|error| error.prefixed(TAGS_FIELD.name))
}

/// Returns the JSON that a body would contain for a field that is owned key by key.
pub(super) fn keyed_field_json<S: SpecFields>(spec: &S, name: &str) -> Value {
    match (name, spec.inherited(), spec.node()) {
        ("labels", Some(level), _) => layer_json(&level.labels),
        ("annotations", Some(level), _) => layer_json(&level.annotations),
        ("parameters", Some(level), _) => layer_json(&level.parameters),
        ("traits", _, Some(node)) => set_json(&node.traits),
        ("tags", _, Some(node)) => {
            let NodeTags { assigned, unassigned, decided: _ } = &node.tags;
            json!({"assigned": set_json(assigned), "unassigned": set_json(unassigned)})
        }
        // `merge_labels` is a flag, and no spec contains `reports`.
        _ => Value::Null,
    }
}

/// Checks the value that a write leaves in a field, if there is one.
fn check_remaining(left: &Value, check: impl FnOnce(&RawValue) -> Result<(), BodyError>) -> Result<(), BodyError> {
    if left.is_null() { Ok(()) } else { check(&raw_value(left)) }
}

/// Accepts a value that exceeds a bound if the stored value exceeds it too and the new value is not larger.
fn accept_if_smaller(
    check: impl Fn(&RawValue) -> Result<(), BodyError>,
    sent: &RawValue,
    old: impl FnOnce() -> Value,
) -> Result<(), BodyError> {
    let Err(refused) = check(sent) else { return Ok(()) };
    let old = raw_value(&old());
    let is_larger = compact_bytes(sent.get()) > compact_bytes(old.get());
    if is_larger || check(&old).is_ok() { Err(refused) } else { Ok(()) }
}

/// Checks a value that is not `null` against the bound of its field, and that a required text is not empty.
fn check_field(field: &FieldDef, value: &RawValue) -> Result<(), BodyError> {
    if is_null(value) {
        return Ok(());
    }
    let (form, bound) = (field.field_type.plain(), field.field_type.bound());
    let is_shown = form == FieldType::Text && !bound.allows_empty;
    if is_shown && field.is_required() && is_empty_text(value) {
        return Err(BodyError::with_kind(BodyErrorKind::MissingField, "", "is empty, and is needed"));
    }
    check_length(bound, value)?;
    check_seconds(form, value)?;
    if is_shown {
        check_not_blank(value)?;
    }
    let entries = item_count(value);
    if entries > bound.max_entries {
        let most = bound.max_entries;
        return Err(BodyError::new("", format!("it has {entries} entries, and the most are {most}: leave some out")));
    }
    check_collection(form, bound, value)
}

/// Checks a duration in seconds.
fn check_seconds(form: FieldType, value: &RawValue) -> Result<(), BodyError> {
    let FieldType::Seconds(least, most) = form else { return Ok(()) };
    let seconds: Option<u64> = serde_json::from_str(value.get()).ok();
    if seconds.is_some_and(|seconds| (least..=most).contains(&seconds)) {
        return Ok(());
    }
    Err(BodyError::new("", format!("takes {least} to {most} whole seconds, not {}", truncated(value.get()))))
}

/// Checks the length of a text, or of any other value as JSON.
fn check_length(bound: FieldBound, value: &RawValue) -> Result<(), BodyError> {
    let json = value.get();
    if json.len() <= bound.max_bytes {
        return Ok(());
    }
    let bytes = if json.starts_with('"') { parse_string(json).map_or(0, |text| text.len()) } else { compact_bytes(json) };
    if bytes <= bound.max_bytes {
        return Ok(());
    }
    Err(BodyError::new("", format!("it has {bytes} bytes, and the most are {}: make it shorter", bound.max_bytes)))
}

/// Checks the entries of a list or map. A value of another type is left to the reader of the field.
fn check_collection(form: FieldType, bound: FieldBound, value: &RawValue) -> Result<(), BodyError> {
    match form {
        FieldType::TextOrList if value.get().starts_with('"') => check_text(bound, value),
        FieldType::Names | FieldType::TextOrList => check_text_list(bound, value),
        FieldType::Map | FieldType::MapOrList => {
            check_keys(bound, value)?;
            check_nested_keys(value)?;
            if bound.allows_empty { Ok(()) } else { check_numbers(value) }
        }
        FieldType::Object(parts) => check_members(parts, value),
        FieldType::MapOf(parts) => {
            check_keys(bound, value)?;
            let entries = members(value).unwrap_or_default();
            entries.iter().try_for_each(|(key, one)| check_members(parts, one).map_err(|error| error.prefixed(key)))
        }
        FieldType::ListOf(parts) => check_each(items(value), |one| check_members(parts, one)),
        FieldType::Objects => check_no_empty_text(value),
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

/// Checks the members of an object that has its own fields.
fn check_members(fields: &[FieldDef], value: &RawValue) -> Result<(), BodyError> {
    members(value).unwrap_or_default().iter().try_for_each(|(name, member)| {
        // Fuel writes `cross-depends`.
        let stored = name.replace('-', "_");
        let field = fields.iter().find(|part| part.has_name(name) || part.has_name(&stored));
        field.map_or(Ok(()), |part| check_field(part, member)).map_err(|error| error.prefixed(name))
    })
}

fn check_text_list(bound: FieldBound, list: &RawValue) -> Result<(), BodyError> {
    check_each(items(list), |one| if one.get().starts_with('"') { check_text(bound, one) } else { Ok(()) })
}

/// Checks one text of a list of texts.
fn check_text(bound: FieldBound, item: &RawValue) -> Result<(), BodyError> {
    if !bound.allows_empty {
        check_not_empty(item)?;
    }
    check_length(bound.max_bytes(bound.max_entry_bytes), item)
}

/// Checks a text that names something. A value of another type is left to the reader of the field.
fn check_name_text(value: &RawValue) -> Result<(), BodyError> {
    if !value.get().starts_with('"') {
        return Ok(());
    }
    parse_string(value.get()).map_or(Ok(()), |text| check_name_characters(&text))
}

/// Refuses a whole number that hosts would receive as another number, because they read numbers as doubles.
fn check_numbers(value: &RawValue) -> Result<(), BodyError> {
    let Ok(read) = json::parse_value(value) else { return Ok(()) };
    match json::find_inexact(&read) {
        Some((place, why)) => Err(BodyError::new(place.trim_start_matches('.'), why.to_string())),
        None => Ok(()),
    }
}

/// Refuses a text of blanks, which looks empty to a person. An empty text is accepted, and clears the field.
fn check_not_blank(value: &RawValue) -> Result<(), BodyError> {
    if is_empty_text(value) && value.get() != EMPTY_TEXT {
        return Err(BodyError::new("", "has nothing but blanks in it: write something, or leave it out"));
    }
    Ok(())
}

/// Checks the keys of all maps in free JSON, at any depth. An empty key comes from a variable that is not set.
fn check_inner_keys(value: &RawValue) -> Result<(), BodyError> {
    if value.get().starts_with('{') {
        members(value).unwrap_or_default().iter().try_for_each(|(key, _)| check_key(key))?;
    }
    check_nested_keys(value)
}

/// Checks the keys of the maps within a map or list.
fn check_nested_keys(value: &RawValue) -> Result<(), BodyError> {
    match value.get().as_bytes().first() {
        Some(b'{') => {
            let members = members(value).unwrap_or_default();
            members.iter().try_for_each(|(key, one)| check_inner_keys(one).map_err(|error| error.prefixed(key)))
        }
        Some(b'[') => check_each(items(value), check_inner_keys),
        _ => Ok(()),
    }
}

/// Checks the keys of a map: their lengths, and that they are not empty unless this is allowed.
fn check_keys(bound: FieldBound, map: &RawValue) -> Result<(), BodyError> {
    members(map).unwrap_or_default().iter().try_for_each(|(key, _)| {
        if !bound.allows_empty {
            check_key(key)?;
        }
        if key.len() <= bound.max_entry_bytes {
            return Ok(());
        }
        let (bytes, most) = (key.len(), bound.max_entry_bytes);
        Err(BodyError::new("", format!("has a key of {bytes} bytes, and the most are {most}: make it shorter")))
    })
}

fn raw_value(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// Returns the JSON that a body would contain for a map that a level provides.
pub(super) fn layer_json<K: Ord + Display, V: Serialize>(layer: &Layer<K, V>) -> Value {
    let Some(map) = &layer.provided else { return Value::Null };
    let shown = |value: &V| serde_json::to_value(value).expect("what a level provides is JSON");
    let entries = map.iter().map(|(key, entry)| (key.to_string(), entry.value.value().map_or(Value::Null, shown)));
    Value::Object(entries.collect::<Map<String, Value>>())
}

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

    fn update<S: SpecFields>(spec: &mut S, body: &Value) -> Result<(), String> {
        let author = WriteMode::Update { manager: &Manager::new("test").unwrap(), shape: BodyShape::Native };
        let body = JsonBody::parse(&body.to_string()).unwrap();
        match write_body(spec, &body, author, &AnyNameResolver::default(), 0) {
            Ok(()) => Ok(()),
            Err(WriteError::Body(error)) => Err(error.to_string()),
            Err(WriteError::Conflicts(conflicts)) => panic!("{conflicts:?}"),
        }
    }

    /// Empty keys below the first level and blank texts were accepted.
    #[test]
    fn x06_update_rejects_empty_key_on_any_level_and_blank_text() {
        let says = |body: &Value| update(&mut NodeSpec::default(), body);
        for field in ["extra", "properties", "instance_info", "driver_info", "parameters"] {
            for inner in [json!({"": 1}), json!([{"": 1}]), json!({"b": {" ": 1}}), json!({"\u{200b}": 1})] {
                let refused = says(&json!({field: {"a": inner}})).unwrap_err();
                let is_placed = refused.starts_with(&format!("{field}.a"));
                assert!(is_placed && refused.contains("has an entry whose key is empty"), "{inner}: {refused}");
            }
        }
        for body in [
            json!({"description": " "}),
            json!({"description": "\u{200b}"}),
            json!({"hold": {"reason": "\t"}}),
            json!({"protected_reason": "  "}),
        ] {
            let refused = says(&body).unwrap_err();
            assert!(refused.contains("has nothing but blanks in it"), "{body}: {refused}");
        }
        for body in [json!({"description": ""}), json!({"extra": {"a": {"b": ""}, "c": [1, "", {}]}})] {
            assert_eq!(says(&body), Ok(()), "{body}");
        }
    }

    #[test]
    fn y04_update_rejects_control_character_in_names_and_keys() {
        let says = |body: &Value| update(&mut NodeSpec::default(), body);
        for odd in ["a\nb", "a\0", "a\u{7f}", "a\u{85}b", "a\u{2028}"] {
            for name in ["resource_class", "owner", "lessee", "shard", "driver", "instance_name", "conductor_group"] {
                let refused = says(&json!({name: odd})).unwrap_err();
                assert!(refused.starts_with(&format!("{name}: ")) && refused.contains("control character"), "{refused}");
            }
            for field in ["extra", "properties", "instance_info", "driver_info"] {
                for value in [json!({odd: 1}), json!({"a": {odd: 1}}), json!({"a": [{odd: 1}]})] {
                    let refused = says(&json!({field: value})).unwrap_err();
                    assert!(refused.starts_with(field) && refused.contains("control character"), "{refused}");
                }
            }
            let allocation = update(&mut AllocationSpec::default(), &json!({"resource_class": odd}));
            assert!(allocation.is_err_and(|refused| refused.contains("control character")), "{odd:?}");
        }
        assert_eq!(says(&json!({"extra": {"a": "b\n"}, "maintenance_reason": "a\nb", "conductor_group": ""})), Ok(()));
        let long = says(&json!({"extra": {"k".repeat(513): 1}})).unwrap_err();
        assert!(long.starts_with("extra: has a key of 513 bytes"), "{long}");
    }

    /// From 2^53 + 1 on, doubles cannot hold every whole number (IEEE 754).
    #[test]
    fn y04_free_json_limits_whole_numbers_alike_in_all_fields() {
        for field in ["parameters", "properties", "extra", "instance_info"] {
            let says = |number: &str| {
                let body = JsonBody::parse(&format!(r#"{{"{field}": {{"a": [{number}]}}}}"#)).unwrap();
                let author = WriteMode::Update { manager: &Manager::new("test").unwrap(), shape: BodyShape::Native };
                write_body(&mut NodeSpec::default(), &body, author, &AnyNameResolver::default(), 0).map_err(|why| why.to_string())
            };
            for number in ["9007199254740992", "-9007199254740992", "1.10", "1e2", "0", "-0", "0e9", "5e-324"] {
                assert_eq!(says(number), Ok(()), "{field} {number}");
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
                let refused = says(number).unwrap_err();
                let is_placed = refused.starts_with(field) && refused.contains("number out of range");
                assert!(is_placed, "{field} {number}: {refused}");
            }
        }
    }

    #[test]
    fn y04_bounds_accept_oversized_value_when_unchanged_but_not_larger() {
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
        let says = "splay: takes 0 to 31622400 whole seconds, not 31622401".to_owned();
        assert_eq!(update(&mut NodeGroupSpec::new(group.cluster), &json!({"splay": 31_622_401})), Err(says));
    }

    #[test]
    fn x03_check_bounds_limits_final_value() {
        let says = |before: Option<usize>, after: usize| {
            let before = before.map(cluster_with_tags);
            check_bounds(before.as_ref(), &cluster_with_tags(after), &AnyNameResolver::default())
                .map_err(|error| error.to_string())
        };
        let refused = |count: usize| Err(format!("tags: it has {count} entries, and the most are 256: leave some out"));
        for (before, after, expected) in [
            (None, 256, Ok(())),
            (None, 257, refused(257)),
            (Some(256), 257, refused(257)),
            // As an older version accepted it.
            (Some(300), 299, Ok(())),
            (Some(300), 300, Ok(())),
            (Some(300), 301, refused(301)),
        ] {
            assert_eq!(says(before, after), expected, "{before:?} {after}");
        }
    }

    #[test]
    fn x03_release_tags_have_same_maximum_as_release() {
        let beside = |count: usize| ReleaseTagsSpec { tags: tag_specs(count) };
        assert_eq!(check_release_tags_bounds(None, &beside(4096)), Ok(()));
        let refused = check_release_tags_bounds(Some(&beside(4096)), &beside(4097)).unwrap_err();
        assert_eq!(refused.to_string(), "tags: it has 4097 entries, and the most are 4096: leave some out");
    }

    #[test]
    fn x03_bounds_accept_oversized_value_when_not_larger() {
        let body = |count: usize| {
            let tags: Map<String, Value> = (0..count).map(|n| (format!("t{n}"), json!({}))).collect();
            json!({"tags": tags})
        };
        for (count, is_taken) in [(300, true), (280, true), (301, false)] {
            let mut spec = cluster_with_tags(300);
            assert_eq!(update(&mut spec, &body(count)).is_ok(), is_taken, "{count}");
            assert_eq!(spec.tags.len(), if is_taken { count } else { 300 });
        }
    }

    #[test]
    fn x03_bounds_limit_maps_owned_by_entry() {
        let names: Vec<String> = (0..257).map(|n| format!("t{n}")).collect();
        for (body, field) in [
            (json!({"tags": {"assigned": names}}), "tags.assigned"),
            (json!({"tags": {"unassigned": names}}), "tags.unassigned"),
            (json!({"traits": names}), "traits"),
        ] {
            let says = format!("{field}: it has 257 entries, and the most are 256: leave some out");
            assert_eq!(update(&mut NodeSpec::default(), &body), Err(says));
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
        for kept in tables.into_iter().flatten() {
            let most = kept.kind.bound().max_bytes;
            assert!(most <= 64 * 1024, "{}", kept.name);
            let of = |bytes: usize| check_passthrough(kept, &raw_value(&json!({"a": "x".repeat(bytes - 8)})), || Value::Null);
            assert_eq!(of(most), Ok(()), "{}", kept.name);
            let says = format!("it has {} bytes, and the most are {most}: make it shorter", most + 1);
            assert_eq!(of(most + 1).map_err(|error| error.to_string()), Err(says), "{}", kept.name);
        }
        let says = "extra: it has 65537 bytes, and the most are 65536: make it shorter".to_owned();
        assert_eq!(update(&mut NodeSpec::default(), &json!({"extra": {"a": "x".repeat(65_529)}})), Err(says));
    }

    #[test]
    fn x03_f08_allocation_rejects_more_traits_than_a_node_can_have() {
        let body = |count: usize| json!({"traits": (0..count).map(|n| format!("CUSTOM_{n}")).collect::<Vec<_>>()});
        assert_eq!(update(&mut AllocationSpec::default(), &body(50)), Ok(()));
        let says = "traits: it has 200000 entries, and the most are 50: leave some out".to_owned();
        assert_eq!(update(&mut AllocationSpec::default(), &body(200_000)), Err(says));
    }

    #[test]
    fn y04_seconds_are_rejected_with_one_message() {
        let group = || NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        for value in [json!(-1), json!(1.0), json!(31_622_401), json!(true), json!("1"), json!(" 1"), json!([1]), json!({})] {
            let says = format!("splay: takes 0 to 31622400 whole seconds, not {value}");
            assert_eq!(update(&mut group(), &json!({"splay": value})), Err(says), "{value}");
        }
        assert_eq!(update(&mut group(), &json!({"splay": 31_622_400})), Ok(()));
    }

    #[test]
    fn check_length_ignores_white_space_and_escapes() {
        let part = FieldDef::new("a", FieldType::Any, Help::new("", "A.", "1"));
        let check = |json: String| check_field(&part, &RawValue::from_string(json).unwrap()).is_ok();
        assert!(check(format!("[{}1]", " ".repeat(70_000))));
        assert!(check(format!("[\"{}\"]", "\\u0041".repeat(60_000))));
        assert!(!check(format!("[\"{}\"]", "A".repeat(65_533))));
    }

    #[test]
    fn x06_rollout_rejects_empty_selector_and_empty_day() {
        let group = || NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        let says = "is empty: name something, or leave it out";
        for empty in ["", " ", "\u{200b}"] {
            for (strategy, place) in [
                (json!({"canary": {"selector": empty}}), "canary.selector"),
                (json!({"canary": {"selector": ["a=b", empty]}}), "canary.selector[1]"),
                (json!({"canary": empty}), "canary"),
                (json!({"windows": [{"days": ["Mon", empty]}]}), "windows[0].days[1]"),
            ] {
                let refused = update(&mut group(), &json!({"strategy": strategy}));
                assert_eq!(refused, Err(format!("strategy.{place}: {says}")), "{strategy}");
            }
        }
        for strategy in [json!({"canary": {"selector": "a=b"}}), json!({"canary": 1, "windows": []}), json!(null)] {
            assert_eq!(update(&mut group(), &json!({"strategy": strategy})), Ok(()));
        }
        let ready = json!({"tags": {"web": {"ready": [{"unit": ""}]}}});
        assert_eq!(update(&mut ClusterSpec::default(), &ready), Err(format!("tags.web.ready[0].unit: {says}")));
    }

    #[test]
    fn x06_lists_reject_empty_entry() {
        let group = || NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        let says = "is empty: name something, or leave it out";
        for empty in ["", " ", "\t"] {
            for (body, place) in [
                (json!({"host_labels": {"patterns": ["a", empty]}}), "host_labels.patterns[1]"),
                (json!({"host_labels": {"accept": [empty]}}), "host_labels.accept[0]"),
                (json!({"host_labels": {"annotations": [empty]}}), "host_labels.annotations[0]"),
                (json!({"roles": [empty]}), "roles[0]"),
            ] {
                assert_eq!(update(&mut group(), &body), Err(format!("{place}: {says}")), "{body}");
            }
            let primaries = update(&mut ClusterSpec::default(), &json!({"primaries": {"mysql": empty}}));
            let says = "primaries.mysql: is empty: name a node, or leave the tag out".to_owned();
            assert_eq!(primaries, Err(says));
        }
        // The values in Ironic's maps are stored unchanged.
        let of_ironic = json!({"extra": {"a": {"b": ""}}, "properties": {"a": ""}, "instance_info": {"b": [""]}});
        assert_eq!(update(&mut NodeSpec::default(), &of_ironic), Ok(()));
        let says = "has an entry whose key is empty: give it a name, or remove it";
        for map in ["extra", "driver_info", "properties", "instance_info"] {
            assert_eq!(update(&mut NodeSpec::default(), &json!({map: {"": 1}})), Err(format!("{map}: {says}")));
        }
        let owned = update(&mut AllocationSpec::default(), &json!({"owner": " "}));
        let says = "owner: has nothing but blanks in it: write something, or leave it out";
        assert_eq!(owned, Err(says.to_owned()));
    }

    #[test]
    fn x06_passthrough_name_rejects_empty_text() {
        let check = |name: &str, value: Value, existing: Value| {
            let kept = passthrough::NODE.iter().chain(passthrough::GROUP).find(|kept| kept.name == name).unwrap();
            check_passthrough(kept, &raw_value(&value), || existing).map_err(|error| error.to_string())
        };
        let says = Err("is empty: name something, or leave it out".to_owned());
        for name in ["resource_class", "driver", "owner", "lessee", "instance_name", "shard", "chassis_uuid", "image_id"] {
            for empty in ["", " "] {
                assert_eq!(check(name, json!(empty), Value::Null), says, "{name}");
            }
            assert_eq!(check(name, json!("a"), Value::Null), Ok(()));
            // As an older version accepted it.
            assert_eq!(check(name, json!(""), json!("")), Ok(()), "{name}");
        }
        // The first is empty by default, and the others are texts for people.
        for name in ["conductor_group", "maintenance_reason", "protected_reason", "retired_reason"] {
            assert_eq!(check(name, json!(""), Value::Null), Ok(()), "{name}");
        }
        let of_list = check("node_addresses", json!(["10.0.0.1", ""]), Value::Null);
        assert_eq!(of_list, Err("[1]: is empty: name something, or leave it out".to_owned()));
        let empty = update(&mut NodeSpec::default(), &json!({"instance_uuid": ""}));
        assert_eq!(empty, Err("instance_uuid: a uuid is needed here, not \"\": give one, or null".to_owned()));
        // An entry that an older version accepted can be removed.
        let before = json!({"": 1, "a": 2});
        assert_eq!(check("extra", json!({"a": 2}), before.clone()), Ok(()));
        assert_eq!(check("extra", before.clone(), before), Ok(()));
    }
}
