//! The fields of a node.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, no_object};
use super::super::extra::{self, Kept};
use super::super::names::Names;
use super::super::parts::{IDENTITY_OF_NODE, LEVELED, OF_NODE};
use super::super::reader::read;
use super::super::sound;
use super::{Field, Fields, ROLE_NAMES, field, help, leveled, lifecycle, shown};
use crate::field::{Described, Form, Help, Part};
use crate::lifecycle;
use crate::object::{Extra, FieldOwners, GroupId, Hold, Inherited, Kind, NodeSpec};
use crate::task::Mode;

impl Fields for NodeSpec {
    leveled!(
        true,
        extra::NODE,
        IDENTITY_OF_NODE,
        &[LEVELED, OF_NODE],
        [
            field!(Self, description: Form::Text, help::DESCRIPTION),
            Field {
                name: "nodegroup",
                form: Form::Text,
                help: Help::new(
                    "none",
                    "Where it stands: CLUSTER/GROUP; without a group it runs nothing.",
                    r#""prod/frontends""#
                ),
                read: |spec, raw, names| read_group(&mut spec.nodegroup, raw, names),
                show: |spec, names| {
                    spec.nodegroup.map_or(Value::Null, |id| shown(&names.group_name(id).unwrap_or(id.to_string())))
                },
            },
            field!(Self, roles: ROLE_NAMES, help::ROLES, sound::role_names),
            field!(
                Self,
                suppressed_traits: Form::Names,
                Help::new("[]", "Traits that are left out though they were detected.", r#"["HW_CPU_X86_AVX512F"]"#),
                sound::suppressed_traits
            ),
            field!(
                Self,
                properties: Form::Map,
                Help::new(
                    "{}",
                    "What is known of the machine; requirements ask for `property:NAME`.",
                    r#"{"memory_mb": 65536}"#
                ),
                sound::free
            ),
            field!(
                Self,
                instance_info: Form::Map,
                Help::new("{}", "Ironic's: what the node is used for.", r#"{"display_name": "web"}"#),
                sound::free
            ),
            field!(Self, mode: Form::OneOf(Mode::WORDS), help::MODE.inherited(true)),
            field!(
                Self,
                hold: Form::Object(Hold::PARTS),
                Help::new(
                    "none",
                    "The node keeps its task set while labels flow.",
                    r#"{"reason": "a disk is changed"}"#
                ),
                sound::hold
            ),
            field!(
                Self,
                parked: Form::Flag,
                Help::new("false", "The node runs no task, others do not wait for it, and it keeps its primaries.", "true")
            ),
        ]
    );
    fn node(&mut self) -> Option<&mut NodeSpec> {
        Some(self)
    }
    fn node_ref(&self) -> Option<&NodeSpec> {
        Some(self)
    }
}

pub(super) fn read_group(to: &mut Option<GroupId>, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    *to = None;
    let Some(name) = read::<Option<String>>(raw)? else { return Ok(()) };
    let (cluster, group) = name.split_once('/').ok_or_else(|| {
        BodyError::new("", format!("{:?} is no node group: write CLUSTER/GROUP", crate::name::cut(&name)))
    })?;
    let missing = || no_object("", (Kind::NodeGroup, "node group"), &name, names);
    *to = Some(names.group(cluster, group).ok_or_else(missing)?);
    Ok(())
}
