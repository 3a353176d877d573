//! The release: a versioned library of roles, tags and tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Extra, FieldOwners};
use crate::field::{FieldType, REQUIRED, manifest_struct, parse_integer};
use crate::json::deserialize_free_object;
use crate::name::{Name, ReleaseRef, TagName};
use crate::task::Task;

/// Maximum number of tags that one release declares, and of user-defined tags of a release.
pub const MAX_TAGS: usize = 4096;

/// A release as stored. The name of its object consists of the release's name and version, such as `site@1`, or of the
/// name alone if the release has no version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleaseSpec {
    /// A description for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Plain labels of the release itself. They are not inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Plain annotations of the release itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Imported releases. Their roles, tags and tasks are part of this release too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<ReleaseRef>,
    /// The roles, with the tags that each produces.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<Name, RoleSpec>,
    /// The tags that the release declares. User-defined tags are in [`super::ReleaseTagsSpec`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, TagSpec>,
    /// The tasks and task groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Task>,
    /// The rules by which selectors of roles and of primaries match.
    pub matching: Matching,
    /// Roles whose tags an extension decides. An extension is a program outside of Stemma.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<ExtensionUse>,
    /// Fields of another system. They are stored and have no effect here.
    #[serde(deserialize_with = "deserialize_free_object", skip_serializing_if = "Map::is_empty")]
    pub foreign: Extra,
    /// The owners of each field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

manifest_struct! {
    /// A role of a release.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RoleSpec {
        /// The tags that the role gives to its nodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tags: Option<Vec<TagName>> = FieldType::Names, "the tag of its own name", r#"["common", "nginx"]"#;
        /// Title for people.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub title: String = FieldType::Text, "", r#""Web server""#;
        /// Roles that should not be on the same node. If they are, there is a finding.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conflicts: Vec<Name> = FieldType::Names, "[]", r#"["db"]"#;
        /// The number of nodes that should have the role, in Fuel's format. Another number of nodes gives a finding.
        #[serde(skip_serializing_if = "Map::is_empty")]
        pub limits: Map<String, Value> = FieldType::Map, "{}", r#"{"min": 1, "max": 3}"#;
        /// Maximum number of its nodes that may fail: a number or a percentage.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub fault_tolerance: Option<Value> = FieldType::Any, "none", r#""10%""#;
    }
}

impl RoleSpec {
    /// Returns whether a value is a number of nodes that may fail: an integer from 0, or a percentage from `0%` to
    /// `100%`.
    pub(crate) fn is_fault_tolerance(value: &Value) -> bool {
        match value {
            Value::Number(count) => count.as_u64().is_some_and(|count| u32::try_from(count).is_ok()),
            Value::String(text) => text.strip_suffix('%').and_then(parse_integer::<u8>).is_some_and(|share| share <= 100),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
        }
    }

    /// The names of the limits that are compared with the number of nodes that have the role, if they are integers.
    pub(crate) const COMPARED_LIMITS: [&str; 2] = ["min", "max"];
    /// The names of the other limits of Fuel. Their values are stored unchanged.
    pub(crate) const UNCOMPARED_LIMITS: [&str; 3] = ["recommended", "condition", "overrides"];
}

manifest_struct! {
    /// A tag, predefined by a release or defined by a user.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct TagSpec {
        /// True if one node of the cluster holds the tag as primary.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub has_primary: bool = FieldType::Flag, "false", "true";
        /// Title for people.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub title: String = FieldType::Text, "", r#""Database""#;
        /// Probes that decide whether the software of the tag is ready, as written.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ready: Vec<Value> = FieldType::Objects, "[]", r#"[{"unit": "nginx.service"}]"#;
        /// The role that gives the tag to its nodes, for a user-defined tag.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub role: Option<Name> = FieldType::Text, "none", r#""web""#;
    }
}

manifest_struct! {
    /// The rules by which selectors of roles and of primary holders match.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Matching {
        /// The names that a selector of roles matches: the node's roles (own), or only its tags (tags).
        pub roles: RoleMatching = FieldType::OneOf(&["own", "tags"]), "own", r#""own""#;
        /// The names that the primary holder of tag `x` has: both `x` and `primary-x` (adds), or only `primary-x` (replaces).
        pub primary: PrimaryMatching = FieldType::OneOf(&["adds", "replaces"]), "adds", r#""adds""#;
    }
}

/// The names that a selector of roles matches: the node's roles, or its tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleMatching {
    /// The node's roles. A task with an empty list `tags` runs by role, as if the list were absent.
    #[default]
    Own,
    /// Only the node's tags. A task with a list `tags` runs by tag, even if the list is empty.
    Tags,
}

/// The names by which selectors find the primary of a tag. A selector selects the nodes of a task or of a dependency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrimaryMatching {
    /// The holder has both names, such as `mysql` and `primary-mysql`.
    #[default]
    Adds,
    /// The holder has only the primary name, such as `primary-mysql`, as in Fuel.
    Replaces,
}

manifest_struct! {
    /// Roles whose tags an extension decides. An extension is a program outside of Stemma.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ExtensionUse {
        /// The roles.
        pub roles: Vec<Name> = FieldType::Names, REQUIRED, r#"["web"]"#;
        /// The extension, as the controller's configuration declares it.
        pub extension as "use": String = FieldType::Text, REQUIRED, r#""placement""#;
    }
}
