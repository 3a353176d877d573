//! Traits: the capabilities of a host, from a shared vocabulary.
//!
//! Trait names follow Ironic: standard names or `CUSTOM_…`, compared exactly, without normalisation. A node's traits
//! have three sources: operators, inspection rules, and the agent's detection. Each source is stored separately, with
//! its own limit of fifty traits, so that no source can use up the limit of another. Every reader sees the union of the
//! sources, without the traits that an operator suppressed. Suppression does not hide a trait that an operator set.
//!
//! The standard names are in `traits/standard.txt`, sorted, one per line. They are those of os-traits 3.9.0. To
//! regenerate the file, run `pip install os-traits==3.9.0`, then `python -c 'import os_traits;
//! print("\n".join(sorted(os_traits.get_traits())))'`.

mod instance;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

pub use instance::{InstanceTraitsError, check_instance_traits};

use crate::name::{checked_text, truncated};
use crate::ownership::OwnedSet;

/// Maximum length of a trait's name, in ASCII characters.
pub(crate) const MAX_TRAIT_CHARS: usize = 255;
/// Maximum number of traits that one source may give a node, and that an allocation may require.
pub const MAX_TRAITS: usize = 50;
/// The prefix of trait names that are valid although they are neither standard names nor names of the site.
pub const CUSTOM_PREFIX: &str = "CUSTOM_";

checked_text! {
    /// A trait's name: capital letters, digits and `_`, at most [`MAX_TRAIT_CHARS`] characters. The first character is
    /// a capital letter.
    ///
    /// The type guarantees only this form, so that stored objects can be read even if a name is no longer in the
    /// vocabulary. [`TraitNames::parse`] checks each received name against the vocabulary.
    Trait: InvalidTrait;
}

/// The vocabulary of trait names: the standard names, the names that begin with `CUSTOM_`, and the names that a site
/// adds in its configuration.
#[derive(Clone, Debug, Default)]
pub struct TraitNames {
    site_names: BTreeSet<Trait>,
}

/// The error for a text that is not a valid trait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a trait: use a standard name (os-traits 3.9.0), or CUSTOM_ followed by capitals, digits and '_', \
     at most {MAX_TRAIT_CHARS} characters together"
)]
pub struct InvalidTrait {
    /// The text, cut at 64 characters.
    pub name: String,
}

/// The source of a node's trait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
pub enum TraitSource {
    /// An operator set the trait.
    #[display("operator")]
    Operator,
    /// The inspection rule with this name or uuid gave the trait.
    #[display("rule {_0}")]
    Rule(Arc<str>),
    /// The agent detected the trait.
    #[display("detected")]
    Detected,
}

/// The traits that inspection rules give a node, each with the names or uuids of the rules that give it.
pub type RuleTraits = BTreeMap<Trait, BTreeSet<Arc<str>>>;

/// The traits of one node from the three sources, and those that an operator suppressed.
#[derive(Clone, Copy, Debug)]
pub struct TraitInputs<'a> {
    /// The traits that operators set, each with the managers that own it.
    pub from_operators: &'a OwnedSet<Trait>,
    /// The traits that inspection rules give, each with the rules that give it.
    pub from_rules: &'a RuleTraits,
    /// The traits that the agent detected.
    pub detected: &'a BTreeSet<Trait>,
    /// The traits that an operator suppressed. The node lacks such a trait, unless an operator also set it.
    pub suppressed: &'a BTreeSet<Trait>,
}

/// A node's traits, each with its sources. A trait has at least one source, and its sources are in the order of
/// [`TraitSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTraits {
    sources: BTreeMap<Trait, Vec<TraitSource>>,
}

/// The effect of an API request that deletes one trait of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraitRemoval<'a> {
    /// Operators set the trait, so the request can remove it from their set. Another source may still give the trait.
    Possible,
    /// Operators did not set the trait. Only these sources give it, so an operator can suppress it instead.
    OnlyFromOtherSources(&'a [TraitSource]),
    /// The node does not have the trait.
    Absent,
}

impl Trait {
    /// Creates a trait from its name. Checks only the form of the name, not that it is in the vocabulary.
    ///
    /// # Errors
    /// Fails with [`InvalidTrait`] if the name does not have the form of a trait.
    pub fn new(text: &str) -> Result<Self, InvalidTrait> {
        let is_allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let starts_with_capital = text.bytes().next().is_some_and(|byte| byte.is_ascii_uppercase());
        if starts_with_capital && text.len() <= MAX_TRAIT_CHARS && text.bytes().all(is_allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidTrait { name: truncated(text) })
        }
    }

    /// Returns whether the trait is one of the standard names.
    pub(crate) fn is_standard(&self) -> bool {
        standard_names().binary_search(&&*self.0).is_ok()
    }

    /// Returns whether the name is `CUSTOM_` followed by at least one character.
    pub fn is_custom(&self) -> bool {
        self.0.strip_prefix(CUSTOM_PREFIX).is_some_and(|rest| !rest.is_empty())
    }
}

impl TraitNames {
    /// Creates a vocabulary with these names of a site in addition to the standard and custom names.
    ///
    /// # Errors
    /// Fails with [`InvalidTrait`] for a name that does not have the form of a trait.
    pub fn with_extra(site_names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, InvalidTrait> {
        Ok(Self { site_names: site_names.into_iter().map(|name| Trait::new(name.as_ref())).collect::<Result<_, _>>()? })
    }

    /// Creates a trait from a received name, and checks that the name is in the vocabulary.
    ///
    /// # Errors
    /// Fails with [`InvalidTrait`] if the name does not have the form of a trait, or is not in the vocabulary.
    pub fn parse(&self, text: &str) -> Result<Trait, InvalidTrait> {
        let name = Trait::new(text)?;
        self.check(&name).map(|()| name)
    }

    /// Checks that a trait is in the vocabulary.
    ///
    /// # Errors
    /// Fails with [`InvalidTrait`] if the trait is not in the vocabulary.
    pub fn check(&self, name: &Trait) -> Result<(), InvalidTrait> {
        if name.is_custom() || name.is_standard() || self.site_names.contains(name) {
            Ok(())
        } else {
            Err(InvalidTrait { name: truncated(name) })
        }
    }
}

/// Returns the standard trait names, sorted. They are those of the Python package `os-traits`.
pub fn standard_names() -> &'static [&'static str] {
    static STANDARD_NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| include_str!("standard.txt").lines().collect());
    &STANDARD_NAMES
}

impl TraitInputs<'_> {
    /// Returns whether the node has a trait: an operator set it, or another source gives it and no operator suppressed
    /// it. The result equals that of [`NodeTraits::has_trait`] on the result of [`Self::resolve`].
    pub fn has_trait(&self, name: &str) -> bool {
        let is_from_rule_or_detected = self.from_rules.contains_key(name) || self.detected.contains(name);
        self.from_operators.get(name).is_some() || (is_from_rule_or_detected && !self.suppressed.contains(name))
    }

    /// Returns the sources of a trait. If the node lacks the trait because an operator suppressed it, returns the
    /// sources that give the suppressed trait.
    pub(crate) fn trait_sources(&self, name: &str) -> Vec<TraitSource> {
        let no_suppression = BTreeSet::new();
        let suppressed = if self.has_trait(name) { self.suppressed } else { &no_suppression };
        TraitInputs { suppressed, ..*self }.resolve().sources.remove(name).unwrap_or_default()
    }

    /// Returns the names of the node's traits, each once, in no particular order. The names are those that
    /// [`Self::resolve`] returns.
    pub fn names(&self) -> impl Iterator<Item = &Trait> {
        // Traits of operators are listed first, so they are left out of the other two lists.
        let is_not_hidden = |name: &&Trait| self.from_operators.get(*name).is_none() && !self.suppressed.contains(*name);
        let rule_names = self.from_rules.keys().filter(is_not_hidden);
        let detected_names = self.detected.iter().filter(is_not_hidden).filter(|name| !self.from_rules.contains_key(*name));
        self.from_operators.members().chain(rule_names).chain(detected_names)
    }

    /// Returns the node's traits with their sources. Suppression removes the sources other than operators.
    pub fn resolve(&self) -> NodeTraits {
        let mut sources: BTreeMap<Trait, Vec<TraitSource>> = BTreeMap::new();
        for name in self.from_operators.members() {
            sources.insert(name.clone(), vec![TraitSource::Operator]);
        }
        let mut add = |name: &Trait, source: TraitSource| {
            if !self.suppressed.contains(name) {
                sources.entry(name.clone()).or_default().push(source);
            }
        };
        for (name, rules) in self.from_rules {
            for rule in rules {
                add(name, TraitSource::Rule(Arc::clone(rule)));
            }
        }
        for name in self.detected {
            add(name, TraitSource::Detected);
        }
        NodeTraits { sources }
    }
}

impl NodeTraits {
    /// Returns whether the node has a trait.
    pub fn has_trait(&self, name: &str) -> bool {
        self.sources.contains_key(name)
    }

    /// Returns the names of the node's traits, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Trait> {
        self.sources.keys()
    }

    /// Returns the node's traits, each with its sources.
    pub fn sources(&self) -> &BTreeMap<Trait, Vec<TraitSource>> {
        &self.sources
    }

    /// Returns the effect of an API request that deletes the trait with this name.
    pub fn removal_effect(&self, name: &str) -> TraitRemoval<'_> {
        match self.sources.get(name) {
            None => TraitRemoval::Absent,
            Some(sources) if sources.contains(&TraitSource::Operator) => TraitRemoval::Possible,
            Some(sources) => TraitRemoval::OnlyFromOtherSources(sources),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::{Manager, OwnedMap, ProvidedValue};

    fn name(text: &str) -> Trait {
        Trait::new(text).unwrap()
    }

    #[test]
    fn standard_trait_names_are_sorted_and_complete() {
        // This is the number of names in os-traits 3.9.0.
        assert_eq!(standard_names().len(), 377);
        assert!(standard_names().is_sorted());
        assert!(standard_names().iter().all(|text| Trait::new(text).is_ok_and(|name| !name.is_custom())));
    }

    #[test]
    fn trait_names_accept_names_of_site() {
        let names = TraitNames::with_extra(["HW_SITE_X"]).unwrap();
        assert!(names.parse("HW_SITE_X").is_ok());
        assert_eq!(
            TraitNames::default().parse("HW_SITE_X").unwrap_err().to_string(),
            "\"HW_SITE_X\" is not a trait: use a standard name (os-traits 3.9.0), or CUSTOM_ followed by capitals, digits \
             and '_', at most 255 characters together"
        );
        assert!(TraitNames::with_extra(["hw_x"]).is_err());
    }

    #[test]
    fn resolve_lists_sources_and_suppression_spares_operators() {
        let operator_traits = OwnedMap::default().update(
            &Manager::new("site").unwrap(),
            &BTreeMap::from([(name("CUSTOM_A"), ProvidedValue::Value(())), (name("CUSTOM_B"), ProvidedValue::Value(()))]),
        );
        let rule_names = |names: &[&str]| names.iter().copied().map(Arc::from).collect::<BTreeSet<Arc<str>>>();
        let rule_traits =
            BTreeMap::from([(name("CUSTOM_B"), rule_names(&["gpu"])), (name("CUSTOM_C"), rule_names(&["gpu", "numa"]))]);
        let detected_traits = BTreeSet::from([name("HW_CPU_X86_AVX2"), name("HW_CPU_X86_AVX"), name("CUSTOM_A")]);
        let suppressed_traits = BTreeSet::from([name("HW_CPU_X86_AVX"), name("CUSTOM_A")]);
        let inputs = TraitInputs {
            from_operators: &operator_traits,
            from_rules: &rule_traits,
            detected: &detected_traits,
            suppressed: &suppressed_traits,
        };
        let traits = inputs.resolve();
        let trait_texts: Vec<_> = traits
            .sources()
            .iter()
            .map(|(name, sources)| format!("{name} {}", sources.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")))
            .collect();
        assert_eq!(
            trait_texts,
            ["CUSTOM_A operator", "CUSTOM_B operator+rule gpu", "CUSTOM_C rule gpu+rule numa", "HW_CPU_X86_AVX2 detected"]
        );
        let all_names = operator_traits.members().chain(rule_traits.keys()).chain(&detected_traits).chain(&suppressed_traits);
        all_names.for_each(|name| assert_eq!(inputs.has_trait(name), traits.has_trait(name), "{name}"));
        let mut names: Vec<&Trait> = inputs.names().collect();
        names.sort();
        assert!(names.into_iter().eq(traits.names()));
        let suppressed_traits = BTreeSet::from([name("CUSTOM_C"), name("HW_CPU_X86_AVX"), name("CUSTOM_B")]);
        let inputs = TraitInputs { suppressed: &suppressed_traits, ..inputs };
        for (name, expected_sources) in [
            ("CUSTOM_B", &["operator"][..]),
            ("CUSTOM_C", &["rule gpu", "rule numa"]),
            ("HW_CPU_X86_AVX", &["detected"]),
            ("CUSTOM_NONE", &[]),
        ] {
            let sources: Vec<String> = inputs.trait_sources(name).iter().map(ToString::to_string).collect();
            assert_eq!(sources, expected_sources, "{name}");
        }
        assert_eq!(traits.removal_effect("CUSTOM_B"), TraitRemoval::Possible);
        assert_eq!(traits.removal_effect("HW_CPU_X86_AVX2"), TraitRemoval::OnlyFromOtherSources(&[TraitSource::Detected]));
        assert_eq!(traits.removal_effect("HW_CPU_X86_AVX"), TraitRemoval::Absent);
    }
}
