//! What a field may hold at most: asked of a body before it is read, and of what a write makes of the object.
//!
//! Before it is read, because reading it is what a large body is sent for: some fields cost more than their length. Of what a write
//! makes, because many writes add one entry each, and no body of theirs is large. Both are asked here, of the same table: the
//! bound of a field is that of its [`Form`].
//!
//! What stands beyond its bound already, of an older program, stays as it is and may become smaller. It may not grow.

use std::fmt::Display;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::body::is_null;
use super::empty::{check_key, check_naming, check_not_empty, check_says_something, is_empty};
use super::error::{BodyError, BodyErrorKind, check_each};
use super::extra::{Kept, KeptForm};
use super::fields::Fields;
use super::names::Names;
use super::parts::{LEVELED, OF_NODE};
use crate::field::{Bound, Described, Form, Help, Part};
use crate::json::{self, compact_len, count, items, members, text};
use crate::labels::Layer;
use crate::name::cut;
use crate::object::{MAX_TAGS, NodeTags, ReleaseTagsSpec, TagSpec};
use crate::ownership::OwnedSet;

/// The empty text, as JSON.
const EMPTY: &str = r#""""#;

/// Checks what a body gives a field; `stood` is what the field holds.
///
/// # Errors
/// [`BodyError`] with the place within the field.
pub(super) fn check_sent(part: &Part, sent: &RawValue, stood: impl FnOnce() -> Value) -> Result<(), BodyError> {
    or_smaller(|value| check_part(part, value), sent, stood)
}

/// The same of a field that is kept without a meaning.
///
/// # Errors
/// [`BodyError`].
pub(super) fn check_kept(kept: &Kept, sent: &RawValue, stood: impl FnOnce() -> Value) -> Result<(), BodyError> {
    or_smaller(|value| check_kept_form(kept.form, value), sent, stood)
}

fn check_kept_form(form: KeptForm, value: &RawValue) -> Result<(), BodyError> {
    check_length(form.bound(), value)?;
    match form {
        KeptForm::NameOrNone(_) if value.get() == EMPTY => Ok(()),
        KeptForm::Name(_) | KeptForm::NameOrNone(_) => check_named(value),
        KeptForm::Object => check_entries(Form::Map, form.bound(), value),
        KeptForm::List => check_each(items(value), check_not_empty),
        KeptForm::Text(_) => check_shown(value),
        KeptForm::Uuid | KeptForm::Number | KeptForm::Flag | KeptForm::Any => Ok(()),
    }
}

/// The same of what is owned key by key, by its name.
///
/// # Errors
/// [`BodyError`], with the field.
pub(super) fn check_keyed(name: &str, sent: &RawValue, stood: impl FnOnce() -> Value) -> Result<(), BodyError> {
    let part = LEVELED.iter().chain(OF_NODE).find(|part| part.name == name);
    part.map_or(Ok(()), |part| check_sent(part, sent, stood)).map_err(|error| error.within(name))
}

/// Checks all fields of an object as a write leaves it.
///
/// # Errors
/// [`BodyError`] of the first field that holds more than it may, and more than before.
pub fn check_bounds<S: Fields>(before: Option<&S>, after: &S, names: &dyn Names) -> Result<(), BodyError> {
    for field in S::FIELDS {
        let part = Part::new(field.name, field.form, field.help);
        let of = |spec: &S| (field.show)(spec, names);
        let checked = check_left(&of(after), |value| check_sent(&part, value, || before.map_or(Value::Null, of)));
        checked.map_err(|error| error.within(field.name))?;
    }
    for kept in S::EXTRA {
        let of = |spec: &S| spec.extra_ref().get(kept.name).cloned().unwrap_or(Value::Null);
        let checked = check_left(&of(after), |value| check_kept(kept, value, || before.map_or(Value::Null, of)));
        checked.map_err(|error| error.within(kept.name))?;
    }
    for part in S::KEYED.iter().copied().flatten() {
        let of = |spec: &S| keyed(spec, part.name);
        check_left(&of(after), |value| check_keyed(part.name, value, || before.map_or(Value::Null, of)))?;
    }
    Ok(())
}

/// The same of tags beside a release, which no body names all at once.
///
/// # Errors
/// As [`check_bounds`].
pub fn check_tags_beside(before: Option<&ReleaseTagsSpec>, after: &ReleaseTagsSpec) -> Result<(), BodyError> {
    const TAGS: &Form = &Form::MapOf(TagSpec::PARTS);
    const PART: Part = Part::new("tags", Form::up_to(MAX_TAGS, TAGS), Help::new("{}", "The tags.", "{}"));
    let of = |ReleaseTagsSpec { tags }: &ReleaseTagsSpec| serde_json::to_value(tags).expect("tags are JSON");
    let checked = check_sent(&PART, &raw(&of(after)), || before.map_or(Value::Null, of));
    checked.map_err(|error| error.within(PART.name))
}

/// What an object holds that is owned key by key, as a body would say it.
pub(super) fn keyed<S: Fields>(spec: &S, name: &str) -> Value {
    match (name, spec.inherited_ref(), spec.node_ref()) {
        ("labels", Some(level), _) => provided(&level.labels),
        ("annotations", Some(level), _) => provided(&level.annotations),
        ("parameters", Some(level), _) => provided(&level.parameters),
        ("traits", _, Some(node)) => members_of(&node.traits),
        ("tags", _, Some(node)) => {
            let NodeTags { assigned, unassigned, decided: _ } = &node.tags;
            json!({"assigned": members_of(assigned), "unassigned": members_of(unassigned)})
        }
        // `merge_labels` is a flag, and no spec holds `reports`.
        _ => Value::Null,
    }
}

/// Checks what a write leaves of a field, where it leaves anything.
fn check_left(left: &Value, check: impl FnOnce(&RawValue) -> Result<(), BodyError>) -> Result<(), BodyError> {
    if left.is_null() { Ok(()) } else { check(&raw(left)) }
}

/// Takes what is refused where it is no larger than what stood there and would be refused too.
fn or_smaller(
    check: impl Fn(&RawValue) -> Result<(), BodyError>,
    sent: &RawValue,
    stood: impl FnOnce() -> Value,
) -> Result<(), BodyError> {
    let Err(refused) = check(sent) else { return Ok(()) };
    let stood = raw(&stood());
    let is_larger = compact_len(sent.get()) > compact_len(stood.get());
    if is_larger || check(&stood).is_ok() { Err(refused) } else { Ok(()) }
}

fn check_part(part: &Part, value: &RawValue) -> Result<(), BodyError> {
    if is_null(value) {
        return Ok(());
    }
    let (form, bound) = (part.form.plain(), part.form.bound());
    let is_shown = form == Form::Text && !bound.takes_empty;
    if is_shown && part.is_required() && is_empty(value) {
        return Err(BodyError::of(BodyErrorKind::MissingField, "", "is empty, and is needed"));
    }
    check_length(bound, value)?;
    check_seconds(form, value)?;
    if is_shown {
        check_shown(value)?;
    }
    let entries = count(value);
    if entries > bound.entries {
        let most = bound.entries;
        return Err(BodyError::new("", format!("it has {entries} entries, and the most are {most}: leave some out")));
    }
    check_entries(form, bound, value)
}

/// Checks a length of time.
fn check_seconds(form: Form, value: &RawValue) -> Result<(), BodyError> {
    let Form::Seconds(least, most) = form else { return Ok(()) };
    let seconds: Option<u64> = serde_json::from_str(value.get()).ok();
    if seconds.is_some_and(|seconds| (least..=most).contains(&seconds)) {
        return Ok(());
    }
    Err(BodyError::new("", format!("takes {least} to {most} whole seconds, not {}", cut(value.get()))))
}

/// Checks a text, or anything else as JSON.
fn check_length(bound: Bound, value: &RawValue) -> Result<(), BodyError> {
    let json = value.get();
    if json.len() <= bound.bytes {
        return Ok(());
    }
    let bytes = if json.starts_with('"') { text(json).map_or(0, |text| text.len()) } else { compact_len(json) };
    if bytes <= bound.bytes {
        return Ok(());
    }
    Err(BodyError::new("", format!("it has {bytes} bytes, and the most are {}: make it shorter", bound.bytes)))
}

/// Checks what stands in a list or a map. What is of another form is left to who reads it.
fn check_entries(form: Form, bound: Bound, value: &RawValue) -> Result<(), BodyError> {
    match form {
        Form::TextOrList if value.get().starts_with('"') => check_text(bound, value),
        Form::Names | Form::TextOrList => check_texts(bound, value),
        Form::Map | Form::MapOrList => {
            check_keys(bound, value)?;
            check_below(value)?;
            if bound.takes_empty { Ok(()) } else { check_numbers(value) }
        }
        Form::Object(parts) => check_members(parts, value),
        Form::MapOf(parts) => {
            check_keys(bound, value)?;
            let entries = members(value).unwrap_or_default();
            entries.iter().try_for_each(|(key, one)| check_members(parts, one).map_err(|error| error.within(key)))
        }
        Form::ListOf(parts) => check_each(items(value), |one| check_members(parts, one)),
        Form::Objects => check_says_something(value),
        Form::Text
        | Form::Time
        | Form::Seconds(..)
        | Form::Flag
        | Form::Count
        | Form::Number
        | Form::Parameters
        | Form::Share
        | Form::OneOf(_)
        | Form::Any
        | Form::UpTo(..) => Ok(()),
    }
}

/// Checks the members of an object that has fields of its own.
fn check_members(parts: &[Part], value: &RawValue) -> Result<(), BodyError> {
    members(value).unwrap_or_default().iter().try_for_each(|(name, one)| {
        // Fuel writes `cross-depends`.
        let stored = name.replace('-', "_");
        let part = parts.iter().find(|part| part.is_called(name) || part.is_called(&stored));
        part.map_or(Ok(()), |part| check_part(part, one)).map_err(|error| error.within(name))
    })
}

fn check_texts(bound: Bound, list: &RawValue) -> Result<(), BodyError> {
    check_each(items(list), |one| if one.get().starts_with('"') { check_text(bound, one) } else { Ok(()) })
}

fn check_text(bound: Bound, one: &RawValue) -> Result<(), BodyError> {
    if !bound.takes_empty {
        check_not_empty(one)?;
    }
    check_length(bound.bytes(bound.each), one)
}

/// Checks a text that names something. What is no text is left to who reads it.
fn check_named(value: &RawValue) -> Result<(), BodyError> {
    if !value.get().starts_with('"') {
        return Ok(());
    }
    text(value.get()).map_or(Ok(()), |text| check_naming(&text))
}

/// Refuses a whole number that whoever reads it as a double would take for another one, as in parameters.
fn check_numbers(value: &RawValue) -> Result<(), BodyError> {
    let Ok(read) = json::value(value) else { return Ok(()) };
    match json::inexact(&read) {
        Some((place, why)) => Err(BodyError::new(place.trim_start_matches('.'), why.to_string())),
        None => Ok(()),
    }
}

/// Refuses a text that a person would take for none. An empty one is none, and takes away what stood there.
fn check_shown(value: &RawValue) -> Result<(), BodyError> {
    if is_empty(value) && value.get() != EMPTY {
        return Err(BodyError::new("", "has nothing but blanks in it: write something, or leave it out"));
    }
    Ok(())
}

/// Checks the keys of all maps in free JSON: an empty one comes of a variable that is not set, on whatever level.
fn check_inner_keys(value: &RawValue) -> Result<(), BodyError> {
    if value.get().starts_with('{') {
        members(value).unwrap_or_default().iter().try_for_each(|(key, _)| check_key(key))?;
    }
    check_below(value)
}

/// The same of what stands in a map or list.
fn check_below(value: &RawValue) -> Result<(), BodyError> {
    match value.get().as_bytes().first() {
        Some(b'{') => {
            let members = members(value).unwrap_or_default();
            members.iter().try_for_each(|(key, one)| check_inner_keys(one).map_err(|error| error.within(key)))
        }
        Some(b'[') => check_each(items(value), check_inner_keys),
        _ => Ok(()),
    }
}

fn check_keys(bound: Bound, map: &RawValue) -> Result<(), BodyError> {
    members(map).unwrap_or_default().iter().try_for_each(|(key, _)| {
        if !bound.takes_empty {
            check_key(key)?;
        }
        if key.len() <= bound.each {
            return Ok(());
        }
        let (bytes, most) = (key.len(), bound.each);
        Err(BodyError::new("", format!("has a key of {bytes} bytes, and the most are {most}: make it shorter")))
    })
}

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// What a level provides of one map, as a body would say it.
pub(super) fn provided<K: Ord + Display, V: Serialize>(layer: &Layer<K, V>) -> Value {
    let Some(map) = &layer.provided else { return Value::Null };
    let shown = |value: &V| serde_json::to_value(value).expect("what a level provides is JSON");
    let entries = map.iter().map(|(key, entry)| (key.to_string(), entry.said.value().map_or(Value::Null, shown)));
    Value::Object(entries.collect::<Map<String, Value>>())
}

fn members_of<K: Ord + Display>(set: &OwnedSet<K>) -> Value {
    set.members().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::author::Author;
    use super::super::testing::Anybody;
    use super::super::write::{WriteError, write};
    use super::super::{Body, extra};
    use super::*;
    use crate::labels::BodyShape;
    use crate::name::TagName;
    use crate::object::{AllocationSpec, ClusterSpec, NodeGroupSpec, NodeSpec};
    use crate::ownership::Manager;

    fn tags(count: usize) -> BTreeMap<TagName, TagSpec> {
        (0..count).map(|n| (TagName::new(&format!("t{n}")).unwrap(), TagSpec::default())).collect()
    }

    fn cluster(count: usize) -> ClusterSpec {
        ClusterSpec { tags: tags(count), ..ClusterSpec::default() }
    }

    fn update<S: Fields>(spec: &mut S, body: &Value) -> Result<(), String> {
        let author = Author::Update { manager: &Manager::new("test").unwrap(), shape: BodyShape::Own };
        let body = Body::parse(&body.to_string()).unwrap();
        match write(spec, &body, author, &Anybody::default(), 0) {
            Ok(()) => Ok(()),
            Err(WriteError::Body(error)) => Err(error.to_string()),
            Err(WriteError::Conflicts(conflicts)) => panic!("{conflicts:?}"),
        }
    }

    /// Keys below the first level, and texts that show nothing, were taken.
    #[test]
    fn x06_an_empty_key_on_any_level_and_a_text_of_blanks_are_refused() {
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
    fn y04_a_control_character_is_in_no_name_and_in_no_key() {
        let says = |body: &Value| update(&mut NodeSpec::default(), body);
        for odd in ["a\nb", "a\0", "a\u{7f}", "a\u{85}b", "a\u{2028}"] {
            for name in ["resource_class", "owner", "lessee", "shard", "driver", "instance_name", "conductor_group"] {
                let refused = says(&json!({name: odd})).unwrap_err();
                assert!(
                    refused.starts_with(&format!("{name}: ")) && refused.contains("control character"),
                    "{refused}"
                );
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

    /// As of 2^53 + 1 doubles have no such number (IEEE 754).
    #[test]
    fn y04_whole_numbers_have_the_same_limit_in_all_free_json() {
        for field in ["parameters", "properties", "extra", "instance_info"] {
            let says = |number: &str| {
                let body = Body::parse(&format!(r#"{{"{field}": {{"a": [{number}]}}}}"#)).unwrap();
                let author = Author::Update { manager: &Manager::new("test").unwrap(), shape: BodyShape::Own };
                write(&mut NodeSpec::default(), &body, author, &Anybody::default(), 0).map_err(|why| why.to_string())
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
    fn y04_what_an_older_program_took_is_written_again_and_no_larger() {
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
    fn x03_what_a_write_leaves_is_bounded_however_it_came_to_be() {
        let says = |before: Option<usize>, after: usize| {
            let before = before.map(cluster);
            check_bounds(before.as_ref(), &cluster(after), &Anybody::default()).map_err(|error| error.to_string())
        };
        let refused = |count: usize| Err(format!("tags: it has {count} entries, and the most are 256: leave some out"));
        for (before, after, expected) in [
            (None, 256, Ok(())),
            (None, 257, refused(257)),
            (Some(256), 257, refused(257)),
            // As an older program took it.
            (Some(300), 299, Ok(())),
            (Some(300), 300, Ok(())),
            (Some(300), 301, refused(301)),
        ] {
            assert_eq!(says(before, after), expected, "{before:?} {after}");
        }
    }

    #[test]
    fn x03_tags_beside_a_release_are_as_many_as_its_own_at_most() {
        let beside = |count: usize| ReleaseTagsSpec { tags: tags(count) };
        assert_eq!(check_tags_beside(None, &beside(4096)), Ok(()));
        let refused = check_tags_beside(Some(&beside(4096)), &beside(4097)).unwrap_err();
        assert_eq!(refused.to_string(), "tags: it has 4097 entries, and the most are 4096: leave some out");
    }

    #[test]
    fn x03_what_stands_beyond_its_bound_is_written_again_and_smaller_and_never_larger() {
        let body = |count: usize| {
            let tags: Map<String, Value> = (0..count).map(|n| (format!("t{n}"), json!({}))).collect();
            json!({"tags": tags})
        };
        for (count, is_taken) in [(300, true), (280, true), (301, false)] {
            let mut spec = cluster(300);
            assert_eq!(update(&mut spec, &body(count)).is_ok(), is_taken, "{count}");
            assert_eq!(spec.tags.len(), if is_taken { count } else { 300 });
        }
    }

    #[test]
    fn x03_what_is_owned_entry_by_entry_is_bounded_too() {
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
        assert_eq!(check_bounds(None, &node, &Anybody::default()), Ok(()));
        assert_eq!(keyed(&node, "labels"), json!({"a": "b", "c": null}));
        assert_eq!(keyed(&node, "tags")["assigned"].as_array().map(Vec::len), Some(256));
    }

    #[test]
    fn x03_what_is_kept_without_a_meaning_is_bounded_by_its_form() {
        let tables = [extra::TEMPLATE, extra::CLUSTER, extra::GROUP, extra::ALLOCATION, extra::NODE];
        for kept in tables.into_iter().flatten() {
            let most = kept.form.bound().bytes;
            assert!(most <= 64 * 1024, "{}", kept.name);
            let of = |bytes: usize| check_kept(kept, &raw(&json!({"a": "x".repeat(bytes - 8)})), || Value::Null);
            assert_eq!(of(most), Ok(()), "{}", kept.name);
            let says = format!("it has {} bytes, and the most are {most}: make it shorter", most + 1);
            assert_eq!(of(most + 1).map_err(|error| error.to_string()), Err(says), "{}", kept.name);
        }
        let says = "extra: it has 65537 bytes, and the most are 65536: make it shorter".to_owned();
        assert_eq!(update(&mut NodeSpec::default(), &json!({"extra": {"a": "x".repeat(65_529)}})), Err(says));
    }

    #[test]
    fn x03_f08_an_allocation_asks_for_no_more_traits_than_a_node_has() {
        let body = |count: usize| json!({"traits": (0..count).map(|n| format!("CUSTOM_{n}")).collect::<Vec<_>>()});
        assert_eq!(update(&mut AllocationSpec::default(), &body(50)), Ok(()));
        let says = "traits: it has 200000 entries, and the most are 50: leave some out".to_owned();
        assert_eq!(update(&mut AllocationSpec::default(), &body(200_000)), Err(says));
    }

    #[test]
    fn y04_a_length_of_time_is_refused_in_one_sentence() {
        let group = || NodeGroupSpec::new(crate::object::ClusterId(uuid::Uuid::nil()));
        for value in
            [json!(-1), json!(1.0), json!(31_622_401), json!(true), json!("1"), json!(" 1"), json!([1]), json!({})]
        {
            let says = format!("splay: takes 0 to 31622400 whole seconds, not {value}");
            assert_eq!(update(&mut group(), &json!({"splay": value})), Err(says), "{value}");
        }
        assert_eq!(update(&mut group(), &json!({"splay": 31_622_400})), Ok(()));
    }

    #[test]
    fn white_space_and_escapes_count_nothing() {
        let part = Part::new("a", Form::Any, Help::new("", "A.", "1"));
        let check = |json: String| check_part(&part, &RawValue::from_string(json).unwrap()).is_ok();
        assert!(check(format!("[{}1]", " ".repeat(70_000))));
        assert!(check(format!("[\"{}\"]", "\\u0041".repeat(60_000))));
        assert!(!check(format!("[\"{}\"]", "A".repeat(65_533))));
    }

    #[test]
    fn x06_an_empty_selector_or_day_of_a_rollout_is_refused() {
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
    fn x06_an_empty_entry_stands_for_nothing_and_is_refused() {
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
        // The values of Ironic's maps are kept as they came.
        let of_ironic = json!({"extra": {"a": {"b": ""}}, "properties": {"a": ""}, "instance_info": {"b": [""]}});
        assert_eq!(update(&mut NodeSpec::default(), &of_ironic), Ok(()));
        let says = "has an entry whose key is empty: give it a name, or take it out";
        for map in ["extra", "driver_info", "properties", "instance_info"] {
            assert_eq!(update(&mut NodeSpec::default(), &json!({map: {"": 1}})), Err(format!("{map}: {says}")));
        }
        let owned = update(&mut AllocationSpec::default(), &json!({"owner": " "}));
        let says = "owner: has nothing but blanks in it: write something, or leave it out";
        assert_eq!(owned, Err(says.to_owned()));
    }

    #[test]
    fn x06_a_kept_field_that_names_something_is_never_empty() {
        let check = |name: &str, value: Value, stood: Value| {
            let kept = extra::NODE.iter().chain(extra::GROUP).find(|kept| kept.name == name).unwrap();
            check_kept(kept, &raw(&value), || stood).map_err(|error| error.to_string())
        };
        let says = Err("is empty: name something, or leave it out".to_owned());
        for name in
            ["resource_class", "driver", "owner", "lessee", "instance_name", "shard", "chassis_uuid", "image_id"]
        {
            for empty in ["", " "] {
                assert_eq!(check(name, json!(empty), Value::Null), says, "{name}");
            }
            assert_eq!(check(name, json!("a"), Value::Null), Ok(()));
            // As an older program took it.
            assert_eq!(check(name, json!(""), json!("")), Ok(()), "{name}");
        }
        // The first is empty where nobody says another, and the others are for people.
        for name in ["conductor_group", "maintenance_reason", "protected_reason", "retired_reason"] {
            assert_eq!(check(name, json!(""), Value::Null), Ok(()), "{name}");
        }
        let of_list = check("node_addresses", json!(["10.0.0.1", ""]), Value::Null);
        assert_eq!(of_list, Err("[1]: is empty: name something, or leave it out".to_owned()));
        let empty = update(&mut NodeSpec::default(), &json!({"instance_uuid": ""}));
        assert_eq!(empty, Err("instance_uuid: a uuid is needed here, not \"\": give one, or null".to_owned()));
        // What an older program took is taken out.
        let before = json!({"": 1, "a": 2});
        assert_eq!(check("extra", json!({"a": 2}), before.clone()), Ok(()));
        assert_eq!(check("extra", before.clone(), before), Ok(()));
    }
}
