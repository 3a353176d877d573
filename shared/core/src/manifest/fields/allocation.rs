//! The fields of an allocation, which has a body in the API but no manifest.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, BodyErrorKind, missing_object};
use super::super::field_defs::name_field;
use super::super::names::NameResolver;
use super::super::passthrough::{self, PassthroughField};
use super::super::reader::read_json;
use super::super::validate;
use super::node::read_group;
use super::{Field, SpecFields, field, to_json};
use crate::field::{FieldDef, FieldType, Help, REQUIRED};
use crate::object::{AllocationSpec, Extra, FieldOwners, Kind, NodeId};
use crate::traits::{MAX_TRAITS, Trait};

impl SpecFields for AllocationSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(
            Self,
            resource_class: FieldType::Text,
            Help::new(REQUIRED, "The resource class of the node, compared letter by letter.", r#""baremetal""#),
            validate::read_required_name
        ),
        field!(
            Self,
            traits: FieldType::up_to(MAX_TRAITS, &FieldType::Names),
            Help::new("[]", "Traits that the node must have; its instance requires them from then on.", r#"["CUSTOM_GPU"]"#),
            read_traits
        ),
        field!(
            Self,
            requirements: FieldType::MapOrList,
            Help::new("{}", "What the node must have: KEY to EXPRESSION.", r#"{"property:memory_mb": ">= 65536"}"#),
            validate::read_requirements
        ),
        Field {
            name: "candidate_nodes",
            kind: FieldType::up_to(1_000, &FieldType::Names),
            help: Help::new("[]", "The nodes to choose from, by name or uuid; any node if none is named.", r#"["web-1"]"#),
            read: |spec, raw, names| {
                let given: Option<Vec<String>> = read_json(raw)?;
                spec.candidate_nodes =
                    given.unwrap_or_default().iter().map(|name| resolve_node(name, names)).collect::<Result<_, _>>()?;
                Ok(())
            },
            show: |spec, _| to_json(&spec.candidate_nodes),
        },
        Field {
            name: "nodegroup",
            kind: FieldType::Text,
            help: Help::new(
                "none",
                "The node must be in this group, CLUSTER/GROUP, and meet its requirements.",
                r#""prod/frontends""#,
            ),
            read: |spec, raw, names| read_group(&mut spec.nodegroup, raw, names),
            show: |spec, names| spec.nodegroup.map_or(Value::Null, |id| to_json(&names.group_name(id).unwrap_or(id.to_string()))),
        },
        field!(
            Self,
            owner: FieldType::Text,
            Help::new("anybody", "The required owner or lessee of the node.", r#""project-1""#),
            validate::read_optional_name
        ),
    ];
    const IDENTITY_FIELDS: &'static [FieldDef] = &[name_field(r#""job-1""#)];
    const PASSTHROUGH_FIELDS: &'static [PassthroughField] = passthrough::ALLOCATION;

    fn extra_mut(&mut self) -> &mut Extra {
        &mut self.extra
    }

    fn extra(&self) -> &Extra {
        &self.extra
    }

    fn owners_mut(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners(&self) -> &FieldOwners {
        &self.owners
    }
}

/// Returns the id of the node with this name or uuid. Fails if there is no such node.
fn resolve_node(name: &str, names: &dyn NameResolver) -> Result<NodeId, BodyError> {
    names.node(name).ok_or_else(|| missing_object("", (Kind::Node, "node"), name, names))
}

/// Reads the requested traits into `traits`, in the order of the request and without duplicates. Fails if a trait is
/// not known.
fn read_traits(traits: &mut Vec<Trait>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    traits.clear();
    for (index, name) in read_json::<Option<Vec<String>>>(raw)?.unwrap_or_default().iter().enumerate() {
        let trait_error = |why: String| BodyError::with_kind(BodyErrorKind::Trait, format!("[{index}]"), why);
        let name = names.trait_names().parse(name).map_err(|why| trait_error(why.to_string()))?;
        if !traits.contains(&name) {
            traits.push(name);
        }
    }
    Ok(())
}
