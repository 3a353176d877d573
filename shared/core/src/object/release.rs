//! The release: a versioned library of roles, tags and tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Extra, FieldOwners};
use crate::field::{Form, REQUIRED, described, whole};
use crate::json::free_object;
use crate::name::{Name, ReleaseRef, TagName};
use crate::task::Task;

/// The most tags of a release, and of those beside it.
pub const MAX_TAGS: usize = 4096;

/// A release as stored. Its name and version are its object's name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleaseSpec {
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Plain labels of the release itself, inherited by nobody.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Plain annotations of the release itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Releases whose roles, tags and tasks are this one's too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<ReleaseRef>,
    /// The roles, and the tags that each produces.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<Name, RoleSpec>,
    /// The predefined tags.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, TagSpec>,
    /// The tasks and groups of tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Task>,
    /// How strictly roles and tags are kept apart.
    pub matching: Matching,
    /// Roles whose tags an extension decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<ExtensionUse>,
    /// Fields of another system, kept and without meaning here.
    #[serde(deserialize_with = "free_object", skip_serializing_if = "Map::is_empty")]
    pub foreign: Extra,
    /// Who gave which field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

described! {
    /// One role.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RoleSpec {
        /// The tags that it produces.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tags: Option<Vec<TagName>> = Form::Names, "the tag of its own name", r#"["common", "nginx"]"#;
        /// For people.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub title: String = Form::Text, "", r#""Web server""#;
        /// Roles that should not stand on the same node: a finding when they do.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conflicts: Vec<Name> = Form::Names, "[]", r#"["db"]"#;
        /// How many nodes should have it, as Fuel writes it: a finding when it does not hold.
        #[serde(skip_serializing_if = "Map::is_empty")]
        pub limits: Map<String, Value> = Form::Map, "{}", r#"{"min": 1, "max": 3}"#;
        /// How many of its nodes may fail: a number or a percentage.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub fault_tolerance: Option<Value> = Form::Any, "none", r#""10%""#;
    }
}

impl RoleSpec {
    /// Whether a value says how many nodes may fail: a whole number from 0, or a percentage from `0%` to `100%`.
    pub(crate) fn is_tolerance(value: &Value) -> bool {
        match value {
            Value::Number(count) => count.as_u64().is_some_and(|count| u32::try_from(count).is_ok()),
            Value::String(text) => text.strip_suffix('%').and_then(whole::<u8>).is_some_and(|share| share <= 100),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
        }
    }

    /// The limits that are compared with what there is, where they are whole numbers.
    pub(crate) const COMPARED_LIMITS: [&str; 2] = ["min", "max"];
    /// Those that Fuel has beside them: kept as they came.
    pub(crate) const OTHER_LIMITS: [&str; 3] = ["recommended", "condition", "overrides"];
}

described! {
    /// One tag, predefined or user-defined.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct TagSpec {
        /// Whether one node of the cluster holds it as primary.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub has_primary: bool = Form::Flag, "false", "true";
        /// For people.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub title: String = Form::Text, "", r#""Database""#;
        /// Probes that say whether what the tag stands for is ready, as written.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ready: Vec<Value> = Form::Objects, "[]", r#"[{"unit": "nginx.service"}]"#;
        /// The role that produces it: for user-defined tags.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub role: Option<Name> = Form::Text, "none", r#""web""#;
    }
}

described! {
    /// How strictly roles and tags are kept apart.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Matching {
        /// What a role selector is matched against: the node's roles, or its tags and nothing else.
        pub roles: RoleMatching = Form::OneOf(&["own", "tags"]), "own", r#""own""#;
        /// Whether the holder of a primary has `x` and `primary-x`, or `primary-x` in the place of `x`.
        pub primary: PrimaryMatching = Form::OneOf(&["adds", "replaces"]), "adds", r#""adds""#;
    }
}

/// What a role selector is matched against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleMatching {
    /// The node's roles; an empty `tags` counts as none.
    #[default]
    Own,
    /// The node's tags and nothing else; a `tags` that is present counts, even empty.
    Tags,
}

/// What the holder of a primary is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrimaryMatching {
    /// `mysql` and `primary-mysql`.
    #[default]
    Adds,
    /// `primary-mysql` in the place of `mysql`, as Fuel ran.
    Replaces,
}

described! {
    /// Roles whose tags an extension decides.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ExtensionUse {
        /// The roles.
        pub roles: Vec<Name> = Form::Names, REQUIRED, r#"["web"]"#;
        /// The extension, as the controller's configuration declares it.
        pub extension as "use": String = Form::Text, REQUIRED, r#""placement""#;
    }
}
