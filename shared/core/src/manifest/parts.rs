//! What a manifest has beside the fields of its kind's table: what names the object, and what is owned key by key.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::field::{Bound, Described, Form, Help, Part, REQUIRED, described};
use crate::key::{MAX_ANNOTATIONS, MAX_VALUE};
use crate::labels::{MAX_KEYS, MAX_PARAMETERS};
use crate::name::TagName;
use crate::object::{MAX_FACTS, TraitSet};

/// What a map that goes down the levels may hold as JSON. What its keys and values are, and how much they may be together without quotes
/// and escapes, is asked where they are read.
const OF_LEVEL: Bound = Form::Map.bound().entries(MAX_KEYS).with_empty();

/// What the facts of one host may be as JSON.
const OF_FACTS: Bound = Form::Map.bound().entries(4096).bytes(2 * MAX_FACTS);

/// What every level has and owns key by key, and the flag beside it.
pub(super) const LEVELED: &[Part] = &[
    Part::new(
        "labels",
        Form::UpTo(OF_LEVEL.bytes(2 * MAX_KEYS * MAX_VALUE), &Form::Map),
        Help::new(
            "not provided",
            "Labels that this level provides; `null`: the key is not inherited here.",
            r#"{"tier": "gold", "debug": null}"#,
        ),
    ),
    Part::new(
        "merge_labels",
        Form::Flag,
        Help::new(
            "true when labels are first provided",
            "Whether they are added to what is inherited, or are all there is.",
            "true",
        ),
    ),
    Part::new(
        "annotations",
        Form::UpTo(OF_LEVEL.bytes(2 * MAX_ANNOTATIONS), &Form::Map),
        Help::new(
            "not provided",
            "Annotations that this level provides; they always merge.",
            r#"{"contact": "ops@example.net"}"#,
        ),
    ),
    Part::new(
        "parameters",
        Form::UpTo(OF_LEVEL.bytes(2 * MAX_PARAMETERS), &Form::Map),
        Help::new(
            "not provided",
            "JSON values that go down the levels, the nearest level's for each key; read as `params.KEY`.",
            r#"{"mysql": {"max_connections": 500}}"#,
        ),
    ),
];

/// What a node has beside those.
pub(super) const OF_NODE: &[Part] = &[
    Part::new(
        "traits",
        Form::Names,
        Help::new("not provided", "Traits that it has: standard ones, or CUSTOM_NAME.", r#"["CUSTOM_RACK_7"]"#),
    ),
    Part::new(
        "tags",
        Form::Object(WrittenTags::PARTS),
        Help::new("not provided", "Tags by hand.", r#"{"assigned": ["canary"], "unassigned": ["nginx"]}"#),
    ),
    Part::new(
        "reports",
        Form::Object(Reports::PARTS),
        Help::new(
            "{}",
            "What its host would say, for the command without a controller; a controller takes it from hosts alone.",
            r#"{"traits": ["HW_CPU_X86_AVX2"]}"#,
        ),
    ),
];

/// The name of an object, with an example.
pub(super) const fn name(example: &'static str) -> Part {
    Part::new("name", Form::Text, Help::new(REQUIRED, "Its name.", example))
}

/// What names a release, and what is merged into it.
pub(super) const OF_RELEASE: &[Part] = &[
    name("\"site\""),
    Part::new(
        "version",
        Form::Text,
        Help::new("none", "Its version, a text: a bare 2026.10 would be the number 2026.1.", r#""2026.11""#),
    ),
    Part::new(
        "include",
        Form::Names,
        Help::new(
            "[]",
            "Files at or below the manifest's directory, whose lists and maps the command merges into it.",
            r#"["tasks.inc"]"#,
        ),
    ),
];

/// What names a namespace.
pub(super) const OF_NAMESPACE: &[Part] = &[Part::new(
    "namespace",
    Form::Text,
    Help::new(REQUIRED, "Its name, as Glance's bodies have it.", r#""Site::Labels""#),
)];

/// What names a group.
pub(super) const OF_GROUP: &[Part] = &[
    name("\"frontends\""),
    Part::new("cluster", Form::Text, Help::new(REQUIRED, "The cluster that it is a group of.", r#""prod""#)),
];

/// What names a node.
pub(super) const IDENTITY_OF_NODE: &[Part] = &[
    name("\"web-1\""),
    Part::new(
        "uuid",
        Form::Text,
        Help::new("a new one", "Its uuid, where its author gives one.", r#""0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6""#),
    ),
];

described! {
    /// What a Node's `reports` hold: what its host would say.
    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub(super) struct Reports {
        /// Facts, as docs/facts.md lists them.
        pub(super) facts: Map<String, Value> = Form::UpTo(OF_FACTS, &Form::Map), "{}", r#"{"cpu": {"count": 8}}"#;
        /// Traits that it would detect.
        pub(super) traits: TraitSet = Form::Names, "[]", r#"["HW_CPU_X86_AVX2"]"#;
        /// Labels of its own files.
        pub(super) labels: BTreeMap<String, String> = Form::Map, "{}", r#"{"rack": "r7"}"#;
    }
}

described! {
    /// A node's tags by hand.
    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub(super) struct WrittenTags {
        /// Tags that it has whatever its roles.
        pub(super) assigned: Option<Vec<TagName>> = Form::Names, "not provided", r#"["canary"]"#;
        /// Tags that its roles produce and that it has not.
        pub(super) unassigned: Option<Vec<TagName>> = Form::Names, "not provided", r#"["nginx"]"#;
    }
}
