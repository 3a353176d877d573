//! Inspection rules, as in Ironic: conditions on a report, and the actions that run if they hold.
//!
//! Conditions and actions are stored and returned as written. [`crate::inspection`] interprets them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FieldOwners;
use crate::field::{FieldType, REQUIRED, manifest_struct};

/// Maximum priority of a rule.
pub const MAX_PRIORITY: u16 = 9999;

/// A rule as stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InspectionRuleSpec {
    /// A description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Rules with a higher priority are evaluated first. If two rules set the same value, that of the higher priority
    /// applies.
    pub priority: u16,
    /// When the rule is evaluated. There is only one phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RulePhase>,
    /// True if conditions and actions are not shown to anyone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
    /// True if the rule may set labels that a report cannot set: restricted labels.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub grants: bool,
    /// The conditions, all of which must hold. Without conditions the rule always applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<RuleCondition>,
    /// The actions, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<RuleAction>,
    /// Plain labels of the rule itself. They are not inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The owners of each field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// When a rule is evaluated. Ironic has one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulePhase {
    /// After a report arrives.
    Main,
}

impl RulePhase {
    /// The values in manifests and requests.
    pub const VARIANTS: &'static [&'static str] = &["main"];
}

/// For how many items of a loop a condition must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Multiple {
    /// For at least one item.
    #[default]
    Any,
    /// For every item.
    All,
    /// For at least one item. Items after the first one that holds are not evaluated.
    First,
    /// For the last item.
    Last,
}

impl Multiple {
    /// The values in manifests and requests.
    pub const VARIANTS: &'static [&'static str] = &["any", "all", "first", "last"];
}

manifest_struct! {
    /// A condition of a rule.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct RuleCondition {
        /// The operator, with `!` before it for its opposite.
        pub op: String = FieldType::Text, REQUIRED, r#""eq""#;
        /// Its arguments, by name, or a list of them in their order.
        pub args: Value = FieldType::Any, REQUIRED, r#"{"values": ["{inventory[cpu][count]}", "8"]}"#;
        /// The values of `{item}`, for each of which the condition is evaluated.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub items as "loop": Option<Value> = FieldType::Any, "none", r#"["sda", "sdb"]"#;
        /// For how many of the values the condition must hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub multiple: Option<Multiple> = FieldType::OneOf(Multiple::VARIANTS), "any", r#""all""#;
    }
}

manifest_struct! {
    /// An action of a rule.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct RuleAction {
        /// What is done.
        pub op: String = FieldType::Text, REQUIRED, r#""add-trait""#;
        /// Its arguments, by name, or a list of them in their order.
        pub args: Value = FieldType::Any, REQUIRED, r#"{"name": "CUSTOM_GPU"}"#;
        /// The values of `{item}`, for each of which the action runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub items as "loop": Option<Value> = FieldType::Any, "none", r#"["CUSTOM_A", "CUSTOM_B"]"#;
    }
}
