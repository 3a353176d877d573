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

/// An inspection rule as stored. The controller evaluates the rule on the report of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InspectionRuleSpec {
    /// A description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Rules with a higher priority are evaluated first. If two rules set the same label or property, the rule with the
    /// higher priority wins, then the older rule.
    pub priority: u16,
    /// The phase in which the rule is evaluated. There is only one phase, so `None` has the same effect as the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RulePhase>,
    /// True if responses and events hide the conditions and actions from everybody, and findings the rule's messages.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
    /// True if the rule may set restricted labels, which the report of a host alone cannot set.
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

/// The phase in which a rule is evaluated. Ironic has only this phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulePhase {
    /// The phase after the report of a host arrives.
    Main,
}

impl RulePhase {
    /// The values in manifests and requests.
    pub const VARIANTS: &'static [&'static str] = &["main"];
}

/// The items of a loop for which a condition must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Multiple {
    /// At least one item.
    #[default]
    Any,
    /// Every item.
    All,
    /// The same as `Any`: items after the first item for which the condition holds are not evaluated.
    First,
    /// The last item.
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
        /// The operator, such as `eq`; `!` before the operator negates it.
        pub op: String = FieldType::Text, REQUIRED, r#""eq""#;
        /// The arguments of the operator, by name, or a list of them in their order.
        pub args: Value = FieldType::Any, REQUIRED, r#"{"values": ["{inventory[cpu][count]}", "8"]}"#;
        /// A list of values: the condition is evaluated for each value, with the value in place of `{item}`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub items as "loop": Option<Value> = FieldType::Any, "none", r#"["sda", "sdb"]"#;
        /// The values of the loop for which the condition must hold: any, all, first or last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub multiple: Option<Multiple> = FieldType::OneOf(Multiple::VARIANTS), "any", r#""all""#;
    }
}

manifest_struct! {
    /// An action of a rule.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct RuleAction {
        /// The operation, such as `add-trait`.
        pub op: String = FieldType::Text, REQUIRED, r#""add-trait""#;
        /// The arguments of the operation, by name, or a list of them in their order.
        pub args: Value = FieldType::Any, REQUIRED, r#"{"name": "CUSTOM_GPU"}"#;
        /// A list of values: the action runs for each value, with the value in place of `{item}`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub items as "loop": Option<Value> = FieldType::Any, "none", r#"["CUSTOM_A", "CUSTOM_B"]"#;
    }
}
