//! Requirements on nodes, in the form of Nova's extra specs.
//!
//! A requirement is a key and an expression: an operator and its operands, or a plain value. The operators behave like
//! `nova.scheduler.filters.extra_specs_ops` (`=` means *at least*; `<in>` looks for a part of a text), so that existing
//! flavors can be reused. There are two differences. An expression that can never be evaluated (`<or>` alone, a
//! number's operator without a number) is refused when it is written, instead of raising an error when a node is
//! checked. And on a list, `<or>` means any of its members and `<all-in>` all of them, commas accepted, where Nova
//! compares with the list's text.

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

/// Maximum number of a list's members that are shown.
const MAX_SHOWN_MEMBERS: usize = 8;

/// A requirement of the node's group that the node does not meet. The node's next task set is held.
///
/// Two values are equal if they have the same key and expression, whatever value the node has: a node that goes from
/// 512 to 600 still does not meet 1024.
#[derive(Clone, Debug, derive_more::Display)]
#[display("requirement {key} {expression} is not met")]
pub struct UnmetRequirement {
    /// The key, such as `property:memory_mb`.
    pub key: String,
    /// The expression, as written.
    pub expression: String,
    /// The actual value, such as `the node has 512`.
    pub actual: String,
}

impl UnmetRequirement {
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
    /// A trait must be present, or must be absent.
    Trait {
        /// The trait.
        name: Trait,
        /// Whether it must be present or absent.
        presence: TraitPresence,
    },
    /// A value must meet an expression. An absent value meets none.
    Field {
        /// The field whose value is compared.
        field: RequirementField,
        /// The expression that the value must meet.
        expression: Expression,
    },
}

/// Whether a trait is required or forbidden.
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
    /// A property of the node: `property:NAME`.
    #[display("property:{_0}")]
    Property(Arc<str>),
    /// A fact that the host reported: `fact:NAME`.
    #[display("fact:{_0}")]
    Fact(Arc<str>),
    /// A parameter: `param:KEY`.
    #[display("param:{_0}")]
    Parameter(LabelKey),
}

/// An object with traits and fields.
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
    /// The key has an unknown prefix.
    #[error(
        "requirement key {key:?}: there is no '{prefix}:'; write property:{key} for a property of that name, \
             or begin with label:, property:, fact:, param: or trait:"
    )]
    Prefix {
        /// The key, cut at 64 characters.
        key: String,
        /// The text before its first colon.
        prefix: String,
    },
    /// The key, with or without a prefix, is not a valid key of a label or parameter.
    #[error("requirement key {key:?}: {reason}; for a property of that name write property:{name}")]
    Label {
        /// The key, cut at 64 characters.
        key: String,
        /// The reason.
        reason: String,
        /// The name in the key, without the prefix.
        name: String,
    },
    /// The name of a property or fact is invalid.
    #[error("requirement key {key:?} needs a name of 1 to {MAX_FIELD_NAME_BYTES} bytes without spaces after its prefix")]
    Field {
        /// The key, cut at 64 characters.
        key: String,
    },
    /// The name of a trait is invalid.
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
    /// The expression cannot be evaluated.
    #[error("requirement {key}: {reason}")]
    Expression {
        /// The key.
        key: String,
        /// The reason.
        reason: InvalidExpression,
    },
}

impl Requirement {
    /// Parses a key and its expression.
    ///
    /// # Errors
    /// [`InvalidRequirement`].
    pub fn new(key: &str, expression: &str) -> Result<Self, InvalidRequirement> {
        Self::parse_parts(key, expression, Expression::new)
    }

    /// Parses a stored key and expression, which may have been accepted under older rules.
    ///
    /// # Errors
    /// [`InvalidRequirement`].
    fn from_stored(key: &str, expression: &str) -> Result<Self, InvalidRequirement> {
        Self::parse_parts(key, expression, Expression::from_stored)
    }

    /// Parses a key and its expression, with `parse` for expressions. A trait takes `required` or `forbidden` instead.
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

    /// Parses `KEY EXPRESSION`. The key ends at the first space, and the rest is the expression.
    ///
    /// # Errors
    /// [`InvalidRequirement`].
    pub fn parse(text: &str) -> Result<Self, InvalidRequirement> {
        let (key, expression) = text.split_once(' ').ok_or_else(|| InvalidRequirement::NoExpression { text: truncated(text) })?;
        Self::new(key, expression)
    }

    /// Returns whether a node meets the requirement. An absent value does not, nor does a value that is not a number if
    /// numbers are compared.
    pub fn holds(&self, node: &impl FieldLookup) -> bool {
        match self {
            Self::Trait { name, presence } => node.has_trait(name) == (*presence == TraitPresence::Required),
            Self::Field { field, expression } => node.value(field).is_some_and(|value| expression.matches(&value)),
        }
    }

    /// Describes this requirement for a node that does not meet it.
    pub(crate) fn unmet(&self, node: &impl FieldLookup) -> UnmetRequirement {
        UnmetRequirement { key: self.key(), expression: self.expression().to_owned(), actual: self.actual_value(node) }
    }

    /// Returns the actual value of a node, as a part of a sentence.
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

    /// Returns by how much a node that meets the requirement exceeds the requested number, or `None` if the requirement
    /// compares no numbers.
    pub fn headroom(&self, node: &impl FieldLookup) -> Option<f64> {
        match self {
            Self::Trait { .. } => None,
            Self::Field { field, expression } => node.value(field).and_then(|value| expression.headroom(&value)),
        }
    }

    /// Checks that a trait is known.
    ///
    /// # Errors
    /// [`InvalidRequirement::Trait`].
    pub fn check(&self, names: &TraitNames) -> Result<(), InvalidRequirement> {
        match self {
            Self::Trait { name, .. } => Ok(names.check(name)?),
            Self::Field { .. } => Ok(()),
        }
    }

    /// Checks that the name of a property or fact has a visible character. Stored requirements of an older version may
    /// have other names, so this is checked only for new ones.
    ///
    /// # Errors
    /// [`InvalidRequirement::Field`].
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
    /// Returns the expression as text.
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
    fn from_str(key: &str) -> Result<Self, InvalidRequirement> {
        let label = |name: &str| {
            LabelKey::new(name).map_err(|why| InvalidRequirement::Label {
                key: truncated(key),
                reason: why.to_string(),
                name: truncated(name),
            })
        };
        match key.split_once(':') {
            None => label(key).map(Self::Label),
            Some(("label", name)) => label(name).map(Self::Label),
            Some(("param", name)) => label(name).map(Self::Parameter),
            Some(("property", name)) => check_field_name(key, name).map(Self::Property),
            Some(("fact", name)) => check_field_name(key, name).map(Self::Fact),
            Some((prefix, _)) => Err(InvalidRequirement::Prefix { key: truncated(key), prefix: truncated(prefix) }),
        }
    }
}

/// Formats a value for a sentence: a number unchanged, a text in quotes, a list by its first members.
fn display_value(value: &LiteralValue<'_>) -> String {
    let text = |text: &str| {
        if parse_number(text).is_some() { truncated(text.trim()) } else { format!("{:?}", truncated(text)) }
    };
    match value {
        LiteralValue::Text(one) => text(one),
        LiteralValue::List(members) => {
            let few: Vec<String> = members.iter().take(MAX_SHOWN_MEMBERS).map(|member| text(member)).collect();
            let more = members.len() - few.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("[{}]{more}", few.join(", "))
        }
    }
}

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
            let had: BTreeSet<&str> = self.0["traits"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
            had.contains(name.as_str())
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
            assert_eq!(Requirement::parse(text).unwrap().holds(&host), holds, "{text}");
        }
    }

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
        for (text, found) in [
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
                    members[..8].iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ")
                ),
            ),
            ("property:none <in> sse", "the node has []".to_owned()),
            ("property:long short", format!("the node has \"{}\"", "x".repeat(64))),
            ("trait:CUSTOM_B required", "the node lacks it".to_owned()),
            ("trait:CUSTOM_A forbidden", "the node has it".to_owned()),
        ] {
            let requirement = Requirement::parse(text).unwrap();
            assert!(!requirement.holds(&host), "{text}");
            assert_eq!(requirement.unmet(&host).actual, found, "{text}");
        }
        let unmet = |found: &str| UnmetRequirement { key: "a".into(), expression: ">= 1".into(), actual: found.into() };
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
                let read = format!("{kind}:{name}").parse::<RequirementField>();
                assert_eq!(read.is_ok(), is_name, "{kind}:{name}");
            }
        }
    }

    #[test]
    fn requirement_error_suggests_correction() {
        for (text, says) in [
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
            assert_eq!(Requirement::parse(text).unwrap_err().to_string(), says);
        }
        assert!(Requirement::parse("trait:HW_NO_SUCH required").unwrap().check(&TraitNames::default()).is_err());
    }
}
