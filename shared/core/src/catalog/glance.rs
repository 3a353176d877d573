//! Further data for Glance's clients: schemas, from which they build their own models, and the names of properties on a
//! resource type.
//!
//! The schemas are generated from the field tables with which bodies are parsed. So a client refuses what the
//! controller refuses.

use serde_json::{Map, Value, json};

use crate::field::{DescribeFields, FieldDef, FieldType, REQUIRED};
use crate::object::{Association, Definition, NamedItem, NamespaceSpec, NamespaceTag, Properties, Property, Visibility};

/// The members of JSON bodies that only the controller sets. Tags and associations have the last two only.
pub const READ_ONLY_FIELDS: [&str; 4] = ["self", "schema", "created_at", "updated_at"];

/// Maximum length of a text in an item of a namespace, in characters, by field. Texts of other fields have no limit.
const MAX_TEXT_CHARS: &[(&str, u64)] =
    &[("name", 80), ("namespace", 80), ("display_name", 80), ("owner", 255), ("prefix", 80), ("properties_target", 80)];

/// Returns the JSON schema with this name, as Glance (`OpenStack`'s image service) serves it: of one item, or of a list
/// of items. Returns `None` if there is no schema of that name.
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
        // A tag has no members `self` and `schema`.
        "tag" => named_schema("tag", object_schema(NamespaceTag::FIELD_DEFS), &READ_ONLY_FIELDS[2..]),
        "tags" => list_schema("tags", &named_schema("tag", object_schema(NamespaceTag::FIELD_DEFS), &READ_ONLY_FIELDS[2..])),
        _ => return None,
    })
}

/// Returns the schema of a namespace, with its lists of properties, objects, tags and resource types.
fn namespace_schema() -> Value {
    let text = |max_chars: u64| json!({"type": "string", "maxLength": max_chars});
    let nested = |fields| json!({"type": "array", "items": open_object_schema(fields)});
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

/// Returns the schema of the association of a namespace with a resource type.
fn association_schema() -> Value {
    named_schema("resource_type_association", object_schema(Association::FIELD_DEFS), &READ_ONLY_FIELDS[2..])
}

/// Returns the schema of an object of a namespace. Such an object is a named group of properties.
fn definition_schema() -> Value {
    named_schema("object", object_schema(Definition::FIELD_DEFS), &READ_ONLY_FIELDS)
}

/// Returns the schema of a single property. In a namespace, the properties are a map, so the name is a key there. Here
/// the name is a member of the property.
fn property_schema() -> Value {
    let mut schema = object_schema(Property::FIELD_DEFS);
    schema["required"] = json!(["type", "title", "name"]);
    named_schema("property", schema, &[])
}

/// Returns a schema with its name added, and with these members added as read-only texts.
fn named_schema(name: &str, mut schema: Value, read_only: &[&str]) -> Value {
    schema["name"] = name.into();
    for member in read_only {
        schema["properties"][*member] = json!({"type": "string", "readOnly": true});
    }
    schema
}

/// Returns the schema of a page of a list, given the schema of each item. `name` is the member that contains the list.
fn list_schema(name: &str, item: &Value) -> Value {
    page_schema(name, json!({"type": "array", "items": item}))
}

/// Returns the schema of a page of a list. It has the members that link to the first page, the next page and the
/// schema. `name` is the member that contains the items, and `items_schema` is the schema of that member.
fn page_schema(name: &str, items_schema: Value) -> Value {
    let text = json!({"type": "string"});
    let mut properties = json!({"first": text, "next": text, "schema": text});
    properties[name] = items_schema;
    let links: Vec<Value> = [("first", "{first}"), ("next", "{next}"), ("describedby", "{schema}")]
        .map(|(rel, href)| json!({"rel": rel, "href": href}))
        .into();
    json!({"name": name, "properties": properties, "links": links})
}

/// Returns the schema of an item in a list of a namespace: the fields of the item, and the read-only members that a
/// response adds. Other members are allowed.
fn open_object_schema(fields: &[FieldDef]) -> Value {
    let mut schema = object_schema(fields);
    schema.as_object_mut().expect("an object's schema").remove("additionalProperties");
    for member in READ_ONLY_FIELDS {
        schema["properties"][member] = json!({"type": "string", "readOnly": true});
    }
    schema
}

/// Returns the schema of a JSON object that may have these fields and no others.
fn object_schema(fields: &[FieldDef]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|field| (field.name.to_owned(), field_schema(field))).collect();
    let required: Vec<&str> = fields.iter().filter(|field| field.help.default == REQUIRED).map(|field| field.name).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false, "required": required})
}

/// Returns the schema of a field: the schema of its type, with the maximum length if the field is a text with a limit.
fn field_schema(field: &FieldDef) -> Value {
    let mut schema = type_schema(field.field_type);
    if let Some((_, max_chars)) =
        MAX_TEXT_CHARS.iter().find(|(name, _)| field.field_type.plain() == FieldType::Text && *name == field.name)
    {
        schema["maxLength"] = (*max_chars).into();
    }
    schema
}

/// Returns the JSON schema of a field type. The schema is the same as for manifests, except that no member may be
/// `null`.
fn type_schema(field_type: FieldType) -> Value {
    match field_type {
        FieldType::Text => json!({"type": "string"}),
        FieldType::Time => json!({"type": "string", "format": "date-time"}),
        FieldType::Seconds(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        FieldType::Flag => json!({"type": "boolean"}),
        FieldType::Count => json!({"type": "integer", "minimum": 0}),
        FieldType::Number => json!({"type": "number"}),
        FieldType::Object(fields) => object_schema(fields),
        FieldType::MapOf(fields) => json!({"type": "object", "additionalProperties": object_schema(fields)}),
        FieldType::ListOf(fields) => json!({"type": "array", "items": object_schema(fields)}),
        FieldType::Names => json!({"type": "array", "items": {"type": "string"}}),
        FieldType::OneOf(texts) => json!({"type": "string", "enum": texts}),
        FieldType::Map => json!({"type": "object", "additionalProperties": true}),
        FieldType::Objects => json!({"type": "array", "items": {"type": "object", "additionalProperties": true}}),
        // Of these types, the fields of a namespace have only `Any`.
        FieldType::Parameters | FieldType::TextOrList | FieldType::MapOrList | FieldType::Share | FieldType::Any => {
            json!({"description": "Any value."})
        }
        FieldType::UpTo(_, inner) => type_schema(*inner),
    }
}

/// Removes from the body of a namespace, and from the items of its lists, the members that only responses have. Also
/// removes `field_owners`, which no schema contains.
pub fn remove_read_only_members(body: &mut Map<String, Value>) {
    body.retain(|name, _| !READ_ONLY_FIELDS.contains(&name.as_str()) && name != "field_owners");
    for list in [Association::LIST, Definition::LIST, NamespaceTag::LIST] {
        for member in body.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(member) = member {
                member.retain(|name, _| !READ_ONLY_FIELDS.contains(&name.as_str()));
            }
        }
    }
}

/// Reverses the list of tags in the body of a namespace, because Glance lists the last tag first.
pub fn reverse_tags(body: &mut Map<String, Value>) {
    if let Some(Value::Array(tags)) = body.get_mut(NamespaceTag::LIST) {
        tags.reverse();
    }
}

/// Converts a namespace from the form of a response to the form that an author sends: without read-only members, and
/// with the tags in their original order.
#[must_use]
pub fn to_authored(mut body: Map<String, Value>) -> Map<String, Value> {
    remove_read_only_members(&mut body);
    reverse_tags(&mut body);
    body
}

/// Adds to a stored namespace everything that only `addition` has, and returns the result. Maps and lists that both
/// have get their missing entries. Objects of the namespace that both have are merged in the same way. The existing
/// properties, tags and resource types are unchanged. Both bodies have the form that an author sends.
#[must_use]
pub fn merge_namespace(mut stored: Map<String, Value>, addition: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in addition {
        match (stored.get_mut(&name), value) {
            (Some(Value::Object(old)), Value::Object(new)) => add_missing_entries(old, new),
            (Some(Value::Array(old)), Value::Array(new)) => add_missing_items(old, new, name == Definition::LIST),
            (Some(_), _) => {}
            (None, value) => drop(stored.insert(name, value)),
        }
    }
    stored
}

/// Adds to a map the entries of another map whose keys it lacks.
fn add_missing_entries(target: &mut Map<String, Value>, additions: Map<String, Value>) {
    for (key, value) in additions {
        target.entry(key).or_insert(value);
    }
}

/// Adds to a list the items of another list whose names it lacks. Items that are not JSON objects are ignored. If
/// `are_objects` is true, the items are objects of a namespace, and those that both lists have are merged.
fn add_missing_items(target: &mut Vec<Value>, additions: Vec<Value>, are_objects: bool) {
    for item in additions {
        match (target.iter_mut().find(|stored| stored.get("name") == item.get("name")), item) {
            (None, item) if item.is_object() => target.push(item),
            (Some(Value::Object(stored)), Value::Object(item)) if are_objects => {
                *stored = merge_object(std::mem::take(stored), item);
            }
            (Some(_) | None, _) => {}
        }
    }
}

/// Merges an object (a group of properties) that both namespaces have, and returns the result. A property that the
/// stored object lacks is added, and is required if `addition` requires it. Whether an existing property is required
/// does not change.
fn merge_object(mut stored: Map<String, Value>, addition: Map<String, Value>) -> Map<String, Value> {
    let names = |object: &Map<String, Value>| object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_stored = |name: &Value| stored.get("properties").and_then(|properties| properties.get(name.as_str()?)).is_some();
    let mut required = names(&stored);
    let new: Vec<Value> = names(&addition).into_iter().filter(|name| !is_stored(name) && !required.contains(name)).collect();
    required.extend(new);
    stored.insert("required".to_owned(), required.into());
    merge_namespace(stored, addition)
}

/// Returns the prefix that the property names of a namespace get on a resource type. Returns an empty text if the
/// namespace is not associated with that type.
pub fn property_prefix<'a>(spec: &'a NamespaceSpec, resource_type: &str) -> &'a str {
    spec.item::<Association>(resource_type).and_then(|association| association.prefix.as_deref()).unwrap_or_default()
}

/// Returns a namespace with the prefix for a resource type added to the names of its properties, also in its objects.
/// This is the response of Glance to `?resource_type=`.
#[must_use]
pub fn with_prefixed_properties(spec: &NamespaceSpec, resource_type: &str) -> NamespaceSpec {
    let prefix = property_prefix(spec, resource_type);
    let add_prefix = |name: &String| format!("{prefix}{name}");
    let rename = |properties: &Properties| properties.iter().map(|(name, value)| (add_prefix(name), value.clone())).collect();
    let objects = spec.objects.iter().map(|object| Definition {
        required: object.required.iter().map(add_prefix).collect(),
        properties: rename(&object.properties),
        ..object.clone()
    });
    NamespaceSpec { properties: rename(&spec.properties), objects: objects.collect(), ..spec.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks members of the schemas: their types and limits, the required members, and the read-only members that
    /// responses add.
    #[test]
    fn schemas_contain_limits_and_required_and_read_only_members() {
        let property = schema("property").unwrap();
        assert_eq!(property["properties"]["operators"], json!({"type": "array", "items": {"type": "string"}}));
        assert_eq!(property["properties"]["name"], json!({"type": "string", "maxLength": 80}));
        assert_eq!(property["required"], json!(["type", "title", "name"]));
        assert_eq!(property["properties"]["description"], json!({"type": "string"}), "a description has no maximum length");
        let object = schema("object").unwrap();
        assert_eq!(object["properties"]["properties"]["additionalProperties"]["required"], json!(["title", "type"]));
        assert_eq!(object["properties"]["self"], json!({"type": "string", "readOnly": true}));
        assert!(schema("image").is_none());
        assert_eq!(schema("resource_type").unwrap()["properties"]["name"]["type"], "string");
        let objects = &schema("namespace").unwrap()["properties"]["objects"]["items"];
        assert_eq!(objects["properties"]["name"]["type"], "string");
        assert_eq!(objects["properties"]["created_at"], json!({"type": "string", "readOnly": true}));
        assert!(objects.get("additionalProperties").is_none(), "a response has further members");
    }

    /// Checks the schemas of the lists of objects and of properties. The expected values are those of Glance, for
    /// `/v2/schemas/metadefs/objects` and `/v2/schemas/metadefs/properties`.
    #[test]
    fn list_schema_has_items_and_paging_members() {
        let text = json!({"type": "string"});
        for (name, item_name, items_member) in
            [("objects", "object", "items"), ("properties", "property", "additionalProperties")]
        {
            let list = schema(name).unwrap();
            assert_eq!(list["name"], *name);
            let keys: Vec<_> = list["properties"].as_object().unwrap().keys().cloned().collect();
            assert_eq!(keys.len(), 4, "{keys:?}");
            for member in ["first", "next", "schema"] {
                assert_eq!(list["properties"][member], text);
            }
            let description = |schema: &Value| schema["properties"]["description"].clone();
            assert_eq!(description(&list["properties"][name][items_member]), description(&schema(item_name).unwrap()), "{name}");
            let links = json!([
                {"rel": "first", "href": "{first}"}, {"rel": "next", "href": "{next}"},
                {"rel": "describedby", "href": "{schema}"},
            ]);
            assert_eq!(list["links"], links);
        }
        assert_eq!(schema("objects").unwrap()["properties"]["objects"]["type"], "array");
        assert_eq!(schema("properties").unwrap()["properties"]["properties"]["type"], "object");
    }

    /// Checks each schema that Glance serves below `/v2/schemas/metadefs`. Each row is the name of a list schema, the
    /// member with the items, and the name of the item schema.
    #[test]
    fn every_glance_schema_is_served() {
        for (list, items_member, item) in [
            ("namespaces", "namespaces", "namespace"),
            ("resource_types", "resource_type_associations", "resource_type"),
            ("objects", "objects", "object"),
            ("properties", "properties", "property"),
            ("tags", "tags", "tag"),
        ] {
            assert!(schema(item).is_some(), "{item}");
            let schema = schema(list).expect(list);
            assert!(schema["properties"][items_member].is_object(), "{list}: {schema}");
        }
    }

    #[test]
    fn add_missing_items_ignores_scalar_items() {
        let mut items = vec![json!({"name": "a"})];
        add_missing_items(&mut items, vec![json!("b"), json!({"name": "c"})], false);
        assert_eq!(items, [json!({"name": "a"}), json!({"name": "c"})]);
    }

    /// A response lists the last tag first, so the tags `b`, `a` mean the order `a`, `b`. The missing tag is added at
    /// the end.
    #[test]
    fn merge_namespace_keeps_order_and_adds_missing_items() {
        let fields = |value: Value| value.as_object().cloned().unwrap();
        let response_body =
            fields(json!({"namespace": "N", "self": "/v2", "tags": [{"name": "b", "created_at": "x"}, {"name": "a"}]}));
        let addition = fields(json!({"namespace": "N", "description": "D", "tags": [{"name": "c"}, {"name": "a"}]}));
        let expected = json!({"namespace": "N", "description": "D", "tags": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
        assert_eq!(Value::Object(merge_namespace(to_authored(response_body), addition)), expected);
    }

    #[test]
    fn merge_object_adds_missing_properties() {
        let namespace = |objects: Value| json!({"namespace": "N", "objects": objects}).as_object().cloned().unwrap();
        let property = |title: &str| json!({"title": title, "type": "string"});
        let stored = namespace(json!([{"name": "disk", "required": [], "properties": {"size": property("Size")}}]));
        let addition = namespace(json!([
            {"name": "disk", "description": "D", "required": ["size", "bus"],
             "properties": {"size": property("Other"), "bus": property("Bus")}},
            {"name": "net"},
        ]));
        let expected = namespace(json!([
            {"name": "disk", "description": "D", "required": ["bus"],
             "properties": {"size": property("Size"), "bus": property("Bus")}},
            {"name": "net"},
        ]));
        assert_eq!(merge_namespace(stored, addition), expected);
    }

    /// Compares the schema with the fields of a stored namespace. The two fields that the controller alone uses are
    /// missing in the schema.
    #[test]
    fn namespace_schema_has_every_field() {
        use crate::change::ClassifyFields;
        let schema = schema("namespace").unwrap();
        let schema_properties = schema["properties"].as_object().unwrap();
        let missing = NamespaceSpec::FIELDS.iter().filter(|name| !schema_properties.contains_key(**name));
        assert_eq!(missing.collect::<Vec<_>>(), [&"dates", &"owners"], "no body contains these fields");
    }

    #[test]
    fn properties_are_prefixed_for_resource_type() {
        let spec: NamespaceSpec = serde_json::from_value(json!({
            "resource_type_associations": [{"name": "OS::Nova::Flavor", "prefix": "hw:"}],
            "properties": {"a": {"title": "A", "type": "string"}},
            "objects": [{"name": "o", "required": ["b"], "properties": {"b": {"title": "B", "type": "string"}}}],
        }))
        .unwrap();
        let prefixed = with_prefixed_properties(&spec, "OS::Nova::Flavor");
        assert_eq!(prefixed.properties.keys().collect::<Vec<_>>(), ["hw:a"]);
        assert_eq!(prefixed.objects[0].required, ["hw:b"]);
        assert_eq!(prefixed.objects[0].properties.keys().collect::<Vec<_>>(), ["hw:b"]);
        assert_eq!(with_prefixed_properties(&spec, "Nope"), spec);
    }
}
