//! The catalogue's namespace, in Glance's words: which keys exist, what their values may be, and which operators they take.
//!
//! What stands in a namespace is stored with it, so that one write is one change of one object. `operators` are kept as they
//! were given, whatever they are, and two values of a property as Glance gives them back: a `default` is a text, and a bound
//! is a whole number.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};

use super::{FieldOwners, Timestamp};
use crate::field::{Described, Form, REQUIRED, described};
use crate::json::python_number;

/// How many entries a list or map of a namespace has at most.
pub const MAX_MEMBERS: usize = 1_000;

/// The values that a property may have, and the operators on it, as they were given: an empty text is a value too.
const VALUES: Form = Form::UpTo(Form::Names.bound().entries(MAX_MEMBERS).each(4096).with_empty(), &Form::Names);
const PROPERTIES: &Form = &Form::MapOf(Property::PARTS);

/// Properties, by name.
pub type Properties = BTreeMap<String, Property>;

/// A namespace as stored. Its name is its object's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Who sees it.
    pub visibility: Visibility,
    /// Nothing of it can be deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Plain labels of the namespace itself, inherited by nobody.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// To what its properties apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_type_associations: Vec<Association>,
    /// Its properties.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: Properties,
    /// Properties that belong together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Definition>,
    /// Words that can be put on what it applies to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<NamespaceTag>,
    /// When each association, object and tag was made and changed, by its list and name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dates: BTreeMap<String, Dates>,
    /// Who gave which field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// When something in a namespace was made, and when it was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dates {
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub updated_at: Timestamp,
}

/// Who sees a namespace in Glance; here it is kept as given, and everyone who may read sees either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Everyone.
    Public,
    /// Its owner.
    #[default]
    Private,
}

impl Visibility {
    /// The words.
    pub const WORDS: &'static [&'static str] = &["public", "private"];
}

/// What the value of a property is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum PropertyType {
    /// A list.
    Array,
    /// True or false.
    Boolean,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// A map.
    Object,
    /// A text.
    String,
}

impl PropertyType {
    /// The words.
    pub const WORDS: &'static [&'static str] = &["array", "boolean", "integer", "number", "object", "string"];
}

/// A default as Glance keeps it: the text that Python gives of it, and nothing of a list, a map or `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct DefaultText(pub Option<String>);

impl<'de> Deserialize<'de> for DefaultText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(from)? {
            Value::Null | Value::Array(_) | Value::Object(_) => None,
            Value::Bool(true) => Some("True".to_owned()),
            Value::Bool(false) => Some("False".to_owned()),
            Value::Number(number) => Some(python_number(&number)),
            Value::String(text) => Some(text),
        }))
    }
}

described! {
    /// To what the properties of a namespace apply.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Association {
        /// The resource type: `Stemma::Label`, `Stemma::Parameter`, `Stemma::Property` or `Stemma::Fact`, or another system's.
        pub name: String = Form::Text, REQUIRED, r#""Stemma::Label""#;
        /// What stands before the name of each property there.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub prefix: Option<String> = Form::Text, "none", r#""site.example.net/""#;
        /// Glance's: which of several sets of properties of the resource is meant.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub properties_target: Option<String> = Form::Text, "none", r#""image""#;
    }
}

described! {
    /// A key of the catalogue.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Property {
        /// Its name once more, as Glance's clients send it.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub name: Option<String> = Form::Text, "none", r#""tier""#;
        /// Its name for people.
        pub title: String = Form::UpTo(Form::Text.bound().with_empty(), &Form::Text), REQUIRED, r#""Tier""#;
        /// What its value is.
        pub kind as "type": PropertyType = Form::OneOf(PropertyType::WORDS), REQUIRED, r#""string""#;
        /// For people.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub description: Option<String> = Form::Text, "none", r#""How soon it is mended.""#;
        /// Which of `<or>`, `<in>` and `<all-in>` a requirement may use on it; an empty list: none of them. Other words are kept, and allow nothing.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub operators: Option<Vec<String>> = VALUES, "any", r#"["<or>"]"#;
        /// The values that it may have.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub values as "enum": Option<Vec<String>> = VALUES, "any", r#"["gold", "silver"]"#;
        /// What is in its list.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub items: Option<Items> = Form::Object(Items::PARTS), "anything", r#"{"type": "string", "enum": ["a", "b"]}"#;
        /// What it is where nobody says, kept as the text that Python has for it, as in Glance: `1.50` as `1.5`, `true` as `True`; nothing here acts on it.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub default: Option<DefaultText> = Form::Any, "none", r#""silver""#;
        /// Whether it is set by the system alone; nothing here acts on it.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub readonly: Option<bool> = Form::Flag, "none", "false";
        /// The least number, kept as a whole number.
        #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
        pub minimum: Option<i64> = Form::Number, "none", "0";
        /// The greatest number, kept as a whole number.
        #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
        pub maximum: Option<i64> = Form::Number, "none", "100";
        /// The fewest characters.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub min_length as "minLength": Option<u64> = Form::Count, "none", "1";
        /// The most characters.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub max_length as "maxLength": Option<u64> = Form::Count, "none", "63";
        /// A pattern that its text has; one that is no pattern here is kept and not looked at.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub pattern: Option<String> = Form::Text, "none", r#""^[a-z]+$""#;
        /// The fewest items.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub min_items as "minItems": Option<u64> = Form::Count, "none", "1";
        /// The most items.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub max_items as "maxItems": Option<u64> = Form::Count, "none", "8";
        /// Whether no item may stand there twice.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub unique_items as "uniqueItems": Option<bool> = Form::Flag, "false", "true";
        /// JSON Schema's, kept; nothing here acts on it.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub additional_items as "additionalItems": Option<bool> = Form::Flag, "none", "true";
    }
}

described! {
    /// What stands in a property's list.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Items {
        /// What each of them is.
        pub kind as "type": PropertyType = Form::OneOf(PropertyType::WORDS), REQUIRED, r#""string""#;
        /// The values that each may have.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub values as "enum": Option<Vec<String>> = VALUES, "any", r#"["a", "b"]"#;
    }
}

described! {
    /// Properties that belong together: Glance's object.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Definition {
        /// Its name.
        pub name: String = Form::Text, REQUIRED, r#""mysql""#;
        /// For people.
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        pub description: Option<String> = Form::Text, "none", r#""A database.""#;
        /// Which of its properties something of it must have; nothing here acts on it.
        #[serde(default)]
        pub required: Vec<String> = Form::up_to(MAX_MEMBERS, &Form::Names), "[]", r#"["port"]"#;
        /// Its properties.
        #[serde(default)]
        pub properties: Properties =
            Form::up_to(MAX_MEMBERS, PROPERTIES), "{}", r#"{"port": {"title": "Port", "type": "integer", "minimum": 1, "maximum": 65535}}"#;
    }
}

described! {
    /// A word that can be put on what a namespace applies to; no tag of a node.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct NamespaceTag {
        /// Its name.
        pub name: String = Form::Text, REQUIRED, r#""reviewed""#;
    }
}

/// What has a name of its own in a list of a namespace.
pub trait Member: PartialEq {
    /// The list, as in a body.
    const LIST: &'static str;
    /// What one of them is called in messages.
    const WORD: &'static str;
    /// Its name.
    fn name(&self) -> &str;
    /// The list.
    fn all(spec: &NamespaceSpec) -> &[Self]
    where
        Self: Sized;
}

macro_rules! members {
    ($($type:ident $list:ident $word:literal;)+) => {
        $(impl Member for $type {
            const LIST: &'static str = stringify!($list);
            const WORD: &'static str = $word;

            fn name(&self) -> &str {
                &self.name
            }

            fn all(spec: &NamespaceSpec) -> &[Self] {
                &spec.$list
            }
        })+

        impl NamespaceSpec {
            /// Dates what is new or another than before, and forgets what is gone.
            pub fn stamp(&mut self, before: &Self, now: Timestamp) {
                let mut dates = BTreeMap::new();
                $(dates.extend(dated::<$type>(self, before, now));)+
                self.dates = dates;
            }
        }
    };
}

members! {
    Association resource_type_associations "resource type";
    Definition objects "object";
    NamespaceTag tags "tag";
}

impl NamespaceSpec {
    /// What stands in one of its lists under a name.
    pub fn member<M: Member>(&self, name: &str) -> Option<&M> {
        M::all(self).iter().find(|member| member.name() == name)
    }

    /// When it was made and changed.
    pub fn dates_of<M: Member>(&self, name: &str) -> Dates {
        self.dates.get(&date_key::<M>(name)).copied().unwrap_or_default()
    }
}

fn date_key<M: Member>(name: &str) -> String {
    format!("{}/{name}", M::LIST)
}

fn dated<M: Member>(after: &NamespaceSpec, before: &NamespaceSpec, now: Timestamp) -> Vec<(String, Dates)> {
    let stood: BTreeMap<&str, &M> = M::all(before).iter().map(|member| (member.name(), member)).collect();
    let dates = |member: &M| {
        let known = before.dates.get(&date_key::<M>(member.name()));
        let created_at = known.map_or(now, |dates| dates.created_at);
        let is_same = stood.get(member.name()) == Some(&member);
        let updated_at = known.filter(|_| is_same).map_or(now, |dates| dates.updated_at);
        (date_key::<M>(member.name()), Dates { created_at, updated_at })
    };
    M::all(after).iter().map(dates).collect()
}

/// What is given is no `null`, which would come back as nothing.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A bound, without its fraction: as Glance keeps it.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let number = Number::deserialize(from)?;
    let truncated = || {
        let number = number.as_f64().map(f64::trunc).filter(|number| number.abs() < 9.0e18)?;
        #[expect(clippy::cast_possible_truncation, reason = "it has no fraction and is within the range")]
        Some(number as i64)
    };
    let whole = number.as_i64().or_else(truncated);
    whole.map(Some).ok_or_else(|| serde::de::Error::custom(format_args!("{number} does not fit into 64 bits")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_property_is_kept_as_glance_gives_it_back() {
        for (sent, kept) in [
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
            let with = |mut part: Value| {
                part["title"] = "T".into();
                part["type"] = "string".into();
                part
            };
            let property: Property = serde_json::from_value(with(sent.clone())).unwrap();
            assert_eq!(serde_json::to_value(&property).unwrap(), with(kept), "{sent}");
            let again: Property = serde_json::from_value(serde_json::to_value(&property).unwrap()).unwrap();
            assert_eq!(again, property, "it is stored as it is given back");
        }
    }

    #[test]
    fn what_stands_in_a_namespace_is_dated_when_it_changes() {
        let tag = |name: &str| NamespaceTag { name: name.to_owned() };
        let mut first = NamespaceSpec { tags: vec![tag("a")], ..NamespaceSpec::default() };
        first.stamp(&NamespaceSpec::default(), Timestamp(1));
        let mut second = NamespaceSpec { tags: vec![tag("b"), tag("a")], ..first.clone() };
        second.stamp(&first, Timestamp(2));
        assert_eq!(second.dates_of::<NamespaceTag>("a").created_at, Timestamp(1));
        assert_eq!(second.dates_of::<NamespaceTag>("b").created_at, Timestamp(2));
        let mut third = NamespaceSpec { tags: vec![tag("b")], ..second.clone() };
        third.stamp(&second, Timestamp(3));
        assert_eq!(third.dates.len(), 1);
    }
}
