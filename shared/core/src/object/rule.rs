//! An inspection rule, in Ironic's words: what must hold of a report, and what follows from it.
//!
//! Conditions and actions are stored as they were given, so that they are given back so; what they mean is worked out in
//! [`crate::inspection`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FieldOwners;
use crate::field::{Form, REQUIRED, described};

/// The greatest priority that a rule may have.
pub const MAX_PRIORITY: u16 = 9999;

/// A rule as stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InspectionRuleSpec {
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The rule of a greater one is asked before, and holds where two give one thing.
    pub priority: u16,
    /// When it is asked; there is one answer to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Conditions and actions are shown to nobody.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
    /// It may give what a report cannot: restricted labels.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub grants: bool,
    /// All of them must hold; none: it always acts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<RuleCondition>,
    /// What follows, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<RuleAction>,
    /// Plain labels of the rule itself, inherited by nobody.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Who gave which field.
    #[serde(skip_serializing_if = "FieldOwners::is_empty")]
    pub owners: FieldOwners,
}

/// When a rule is asked. Ironic knows one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// When a report has come.
    Main,
}

impl Phase {
    /// The words.
    pub const WORDS: &'static [&'static str] = &["main"];
}

/// Of how many items of a loop a condition must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Multiple {
    /// Of one of them.
    #[default]
    Any,
    /// Of each.
    All,
    /// Of one: none behind the first of which it holds is asked.
    First,
    /// Of the last.
    Last,
}

impl Multiple {
    /// The words.
    pub const WORDS: &'static [&'static str] = &["any", "all", "first", "last"];
}

described! {
    /// What must hold.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct RuleCondition {
        /// The operator, with `!` before it for its opposite.
        pub op: String = Form::Text, REQUIRED, r#""eq""#;
        /// Its arguments, by name, or a list of them in their order.
        pub args: Value = Form::Any, REQUIRED, r#"{"values": ["{inventory[cpu][count]}", "8"]}"#;
        /// Each of these in turn is `{item}`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub items as "loop": Option<Value> = Form::Any, "none", r#"["sda", "sdb"]"#;
        /// Of how many of these it must hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub multiple: Option<Multiple> = Form::OneOf(Multiple::WORDS), "any", r#""all""#;
    }
}

described! {
    /// What follows.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct RuleAction {
        /// What is done.
        pub op: String = Form::Text, REQUIRED, r#""add-trait""#;
        /// Its arguments, by name, or a list of them in their order.
        pub args: Value = Form::Any, REQUIRED, r#"{"name": "CUSTOM_GPU"}"#;
        /// It is done with each of these as `{item}`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub items as "loop": Option<Value> = Form::Any, "none", r#"["CUSTOM_A", "CUSTOM_B"]"#;
    }
}
