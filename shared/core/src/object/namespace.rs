//! The namespaces of the catalogue, in Glance's format: which keys exist, which values they may have, and which
//! operators requirements may use on them.
//!
//! The items of a namespace are stored within it, so that one write changes one object. Unknown `operators` are stored
//! unchanged. Two values of a property are stored as Glance returns them: a `default` as text, and a bound as an
//! integer.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};

use super::{FieldOwners, Timestamp};
use crate::field::{DescribeFields, FieldType, REQUIRED, manifest_struct};
use crate::json::python_number;

/// Maximum number of entries of each list or map in a namespace, except its `labels`.
pub const MAX_MEMBERS: usize = 1_000;

/// The manifest type of the fields `enum` and `operators` of a property, and of the `enum` of the items of a list. The
/// texts in such a field are stored unchanged and may be empty.
const VALUE_LIST: FieldType =
    FieldType::UpTo(FieldType::Names.bound().max_entries(MAX_MEMBERS).max_entry_bytes(4096).allowing_empty(), &FieldType::Names);
const PROPERTY_MAP: &FieldType = &FieldType::MapOf(Property::FIELD_DEFS);

/// Properties, by name.
pub type Properties = BTreeMap<String, Property>;

/// A namespace of the catalogue as stored: definitions of labels, parameters, properties and facts, in the format of
/// Glance. Its name is the name of its object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {
    /// The name that people see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// A description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The visibility of the namespace in Glance. Here it hides no namespace.
    pub visibility: Visibility,
    /// True if neither the namespace nor any of its items can be deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// The owner of the namespace in Glance. It has no effect here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Plain labels of the namespace itself. They are not inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The resource types that its properties apply to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_type_associations: Vec<Association>,
    /// The properties of the namespace, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: Properties,
    /// Groups of properties.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Definition>,
    /// Tags for the resources that the namespace applies to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<NamespaceTag>,
    /// The dates of each association, object and tag, by the name of its list and its own name, such as
    /// `tags/reviewed`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dates: BTreeMap<String, Dates>,
    /// The owners of each field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// The times at which an item of a namespace was created and last changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dates {
    /// Time at which the item was created.
    pub created_at: Timestamp,
    /// Time at which the item was last changed.
    pub updated_at: Timestamp,
}

/// The visibility of a namespace in Glance. In Stemma it hides no namespace: everyone who may read sees all namespaces.
/// A list of namespaces can be filtered by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// In Glance, everyone can see the namespace.
    Public,
    /// In Glance, only the owner can see the namespace.
    #[default]
    Private,
}

impl Visibility {
    /// The values in manifests and requests.
    pub const VARIANTS: &'static [&'static str] = &["public", "private"];
}

/// The type of a property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum PropertyType {
    /// A list.
    Array,
    /// True or false.
    Boolean,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// A map.
    Object,
    /// A string.
    String,
}

impl PropertyType {
    /// The values in manifests and requests.
    pub const VARIANTS: &'static [&'static str] = &["array", "boolean", "integer", "number", "object", "string"];
}

/// The default of a property, as Glance stores it: the text that Python prints for the value. It is `None` if the value
/// is a list, a map or `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct DefaultValue(pub Option<String>);

impl<'de> Deserialize<'de> for DefaultValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::Null | Value::Array(_) | Value::Object(_) => None,
            Value::Bool(true) => Some("True".to_owned()),
            Value::Bool(false) => Some("False".to_owned()),
            Value::Number(number) => Some(python_number(&number)),
            Value::String(text) => Some(text),
        }))
    }
}

manifest_struct! {
    /// A resource type that the properties of a namespace apply to.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Association {
        /// The resource type: `Stemma::Label`, `Stemma::Parameter`, `Stemma::Property` or `Stemma::Fact`, or another system's.
        pub name: String = FieldType::Text, REQUIRED, r#""Stemma::Label""#;
        /// The prefix that each property's name has in resources of this type.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub prefix: Option<String> = FieldType::Text, "none", r#""site.example.net/""#;
        /// Glance's selector, if the resource has several sets of properties.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub properties_target: Option<String> = FieldType::Text, "none", r#""image""#;
    }
}

manifest_struct! {
    /// A property of the catalogue: the definition of a key, with the values that the key may have.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Property {
        /// The property's name again, as Glance's clients send it.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub name: Option<String> = FieldType::Text, "none", r#""tier""#;
        /// The property's name for people.
        pub title: String = FieldType::UpTo(FieldType::Text.bound().allowing_empty(), &FieldType::Text), REQUIRED, r#""Tier""#;
        /// The type of the property's value.
        pub kind as "type": PropertyType = FieldType::OneOf(PropertyType::VARIANTS), REQUIRED, r#""string""#;
        /// A description for people.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub description: Option<String> = FieldType::Text, "none", r#""How soon it is mended.""#;
        /// The operators that a requirement on the property may use: `<or>`, `<in>`, `<all-in>`. An empty list allows none. Other texts are stored without effect.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub operators: Option<Vec<String>> = VALUE_LIST, "any", r#"["<or>"]"#;
        /// The values that the property may have.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub values as "enum": Option<Vec<String>> = VALUE_LIST, "any", r#"["gold", "silver"]"#;
        /// The type and the allowed values of the items, if the property is a list.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub items: Option<ItemSchema> = FieldType::Object(ItemSchema::FIELD_DEFS), "anything", r#"{"type": "string", "enum": ["a", "b"]}"#;
        /// The property's default, stored as Python prints it, as in Glance: `1.50` as `1.5`, `true` as `True`. It has no effect here.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub default: Option<DefaultValue> = FieldType::Any, "none", r#""silver""#;
        /// True if only the system sets the property. It has no effect here.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub readonly: Option<bool> = FieldType::Flag, "none", "false";
        /// The minimum of a value that is a number, stored as an integer.
        #[serde(default, deserialize_with = "deserialize_integer", skip_serializing_if = "Option::is_none")]
        pub minimum: Option<i64> = FieldType::Number, "none", "0";
        /// The maximum of a value that is a number, stored as an integer.
        #[serde(default, deserialize_with = "deserialize_integer", skip_serializing_if = "Option::is_none")]
        pub maximum: Option<i64> = FieldType::Number, "none", "100";
        /// The minimum number of characters of a text value.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub min_length as "minLength": Option<u64> = FieldType::Count, "none", "1";
        /// The maximum number of characters of a text value.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub max_length as "maxLength": Option<u64> = FieldType::Count, "none", "63";
        /// A regular expression that a text value must match. An invalid pattern is stored and ignored.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub pattern: Option<String> = FieldType::Text, "none", r#""^[a-z]+$""#;
        /// The minimum number of items of a list.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub min_items as "minItems": Option<u64> = FieldType::Count, "none", "1";
        /// The maximum number of items of a list.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub max_items as "maxItems": Option<u64> = FieldType::Count, "none", "8";
        /// True if no item of a list may appear twice.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub unique_items as "uniqueItems": Option<bool> = FieldType::Flag, "false", "true";
        /// JSON Schema's `additionalItems`. It has no effect here.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub additional_items as "additionalItems": Option<bool> = FieldType::Flag, "none", "true";
    }
}

manifest_struct! {
    /// The type and the allowed values of the items of a property that is a list.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ItemSchema {
        /// The type of each item.
        pub kind as "type": PropertyType = FieldType::OneOf(PropertyType::VARIANTS), REQUIRED, r#""string""#;
        /// The allowed values of each item.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub values as "enum": Option<Vec<String>> = VALUE_LIST, "any", r#"["a", "b"]"#;
    }
}

manifest_struct! {
    /// A group of properties. Glance calls it an object.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Definition {
        /// The name of the group of properties.
        pub name: String = FieldType::Text, REQUIRED, r#""mysql""#;
        /// A description for people.
        #[serde(default, deserialize_with = "deserialize_not_null", skip_serializing_if = "Option::is_none")]
        pub description: Option<String> = FieldType::Text, "none", r#""A database.""#;
        /// The names of the required properties. They have no effect here.
        #[serde(default)]
        pub required: Vec<String> = FieldType::up_to(MAX_MEMBERS, &FieldType::Names), "[]", r#"["port"]"#;
        /// The properties of the group, by name.
        #[serde(default)]
        pub properties: Properties =
            FieldType::up_to(MAX_MEMBERS, PROPERTY_MAP), "{}", r#"{"port": {"title": "Port", "type": "integer", "minimum": 1, "maximum": 65535}}"#;
    }
}

manifest_struct! {
    /// A tag for the resources that a namespace applies to. It is not a tag of a node.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct NamespaceTag {
        /// The name of the tag.
        pub name: String = FieldType::Text, REQUIRED, r#""reviewed""#;
    }
}

/// An item with a name in one of the lists of a namespace.
pub trait NamedItem: PartialEq {
    /// The name of the list that contains the items, as in a request body.
    const LIST: &'static str;
    /// The name of this kind of item in messages.
    const ITEM_NAME: &'static str;
    /// Returns the item's name.
    fn item_name(&self) -> &str;
    /// Returns the items of this type in a namespace of the catalogue.
    fn items(spec: &NamespaceSpec) -> &[Self]
    where
        Self: Sized;
}

macro_rules! impl_named_items {
    ($($type:ident $list:ident $word:literal;)+) => {
        $(impl NamedItem for $type {
            const LIST: &'static str = stringify!($list);
            const ITEM_NAME: &'static str = $word;

            fn item_name(&self) -> &str {
                &self.name
            }

            fn items(spec: &NamespaceSpec) -> &[Self] {
                &spec.$list
            }
        })+

        impl NamespaceSpec {
            /// Sets the dates of items that are new or changed since `previous`, the spec before the write. Removes the
            /// dates of deleted items.
            pub fn update_dates(&mut self, previous: &Self, now: Timestamp) {
                let mut dates = BTreeMap::new();
                $(dates.extend(updated_dates::<$type>(self, previous, now));)+
                self.dates = dates;
            }
        }
    };
}

impl_named_items! {
    Association resource_type_associations "resource type";
    Definition objects "object";
    NamespaceTag tags "tag";
}

impl NamespaceSpec {
    /// Returns the item of type `M` with this name, or `None` if the namespace has no such item.
    pub fn item<M: NamedItem>(&self, name: &str) -> Option<&M> {
        M::items(self).iter().find(|member| member.item_name() == name)
    }

    /// Returns the times at which an item of type `M` was created and last changed. The times are zero if they are not
    /// known.
    pub fn item_dates<M: NamedItem>(&self, name: &str) -> Dates {
        self.dates.get(&date_key::<M>(name)).copied().unwrap_or_default()
    }
}

/// Returns the key of an item's dates: the name of its list and its own name, such as `tags/reviewed`.
fn date_key<M: NamedItem>(name: &str) -> String {
    format!("{}/{name}", M::LIST)
}

/// Returns the dates of all items of a list after a write. The dates of an unchanged item remain. A changed item has
/// `now` as its date of change. An item without stored dates, such as a new item, has `now` in both dates.
fn updated_dates<M: NamedItem>(new_spec: &NamespaceSpec, old_spec: &NamespaceSpec, now: Timestamp) -> Vec<(String, Dates)> {
    let old_items: BTreeMap<&str, &M> = M::items(old_spec).iter().map(|member| (member.item_name(), member)).collect();
    let dates = |member: &M| {
        let old_dates = old_spec.dates.get(&date_key::<M>(member.item_name()));
        let created_at = old_dates.map_or(now, |dates| dates.created_at);
        let is_unchanged = old_items.get(member.item_name()) == Some(&member);
        let updated_at = old_dates.filter(|_| is_unchanged).map_or(now, |dates| dates.updated_at);
        (date_key::<M>(member.item_name()), Dates { created_at, updated_at })
    };
    M::items(new_spec).iter().map(dates).collect()
}

/// Deserializes an optional field that is present. `null` is an error, because responses would omit the field.
fn deserialize_not_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Deserializes the minimum or maximum of a property as an integer. The fraction of a number is cut off, as in Glance.
fn deserialize_integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let number = Number::deserialize(deserializer)?;
    let without_fraction = || {
        let number = number.as_f64().map(f64::trunc).filter(|number| number.abs() < 9.0e18)?;
        #[expect(clippy::cast_possible_truncation, reason = "it has no fraction and is within the range")]
        Some(number as i64)
    };
    let whole = number.as_i64().or_else(without_fraction);
    whole.map(Some).ok_or_else(|| serde::de::Error::custom(format_args!("{number} does not fit into 64 bits")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn property_is_stored_in_glance_form() {
        for (sent, stored) in [
            (json!({"operators": ["<or>", "<or>", "bogus", ""]}), json!({"operators": ["<or>", "<or>", "bogus", ""]})),
            (json!({"operators": []}), json!({"operators": []})),
            (json!({"default": 5}), json!({"default": "5"})),
            (json!({"default": 0.7}), json!({"default": "0.7"})),
            (json!({"default": 1.50}), json!({"default": "1.5"})),
            (json!({"default": 1e2}), json!({"default": "100.0"})),
            (json!({"default": 1e-7}), json!({"default": "1e-07"})),
            (json!({"default": 1e16}), json!({"default": "1e+16"})),
            (json!({"default": true}), json!({"default": "True"})),
            (json!({"default": ["a"]}), json!({"default": null})),
            (json!({"default": null}), json!({"default": null})),
            (json!({"minimum": 0.5, "maximum": -1.5}), json!({"minimum": 0, "maximum": -1})),
            (json!({"enum": ["a"], "uniqueItems": false}), json!({"enum": ["a"], "uniqueItems": false})),
        ] {
            // Adds the two fields that every property must have.
            let with = |mut part: Value| {
                part["title"] = "T".into();
                part["type"] = "string".into();
                part
            };
            let property: Property = serde_json::from_value(with(sent.clone())).unwrap();
            assert_eq!(serde_json::to_value(&property).unwrap(), with(stored), "{sent}");
            let reread: Property = serde_json::from_value(serde_json::to_value(&property).unwrap()).unwrap();
            assert_eq!(reread, property, "the stored property is equal after it is read");
        }
    }

    /// A new tag has the time of the write as its time of creation, and an existing tag keeps its time of creation. The
    /// dates of a deleted tag are removed.
    #[test]
    fn namespace_tag_is_dated_when_added() {
        let tag = |name: &str| NamespaceTag { name: name.to_owned() };
        let mut first = NamespaceSpec { tags: vec![tag("a")], ..NamespaceSpec::default() };
        first.update_dates(&NamespaceSpec::default(), Timestamp(1));
        let mut second = NamespaceSpec { tags: vec![tag("b"), tag("a")], ..first.clone() };
        second.update_dates(&first, Timestamp(2));
        assert_eq!(second.item_dates::<NamespaceTag>("a").created_at, Timestamp(1));
        assert_eq!(second.item_dates::<NamespaceTag>("b").created_at, Timestamp(2));
        let mut third = NamespaceSpec { tags: vec![tag("b")], ..second.clone() };
        third.update_dates(&second, Timestamp(3));
        assert_eq!(third.dates.len(), 1);
    }
}
