//! The fields of a namespace of the catalogue: Glance's body.

use serde_json::Value;

use super::super::parts;
use super::super::sound;
use super::{Field, Fields, field, help, shown};
use crate::field::{Described, Form, Help, Part};
use crate::object::{
    Association, Definition, FieldOwners, MAX_MEMBERS, NamespaceSpec, NamespaceTag, Property, Timestamp, Visibility,
};

const ASSOCIATIONS: &Form = &Form::ListOf(Association::PARTS);
const PROPERTIES: &Form = &Form::MapOf(Property::PARTS);
const DEFINITIONS: &Form = &Form::ListOf(Definition::PARTS);
const TAGS: &Form = &Form::ListOf(NamespaceTag::PARTS);

impl Fields for NamespaceSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(
            Self,
            display_name: Form::Text,
            Help::new("", "Its name for people.", r#""Labels of the site""#),
            sound::text_of::<80>
        ),
        field!(Self, description: Form::Text, help::DESCRIPTION, sound::text_of::<500>),
        Field {
            name: "visibility",
            form: Form::OneOf(Visibility::WORDS),
            help: Help::new(
                "private",
                "As Glance has it, and filtered by. Here everyone who may read sees either.",
                r#""public""#,
            ),
            read: |spec, raw, names| sound::plain(&mut spec.visibility, raw, names),
            show: |spec, _| {
                if spec.visibility == Visibility::default() { Value::Null } else { shown(&spec.visibility) }
            },
        },
        field!(Self, protected: Form::Flag, Help::new("false", "Nothing of it can be deleted.", "true")),
        field!(Self, owner: Form::Text, Help::new("", "Whose it is.", r#""site""#), sound::name_of::<255>),
        field!(
            Self,
            labels: Form::Map,
            Help::new("{}", "Labels of the namespace itself, inherited by nobody.", r#"{"team": "web"}"#),
            sound::labels
        ),
        field!(
            Self,
            resource_type_associations: Form::up_to(MAX_MEMBERS, ASSOCIATIONS),
            Help::new(
                "[]",
                "To what its properties apply; a Stemma:: type binds keys.",
                r#"[{"name": "Stemma::Label"}]"#
            ),
            sound::associations
        ),
        field!(
            Self,
            properties: Form::up_to(MAX_MEMBERS, PROPERTIES),
            Help::new(
                "{}",
                "Its properties, by name.",
                r#"{"tier": {"title": "Tier", "type": "string", "enum": ["gold", "silver"], "operators": ["<or>"]}}"#
            ),
            sound::properties
        ),
        field!(
            Self,
            objects: Form::up_to(MAX_MEMBERS, DEFINITIONS),
            Help::new(
                "[]",
                "Properties that belong together.",
                r#"[{"name": "mysql", "properties": {"port": {"title": "Port", "type": "integer"}}}]"#
            ),
            sound::definitions
        ),
        field!(
            Self,
            tags: Form::up_to(MAX_MEMBERS, TAGS),
            Help::new("[]", "Words for what it applies to; no tags of nodes.", r#"[{"name": "reviewed"}]"#),
            sound::namespace_tags
        ),
    ];
    const NAMED_BY: &'static [Part] = parts::OF_NAMESPACE;

    fn owners(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners_ref(&self) -> &FieldOwners {
        &self.owners
    }
    fn stamp(&mut self, before: &Self, now: Timestamp) {
        Self::stamp(self, before, now);
    }
}
