//! The requirements of a group: a map, or a list where one key has two bounds.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{FieldLookup, InvalidRequirement, Requirement};
use crate::json;
use crate::key::scalar_text;
use crate::traits::TraitNames;

/// How many requirements an object has at most.
pub const MAX_REQUIREMENTS: usize = 64;

/// Reads a key and its expression: a new one, or one that is stored.
type Read = fn(&str, &str) -> Result<Requirement, InvalidRequirement>;

/// Several requirements, all of which must hold, in their order.
///
/// Read from a map `{KEY: EXPRESSION}`, where an expression may be a list of them, or from a list of such maps and
/// of texts `KEY EXPRESSION`. Written as a map, and where one key has several as a list of maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements(
    /// Each of them.
    pub Vec<Requirement>,
);

/// Requirements that can't be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequirements {
    /// One of them is wrong.
    #[error(transparent)]
    One(#[from] InvalidRequirement),
    /// There are too many.
    #[error("an object has at most {MAX_REQUIREMENTS} requirements, these are {count}")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Neither a map nor a list.
    #[error("requirements are a map of keys and expressions, or a list of such maps and of texts")]
    NoList,
    /// An item of a list that is neither a map nor a text.
    #[error("a list of requirements has maps and texts alone")]
    NoMapOrText,
    /// Something that is no expression.
    #[error("requirement {key}: an expression is text, a number, true or false, or a list of those")]
    NoExpression {
        /// The key.
        key: String,
    },
}

impl Requirements {
    /// Reads texts `KEY EXPRESSION`, as a query has them.
    ///
    /// # Errors
    /// [`InvalidRequirements`].
    pub fn parse(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, InvalidRequirements> {
        let all: Vec<_> = texts.into_iter().map(|text| Requirement::parse(text.as_ref())).collect::<Result<_, _>>()?;
        Self::checked(all)
    }

    /// Reads a map, a list of maps and texts, or `null` for none.
    ///
    /// # Errors
    /// [`InvalidRequirements`].
    pub fn from_json(raw: &RawValue) -> Result<Self, InvalidRequirements> {
        Self::read(raw, Requirement::new)
    }

    fn read(raw: &RawValue, read: Read) -> Result<Self, InvalidRequirements> {
        let mut all = Self::default();
        match raw.get().as_bytes().first() {
            Some(b'n') => {}
            Some(b'{') => all.add_map(raw, read)?,
            Some(b'[') => {
                for item in json::items(raw) {
                    match serde_json::from_str::<String>(item.get()) {
                        Ok(text) => all.0.push(Requirement::parse(&text)?),
                        Err(_) if item.get().starts_with('{') => all.add_map(item, read)?,
                        Err(_) => return Err(InvalidRequirements::NoMapOrText),
                    }
                }
            }
            _ => return Err(InvalidRequirements::NoList),
        }
        Self::checked(all.0)
    }

    fn add_map(&mut self, raw: &RawValue, read: Read) -> Result<(), InvalidRequirements> {
        let members = json::members(raw).map_err(|_| InvalidRequirements::NoList)?;
        members.into_iter().try_for_each(|(key, raw)| self.add(&key, raw, read))
    }

    /// Whether nothing is required.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a node meets all of them.
    pub fn hold(&self, node: &impl FieldLookup) -> bool {
        self.0.iter().all(|one| one.holds(node))
    }

    /// Those that a node does not meet.
    pub fn unmet<'a>(&'a self, node: &'a impl FieldLookup) -> impl Iterator<Item = &'a Requirement> {
        self.0.iter().filter(move |one| !one.holds(node))
    }

    /// Checks the names of all traits against those that are known.
    ///
    /// # Errors
    /// [`InvalidRequirement::Trait`] of the first one that is not.
    pub fn check(&self, names: &TraitNames) -> Result<(), InvalidRequirement> {
        self.0.iter().try_for_each(|one| one.check(names))
    }

    fn checked(all: Vec<Requirement>) -> Result<Self, InvalidRequirements> {
        if all.len() > MAX_REQUIREMENTS {
            return Err(InvalidRequirements::TooMany { count: all.len() });
        }
        Ok(Self(all))
    }

    fn add(&mut self, key: &str, raw: &RawValue, read: Read) -> Result<(), InvalidRequirements> {
        let wrong = || InvalidRequirements::NoExpression { key: crate::name::cut(key) };
        let several: Vec<Box<RawValue>>;
        let expressions: Vec<&RawValue> = if raw.get().starts_with('[') {
            several = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
            several.iter().map(|one| &**one).collect()
        } else {
            vec![raw]
        };
        for expression in expressions {
            let text = scalar_text(expression).ok().flatten().ok_or_else(wrong)?;
            self.0.push(read(key, &text)?);
        }
        Ok(())
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, one) in self.0.iter().enumerate() {
            write!(f, "{}{one}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl Serialize for Requirements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pair = |one: &Requirement| (one.key(), one.expression().to_owned());
        let map: BTreeMap<_, _> = self.0.iter().map(pair).collect();
        if map.len() == self.0.len() {
            return map.serialize(serializer);
        }
        serializer.collect_seq(self.0.iter().map(|one| BTreeMap::from([pair(one)])))
    }
}

impl<'de> Deserialize<'de> for Requirements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Box::<RawValue>::deserialize(deserializer)?, Requirement::stored).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let all: Requirements = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(serde_json::to_string(&all).unwrap())
    }

    #[test]
    fn a_map_a_list_and_texts_are_read_alike() {
        let two = r#"[{"property:memory_mb":">= 1024"},{"property:memory_mb":"<= 4096"},{"label:tier":"gold"}]"#;
        for form in [
            two,
            r#"{"property:memory_mb": [">= 1024", "<= 4096"], "tier": "gold"}"#,
            r#"[{"property:memory_mb": ">= 1024"}, {"property:memory_mb": "<= 4096"}, {"tier": "gold"}]"#,
            r#"["property:memory_mb >= 1024", "property:memory_mb <= 4096", "tier gold"]"#,
        ] {
            assert_eq!(read(form).unwrap(), two, "{form}");
        }
        assert_eq!(read(r#"{"param:replicas": 3}"#).unwrap(), r#"{"param:replicas":"3"}"#);
    }

    #[test]
    fn all_of_them_must_hold_and_none_is_met_by_anything() {
        struct Tier(&'static str);
        impl FieldLookup for Tier {
            fn has_trait(&self, _: &crate::traits::Trait) -> bool {
                false
            }
            fn value(&self, field: &super::super::Field) -> Option<super::super::Value<'_>> {
                (field.to_string() == "label:tier").then(|| super::super::Value::text(self.0))
            }
        }
        let two = Requirements::parse(["tier s!= silver", "tier s>= b"]).unwrap();
        assert_eq!(two.to_string(), "label:tier s!= silver, label:tier s>= b");
        assert!(two.hold(&Tier("gold")) && !two.hold(&Tier("silver")) && !two.hold(&Tier("a")));
        let none: Requirements = serde_json::from_str("null").unwrap();
        assert_eq!(none, Requirements::default());
        assert!(none.hold(&Tier("a")));
        assert!(none.is_empty() && !two.is_empty());
    }

    #[test]
    fn an_error_names_the_key() {
        for (text, says) in [
            (
                r#"{"tier": {"a": 1}}"#,
                "requirement tier: an expression is text, a number, true or false, or a list of those",
            ),
            (r#"{"tier": "<or>"}"#, "requirement label:tier: '<or>' needs at least one value after it"),
        ] {
            assert!(read(text).unwrap_err().starts_with(says), "{text}");
        }
        let many: Vec<_> = (0..65).map(|index| format!("k{index} 1")).collect();
        assert_eq!(Requirements::parse(&many), Err(InvalidRequirements::TooMany { count: 65 }));
        assert!(Requirements::parse(&many[1..]).is_ok());
    }

    #[test]
    fn a_list_within_lists_is_refused_and_does_not_recurse() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&deep).unwrap_err().starts_with("a list of requirements has maps and texts alone"));
    }

    #[test]
    fn digits_of_other_scripts_are_read_where_they_are_stored_and_refused_where_they_are_written() {
        struct Cpus(&'static str);
        impl FieldLookup for Cpus {
            fn has_trait(&self, _: &crate::traits::Trait) -> bool {
                false
            }
            fn value(&self, _: &super::super::Field) -> Option<super::super::Value<'_>> {
                Some(super::super::Value::text(self.0))
            }
        }
        let written = |text: &str| Requirements::from_json(&serde_json::from_str::<Box<RawValue>>(text).unwrap());
        let fullwidth = r#"{"property:cpus": ">= \uff14"}"#;
        let stored: Requirements = serde_json::from_str(fullwidth).unwrap();
        assert_eq!(stored.0[0].expression(), ">= \u{ff14}");
        assert_eq!(serde_json::from_str::<Requirements>(&serde_json::to_string(&stored).unwrap()).unwrap(), stored);
        assert!(!stored.hold(&Cpus("4")) && !stored.hold(&Cpus("\u{ff14}")), "nothing meets it");
        let refused = written(fullwidth).unwrap_err().to_string();
        assert!(refused.contains("compares numbers, and \"\u{ff14}\" is none"), "{refused}");
        let arabic = written(r#"{"property:cpus": ">= \u0664"}"#).unwrap();
        assert!(arabic.hold(&Cpus("4")) && !arabic.hold(&Cpus("3")));
        assert!(
            written(r#"{"property:cpus": "s== \uff14"}"#).unwrap().hold(&Cpus("\u{ff14}")),
            "texts are compared as they are"
        );
    }
}
