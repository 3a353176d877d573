//! The requirements of a group or allocation: a map, or a list if one key has several expressions.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{FieldLookup, InvalidRequirement, Requirement};
use crate::json;
use crate::key::scalar_text;
use crate::traits::TraitNames;

/// Maximum number of requirements of an object.
pub const MAX_REQUIREMENTS: usize = 64;

/// A function that parses a key and its expression. There is one for requirements that are written, and one for stored
/// requirements, which may follow older rules.
type ParseRequirement = fn(&str, &str) -> Result<Requirement, InvalidRequirement>;

/// Several requirements in order, all of which must be met.
///
/// Requirements are parsed from a map `{KEY: EXPRESSION}`, in which an expression may be a list of expressions, or from
/// a list of such maps and of texts `KEY EXPRESSION`. They are serialized as a map, or as a list of maps if a key has
/// several expressions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements(
    /// The requirements.
    pub Vec<Requirement>,
);

/// An error in requirements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequirements {
    /// One of the requirements is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidRequirement),
    /// There are too many requirements.
    #[error("an object has at most {MAX_REQUIREMENTS} requirements, these are {count}")]
    TooMany {
        /// The number of requirements.
        count: usize,
    },
    /// The value is neither a map nor a list nor `null`, or a key of a map is not valid Unicode.
    #[error("requirements are a map of keys and expressions, or a list of such maps and of texts")]
    NotMapOrList,
    /// An item of a list is neither a map nor a text.
    #[error("a list of requirements may contain only maps and texts")]
    NotMapOrText,
    /// The value of a key is not an expression.
    #[error("requirement {key}: an expression is text, a number, true or false, or a list of those")]
    NoExpression {
        /// The key, cut at 64 characters.
        key: String,
    },
}

impl Requirements {
    /// Parses texts `KEY EXPRESSION`, as in a query of the API.
    ///
    /// # Errors
    /// [`InvalidRequirements`] for the first invalid text, or if there are too many texts.
    pub fn parse(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, InvalidRequirements> {
        let requirements: Vec<_> = texts.into_iter().map(|text| Requirement::parse(text.as_ref())).collect::<Result<_, _>>()?;
        Self::from_list(requirements)
    }

    /// Parses a map, a list of maps and texts, or `null` for no requirements.
    ///
    /// # Errors
    /// [`InvalidRequirements`] for the first invalid requirement, or if there are too many of them.
    pub fn from_json(raw: &RawValue) -> Result<Self, InvalidRequirements> {
        Self::parse_json(raw, Requirement::new)
    }

    /// Parses requirements in JSON: `null`, a map, or a list of maps and texts. The first byte of the JSON text
    /// decides. `parse_requirement` parses the keys and expressions of maps.
    fn parse_json(raw: &RawValue, parse_requirement: ParseRequirement) -> Result<Self, InvalidRequirements> {
        let mut requirements = Self::default();
        match raw.get().as_bytes().first() {
            Some(b'n') => {}
            Some(b'{') => requirements.add_map(raw, parse_requirement)?,
            Some(b'[') => {
                for item in json::items(raw) {
                    match serde_json::from_str::<String>(item.get()) {
                        Ok(text) => requirements.0.push(Requirement::parse(&text)?),
                        Err(_) if item.get().starts_with('{') => requirements.add_map(item, parse_requirement)?,
                        Err(_) => return Err(InvalidRequirements::NotMapOrText),
                    }
                }
            }
            _ => return Err(InvalidRequirements::NotMapOrList),
        }
        Self::from_list(requirements.0)
    }

    /// Adds the requirements of a map of keys and expressions.
    fn add_map(&mut self, raw: &RawValue, parse_requirement: ParseRequirement) -> Result<(), InvalidRequirements> {
        let members = json::members(raw).map_err(|_| InvalidRequirements::NotMapOrList)?;
        members.into_iter().try_for_each(|(key, raw)| self.add(&key, raw, parse_requirement))
    }

    /// Returns whether there are no requirements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a node meets all requirements.
    pub fn are_met_by(&self, node: &impl FieldLookup) -> bool {
        self.0.iter().all(|requirement| requirement.is_met_by(node))
    }

    /// Returns the requirements that a node does not meet.
    pub fn unmet<'a>(&'a self, node: &'a impl FieldLookup) -> impl Iterator<Item = &'a Requirement> {
        self.0.iter().filter(move |requirement| !requirement.is_met_by(node))
    }

    /// Checks that `names`, the known traits, contains each trait that the requirements name.
    ///
    /// # Errors
    /// [`InvalidRequirement::Trait`] for the first unknown trait.
    pub fn check(&self, names: &TraitNames) -> Result<(), InvalidRequirement> {
        self.0.iter().try_for_each(|requirement| requirement.check(names))
    }

    /// Creates requirements from a list. Fails if the list is too long.
    fn from_list(requirements: Vec<Requirement>) -> Result<Self, InvalidRequirements> {
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(InvalidRequirements::TooMany { count: requirements.len() });
        }
        Ok(Self(requirements))
    }

    /// Adds the requirements of one key: an expression, or a list of them.
    fn add(&mut self, key: &str, raw: &RawValue, parse_requirement: ParseRequirement) -> Result<(), InvalidRequirements> {
        let no_expression = || InvalidRequirements::NoExpression { key: crate::name::truncated(key) };
        let items: Vec<Box<RawValue>>;
        let expressions: Vec<&RawValue> = if raw.get().starts_with('[') {
            items = serde_json::from_str(raw.get()).map_err(|_| no_expression())?;
            items.iter().map(|item| &**item).collect()
        } else {
            vec![raw]
        };
        for expression in expressions {
            let text = scalar_text(expression).ok().flatten().ok_or_else(no_expression)?;
            self.0.push(parse_requirement(key, &text)?);
        }
        Ok(())
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            write!(f, "{}{requirement}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl Serialize for Requirements {
    /// Serializes the requirements as a map, or as a list of maps if a key has several expressions.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pair = |requirement: &Requirement| (requirement.key(), requirement.expression().to_owned());
        let map: BTreeMap<_, _> = self.0.iter().map(pair).collect();
        if map.len() == self.0.len() {
            return map.serialize(serializer);
        }
        serializer.collect_seq(self.0.iter().map(|requirement| BTreeMap::from([pair(requirement)])))
    }
}

impl<'de> Deserialize<'de> for Requirements {
    /// Reads stored requirements, some of which may follow older rules.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse_json(&Box::<RawValue>::deserialize(deserializer)?, Requirement::from_stored).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<String, String> {
        let requirements: Requirements = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(serde_json::to_string(&requirements).unwrap())
    }

    #[test]
    fn requirements_accept_map_list_and_texts() {
        let serialized = r#"[{"property:memory_mb":">= 1024"},{"property:memory_mb":"<= 4096"},{"label:tier":"gold"}]"#;
        for form in [
            serialized,
            r#"{"property:memory_mb": [">= 1024", "<= 4096"], "tier": "gold"}"#,
            r#"[{"property:memory_mb": ">= 1024"}, {"property:memory_mb": "<= 4096"}, {"tier": "gold"}]"#,
            r#"["property:memory_mb >= 1024", "property:memory_mb <= 4096", "tier gold"]"#,
        ] {
            assert_eq!(parse_text(form).unwrap(), serialized, "{form}");
        }
        assert_eq!(parse_text(r#"{"param:replicas": 3}"#).unwrap(), r#"{"param:replicas":"3"}"#);
    }

    #[test]
    fn requirements_hold_only_when_all_are_met() {
        struct TierLookup(&'static str);
        impl FieldLookup for TierLookup {
            fn has_trait(&self, _: &crate::traits::Trait) -> bool {
                false
            }
            fn value(&self, field: &super::super::RequirementField) -> Option<super::super::LiteralValue<'_>> {
                (field.to_string() == "label:tier").then(|| super::super::LiteralValue::text(self.0))
            }
        }
        let requirements = Requirements::parse(["tier s!= silver", "tier s>= b"]).unwrap();
        assert_eq!(requirements.to_string(), "label:tier s!= silver, label:tier s>= b");
        assert!(
            requirements.are_met_by(&TierLookup("gold"))
                && !requirements.are_met_by(&TierLookup("silver"))
                && !requirements.are_met_by(&TierLookup("a"))
        );
        let empty: Requirements = serde_json::from_str("null").unwrap();
        assert_eq!(empty, Requirements::default());
        assert!(empty.are_met_by(&TierLookup("a")));
        assert!(empty.is_empty() && !requirements.is_empty());
    }

    #[test]
    fn requirement_error_names_key_or_count() {
        for (text, message_start) in [
            (r#"{"tier": {"a": 1}}"#, "requirement tier: an expression is text, a number, true or false, or a list of those"),
            (r#"{"tier": "<or>"}"#, "requirement label:tier: '<or>' needs at least one value after it"),
        ] {
            assert!(parse_text(text).unwrap_err().starts_with(message_start), "{text}");
        }
        let many: Vec<_> = (0..65).map(|index| format!("k{index} 1")).collect();
        assert_eq!(Requirements::parse(&many), Err(InvalidRequirements::TooMany { count: 65 }));
        assert!(Requirements::parse(&many[1..]).is_ok());
    }

    #[test]
    fn requirements_reject_nested_list_without_recursion() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse_text(&deep).unwrap_err().starts_with("a list of requirements may contain only maps and texts"));
    }

    /// An older version accepted fullwidth digits (U+FF14) as numbers. Now only ASCII and Arabic-Indic digits (U+0664)
    /// are numbers.
    #[test]
    fn requirement_rejects_other_digits_when_written_but_reads_stored() {
        struct CpuLookup(&'static str);
        impl FieldLookup for CpuLookup {
            fn has_trait(&self, _: &crate::traits::Trait) -> bool {
                false
            }
            fn value(&self, _: &super::super::RequirementField) -> Option<super::super::LiteralValue<'_>> {
                Some(super::super::LiteralValue::text(self.0))
            }
        }
        let written = |text: &str| Requirements::from_json(&serde_json::from_str::<Box<RawValue>>(text).unwrap());
        let fullwidth = r#"{"property:cpus": ">= \uff14"}"#;
        let stored: Requirements = serde_json::from_str(fullwidth).unwrap();
        assert_eq!(stored.0[0].expression(), ">= \u{ff14}");
        assert_eq!(serde_json::from_str::<Requirements>(&serde_json::to_string(&stored).unwrap()).unwrap(), stored);
        assert!(!stored.are_met_by(&CpuLookup("4")) && !stored.are_met_by(&CpuLookup("\u{ff14}")), "no value meets it");
        let refused = written(fullwidth).unwrap_err().to_string();
        assert!(refused.contains("compares numbers, and \"\u{ff14}\" is not a number"), "{refused}");
        let arabic = written(r#"{"property:cpus": ">= \u0664"}"#).unwrap();
        assert!(arabic.are_met_by(&CpuLookup("4")) && !arabic.are_met_by(&CpuLookup("3")));
        assert!(
            written(r#"{"property:cpus": "s== \uff14"}"#).unwrap().are_met_by(&CpuLookup("\u{ff14}")),
            "an operator for texts accepts any digits"
        );
    }
}
