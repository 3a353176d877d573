//! Requirements: what a node must be like, in the words of Nova's extra specs.
//!
//! A requirement is a key and an expression: an operator and its operands, or a plain value. The operators do
//! what `nova.scheduler.filters.extra_specs_ops` does (`=` means *at least*; `<in>` looks for a part of a text), so
//! that what people have written for flavors holds here. Two things are ours. What can never be evaluated (`<or>`
//! alone, a number's operator without a number) is refused where it is written, instead of raising when a node is
//! looked at. And on a list `<or>` is any-of and `<all-in>` all-of over its members, commas accepted, where Nova
//! compares with the list's text.

mod expression;
mod list;
mod number;

use std::cmp::Ordering;
use std::str::FromStr;
use std::sync::Arc;

pub use expression::{Expression, InvalidExpression, MAX_EXPRESSION, Value};
pub use list::{InvalidRequirements, MAX_REQUIREMENTS, Requirements};

use self::number::number;
use crate::key::LabelKey;
use crate::name::{cut, is_blank};
use crate::traits::{InvalidTrait, Trait, TraitNames};

/// The longest name of a property or fact, in bytes.
pub const MAX_FIELD: usize = 255;

/// The most members that are shown of a list.
const FEW_MEMBERS: usize = 8;

/// A requirement of the node's group that the node does not meet: its next task set is held.
///
/// Two are the same whatever the nodes have: one that goes from 512 to 600 where 1024 is required meets it no less.
#[derive(Clone, Debug, derive_more::Display)]
#[display("requirement {key} {expression} is not met")]
pub struct Unmet {
    /// The key, as `property:memory_mb`.
    pub key: String,
    /// The expression, as written.
    pub expression: String,
    /// What the node has, as `the node has 512`.
    pub found: String,
}

impl Unmet {
    fn required(&self) -> (&str, &str) {
        (&self.key, &self.expression)
    }
}

impl PartialEq for Unmet {
    fn eq(&self, other: &Self) -> bool {
        self.required() == other.required()
    }
}

impl Eq for Unmet {}

impl PartialOrd for Unmet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Unmet {
    fn cmp(&self, other: &Self) -> Ordering {
        self.required().cmp(&other.required())
    }
}

/// One thing that must hold.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{} {}", self.key(), self.expression())]
pub enum Requirement {
    /// A trait is there, or is not.
    Trait {
        /// The trait.
        name: Trait,
        /// Which of the two.
        presence: Presence,
    },
    /// A value meets an expression. An absent one meets none.
    Field {
        /// What is looked at.
        field: Field,
        /// What it must be.
        expression: Expression,
    },
}

/// Whether a trait must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// It must.
    Required,
    /// It must not.
    Forbidden,
}

/// What a requirement looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum Field {
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

/// Something that has traits and fields.
pub trait FieldLookup {
    /// Whether it has a trait.
    fn has_trait(&self, name: &Trait) -> bool;
    /// The value of a field; `None` where it is absent.
    fn value(&self, field: &Field) -> Option<Value<'_>>;
}

/// A text that is no requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequirement {
    /// No expression.
    #[error(
        "requirement {text:?} has no expression: write KEY, a space, and an expression, as 'property:memory_mb >= 4096'"
    )]
    NoExpression {
        /// The text, cut at 64 characters.
        text: String,
    },
    /// A prefix that is none of ours.
    #[error(
        "requirement key {key:?}: there is no '{prefix}:'; write property:{key} for a property of that name, \
             or begin with label:, property:, fact:, param: or trait:"
    )]
    Prefix {
        /// The key, cut at 64 characters.
        key: String,
        /// What stands before its first colon.
        prefix: String,
    },
    /// A bare or prefixed key that is no label's (or parameter's).
    #[error("requirement key {key:?}: {reason}; for a property of that name write property:{name}")]
    Label {
        /// The key, cut at 64 characters.
        key: String,
        /// Why it is none.
        reason: String,
        /// The part that names it.
        name: String,
    },
    /// The name of a property or fact.
    #[error("requirement key {key:?} needs a name of 1 to {MAX_FIELD} bytes without spaces after its prefix")]
    Field {
        /// The key, cut at 64 characters.
        key: String,
    },
    /// The name of a trait.
    #[error("requirement: {0}")]
    Trait(#[from] InvalidTrait),
    /// A trait with anything but the two words.
    #[error("requirement trait:{name} takes 'required' or 'forbidden', not {found:?}")]
    Presence {
        /// The trait.
        name: Trait,
        /// What stands there, cut at 64 characters.
        found: String,
    },
    /// An expression that can't be evaluated.
    #[error("requirement {key}: {reason}")]
    Expression {
        /// The key.
        key: String,
        /// Why.
        reason: InvalidExpression,
    },
}

impl Requirement {
    /// Reads a key and its expression.
    ///
    /// # Errors
    /// [`InvalidRequirement`].
    pub fn new(key: &str, expression: &str) -> Result<Self, InvalidRequirement> {
        Self::read(key, expression, Expression::new)
    }

    /// Reads a key and its expression as they are stored.
    ///
    /// # Errors
    /// [`InvalidRequirement`].
    fn stored(key: &str, expression: &str) -> Result<Self, InvalidRequirement> {
        Self::read(key, expression, Expression::stored)
    }

    fn read(
        key: &str,
        expression: &str,
        read: fn(&str) -> Result<Expression, InvalidExpression>,
    ) -> Result<Self, InvalidRequirement> {
        if let Some(name) = key.strip_prefix("trait:") {
            let name = Trait::new(name)?;
            let presence = match expression {
                "required" => Presence::Required,
                "forbidden" => Presence::Forbidden,
                found => return Err(InvalidRequirement::Presence { name, found: cut(found) }),
            };
            return Ok(Self::Trait { name, presence });
        }
        let field: Field = key.parse()?;
        let expression =
            read(expression).map_err(|reason| InvalidRequirement::Expression { key: field.to_string(), reason })?;
        Ok(Self::Field { field, expression })
    }

    /// Reads `KEY EXPRESSION`: the key ends at the first space, and the rest is the expression.
    ///
    /// # Errors
    /// [`InvalidRequirement`].
    pub fn parse(text: &str) -> Result<Self, InvalidRequirement> {
        let (key, expression) =
            text.split_once(' ').ok_or_else(|| InvalidRequirement::NoExpression { text: cut(text) })?;
        Self::new(key, expression)
    }

    /// Whether a node meets it. An absent value, or one that is no number where one is compared, does not.
    pub fn holds(&self, node: &impl FieldLookup) -> bool {
        match self {
            Self::Trait { name, presence } => node.has_trait(name) == (*presence == Presence::Required),
            Self::Field { field, expression } => node.value(field).is_some_and(|value| expression.matches(&value)),
        }
    }

    /// What is told of it for a node that does not meet it.
    pub(crate) fn unmet_by(&self, node: &impl FieldLookup) -> Unmet {
        Unmet { key: self.key(), expression: self.expression().to_owned(), found: self.found(node) }
    }

    /// What a node has of it, as a part of a sentence.
    fn found(&self, node: &impl FieldLookup) -> String {
        match self {
            Self::Trait { name, .. } if node.has_trait(name) => "the node has it".to_owned(),
            Self::Trait { .. } => "the node lacks it".to_owned(),
            Self::Field { field, .. } => match node.value(field) {
                Some(value) => format!("the node has {}", shown(&value)),
                None => "the node has none".to_owned(),
            },
        }
    }

    /// How much a node that meets it has beyond the number that is asked for; none where no number is.
    pub fn to_spare(&self, node: &impl FieldLookup) -> Option<f64> {
        match self {
            Self::Trait { .. } => None,
            Self::Field { field, expression } => node.value(field).and_then(|value| expression.to_spare(&value)),
        }
    }

    /// Checks the name of a trait against those that are known.
    ///
    /// # Errors
    /// [`InvalidRequirement::Trait`].
    pub fn check(&self, names: &TraitNames) -> Result<(), InvalidRequirement> {
        match self {
            Self::Trait { name, .. } => Ok(names.check(name)?),
            Self::Field { .. } => Ok(()),
        }
    }

    /// Checks that the name of a property or fact has something to be seen. A store may hold another, of an older program.
    ///
    /// # Errors
    /// [`InvalidRequirement::Field`].
    pub fn check_name(&self) -> Result<(), InvalidRequirement> {
        match self {
            Self::Field { field: Field::Property(name) | Field::Fact(name), .. } if is_blank(name) => {
                Err(InvalidRequirement::Field { key: cut(&self.key()) })
            }
            Self::Field { .. } | Self::Trait { .. } => Ok(()),
        }
    }

    /// The key, as `property:memory_mb`.
    pub fn key(&self) -> String {
        match self {
            Self::Trait { name, .. } => format!("trait:{name}"),
            Self::Field { field, .. } => field.to_string(),
        }
    }

    /// The expression, as it was written.
    pub fn expression(&self) -> &str {
        match self {
            Self::Trait { presence, .. } => presence.word(),
            Self::Field { expression, .. } => expression.as_str(),
        }
    }
}

impl Presence {
    /// The word.
    pub const fn word(self) -> &'static str {
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

impl FromStr for Field {
    type Err = InvalidRequirement;
    fn from_str(key: &str) -> Result<Self, InvalidRequirement> {
        let label = |name: &str| {
            LabelKey::new(name).map_err(|why| InvalidRequirement::Label {
                key: cut(key),
                reason: why.to_string(),
                name: cut(name),
            })
        };
        match key.split_once(':') {
            None => label(key).map(Self::Label),
            Some(("label", name)) => label(name).map(Self::Label),
            Some(("param", name)) => label(name).map(Self::Parameter),
            Some(("property", name)) => field_name(key, name).map(Self::Property),
            Some(("fact", name)) => field_name(key, name).map(Self::Fact),
            Some((prefix, _)) => Err(InvalidRequirement::Prefix { key: cut(key), prefix: cut(prefix) }),
        }
    }
}

/// A value as a sentence has it: numbers as they are, texts in quotes, of a list the first members.
fn shown(value: &Value<'_>) -> String {
    let text = |text: &str| if number(text).is_some() { cut(text.trim()) } else { format!("{:?}", cut(text)) };
    match value {
        Value::Text(one) => text(one),
        Value::List(members) => {
            let few: Vec<String> = members.iter().take(FEW_MEMBERS).map(|member| text(member)).collect();
            let more = members.len() - few.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("[{}]{more}", few.join(", "))
        }
    }
}

fn field_name(key: &str, name: &str) -> Result<Arc<str>, InvalidRequirement> {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > MAX_FIELD || name.contains(odd) {
        return Err(InvalidRequirement::Field { key: cut(key) });
    }
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value as Json, json};

    use super::*;

    struct Host(Json);

    impl FieldLookup for Host {
        fn has_trait(&self, name: &Trait) -> bool {
            let had: BTreeSet<&str> = self.0["traits"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
            had.contains(name.as_str())
        }
        fn value(&self, field: &Field) -> Option<Value<'_>> {
            let text = field.to_string();
            let (kind, name) = text.split_once(':').unwrap();
            Value::of(self.0.get(kind)?.get(name)?)
        }
    }

    #[test]
    fn a_node_meets_a_requirement_or_not() {
        let host = Host(json!({
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
    fn y09_what_a_node_has_in_place_of_what_is_required_is_told() {
        let members: Vec<String> = (0..10).map(|at| format!("m{at}")).collect();
        let host = Host(json!({
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
            assert_eq!(requirement.unmet_by(&host).found, found, "{text}");
        }
        let unmet = |found: &str| Unmet { key: "a".into(), expression: ">= 1".into(), found: found.into() };
        assert_eq!(unmet("the node has 0"), unmet("the node has none"));
    }

    #[test]
    fn a_field_has_a_name_of_1_to_255_bytes_without_spaces() {
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
                let read = format!("{kind}:{name}").parse::<Field>();
                assert_eq!(read.is_ok(), is_name, "{kind}:{name}");
            }
        }
    }

    #[test]
    fn what_cannot_be_evaluated_is_refused_with_a_way_out() {
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
            ("tier >= gold", "requirement label:tier: '>=' compares numbers, and \"gold\" is none (for texts: s>=)"),
            ("tier ==", "requirement label:tier: '==' compares numbers, and none stands after it"),
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
