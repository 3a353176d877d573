//! The fields of the three upper levels: template, cluster and group.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, no_object};
use super::super::extra::{self, Kept};
use super::super::names::Names;
use super::super::parts::{self, LEVELED, name};
use super::super::reader::read;
use super::super::sound;
use super::{Field, Fields, ROLE_NAMES, field, help, leveled, lifecycle, shown};
use crate::field::{Described, Form, Help, Part};
use crate::host_labels::HostLabels;
use crate::lifecycle;
use crate::object::{
    ClusterSpec, ClusterTemplateSpec, Extra, FieldOwners, Inherited, Kind, NodeGroupSpec, RoleChange, Rollout,
    Strategy, TagSpec,
};
use crate::task::Mode;
use crate::time::MAX_SECONDS;

/// How `host_labels` stands on each of them.
const HOST_LABELS: Form = Form::Object(HostLabels::PARTS);

impl Fields for ClusterTemplateSpec {
    leveled!(
        false,
        extra::TEMPLATE,
        &[name(r#""base""#)],
        &[LEVELED],
        [
            field!(Self, description: Form::Text, help::DESCRIPTION),
            field!(Self, release: Form::Text, help::RELEASE),
            field!(Self, host_labels: HOST_LABELS, help::HOST_LABELS, sound::host_labels),
        ]
    );
}

impl Fields for ClusterSpec {
    leveled!(
        true,
        extra::CLUSTER,
        &[name(r#""prod""#)],
        &[LEVELED],
        [
            field!(Self, description: Form::Text, help::DESCRIPTION),
            Field {
                name: "cluster_template",
                form: Form::Text,
                help: Help::new(
                    "none",
                    "The template that it is made from; without one it is its own top level.",
                    r#""base""#
                ),
                read: read_template,
                show: |spec, names| {
                    spec.cluster_template
                        .map_or(Value::Null, |id| shown(&names.template_name(id).unwrap_or(id.to_string())))
                },
            },
            field!(Self, release: Form::Text, help::RELEASE.inherited(true)),
            field!(Self, host_labels: HOST_LABELS, help::HOST_LABELS.inherited(true), sound::host_labels),
            field!(
                Self,
                tags: Form::MapOf(TagSpec::PARTS),
                Help::new("{}", "User-defined tags, visible in this cluster alone.", r#"{"canary": {}}"#),
                sound::tags
            ),
            field!(
                Self,
                roles: Form::MapOf(RoleChange::PARTS),
                Help::new("{}", "Changes to what its roles produce.", r#"{"web": {"add_tags": ["canary"]}}"#),
                sound::role_changes
            ),
            field!(
                Self,
                rollout: Form::Object(Rollout::PARTS),
                Help::new("no limit", "How rollouts go over its groups.", r#"{"max_groups": 1}"#),
                sound::rollout
            ),
            field!(Self, paused: Form::Flag, help::PAUSED),
            field!(
                Self,
                primaries: Form::Map,
                Help::new(
                    "the first by name",
                    "Which node holds a tag as primary; where it does not have the tag, who held it keeps it.",
                    r#"{"mysql": "db-1"}"#
                ),
                sound::primaries
            ),
        ]
    );
}

impl Fields for NodeGroupSpec {
    leveled!(
        true,
        extra::GROUP,
        parts::OF_GROUP,
        &[LEVELED],
        [
            field!(Self, description: Form::Text, help::DESCRIPTION),
            field!(Self, release: Form::Text, help::RELEASE.inherited(true)),
            field!(Self, host_labels: HOST_LABELS, help::HOST_LABELS.inherited(true), sound::host_labels),
            field!(Self, roles: ROLE_NAMES, help::ROLES, sound::role_names),
            field!(
                Self,
                requirements: Form::MapOrList,
                Help::new(
                    "{}",
                    "What a node must have: KEY to EXPRESSION; an unmet one holds its next task set.",
                    r#"{"property:memory_mb": ">= 16384", "trait:HW_CPU_X86_AVX2": "required"}"#
                ),
                sound::requirements
            ),
            field!(
                Self,
                strategy: Form::Object(Strategy::PARTS),
                Help::new(
                    "RollingUpdate, one at a time",
                    "How its hosts are rolled out.",
                    r#"{"type": "RollingUpdate", "max_unavailable": "25%"}"#
                ),
                sound::strategy
            ),
            field!(Self, paused: Form::Flag, help::PAUSED),
            field!(Self, mode: Form::OneOf(Mode::WORDS), help::MODE),
            field!(
                Self,
                mend_offline: Form::Flag,
                Help::new(
                    "false",
                    "Whether a host mends without a controller what would interrupt it.",
                    "true"
                )
            ),
            field!(
                Self,
                splay_seconds as "splay" => Form::Seconds(0, MAX_SECONDS),
                Help::new("0", "Over how many seconds its hosts spread their hooks at a change.", "30")
            ),
            field!(
                Self,
                silent_after_seconds as "silent_after" => Form::Seconds(1, MAX_SECONDS),
                Help::new("90", "After how many seconds without a word a host counts as silent.", "300")
            ),
        ]
    );
}

fn read_template(spec: &mut ClusterSpec, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let name: Option<String> = read(raw)?;
    spec.cluster_template = name
        .map(|name| {
            names
                .template(&name)
                .ok_or_else(|| no_object("", (Kind::ClusterTemplate, "cluster template"), &name, names))
        })
        .transpose()?;
    Ok(())
}
