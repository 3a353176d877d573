//! Requirements on nodes, in the form of the extra specs of Nova (`OpenStack`'s compute service).
//!
//! A requirement is a key and an expression: an operator and its operands, or a plain value. The operators behave like
//! `nova.scheduler.filters.extra_specs_ops` (`=` means *at least*; `<in>` looks for a part of a text), so that existing
//! flavors can be reused. There are three differences:
//!
//! - An expression that can never be evaluated (`<or>` alone, a number's operator without a number) is refused when it
//!   is written. Nova accepts it, and then raises an error or rejects every node.
//! - If the expression compares numbers, a value that is not a number does not meet it. Nova raises an error.
//! - If the value is a list, `<or>` matches if the list has one of the words, `<all-in>` if it has all of them, and
//!   `<in>` if it has the word. The words of `<or>` and `<all-in>` may be separated by commas. Nova compares the words
//!   with the list's text.

mod expression;
mod list;
mod number;

use std::cmp::Ordering;
use std::str::FromStr;
use std::sync::Arc;

pub use expression::{Expression, InvalidExpression, LiteralValue, MAX_EXPRESSION_BYTES};
pub use list::{InvalidRequirements, MAX_REQUIREMENTS, Requirements};

use self::number::parse_number;
use crate::key::LabelKey;
use crate::name::{is_blank, truncated};
use crate::traits::{InvalidTrait, Trait, TraitNames};

/// Maximum length of the name of a property or fact, in bytes.
pub const MAX_FIELD_NAME_BYTES: usize = 255;

/// Maximum number of members of a list that a message shows.
const MAX_SHOWN_MEMBERS: usize = 8;

/// A requirement of the node's group that the node does not meet. The node's next task set is withheld.
///
/// Two unmet requirements are equal if they have the same key and expression, whatever the actual values are. So a node
/// whose memory grows from 512 to 600 has the same unmet requirement of 1024.
#[derive(Clone, Debug, derive_more::Display)]
#[display("requirement {key} {expression} is not met")]
pub struct UnmetRequirement {
    /// The key, such as `property:memory_mb`.
    pub key: String,
    /// The expression, as written.
    pub expression: String,
    /// The actual value, as a part of a sentence such as `the node has 512`.
    pub actual: String,
}

impl UnmetRequirement {
    /// Returns the key and the expression, by which unmet requirements are compared.
    fn identity(&self) -> (&str, &str) {
        (&self.key, &self.expression)
    }
}

impl PartialEq for UnmetRequirement {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for UnmetRequirement {}

impl PartialOrd for UnmetRequirement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnmetRequirement {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

/// One requirement on a node.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{} {}", self.key(), self.expression())]
pub enum Requirement {
    /// A requirement that a trait is present or absent.
    Trait {
        /// The trait.
        name: Trait,
        /// The state that the trait must have: present or absent.
        presence: TraitPresence,
    },
    /// A requirement that the value of a field meets an expression. An absent value meets no expression.
    Field {
        /// The field whose value is compared.
        field: RequirementField,
        /// The expression that the value must meet.
        expression: Expression,
    },
}

/// The state that a trait must have on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TraitPresence {
    /// The trait must be present.
    Required,
    /// The trait must be absent.
    Forbidden,
}

/// The field that a requirement compares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum RequirementField {
    /// An effective label: `label:KEY`, or the bare key.
    #[display("label:{_0}")]
    Label(LabelKey),
    /// An effective property of the node, which its spec has or an inspection rule sets: `property:NAME`.
    #[display("property:{_0}")]
    Property(Arc<str>),
    /// A fact that the host reported: `fact:NAME`.
    #[display("fact:{_0}")]
    Fact(Arc<str>),
    /// An effective parameter: `param:KEY`.
    #[display("param:{_0}")]
    Parameter(LabelKey),
}

/// An object, such as a node, whose traits and fields requirements are checked against.
pub trait FieldLookup {
    /// Returns whether the object has a trait.
    fn has_trait(&self, name: &Trait) -> bool;
    /// Returns the value of a field, or `None` if it is absent.
    fn value(&self, field: &RequirementField) -> Option<LiteralValue<'_>>;
}

/// An error in a requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequirement {
    /// There is no expression.
    #[error("requirement {text:?} has no expression: write KEY, a space, and an expression, as 'property:memory_mb >= 4096'")]
    NoExpression {
        /// The text, cut at 64 characters.
        text: String,
    },
    /// The key has an unknown prefix, such as `cpu:` in `cpu:count`.
    #[error(
        "requirement key {key:?}: there is no '{prefix}:'; write property:{key} for a property of that name, \
             or begin with label:, property:, fact:, param: or trait:"
    )]
    Prefix {
        /// The key, cut at 64 characters.
        key: String,
        /// The text before the key's first colon, cut at 64 characters.
        prefix: String,
    },
    /// The key, with or without a prefix, is not a valid key of a label or parameter.
    #[error("requirement key {key:?}: {reason}; for a property of that name write property:{name}")]
    Label {
        /// The key, cut at 64 characters.
        key: String,
        /// The reason why the key is invalid.
        reason: String,
        /// The name in the key, without the prefix, cut at 64 characters.
        name: String,
    },
    /// The name of a property or fact is invalid.
    #[error("requirement key {key:?} needs a name of 1 to {MAX_FIELD_NAME_BYTES} bytes without spaces after its prefix")]
    Field {
        /// The key, cut at 64 characters.
        key: String,
    },
    /// The name of a trait is invalid or unknown.
    #[error("requirement: {0}")]
    Trait(#[from] InvalidTrait),
    /// A trait's expression is neither `required` nor `forbidden`.
    #[error("requirement trait:{name} takes 'required' or 'forbidden', not {found:?}")]
    Presence {
        /// The trait.
        name: Trait,
        /// The expression, cut at 64 characters.
        found: String,
    },
    /// The expression for a field is invalid, for example because no number follows its operator `>=`.
    #[error("requirement {key}: {reason}")]
    Expression {
        /// The key, such as `property:memory_mb`.
        key: String,
        /// The reason why the expression is invalid.
        reason: InvalidExpression,
    },
}

impl Requirement {
    /// Parses a key and its expression, such as `property:memory_mb` and `>= 1024`.
    ///
    /// # Errors
    /// [`InvalidRequirement`] if the key or the expression is invalid.
    pub fn new(key: &str, expression: &str) -> Result<Self, InvalidRequirement> {
        Self::parse_parts(key, expression, Expression::new)
    }

    /// Parses a stored key and expression, which may have been accepted under older rules.
    ///
    /// # Errors
    /// [`InvalidRequirement`] if no version could have stored them.
    fn from_stored(key: &str, expression: &str) -> Result<Self, InvalidRequirement> {
        Self::parse_parts(key, expression, Expression::from_stored)
    }

    /// Parses a key and its expression. `parse` parses the expression of a field. The expression of a trait must be
    /// `required` or `forbidden`.
    fn parse_parts(
        key: &str,
        expression: &str,
        parse: fn(&str) -> Result<Expression, InvalidExpression>,
    ) -> Result<Self, InvalidRequirement> {
        if let Some(name) = key.strip_prefix("trait:") {
            let name = Trait::new(name)?;
            let presence = match expression {
                "required" => TraitPresence::Required,
                "forbidden" => TraitPresence::Forbidden,
                found => return Err(InvalidRequirement::Presence { name, found: truncated(found) }),
            };
            return Ok(Self::Trait { name, presence });
        }
        let field: RequirementField = key.parse()?;
        let expression = parse(expression).map_err(|reason| InvalidRequirement::Expression { key: field.to_string(), reason })?;
        Ok(Self::Field { field, expression })
    }

    /// Parses `KEY EXPRESSION`. The key ends at the first space, and the text after this space is the expression.
    ///
    /// # Errors
    /// [`InvalidRequirement`] if the key or the expression is invalid, or if there is no space.
    pub fn parse(text: &str) -> Result<Self, InvalidRequirement> {
        let (key, expression) = text.split_once(' ').ok_or_else(|| InvalidRequirement::NoExpression { text: truncated(text) })?;
        Self::new(key, expression)
    }

    /// Returns whether a node meets the requirement. An absent value does not meet it. If the requirement compares
    /// numbers, a value that is not a number does not meet it either.
    pub fn is_met_by(&self, node: &impl FieldLookup) -> bool {
        match self {
            Self::Trait { name, presence } => node.has_trait(name) == (*presence == TraitPresence::Required),
            Self::Field { field, expression } => node.value(field).is_some_and(|value| expression.matches(&value)),
        }
    }

    /// Returns this requirement with the actual value of a node that does not meet it.
    pub(crate) fn unmet(&self, node: &impl FieldLookup) -> UnmetRequirement {
        UnmetRequirement { key: self.key(), expression: self.expression().to_owned(), actual: self.actual_value(node) }
    }

    /// Returns the actual value of a node as a part of a sentence, such as `the node has 512`.
    fn actual_value(&self, node: &impl FieldLookup) -> String {
        match self {
            Self::Trait { name, .. } if node.has_trait(name) => "the node has it".to_owned(),
            Self::Trait { .. } => "the node lacks it".to_owned(),
            Self::Field { field, .. } => match node.value(field) {
                Some(value) => format!("the node has {}", display_value(&value)),
                None => "the node has none".to_owned(),
            },
        }
    }

    /// Returns the distance between a node's value and the number that the requirement compares it with. `None` if the
    /// requirement does not compare numbers, or if the value is not a number.
    pub fn headroom(&self, node: &impl FieldLookup) -> Option<f64> {
        match self {
            Self::Trait { .. } => None,
            Self::Field { field, expression } => node.value(field).and_then(|value| expression.headroom(&value)),
        }
    }

    /// Checks that `names`, the known traits, has the trait of the requirement. A requirement on a field is accepted.
    ///
    /// # Errors
    /// [`InvalidRequirement::Trait`] if the trait is unknown.
    pub fn check(&self, names: &TraitNames) -> Result<(), InvalidRequirement> {
        match self {
            Self::Trait { name, .. } => Ok(names.check(name)?),
            Self::Field { .. } => Ok(()),
        }
    }

    /// Checks that the name of a property or fact has a visible character. An older version stored names without one,
    /// so only new requirements are checked.
    ///
    /// # Errors
    /// [`InvalidRequirement::Field`] if the name has no visible character.
    pub fn check_name(&self) -> Result<(), InvalidRequirement> {
        match self {
            Self::Field { field: RequirementField::Property(name) | RequirementField::Fact(name), .. } if is_blank(name) => {
                Err(InvalidRequirement::Field { key: truncated(&self.key()) })
            }
            Self::Field { .. } | Self::Trait { .. } => Ok(()),
        }
    }

    /// Returns the key, such as `property:memory_mb`.
    pub fn key(&self) -> String {
        match self {
            Self::Trait { name, .. } => format!("trait:{name}"),
            Self::Field { field, .. } => field.to_string(),
        }
    }

    /// Returns the expression, as written.
    pub fn expression(&self) -> &str {
        match self {
            Self::Trait { presence, .. } => presence.as_str(),
            Self::Field { expression, .. } => expression.as_str(),
        }
    }
}

impl TraitPresence {
    /// Returns the state as the text of an expression.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Forbidden => "forbidden",
        }
    }
}

impl FromStr for Requirement {
    type Err = InvalidRequirement;
    fn from_str(text: &str) -> Result<Self, InvalidRequirement> {
        Self::parse(text)
    }
}

impl FromStr for RequirementField {
    type Err = InvalidRequirement;
    /// Parses a key: a label without prefix, or a name with one of the prefixes `label:`, `param:`, `property:`,
    /// `fact:`.
    fn from_str(key: &str) -> Result<Self, InvalidRequirement> {
        let parse_label = |name: &str| {
            LabelKey::new(name).map_err(|reason| InvalidRequirement::Label {
                key: truncated(key),
                reason: reason.to_string(),
                name: truncated(name),
            })
        };
        match key.split_once(':') {
            None => parse_label(key).map(Self::Label),
            Some(("label", name)) => parse_label(name).map(Self::Label),
            Some(("param", name)) => parse_label(name).map(Self::Parameter),
            Some(("property", name)) => check_field_name(key, name).map(Self::Property),
            Some(("fact", name)) => check_field_name(key, name).map(Self::Fact),
            Some((prefix, _)) => Err(InvalidRequirement::Prefix { key: truncated(key), prefix: truncated(prefix) }),
        }
    }
}

/// Returns a value as a part of a sentence: a number without quotes, any other text in quotes, and the first members of
/// a list with the number of the others. Long texts are cut.
fn display_value(value: &LiteralValue<'_>) -> String {
    let quote_text = |text: &str| {
        if parse_number(text).is_some() { truncated(text.trim()) } else { format!("{:?}", truncated(text)) }
    };
    match value {
        LiteralValue::Text(content) => quote_text(content),
        LiteralValue::List(members) => {
            let shown: Vec<String> = members.iter().take(MAX_SHOWN_MEMBERS).map(|member| quote_text(member)).collect();
            let more = members.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("[{}]{more}", shown.join(", "))
        }
    }
}

/// Checks the name of a property or fact: 1 to [`MAX_FIELD_NAME_BYTES`] bytes without spaces and control characters.
/// `key` is the key with its prefix, which the error contains.
fn check_field_name(key: &str, name: &str) -> Result<Arc<str>, InvalidRequirement> {
    let is_invalid = |c: char| c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > MAX_FIELD_NAME_BYTES || name.contains(is_invalid) {
        return Err(InvalidRequirement::Field { key: truncated(key) });
    }
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value as Json, json};

    use super::*;

    struct TestHost(Json);

    impl FieldLookup for TestHost {
        fn has_trait(&self, name: &Trait) -> bool {
            let traits: BTreeSet<&str> = self.0["traits"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
            traits.contains(name.as_str())
        }
        fn value(&self, field: &RequirementField) -> Option<LiteralValue<'_>> {
            let text = field.to_string();
            let (kind, name) = text.split_once(':').unwrap();
            LiteralValue::from_json(self.0.get(kind)?.get(name)?)
        }
    }

    #[test]
    fn requirement_holds_for_matching_node() {
        let host = TestHost(json!({
            "traits": ["CUSTOM_A"],
            "label": {"tier": "gold", "example.com/zone": "z1"},
            "property": {"memory_mb": 16384, "secure": true, "cpu_info:features": ["aes", "mmx"], "nothing": null},
            "fact": {"cpu.count": 8},
            "param": {"replicas": 3},
        }));
        for (text, holds) in [
            ("tier gold", true),
            ("label:tier s!= gold", false),
            ("example.com/zone <or> z1 <or> z2", true),
            ("property:memory_mb >= 16384", true),
            ("property:memory_mb = 16385", false),
            ("property:secure true", true),
            ("property:secure True", false),
            ("property:cpu_info:features <all-in> aes mmx", true),
            ("property:cpu_info:features <all-in> aes,mmx", true),
            ("property:cpu_info:features <or> sse <or> aes", true),
            ("property:cpu_info:features <in> ae", false),
            ("property:nothing s!= x", false),
            ("property:absent != 1", false),
            ("tier >= 4", false),
            ("fact:cpu.count >= 8", true),
            ("param:replicas == 3.0", true),
            ("trait:CUSTOM_A required", true),
            ("trait:CUSTOM_A forbidden", false),
            ("trait:CUSTOM_B forbidden", true),
        ] {
            assert_eq!(Requirement::parse(text).unwrap().is_met_by(&host), holds, "{text}");
        }
    }

    /// Two unmet requirements are equal even if the actual values differ.
    #[test]
    fn y09_unmet_requirement_reports_actual_value() {
        let members: Vec<String> = (0..10).map(|at| format!("m{at}")).collect();
        let host = TestHost(json!({
            "traits": ["CUSTOM_A"],
            "label": {"tier": "silver\n", "size": " 12 "},
            "property": {"memory_mb": 512, "share": 0.5, "secure": true, "flags": ["aes", 7], "many": members, "none": [],
                "long": "x".repeat(70), "nothing": null},
            "fact": {"cpu.count": 4},
        }));
        for (text, actual) in [
            ("property:memory_mb >= 1024", "the node has 512".to_owned()),
            ("property:share >= 1", "the node has 0.5".to_owned()),
            ("fact:cpu.count >= 8", "the node has 4".to_owned()),
            ("fact:memory.total_bytes >= 8", "the node has none".to_owned()),
            ("property:nothing s== x", "the node has none".to_owned()),
            ("property:secure false", "the node has \"true\"".to_owned()),
            ("tier gold", "the node has \"silver\\n\"".to_owned()),
            ("label:size 12", "the node has 12".to_owned()),
            ("label:zone z1", "the node has none".to_owned()),
            ("property:flags <in> sse", "the node has [\"aes\", 7]".to_owned()),
            (
                "property:many <in> sse",
                format!(
                    "the node has [{}] and 2 more",
                    members[..8].iter().map(|member| format!("{member:?}")).collect::<Vec<_>>().join(", ")
                ),
            ),
            ("property:none <in> sse", "the node has []".to_owned()),
            ("property:long short", format!("the node has \"{}\"", "x".repeat(64))),
            ("trait:CUSTOM_B required", "the node lacks it".to_owned()),
            ("trait:CUSTOM_A forbidden", "the node has it".to_owned()),
        ] {
            let requirement = Requirement::parse(text).unwrap();
            assert!(!requirement.is_met_by(&host), "{text}");
            assert_eq!(requirement.unmet(&host).actual, actual, "{text}");
        }
        let unmet = |actual: &str| UnmetRequirement { key: "a".into(), expression: ">= 1".into(), actual: actual.into() };
        assert_eq!(unmet("the node has 0"), unmet("the node has none"));
    }

    #[test]
    fn requirement_field_name_is_1_to_255_bytes_without_spaces() {
        for (name, is_name) in [
            ("", false),
            ("a", true),
            ("a b", false),
            ("a\tb", false),
            ("a\u{7f}b", false),
            (&"a".repeat(255), true),
            (&"a".repeat(256), false),
        ] {
            for kind in ["property", "fact"] {
                let parsed = format!("{kind}:{name}").parse::<RequirementField>();
                assert_eq!(parsed.is_ok(), is_name, "{kind}:{name}");
            }
        }
    }

    #[test]
    fn requirement_error_suggests_correction() {
        for (text, message) in [
            (
                "tier",
                "requirement \"tier\" has no expression: write KEY, a space, and an expression, as 'property:memory_mb >= 4096'",
            ),
            (
                "cpu_info:features <in> aes",
                "requirement key \"cpu_info:features\": there is no 'cpu_info:'; write property:cpu_info:features for a \
                 property of that name, or begin with label:, property:, fact:, param: or trait:",
            ),
            ("tier <or>", "requirement label:tier: '<or>' needs at least one value after it"),
            ("tier >= gold", "requirement label:tier: '>=' compares numbers, and \"gold\" is not a number (for texts: s>=)"),
            ("tier ==", "requirement label:tier: '==' compares numbers, but no number follows it"),
            ("trait:CUSTOM_A yes", "requirement trait:CUSTOM_A takes 'required' or 'forbidden', not \"yes\""),
            (
                "memory_ 1",
                "requirement key \"memory_\": key \"memory_\" needs a name of 1 to 63 letters, digits, '-', '_' or '.', \
                 with a letter or digit at both ends; for a property of that name write property:memory_",
            ),
        ] {
            assert_eq!(Requirement::parse(text).unwrap_err().to_string(), message);
        }
        assert!(Requirement::parse("trait:HW_NO_SUCH required").unwrap().check(&TraitNames::default()).is_err());
    }
}
