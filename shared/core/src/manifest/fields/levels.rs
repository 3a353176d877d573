//! The fields of the three upper levels: template, cluster and group.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, missing_object};
use super::super::field_defs::{self, LEVEL_FIELDS, name_field};
use super::super::names::NameResolver;
use super::super::passthrough::{self, PassthroughField};
use super::super::reader::read_json;
use super::super::validate;
use super::{Field, ROLE_LIST, SpecFields, field, help, level_fields, lifecycle, to_json};
use crate::field::{DescribeFields, FieldDef, FieldType, Help};
use crate::host_labels::HostLabels;
use crate::lifecycle;
use crate::object::{
    ClusterSpec, ClusterTemplateSpec, Extra, FieldOwners, Inherited, Kind, NodeGroupSpec, RoleChange, Rollout, Strategy, TagSpec,
};
use crate::task::Mode;
use crate::time::MAX_DURATION_SECONDS;

/// The type of the field `host_labels` of a template, cluster or group.
const HOST_LABELS_TYPE: FieldType = FieldType::Object(HostLabels::FIELD_DEFS);

impl SpecFields for ClusterTemplateSpec {
    level_fields!(
        false,
        passthrough::TEMPLATE,
        &[name_field(r#""base""#)],
        &[LEVEL_FIELDS],
        [
            field!(Self, description: FieldType::Text, help::DESCRIPTION),
            field!(Self, release: FieldType::Text, help::RELEASE),
            field!(Self, host_labels: HOST_LABELS_TYPE, help::HOST_LABELS, validate::read_host_labels),
        ]
    );
}

impl SpecFields for ClusterSpec {
    level_fields!(
        true,
        passthrough::CLUSTER,
        &[name_field(r#""prod""#)],
        &[LEVEL_FIELDS],
        [
            field!(Self, description: FieldType::Text, help::DESCRIPTION),
            Field {
                name: "cluster_template",
                kind: FieldType::Text,
                help: Help::new(
                    "none",
                    "The template that it inherits from; without one the cluster is the top level.",
                    r#""base""#
                ),
                read: read_template,
                show: |spec, names| {
                    spec.cluster_template.map_or(Value::Null, |id| to_json(&names.template_name(id).unwrap_or(id.to_string())))
                },
            },
            field!(Self, release: FieldType::Text, help::RELEASE.with_inherited(true)),
            field!(Self, host_labels: HOST_LABELS_TYPE, help::HOST_LABELS.with_inherited(true), validate::read_host_labels),
            field!(
                Self,
                tags: FieldType::MapOf(TagSpec::FIELD_DEFS),
                Help::new("{}", "User-defined tags, visible in this cluster alone.", r#"{"canary": {}}"#),
                validate::read_tags
            ),
            field!(
                Self,
                roles: FieldType::MapOf(RoleChange::FIELD_DEFS),
                Help::new("{}", "Changes to the tags that its roles produce.", r#"{"web": {"add_tags": ["canary"]}}"#),
                validate::read_role_changes
            ),
            field!(
                Self,
                rollout: FieldType::Object(Rollout::FIELD_DEFS),
                Help::new("no limit", "How a rollout proceeds over its groups.", r#"{"max_groups": 1}"#),
                validate::read_rollout
            ),
            field!(Self, paused: FieldType::Flag, help::PAUSED),
            field!(
                Self,
                primaries: FieldType::Map,
                Help::new(
                    "the first by name",
                    "The node that is primary of a tag; if it does not have the tag, the present primary stays.",
                    r#"{"mysql": "db-1"}"#
                ),
                validate::read_primaries
            ),
        ]
    );
}

impl SpecFields for NodeGroupSpec {
    level_fields!(
        true,
        passthrough::GROUP,
        field_defs::GROUP_IDENTITY,
        &[LEVEL_FIELDS],
        [
            field!(Self, description: FieldType::Text, help::DESCRIPTION),
            field!(Self, release: FieldType::Text, help::RELEASE.with_inherited(true)),
            field!(Self, host_labels: HOST_LABELS_TYPE, help::HOST_LABELS.with_inherited(true), validate::read_host_labels),
            field!(Self, roles: ROLE_LIST, help::ROLES, validate::read_role_names),
            field!(
                Self,
                requirements: FieldType::MapOrList,
                Help::new(
                    "{}",
                    "What a node must have: KEY to EXPRESSION; a node that does not meet one does not get its next task set.",
                    r#"{"property:memory_mb": ">= 16384", "trait:HW_CPU_X86_AVX2": "required"}"#
                ),
                validate::read_requirements
            ),
            field!(
                Self,
                strategy: FieldType::Object(Strategy::FIELD_DEFS),
                Help::new(
                    "RollingUpdate, one at a time",
                    "The rules for a rollout over its hosts.",
                    r#"{"type": "RollingUpdate", "max_unavailable": "25%"}"#
                ),
                validate::read_strategy
            ),
            field!(Self, paused: FieldType::Flag, help::PAUSED),
            field!(Self, mode: FieldType::OneOf(Mode::VARIANTS), help::MODE),
            field!(
                Self,
                mend_offline: FieldType::Flag,
                Help::new(
                    "false",
                    "Whether a host without a connection to a controller may run mends that interrupt it.",
                    "true"
                )
            ),
            field!(
                Self,
                remove_orphans: FieldType::Flag,
                Help::new(
                    "false",
                    "Whether its hosts remove files that only tasks wrote, that nobody changed since, and that no task manages any more.",
                    "true"
                )
            ),
            field!(
                Self,
                splay_seconds as "splay" => FieldType::Seconds(0, MAX_DURATION_SECONDS),
                Help::new("0", "The number of seconds over which its hosts spread their hooks at a change.", "30")
            ),
            field!(
                Self,
                silent_after_seconds as "silent_after" => FieldType::Seconds(1, MAX_DURATION_SECONDS),
                Help::new("90", "The number of seconds without contact after which a host counts as silent.", "300")
            ),
        ]
    );
}

/// Reads the name of a cluster's template, and stores the template's id in the spec. Fails if there is no such
/// template. `null` removes the template.
fn read_template(spec: &mut ClusterSpec, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    let name: Option<String> = read_json(raw)?;
    spec.cluster_template = name
        .map(|name| {
            names.template(&name).ok_or_else(|| missing_object("", (Kind::ClusterTemplate, "cluster template"), &name, names))
        })
        .transpose()?;
    Ok(())
}
