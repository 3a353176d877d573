//! Traits: the capabilities of a host, from a shared vocabulary.
//!
//! Trait names follow Ironic: standard names or `CUSTOM_…`, compared exactly, without normalisation. A node's traits
//! have three sources (operators, inspection rules, the host's own detection). Each source is stored separately,
//! because it may have up to fifty traits and must not block another source. Every reader sees the union of the
//! sources, without the traits that an operator suppressed.
//!
//! The standard names are in `traits/standard.txt`, sorted, one per line. They are those of os-traits 3.9.0. To
//! regenerate the file, run `pip install os-traits==3.9.0`, then `python -c 'import os_traits;
//! print("\n".join(sorted(os_traits.get_traits())))'`.

mod instance;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

pub use instance::{InstanceTraits, check_instance_traits};

use crate::name::{checked_text, truncated};
use crate::ownership::OwnedSet;

/// Maximum length of a trait's name, in characters (all are ASCII).
pub(crate) const MAX_TRAIT_CHARS: usize = 255;
/// Maximum number of traits that one source may give a node.
pub const MAX_TRAITS: usize = 50;
/// The prefix of names that anyone may define.
pub const CUSTOM_PREFIX: &str = "CUSTOM_";

checked_text! {
    /// A trait's name: capitals, digits and `_`, at most [`MAX_TRAIT_CHARS`], starting with a capital.
    ///
    /// The type guarantees only the form, so that stored objects can be read with any vocabulary. [`TraitNames::parse`]
    /// checks that the name is in the vocabulary when it is received.
    Trait: InvalidTrait;
}

/// The vocabulary: the standard names, and those that a site adds in its configuration.
#[derive(Clone, Debug, Default)]
pub struct TraitNames {
    extra: BTreeSet<Trait>,
}

/// The error for an invalid trait.
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

/// Traits that inspection rules give a node, each with the names or uuids of these rules.
pub type RuleTraits = BTreeMap<Trait, BTreeSet<Arc<str>>>;

/// The traits of one node from the three sources, and those that an operator suppressed.
#[derive(Clone, Copy, Debug)]
pub struct TraitInputs<'a> {
    /// The traits that operators set, owned entry by entry.
    pub from_operators: &'a OwnedSet<Trait>,
    /// The traits from rules, with the rules that give each.
    pub from_rules: &'a RuleTraits,
    /// The traits that the agent detected.
    pub detected: &'a BTreeSet<Trait>,
    /// The traits that an operator suppressed. They count only if an operator also set them.
    pub suppressed: &'a BTreeSet<Trait>,
}

/// A node's traits, each with at least one source, in the order of [`TraitSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTraits {
    sources: BTreeMap<Trait, Vec<TraitSource>>,
}

/// The effect of a DELETE of one trait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraitRemoval<'a> {
    /// Operators set the trait, so it can be removed.
    Possible,
    /// Only these other sources give the trait, so it can be suppressed instead.
    FromOthers(&'a [TraitSource]),
    /// The node does not have the trait.
    Absent,
}

impl Trait {
    /// Reads the name of a trait and checks only its form.
    ///
    /// # Errors
    /// [`InvalidTrait`].
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
        standard().binary_search(&&*self.0).is_ok()
    }

    /// Returns whether the name is `CUSTOM_` followed by more characters.
    pub fn is_custom(&self) -> bool {
        self.0.strip_prefix(CUSTOM_PREFIX).is_some_and(|rest| !rest.is_empty())
    }
}

impl TraitNames {
    /// Creates the vocabulary of the standard names and these names.
    ///
    /// # Errors
    /// [`InvalidTrait`] for a name that does not have the form of a trait.
    pub fn with_extra(extra: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, InvalidTrait> {
        Ok(Self { extra: extra.into_iter().map(|name| Trait::new(name.as_ref())).collect::<Result<_, _>>()? })
    }

    /// Reads the name of a received trait, and checks that it is in the vocabulary.
    ///
    /// # Errors
    /// [`InvalidTrait`], with the name and the rule.
    pub fn parse(&self, text: &str) -> Result<Trait, InvalidTrait> {
        let name = Trait::new(text)?;
        self.check(&name).map(|()| name)
    }

    /// Checks that a trait is in the vocabulary.
    ///
    /// # Errors
    /// [`InvalidTrait`].
    pub fn check(&self, name: &Trait) -> Result<(), InvalidTrait> {
        if name.is_custom() || name.is_standard() || self.extra.contains(name) {
            Ok(())
        } else {
            Err(InvalidTrait { name: truncated(name) })
        }
    }
}

/// Returns the standard names, sorted.
pub fn standard() -> &'static [&'static str] {
    static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| include_str!("standard.txt").lines().collect());
    &NAMES
}

impl TraitInputs<'_> {
    /// Returns whether the node has a trait. The result is that of [`Self::resolve`], for one name.
    pub fn has_trait(&self, name: &str) -> bool {
        let is_given = self.from_rules.contains_key(name) || self.detected.contains(name);
        self.from_operators.get(name).is_some() || (is_given && !self.suppressed.contains(name))
    }

    /// Returns the sources of a trait. If the node lacks the trait because an operator suppressed it, returns the
    /// sources that the suppression hides.
    pub(crate) fn trait_sources(&self, name: &str) -> Vec<TraitSource> {
        let none = BTreeSet::new();
        let suppressed = if self.has_trait(name) { self.suppressed } else { &none };
        TraitInputs { suppressed, ..*self }.resolve().sources.remove(name).unwrap_or_default()
    }

    /// Returns the names of the node's traits, those of [`Self::resolve`], each once, unordered.
    pub fn names(&self) -> impl Iterator<Item = &Trait> {
        let counts = |name: &&Trait| self.from_operators.get(*name).is_none() && !self.suppressed.contains(*name);
        let ruled = self.from_rules.keys().filter(counts);
        let detected = self.detected.iter().filter(counts).filter(|name| !self.from_rules.contains_key(*name));
        self.from_operators.members().chain(ruled).chain(detected)
    }

    /// Returns the union of the sources without the suppressed traits.
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

    /// Returns the names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Trait> {
        self.sources.keys()
    }

    /// Returns the names with their sources.
    pub fn sources(&self) -> &BTreeMap<Trait, Vec<TraitSource>> {
        &self.sources
    }

    /// Returns the effect of a DELETE of one trait.
    pub fn removal(&self, name: &str) -> TraitRemoval<'_> {
        match self.sources.get(name) {
            None => TraitRemoval::Absent,
            Some(sources) if sources.contains(&TraitSource::Operator) => TraitRemoval::Possible,
            Some(sources) => TraitRemoval::FromOthers(sources),
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
        assert_eq!(standard().len(), 377);
        assert!(standard().is_sorted());
        assert!(standard().iter().all(|text| Trait::new(text).is_ok_and(|name| !name.is_custom())));
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
        let operators = OwnedMap::default().update(
            &Manager::new("site").unwrap(),
            &BTreeMap::from([(name("CUSTOM_A"), ProvidedValue::Value(())), (name("CUSTOM_B"), ProvidedValue::Value(()))]),
        );
        let rules = |names: &[&str]| names.iter().copied().map(Arc::from).collect::<BTreeSet<Arc<str>>>();
        let ruled = BTreeMap::from([(name("CUSTOM_B"), rules(&["gpu"])), (name("CUSTOM_C"), rules(&["gpu", "numa"]))]);
        let detected = BTreeSet::from([name("HW_CPU_X86_AVX2"), name("HW_CPU_X86_AVX"), name("CUSTOM_A")]);
        let suppressed = BTreeSet::from([name("HW_CPU_X86_AVX"), name("CUSTOM_A")]);
        let inputs = TraitInputs { from_operators: &operators, from_rules: &ruled, detected: &detected, suppressed: &suppressed };
        let traits = inputs.resolve();
        let shown: Vec<_> = traits
            .sources()
            .iter()
            .map(|(name, from)| format!("{name} {}", from.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")))
            .collect();
        assert_eq!(
            shown,
            ["CUSTOM_A operator", "CUSTOM_B operator+rule gpu", "CUSTOM_C rule gpu+rule numa", "HW_CPU_X86_AVX2 detected"]
        );
        let asked = operators.members().chain(ruled.keys()).chain(&detected).chain(&suppressed);
        asked.for_each(|name| assert_eq!(inputs.has_trait(name), traits.has_trait(name), "{name}"));
        let mut names: Vec<&Trait> = inputs.names().collect();
        names.sort();
        assert!(names.into_iter().eq(traits.names()));
        let suppressed = BTreeSet::from([name("CUSTOM_C"), name("HW_CPU_X86_AVX"), name("CUSTOM_B")]);
        let inputs = TraitInputs { suppressed: &suppressed, ..inputs };
        for (name, given) in [
            ("CUSTOM_B", &["operator"][..]),
            ("CUSTOM_C", &["rule gpu", "rule numa"]),
            ("HW_CPU_X86_AVX", &["detected"]),
            ("CUSTOM_NONE", &[]),
        ] {
            let sources: Vec<String> = inputs.trait_sources(name).iter().map(ToString::to_string).collect();
            assert_eq!(sources, given, "{name}");
        }
        assert_eq!(traits.removal("CUSTOM_B"), TraitRemoval::Possible);
        assert_eq!(traits.removal("HW_CPU_X86_AVX2"), TraitRemoval::FromOthers(&[TraitSource::Detected]));
        assert_eq!(traits.removal("HW_CPU_X86_AVX"), TraitRemoval::Absent);
    }
}
