//! The fields of a namespace of the catalogue: Glance's body.

use serde_json::Value;

use super::super::field_defs;
use super::super::validate;
use super::{Field, SpecFields, field, help, to_json};
use crate::field::{DescribeFields, FieldDef, FieldType, Help};
use crate::object::{
    Association, Definition, FieldOwners, MAX_MEMBERS, NamespaceSpec, NamespaceTag, Property, Timestamp, Visibility,
};

const ASSOCIATION_LIST: &FieldType = &FieldType::ListOf(Association::FIELD_DEFS);
const PROPERTY_MAP: &FieldType = &FieldType::MapOf(Property::FIELD_DEFS);
const DEFINITION_LIST: &FieldType = &FieldType::ListOf(Definition::FIELD_DEFS);
const TAG_LIST: &FieldType = &FieldType::ListOf(NamespaceTag::FIELD_DEFS);

impl SpecFields for NamespaceSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(
            Self,
            display_name: FieldType::Text,
            Help::new("", "Its name for people.", r#""Labels of the site""#),
            validate::read_text::<80>
        ),
        field!(Self, description: FieldType::Text, help::DESCRIPTION, validate::read_text::<500>),
        Field {
            name: "visibility",
            kind: FieldType::OneOf(Visibility::VARIANTS),
            help: Help::new(
                "private",
                "As in Glance, and usable as a filter. Everyone who may read sees namespaces of either value.",
                r#""public""#,
            ),
            read: |spec, raw, names| validate::read_plain(&mut spec.visibility, raw, names),
            show: |spec, _| {
                if spec.visibility == Visibility::default() { Value::Null } else { to_json(&spec.visibility) }
            },
        },
        field!(Self, protected: FieldType::Flag, Help::new("false", "Neither the namespace nor its items can be deleted.", "true")),
        field!(Self, owner: FieldType::Text, Help::new("", "Its owner.", r#""site""#), validate::read_name::<255>),
        field!(
            Self,
            labels: FieldType::Map,
            Help::new("{}", "Labels of the namespace itself, inherited by nobody.", r#"{"team": "web"}"#),
            validate::read_labels
        ),
        field!(
            Self,
            resource_type_associations: FieldType::up_to(MAX_MEMBERS, ASSOCIATION_LIST),
            Help::new(
                "[]",
                "The resource types that its properties apply to; a Stemma:: type binds keys.",
                r#"[{"name": "Stemma::Label"}]"#
            ),
            validate::read_associations
        ),
        field!(
            Self,
            properties: FieldType::up_to(MAX_MEMBERS, PROPERTY_MAP),
            Help::new(
                "{}",
                "Its properties, by name.",
                r#"{"tier": {"title": "Tier", "type": "string", "enum": ["gold", "silver"], "operators": ["<or>"]}}"#
            ),
            validate::read_properties
        ),
        field!(
            Self,
            objects: FieldType::up_to(MAX_MEMBERS, DEFINITION_LIST),
            Help::new(
                "[]",
                "Groups of properties.",
                r#"[{"name": "mysql", "properties": {"port": {"title": "Port", "type": "integer"}}}]"#
            ),
            validate::read_definitions
        ),
        field!(
            Self,
            tags: FieldType::up_to(MAX_MEMBERS, TAG_LIST),
            Help::new("[]", "Tags for the resources that the namespace applies to; they are not tags of nodes.", r#"[{"name": "reviewed"}]"#),
            validate::read_namespace_tags
        ),
    ];
    const IDENTITY_FIELDS: &'static [FieldDef] = field_defs::NAMESPACE_IDENTITY;

    fn owners_mut(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners(&self) -> &FieldOwners {
        &self.owners
    }
    fn update_dates(&mut self, previous: &Self, now: Timestamp) {
        Self::update_dates(self, previous, now);
    }
}
