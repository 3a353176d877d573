//! The manifest fields outside the table of a kind: those that identify an object, and those that are owned key by key.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::field::{DescribeFields, FieldBound, FieldDef, FieldType, Help, REQUIRED, manifest_struct};
use crate::key::{MAX_ANNOTATION_BYTES, MAX_VALUE_BYTES};
use crate::labels::{MAX_KEYS, MAX_PARAMETERS_BYTES};
use crate::name::TagName;
use crate::object::{MAX_FACTS_BYTES, TraitSet};

/// Bound of the JSON of a map that is inherited down the levels. The reader of the map checks its keys and values, and
/// their total size without quotes and escapes.
const LEVEL_BOUND: FieldBound = FieldType::Map.bound().max_entries(MAX_KEYS).allowing_empty();

/// Bound of the JSON of one host's facts.
const FACTS_BOUND: FieldBound = FieldType::Map.bound().max_entries(4096).max_bytes(2 * MAX_FACTS_BYTES);

/// The fields of every level that are owned key by key, and the flag `merge_labels`.
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

/// The further fields of a node that are owned entry by entry, and `reports`.
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

/// Returns the `name` field of a kind, with an example.
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

/// The field that identifies a namespace.
pub(super) const NAMESPACE_IDENTITY: &[FieldDef] = &[FieldDef::new(
    "namespace",
    FieldType::Text,
    Help::new(REQUIRED, "Its name, as Glance's bodies have it.", r#""Site::Labels""#),
)];

/// The fields that identify a group.
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
