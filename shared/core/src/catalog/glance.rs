//! Further data for Glance's clients: schemas, from which they build their own models, and the names of properties on a
//! resource type.
//!
//! The schemas are generated from the field tables with which bodies are parsed. So a client refuses what the
//! controller refuses.

use serde_json::{Map, Value, json};

use crate::field::{DescribeFields, FieldDef, FieldType, REQUIRED};
use crate::object::{Association, Definition, NamedItem, NamespaceSpec, NamespaceTag, Properties, Property, Visibility};

/// The members of bodies that only the controller sets.
pub const READ_ONLY_FIELDS: [&str; 4] = ["self", "schema", "created_at", "updated_at"];

/// Maximum length of the texts that have a limit, in characters, by field name.
const MAX_TEXT_CHARS: &[(&str, u64)] =
    &[("name", 80), ("namespace", 80), ("display_name", 80), ("owner", 255), ("prefix", 80), ("properties_target", 80)];

/// Returns the schema of a body or of a list of bodies, or `None` if no schema has that name.
pub fn schema(name: &str) -> Option<Value> {
    Some(match name {
        "namespace" => namespace_schema(),
        "namespaces" => list_schema("namespaces", &namespace_schema()),
        "resource_type" => association_schema(),
        "resource_types" => list_schema("resource_type_associations", &association_schema()),
        "property" => property_schema(),
        "properties" => {
            let properties = json!({"type": "object", "additionalProperties": object_schema(Property::FIELD_DEFS)});
            page_schema("properties", properties)
        }
        "object" => definition_schema(),
        "objects" => list_schema("objects", &definition_schema()),
        "tag" => named_schema("tag", object_schema(NamespaceTag::FIELD_DEFS), &READ_ONLY_FIELDS[2..]),
        "tags" => list_schema("tags", &named_schema("tag", object_schema(NamespaceTag::FIELD_DEFS), &READ_ONLY_FIELDS[2..])),
        _ => return None,
    })
}

/// Returns the schema of a namespace, with its lists of properties, objects, tags and resource types.
fn namespace_schema() -> Value {
    let text = |most: u64| json!({"type": "string", "maxLength": most});
    let nested = |parts| json!({"type": "array", "items": open_object_schema(parts)});
    let body = json!({
        "type": "object",
        "properties": {
            "namespace": text(80),
            "display_name": text(80),
            "description": text(500),
            "visibility": {"type": "string", "enum": Visibility::VARIANTS},
            "protected": {"type": "boolean"},
            "owner": text(255),
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "resource_type_associations": nested(Association::FIELD_DEFS),
            "properties": {"type": "object", "additionalProperties": object_schema(Property::FIELD_DEFS)},
            "objects": nested(Definition::FIELD_DEFS),
            "tags": nested(NamespaceTag::FIELD_DEFS),
        },
        "additionalProperties": false,
        "required": ["namespace"],
    });
    named_schema("namespace", body, &READ_ONLY_FIELDS)
}

fn association_schema() -> Value {
    named_schema("resource_type_association", object_schema(Association::FIELD_DEFS), &READ_ONLY_FIELDS[2..])
}

fn definition_schema() -> Value {
    named_schema("object", object_schema(Definition::FIELD_DEFS), &READ_ONLY_FIELDS)
}

/// Returns the schema of a single property. Unlike a property in a namespace's map, it contains its name.
fn property_schema() -> Value {
    let mut schema = object_schema(Property::FIELD_DEFS);
    schema["required"] = json!(["type", "title", "name"]);
    named_schema("property", schema, &[])
}

/// Adds the name of a schema and the members that clients do not write.
fn named_schema(name: &str, mut schema: Value, read_only: &[&str]) -> Value {
    schema["name"] = name.into();
    for member in read_only {
        schema["properties"][*member] = json!({"type": "string", "readOnly": true});
    }
    schema
}

fn list_schema(name: &str, item: &Value) -> Value {
    page_schema(name, json!({"type": "array", "items": item}))
}

/// Returns the schema of a list, with the members that link to the first and next page.
fn page_schema(name: &str, rows: Value) -> Value {
    let text = json!({"type": "string"});
    let mut properties = json!({"first": text, "next": text, "schema": text});
    properties[name] = rows;
    let links: Vec<Value> = [("first", "{first}"), ("next", "{next}"), ("describedby", "{schema}")]
        .map(|(rel, href)| json!({"rel": rel, "href": href}))
        .into();
    json!({"name": name, "properties": properties, "links": links})
}

/// Returns the schema of an item in a list of a namespace: its own members, and the members that a response adds.
fn open_object_schema(fields: &[FieldDef]) -> Value {
    let mut schema = object_schema(fields);
    schema.as_object_mut().expect("an object's schema").remove("additionalProperties");
    for member in READ_ONLY_FIELDS {
        schema["properties"][member] = json!({"type": "string", "readOnly": true});
    }
    schema
}

/// Returns the schema of an object with these members and no others.
fn object_schema(fields: &[FieldDef]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|part| (part.name.to_owned(), field_schema(part))).collect();
    let required: Vec<&str> = fields.iter().filter(|part| part.help.default == REQUIRED).map(|part| part.name).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false, "required": required})
}

/// Returns the schema of a field: that of its type, with the maximum length if the field is a text that has one.
fn field_schema(field: &FieldDef) -> Value {
    let mut schema = type_schema(field.field_type);
    if let Some((_, most)) =
        MAX_TEXT_CHARS.iter().find(|(name, _)| field.field_type.plain() == FieldType::Text && *name == field.name)
    {
        schema["maxLength"] = (*most).into();
    }
    schema
}

/// Returns the schema of a type. It is that of a manifest, except that no member may be `null`.
fn type_schema(form: FieldType) -> Value {
    match form {
        FieldType::Text => json!({"type": "string"}),
        FieldType::Time => json!({"type": "string", "format": "date-time"}),
        FieldType::Seconds(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        FieldType::Flag => json!({"type": "boolean"}),
        FieldType::Count => json!({"type": "integer", "minimum": 0}),
        FieldType::Number => json!({"type": "number"}),
        FieldType::Object(parts) => object_schema(parts),
        FieldType::MapOf(parts) => json!({"type": "object", "additionalProperties": object_schema(parts)}),
        FieldType::ListOf(parts) => json!({"type": "array", "items": object_schema(parts)}),
        FieldType::Names => json!({"type": "array", "items": {"type": "string"}}),
        FieldType::OneOf(texts) => json!({"type": "string", "enum": texts}),
        FieldType::Map => json!({"type": "object", "additionalProperties": true}),
        FieldType::Objects => json!({"type": "array", "items": {"type": "object", "additionalProperties": true}}),
        FieldType::Parameters | FieldType::TextOrList | FieldType::MapOrList | FieldType::Share | FieldType::Any => {
            json!({"description": "Any value."})
        }
        FieldType::UpTo(_, inner) => type_schema(*inner),
    }
}

/// Removes the members that responses add from a namespace's body and from its lists. Also removes `field_owners`,
/// which no schema contains.
pub fn without_read_only(body: &mut Map<String, Value>) {
    body.retain(|name, _| !READ_ONLY_FIELDS.contains(&name.as_str()) && name != "field_owners");
    for list in [Association::LIST, Definition::LIST, NamespaceTag::LIST] {
        for member in body.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(member) = member {
                member.retain(|name, _| !READ_ONLY_FIELDS.contains(&name.as_str()));
            }
        }
    }
}

/// Reverses the tags in a namespace's body, because Glance lists the last tag first.
pub fn reverse_tags(body: &mut Map<String, Value>) {
    if let Some(Value::Array(tags)) = body.get_mut(NamespaceTag::LIST) {
        tags.reverse();
    }
}

/// Converts a namespace from the form in which it is shown to the one that its author would write.
#[must_use]
pub fn to_authored(mut body: Map<String, Value>) -> Map<String, Value> {
    without_read_only(&mut body);
    reverse_tags(&mut body);
    body
}

/// Merges a given namespace into a stored one, as its author wrote it. Everything that only the given one has is added,
/// also within an object that both have. The properties, tags and resource types of the stored one are unchanged.
#[must_use]
pub fn merge_namespace(mut stored: Map<String, Value>, addition: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in addition {
        match (stored.get_mut(&name), value) {
            (Some(Value::Object(own)), Value::Object(other)) => add_missing_entries(own, other),
            (Some(Value::Array(own)), Value::Array(other)) => add_missing_items(own, other, name == Definition::LIST),
            (Some(_), _) => {}
            (None, value) => drop(stored.insert(name, value)),
        }
    }
    stored
}

/// Adds the entries that a map lacks.
fn add_missing_entries(own: &mut Map<String, Value>, other: Map<String, Value>) {
    for (key, value) in other {
        own.entry(key).or_insert(value);
    }
}

/// Adds the items that a list lacks, by name. With `are_objects`, items that are in both lists are merged.
fn add_missing_items(own: &mut Vec<Value>, other: Vec<Value>, are_objects: bool) {
    for item in other {
        match (own.iter_mut().find(|stored| stored.get("name") == item.get("name")), item) {
            (None, item) if item.is_object() => own.push(item),
            (Some(Value::Object(stored)), Value::Object(item)) if are_objects => {
                *stored = merge_object(std::mem::take(stored), item);
            }
            (Some(_) | None, _) => {}
        }
    }
}

/// Merges an object that is in both namespaces. Properties that the stored object lacks are added, and are required if
/// the given object requires them. Whether a property of the stored object is required does not change.
fn merge_object(mut stored: Map<String, Value>, addition: Map<String, Value>) -> Map<String, Value> {
    let texts = |object: &Map<String, Value>| object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_own = |name: &Value| stored.get("properties").and_then(|own| own.get(name.as_str()?)).is_some();
    let mut required = texts(&stored);
    let new: Vec<Value> = texts(&addition).into_iter().filter(|name| !is_own(name) && !required.contains(name)).collect();
    required.extend(new);
    stored.insert("required".to_owned(), required.into());
    merge_namespace(stored, addition)
}

/// Returns the prefix of a namespace's property names on a resource type, or an empty text if the namespace is not
/// associated with that type.
pub fn property_prefix<'a>(spec: &'a NamespaceSpec, resource_type: &str) -> &'a str {
    spec.item::<Association>(resource_type).and_then(|one| one.prefix.as_deref()).unwrap_or_default()
}

/// Returns a namespace with its properties named as on a resource type, which is Glance's response to
/// `?resource_type=`.
#[must_use]
pub fn with_prefixed_properties(spec: &NamespaceSpec, resource_type: &str) -> NamespaceSpec {
    let prefix = property_prefix(spec, resource_type);
    let rename = |name: &String| format!("{prefix}{name}");
    let all = |properties: &Properties| properties.iter().map(|(name, one)| (rename(name), one.clone())).collect();
    let objects = spec.objects.iter().map(|object| Definition {
        required: object.required.iter().map(rename).collect(),
        properties: all(&object.properties),
        ..object.clone()
    });
    NamespaceSpec { properties: all(&spec.properties), objects: objects.collect(), ..spec.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_match_accepted_bodies() {
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
    fn list_schema_has_rows_and_paging_members() {
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
    fn every_glance_schema_is_served() {
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
    fn merge_namespace_ignores_scalar_items() {
        let mut own = vec![json!({"name": "a"})];
        add_missing_items(&mut own, vec![json!("b"), json!({"name": "c"})], false);
        assert_eq!(own, [json!({"name": "a"}), json!({"name": "c"})]);
    }

    #[test]
    fn merge_namespace_keeps_order_and_adds_missing_items() {
        let fields = |value: Value| value.as_object().cloned().unwrap();
        let shown = fields(json!({"namespace": "N", "self": "/v2", "tags": [{"name": "b", "created_at": "x"}, {"name": "a"}]}));
        let given = fields(json!({"namespace": "N", "description": "D", "tags": [{"name": "c"}, {"name": "a"}]}));
        let expected = json!({"namespace": "N", "description": "D", "tags": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
        assert_eq!(Value::Object(merge_namespace(to_authored(shown), given)), expected);
    }

    #[test]
    fn merge_object_adds_missing_properties() {
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
        assert_eq!(merge_namespace(stored, given), expected);
    }

    #[test]
    fn namespace_schema_has_every_field() {
        use crate::change::ClassifyFields;
        let schema = schema("namespace").unwrap();
        let described = schema["properties"].as_object().unwrap();
        let missing = NamespaceSpec::FIELDS.iter().filter(|name| !described.contains_key(**name));
        assert_eq!(missing.collect::<Vec<_>>(), [&"dates", &"owners"], "what no body has");
    }

    #[test]
    fn properties_are_prefixed_for_resource_type() {
        let spec: NamespaceSpec = serde_json::from_value(json!({
            "resource_type_associations": [{"name": "OS::Nova::Flavor", "prefix": "hw:"}],
            "properties": {"a": {"title": "A", "type": "string"}},
            "objects": [{"name": "o", "required": ["b"], "properties": {"b": {"title": "B", "type": "string"}}}],
        }))
        .unwrap();
        let named = with_prefixed_properties(&spec, "OS::Nova::Flavor");
        assert_eq!(named.properties.keys().collect::<Vec<_>>(), ["hw:a"]);
        assert_eq!(named.objects[0].required, ["hw:b"]);
        assert_eq!(named.objects[0].properties.keys().collect::<Vec<_>>(), ["hw:b"]);
        assert_eq!(with_prefixed_properties(&spec, "Nope"), spec);
    }
}
