//! What Glance's clients are shown beside the bodies: schemas, by which they build their own models, and the names of
//! properties as a resource type has them.
//!
//! The schemas are made from the tables by which bodies are read, so that a client refuses what the controller refuses.

use serde_json::{Map, Value, json};

use crate::field::{Described, Form, Part, REQUIRED};
use crate::object::{Association, Definition, Member, NamespaceSpec, NamespaceTag, Properties, Property, Visibility};

/// The members of bodies that the controller alone sets.
pub const READ_ONLY: [&str; 4] = ["self", "schema", "created_at", "updated_at"];

/// The longest of the texts that have a bound, by their names.
const LONGEST: &[(&str, u64)] =
    &[("name", 80), ("namespace", 80), ("display_name", 80), ("owner", 255), ("prefix", 80), ("properties_target", 80)];

/// The schema of a body or of a list of bodies; `None`: no schema has that name.
pub fn schema(name: &str) -> Option<Value> {
    Some(match name {
        "namespace" => namespace(),
        "namespaces" => list("namespaces", &namespace()),
        "resource_type" => association(),
        "resource_types" => list("resource_type_associations", &association()),
        "property" => property(),
        "properties" => {
            let properties = json!({"type": "object", "additionalProperties": object(Property::PARTS)});
            listing("properties", properties)
        }
        "object" => definition(),
        "objects" => list("objects", &definition()),
        "tag" => named("tag", object(NamespaceTag::PARTS), &READ_ONLY[2..]),
        "tags" => list("tags", &named("tag", object(NamespaceTag::PARTS), &READ_ONLY[2..])),
        _ => return None,
    })
}

fn namespace() -> Value {
    let text = |most: u64| json!({"type": "string", "maxLength": most});
    let nested = |parts| json!({"type": "array", "items": open(parts)});
    let body = json!({
        "type": "object",
        "properties": {
            "namespace": text(80),
            "display_name": text(80),
            "description": text(500),
            "visibility": {"type": "string", "enum": Visibility::WORDS},
            "protected": {"type": "boolean"},
            "owner": text(255),
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "resource_type_associations": nested(Association::PARTS),
            "properties": {"type": "object", "additionalProperties": object(Property::PARTS)},
            "objects": nested(Definition::PARTS),
            "tags": nested(NamespaceTag::PARTS),
        },
        "additionalProperties": false,
        "required": ["namespace"],
    });
    named("namespace", body, &READ_ONLY)
}

fn association() -> Value {
    named("resource_type_association", object(Association::PARTS), &READ_ONLY[2..])
}

fn definition() -> Value {
    named("object", object(Definition::PARTS), &READ_ONLY)
}

/// A property by itself, which has a name.
fn property() -> Value {
    let mut schema = object(Property::PARTS);
    schema["required"] = json!(["type", "title", "name"]);
    named("property", schema, &[])
}

/// A schema with its name and the members that are not written.
fn named(name: &str, mut schema: Value, read_only: &[&str]) -> Value {
    schema["name"] = name.into();
    for member in read_only {
        schema["properties"][*member] = json!({"type": "string", "readOnly": true});
    }
    schema
}

fn list(name: &str, item: &Value) -> Value {
    listing(name, json!({"type": "array", "items": item}))
}

/// The schema of a list, with the members that lead on.
fn listing(name: &str, rows: Value) -> Value {
    let text = json!({"type": "string"});
    let mut properties = json!({"first": text, "next": text, "schema": text});
    properties[name] = rows;
    let links: Vec<Value> = [("first", "{first}"), ("next", "{next}"), ("describedby", "{schema}")]
        .map(|(rel, href)| json!({"rel": rel, "href": href}))
        .into();
    json!({"name": name, "properties": properties, "links": links})
}

/// What stands in a list of a namespace: its own members, and those that an answer adds.
fn open(parts: &[Part]) -> Value {
    let mut schema = object(parts);
    schema.as_object_mut().expect("an object's schema").remove("additionalProperties");
    for member in READ_ONLY {
        schema["properties"][member] = json!({"type": "string", "readOnly": true});
    }
    schema
}

/// An object with these members and no others.
fn object(parts: &[Part]) -> Value {
    let properties: Map<String, Value> = parts.iter().map(|part| (part.name.to_owned(), of_part(part))).collect();
    let required: Vec<&str> = parts.iter().filter(|part| part.help.default == REQUIRED).map(|part| part.name).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false, "required": required})
}

fn of_part(part: &Part) -> Value {
    let mut schema = of_form(part.form);
    if let Some((_, most)) = LONGEST.iter().find(|(name, _)| part.form.plain() == Form::Text && *name == part.name) {
        schema["maxLength"] = (*most).into();
    }
    schema
}

/// As of a manifest, but that no member may be `null`.
fn of_form(form: Form) -> Value {
    match form {
        Form::Text => json!({"type": "string"}),
        Form::Time => json!({"type": "string", "format": "date-time"}),
        Form::Seconds(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Form::Flag => json!({"type": "boolean"}),
        Form::Count => json!({"type": "integer", "minimum": 0}),
        Form::Number => json!({"type": "number"}),
        Form::Object(parts) => object(parts),
        Form::MapOf(parts) => json!({"type": "object", "additionalProperties": object(parts)}),
        Form::ListOf(parts) => json!({"type": "array", "items": object(parts)}),
        Form::Names => json!({"type": "array", "items": {"type": "string"}}),
        Form::OneOf(texts) => json!({"type": "string", "enum": texts}),
        Form::Map => json!({"type": "object", "additionalProperties": true}),
        Form::Objects => json!({"type": "array", "items": {"type": "object", "additionalProperties": true}}),
        Form::Parameters | Form::TextOrList | Form::MapOrList | Form::Share | Form::Any => {
            json!({"description": "Any value."})
        }
        Form::UpTo(_, of) => of_form(*of),
    }
}

/// A body of a namespace without the members that answers add, in it and in its lists, and without its owners, which no schema has.
pub fn without_read_only(body: &mut Map<String, Value>) {
    body.retain(|name, _| !READ_ONLY.contains(&name.as_str()) && name != "field_owners");
    for list in [Association::LIST, Definition::LIST, NamespaceTag::LIST] {
        for member in body.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(member) = member {
                member.retain(|name, _| !READ_ONLY.contains(&name.as_str()));
            }
        }
    }
}

/// Turns the tags of a namespace's body round: Glance shows the last one first.
pub fn turn_tags(body: &mut Map<String, Value>) {
    if let Some(Value::Array(tags)) = body.get_mut(NamespaceTag::LIST) {
        tags.reverse();
    }
}

/// A namespace as its author would write it, of one as it is shown.
#[must_use]
pub fn as_written(mut shown: Map<String, Value>) -> Map<String, Value> {
    without_read_only(&mut shown);
    turn_tags(&mut shown);
    shown
}

/// A namespace, as its author wrote it, with what a given one has and it has not: also within an object that both have. A property, a
/// tag and a resource type are kept as they stand.
#[must_use]
pub fn merged(mut stored: Map<String, Value>, given: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in given {
        match (stored.get_mut(&name), value) {
            (Some(Value::Object(own)), Value::Object(other)) => add(own, other),
            (Some(Value::Array(own)), Value::Array(other)) => add_members(own, other, name == Definition::LIST),
            (Some(_), _) => {}
            (None, value) => drop(stored.insert(name, value)),
        }
    }
    stored
}

/// Adds the entries of a map that it has not.
fn add(own: &mut Map<String, Value>, other: Map<String, Value>) {
    for (key, value) in other {
        own.entry(key).or_insert(value);
    }
}

/// Adds the members of a list that it has not, and to those of it that have members of their own what they have not.
fn add_members(own: &mut Vec<Value>, other: Vec<Value>, are_objects: bool) {
    for one in other {
        match (own.iter_mut().find(|stored| stored.get("name") == one.get("name")), one) {
            (None, one) if one.is_object() => own.push(one),
            (Some(Value::Object(stored)), Value::Object(one)) if are_objects => {
                *stored = merged_object(std::mem::take(stored), one);
            }
            (Some(_) | None, _) => {}
        }
    }
}

/// An object that both have, with the properties that it has not. Of these those are required that the given one requires; whether one of
/// its own is required stays as it is.
fn merged_object(mut stored: Map<String, Value>, given: Map<String, Value>) -> Map<String, Value> {
    let texts =
        |object: &Map<String, Value>| object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_own = |name: &Value| stored.get("properties").and_then(|own| own.get(name.as_str()?)).is_some();
    let mut required = texts(&stored);
    let new: Vec<Value> = texts(&given).into_iter().filter(|name| !is_own(name) && !required.contains(name)).collect();
    required.extend(new);
    stored.insert("required".to_owned(), required.into());
    merged(stored, given)
}

/// What stands before the names of a namespace's properties on a resource type; nothing where it is not associated with it.
pub fn prefix<'a>(spec: &'a NamespaceSpec, resource_type: &str) -> &'a str {
    spec.member::<Association>(resource_type).and_then(|one| one.prefix.as_deref()).unwrap_or_default()
}

/// A namespace with its properties named as on a resource type: what Glance answers to `?resource_type=`.
#[must_use]
pub fn prefixed(spec: &NamespaceSpec, resource_type: &str) -> NamespaceSpec {
    let prefix = prefix(spec, resource_type);
    let put = |name: &String| format!("{prefix}{name}");
    let all = |properties: &Properties| properties.iter().map(|(name, one)| (put(name), one.clone())).collect();
    let objects = spec.objects.iter().map(|object| Definition {
        required: object.required.iter().map(put).collect(),
        properties: all(&object.properties),
        ..object.clone()
    });
    NamespaceSpec { properties: all(&spec.properties), objects: objects.collect(), ..spec.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_say_what_is_read() {
        let property = schema("property").unwrap();
        assert_eq!(property["properties"]["operators"], json!({"type": "array", "items": {"type": "string"}}));
        assert_eq!(property["properties"]["name"], json!({"type": "string", "maxLength": 80}));
        assert_eq!(property["required"], json!(["type", "title", "name"]));
        assert_eq!(property["properties"]["description"], json!({"type": "string"}), "it has no bound");
        let object = schema("object").unwrap();
        assert_eq!(object["properties"]["properties"]["additionalProperties"]["required"], json!(["title", "type"]));
        assert_eq!(object["properties"]["self"], json!({"type": "string", "readOnly": true}));
        assert!(schema("image").is_none());
        assert_eq!(schema("resource_type").unwrap()["properties"]["name"]["type"], "string");
        let objects = &schema("namespace").unwrap()["properties"]["objects"]["items"];
        assert_eq!(objects["properties"]["name"]["type"], "string");
        assert_eq!(objects["properties"]["created_at"], json!({"type": "string", "readOnly": true}));
        assert!(objects.get("additionalProperties").is_none(), "an answer adds members");
    }

    /// As Glance answers `/v2/schemas/metadefs/objects` and `/v2/schemas/metadefs/properties`.
    #[test]
    fn the_schema_of_a_list_has_its_rows_and_what_leads_on() {
        let text = json!({"type": "string"});
        for (name, row, rows) in [("objects", "object", "items"), ("properties", "property", "additionalProperties")] {
            let list = schema(name).unwrap();
            assert_eq!(list["name"], *name);
            let keys: Vec<_> = list["properties"].as_object().unwrap().keys().cloned().collect();
            assert_eq!(keys.len(), 4, "{keys:?}");
            for member in ["first", "next", "schema"] {
                assert_eq!(list["properties"][member], text);
            }
            let title = |schema: &Value| schema["properties"]["description"].clone();
            assert_eq!(title(&list["properties"][name][rows]), title(&schema(row).unwrap()), "{name}");
            let links = json!([
                {"rel": "first", "href": "{first}"}, {"rel": "next", "href": "{next}"},
                {"rel": "describedby", "href": "{schema}"},
            ]);
            assert_eq!(list["links"], links);
        }
        assert_eq!(schema("objects").unwrap()["properties"]["objects"]["type"], "array");
        assert_eq!(schema("properties").unwrap()["properties"]["properties"]["type"], "object");
    }

    /// The schemas that Glance serves below `/v2/schemas/metadefs`: of a list, the field with its rows, and of one row.
    #[test]
    fn each_schema_that_glance_serves_is_served() {
        for (list, rows, row) in [
            ("namespaces", "namespaces", "namespace"),
            ("resource_types", "resource_type_associations", "resource_type"),
            ("objects", "objects", "object"),
            ("properties", "properties", "property"),
            ("tags", "tags", "tag"),
        ] {
            assert!(schema(row).is_some(), "{row}");
            let schema = schema(list).expect(list);
            assert!(schema["properties"][rows].is_object(), "{list}: {schema}");
        }
    }

    #[test]
    fn what_is_no_object_is_added_to_no_list() {
        let mut own = vec![json!({"name": "a"})];
        add_members(&mut own, vec![json!("b"), json!({"name": "c"})], false);
        assert_eq!(own, [json!({"name": "a"}), json!({"name": "c"})]);
    }

    #[test]
    fn what_is_merged_keeps_its_order_and_gets_what_it_has_not() {
        let fields = |value: Value| value.as_object().cloned().unwrap();
        let shown =
            fields(json!({"namespace": "N", "self": "/v2", "tags": [{"name": "b", "created_at": "x"}, {"name": "a"}]}));
        let given = fields(json!({"namespace": "N", "description": "D", "tags": [{"name": "c"}, {"name": "a"}]}));
        let expected =
            json!({"namespace": "N", "description": "D", "tags": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
        assert_eq!(Value::Object(merged(as_written(shown), given)), expected);
    }

    #[test]
    fn an_object_that_both_have_gets_the_properties_that_it_has_not() {
        let namespace = |objects: Value| json!({"namespace": "N", "objects": objects}).as_object().cloned().unwrap();
        let property = |title: &str| json!({"title": title, "type": "string"});
        let stored = namespace(json!([{"name": "disk", "required": [], "properties": {"size": property("Size")}}]));
        let given = namespace(json!([
            {"name": "disk", "description": "D", "required": ["size", "bus"],
             "properties": {"size": property("Other"), "bus": property("Bus")}},
            {"name": "net"},
        ]));
        let expected = namespace(json!([
            {"name": "disk", "description": "D", "required": ["bus"],
             "properties": {"size": property("Size"), "bus": property("Bus")}},
            {"name": "net"},
        ]));
        assert_eq!(merged(stored, given), expected);
    }

    #[test]
    fn every_field_of_a_namespace_is_in_its_schema() {
        use crate::change::Classified;
        let schema = schema("namespace").unwrap();
        let described = schema["properties"].as_object().unwrap();
        let missing = NamespaceSpec::FIELDS.iter().filter(|name| !described.contains_key(**name));
        assert_eq!(missing.collect::<Vec<_>>(), [&"dates", &"owners"], "what no body has");
    }

    #[test]
    fn properties_are_named_as_on_a_resource_type() {
        let spec: NamespaceSpec = serde_json::from_value(json!({
            "resource_type_associations": [{"name": "OS::Nova::Flavor", "prefix": "hw:"}],
            "properties": {"a": {"title": "A", "type": "string"}},
            "objects": [{"name": "o", "required": ["b"], "properties": {"b": {"title": "B", "type": "string"}}}],
        }))
        .unwrap();
        let named = prefixed(&spec, "OS::Nova::Flavor");
        assert_eq!(named.properties.keys().collect::<Vec<_>>(), ["hw:a"]);
        assert_eq!(named.objects[0].required, ["hw:b"]);
        assert_eq!(named.objects[0].properties.keys().collect::<Vec<_>>(), ["hw:b"]);
        assert_eq!(prefixed(&spec, "Nope"), spec);
    }
}
