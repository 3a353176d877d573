//! The fields of a node.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, missing_object};
use super::super::field_defs::{LEVEL_FIELDS, NODE_FIELDS, NODE_IDENTITY};
use super::super::names::NameResolver;
use super::super::passthrough::{self, PassthroughField};
use super::super::reader::read_json;
use super::super::validate;
use super::{Field, ROLE_LIST, SpecFields, field, help, level_fields, lifecycle, to_json};
use crate::field::{DescribeFields, FieldDef, FieldType, Help};
use crate::lifecycle;
use crate::object::{Extra, FieldOwners, GroupId, Hold, Inherited, Kind, NodeSpec};
use crate::task::Mode;

impl SpecFields for NodeSpec {
    level_fields!(
        true,
        passthrough::NODE,
        NODE_IDENTITY,
        &[LEVEL_FIELDS, NODE_FIELDS],
        [
            field!(Self, description: FieldType::Text, help::DESCRIPTION),
            Field {
                name: "nodegroup",
                kind: FieldType::Text,
                help: Help::new("none", "Its group, as CLUSTER/GROUP; without a group it runs nothing.", r#""prod/frontends""#),
                read: |spec, raw, names| read_group(&mut spec.nodegroup, raw, names),
                show: |spec, names| {
                    spec.nodegroup.map_or(Value::Null, |id| to_json(&names.group_name(id).unwrap_or(id.to_string())))
                },
            },
            field!(Self, roles: ROLE_LIST, help::ROLES, validate::read_role_names),
            field!(
                Self,
                suppressed_traits: FieldType::Names,
                Help::new("[]", "Detected traits that are ignored.", r#"["HW_CPU_X86_AVX512F"]"#),
                validate::read_suppressed_traits
            ),
            field!(
                Self,
                properties: FieldType::Map,
                Help::new(
                    "{}",
                    "Known properties of the machine; requirements test them as `property:NAME`.",
                    r#"{"memory_mb": 65536}"#
                ),
                validate::read_free_json
            ),
            field!(
                Self,
                instance_info: FieldType::Map,
                Help::new("{}", "Ironic's field: the purpose for which the node is used.", r#"{"display_name": "web"}"#),
                validate::read_free_json
            ),
            field!(Self, mode: FieldType::OneOf(Mode::VARIANTS), help::MODE.with_inherited(true)),
            field!(
                Self,
                hold: FieldType::Object(Hold::FIELD_DEFS),
                Help::new(
                    "none",
                    "The node gets no new task set, but its labels still change.",
                    r#"{"reason": "a disk is changed"}"#
                ),
                validate::read_hold
            ),
            field!(
                Self,
                parked: FieldType::Flag,
                Help::new("false", "The node runs no task, others do not wait for it, and it keeps its primaries.", "true")
            ),
        ]
    );
    fn node_mut(&mut self) -> Option<&mut NodeSpec> {
        Some(self)
    }
    fn node(&self) -> Option<&NodeSpec> {
        Some(self)
    }
}

/// Reads the group of a node or allocation, written as CLUSTER/GROUP, and stores its id in `group_id`. `null` stores
/// `None`. Fails if there is no such group.
pub(super) fn read_group(group_id: &mut Option<GroupId>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    *group_id = None;
    let Some(name) = read_json::<Option<String>>(raw)? else { return Ok(()) };
    let (cluster, group) = name.split_once('/').ok_or_else(|| {
        BodyError::new("", format!("{:?} is not a node group: write CLUSTER/GROUP", crate::name::truncated(&name)))
    })?;
    let missing_group = || missing_object("", (Kind::NodeGroup, "node group"), &name, names);
    *group_id = Some(names.group(cluster, group).ok_or_else(missing_group)?);
    Ok(())
}
