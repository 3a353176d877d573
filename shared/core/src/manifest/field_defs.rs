//! The manifest fields outside the table of a kind: those that identify an object, and those that are owned key by key.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::field::{DescribeFields, FieldBound, FieldDef, FieldType, Help, REQUIRED, manifest_struct};
use crate::key::{MAX_ANNOTATION_BYTES, MAX_VALUE_BYTES};
use crate::labels::{MAX_KEYS, MAX_PARAMETERS_BYTES};
use crate::name::TagName;
use crate::object::{MAX_FACTS_BYTES, TraitSet};

/// The bound of a map that lower levels inherit, such as labels: at most [`MAX_KEYS`] entries. Each map adds its own
/// size limit. Keys are checked when the map is read, so empty keys are allowed here.
const LEVEL_BOUND: FieldBound = FieldType::Map.bound().max_entries(MAX_KEYS).allowing_empty();

/// The bound of the facts that a Node manifest contains under `reports`: at most 4,096 entries, and twice
/// [`MAX_FACTS_BYTES`] of JSON, because quotes and escapes need space too.
const FACTS_BOUND: FieldBound = FieldType::Map.bound().max_entries(4096).max_bytes(2 * MAX_FACTS_BYTES);

/// The maps that every level has (template, cluster, group and node), and the flag `merge_labels`. Each key of such a
/// map has its own owners.
pub(super) const LEVEL_FIELDS: &[FieldDef] = &[
    FieldDef::new(
        "labels",
        FieldType::UpTo(LEVEL_BOUND.max_bytes(2 * MAX_KEYS * MAX_VALUE_BYTES), &FieldType::Map),
        Help::new(
            "not provided",
            "Labels that this level provides; `null`: the key is not inherited here.",
            r#"{"tier": "gold", "debug": null}"#,
        ),
    ),
    FieldDef::new(
        "merge_labels",
        FieldType::Flag,
        Help::new(
            "true when labels are first provided",
            "Whether labels are added to the inherited ones, or replace them.",
            "true",
        ),
    ),
    FieldDef::new(
        "annotations",
        FieldType::UpTo(LEVEL_BOUND.max_bytes(2 * MAX_ANNOTATION_BYTES), &FieldType::Map),
        Help::new(
            "not provided",
            "Annotations that this level provides; they always merge.",
            r#"{"contact": "ops@example.net"}"#,
        ),
    ),
    FieldDef::new(
        "parameters",
        FieldType::UpTo(LEVEL_BOUND.max_bytes(2 * MAX_PARAMETERS_BYTES), &FieldType::Map),
        Help::new(
            "not provided",
            "JSON values that are inherited down the levels; for each key the nearest level wins. Read as `params.KEY`.",
            r#"{"mysql": {"max_connections": 500}}"#,
        ),
    ),
];

/// The traits and tags of a node, each with its own owners, and `reports`, which has no owners.
pub(super) const NODE_FIELDS: &[FieldDef] = &[
    FieldDef::new(
        "traits",
        FieldType::Names,
        Help::new("not provided", "Traits of the node: standard ones, or CUSTOM_NAME.", r#"["CUSTOM_RACK_7"]"#),
    ),
    FieldDef::new(
        "tags",
        FieldType::Object(NodeTagsInput::FIELD_DEFS),
        Help::new(
            "not provided",
            "Tags that are assigned or unassigned by hand.",
            r#"{"assigned": ["canary"], "unassigned": ["nginx"]}"#,
        ),
    ),
    FieldDef::new(
        "reports",
        FieldType::Object(Reports::FIELD_DEFS),
        Help::new(
            "{}",
            "Values that its host would report, for commands without a controller; a controller accepts them from hosts only.",
            r#"{"traits": ["HW_CPU_X86_AVX2"]}"#,
        ),
    ),
];

/// Returns the definition of the required field `name`, with this example value.
pub(super) const fn name_field(example: &'static str) -> FieldDef {
    FieldDef::new("name", FieldType::Text, Help::new(REQUIRED, "Its name.", example))
}

/// The fields that identify a release, and `include`, which names files to merge into it.
pub(super) const RELEASE_IDENTITY: &[FieldDef] = &[
    name_field("\"site\""),
    FieldDef::new(
        "version",
        FieldType::Text,
        Help::new("none", "Its version, a text: a bare 2026.10 would be the number 2026.1.", r#""2026.11""#),
    ),
    FieldDef::new(
        "include",
        FieldType::Names,
        Help::new(
            "[]",
            "Files at or below the manifest's directory, whose lists and maps the command merges into it.",
            r#"["tasks.inc"]"#,
        ),
    ),
];

/// The field that identifies a namespace of the catalogue. Such a namespace defines the keys and values of labels,
/// parameters and the like.
pub(super) const NAMESPACE_IDENTITY: &[FieldDef] = &[FieldDef::new(
    "namespace",
    FieldType::Text,
    Help::new(REQUIRED, "The name of the namespace, as in Glance.", r#""Site::Labels""#),
)];

/// The fields that identify a node group.
pub(super) const GROUP_IDENTITY: &[FieldDef] = &[
    name_field("\"frontends\""),
    FieldDef::new("cluster", FieldType::Text, Help::new(REQUIRED, "The cluster of the group.", r#""prod""#)),
];

/// The fields that identify a node.
pub(super) const NODE_IDENTITY: &[FieldDef] = &[
    name_field("\"web-1\""),
    FieldDef::new(
        "uuid",
        FieldType::Text,
        Help::new("a new one", "Its uuid, if its author provides one.", r#""0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6""#),
    ),
];

manifest_struct! {
    /// The `reports` of a Node manifest: the values that its host would report.
    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub(super) struct Reports {
        /// Facts, as docs/facts.md lists them.
        pub(super) facts: Map<String, Value> = FieldType::UpTo(FACTS_BOUND, &FieldType::Map), "{}", r#"{"cpu": {"count": 8}}"#;
        /// Traits that the host would detect.
        pub(super) traits: TraitSet = FieldType::Names, "[]", r#"["HW_CPU_X86_AVX2"]"#;
        /// Labels from the host's own files.
        pub(super) labels: BTreeMap<String, String> = FieldType::Map, "{}", r#"{"rack": "r7"}"#;
    }
}

manifest_struct! {
    /// The tags that were assigned to a node, or unassigned from it, by hand.
    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub(super) struct NodeTagsInput {
        /// Tags that the node has whatever its roles are.
        pub(super) assigned: Option<Vec<TagName>> = FieldType::Names, "not provided", r#"["canary"]"#;
        /// Tags that the node does not have even if its roles produce them.
        pub(super) unassigned: Option<Vec<TagName>> = FieldType::Names, "not provided", r#"["nginx"]"#;
    }
}
