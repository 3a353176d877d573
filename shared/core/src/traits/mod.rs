//! Traits: what a host can do, from a vocabulary that all agree on.
//!
//! As Ironic has them: standard names or `CUSTOM_…`, compared as they are, with no normalisation. They come from
//! three sources (operators, inspection rules, the host's own detection), kept apart, because each may hold up to
//! fifty and none may block another; what anyone asks about is their union, less what an operator suppressed.
//!
//! The standard names stand in `traits/standard.txt`, one a line, sorted. They are those of os-traits 3.9.0:
//! `pip install os-traits==3.9.0`, then
//! `python -c 'import os_traits; print("\n".join(sorted(os_traits.get_traits())))'` writes the file anew.

mod instance;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

pub use instance::{InstanceTraits, check_instance};

use crate::name::{checked_text, cut};
use crate::ownership::OwnedSet;

/// The longest name of a trait, in characters (a name has ASCII alone).
pub(crate) const MAX_TRAIT: usize = 255;
/// How many traits one source may give a node.
pub const MAX_TRAITS: usize = 50;
/// What the names begin with that anyone may make up.
pub const CUSTOM: &str = "CUSTOM_";

checked_text! {
    /// A trait's name: capitals, digits and `_`, at most [`MAX_TRAIT`], beginning with a capital.
    ///
    /// The type promises the form alone, so that stored objects can be read whatever the vocabulary has become. Whether
    /// the name *is* one is asked where it comes in: [`TraitNames::parse`].
    Trait: InvalidTrait;
}

/// The names that are known: the standard ones, and those that a site adds in its configuration.
#[derive(Clone, Debug, Default)]
pub struct TraitNames {
    extra: BTreeSet<Trait>,
}

/// A text that is no trait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is no trait: take a standard name (os-traits 3.9.0), or CUSTOM_ and then capitals, digits and '_', \
     at most {MAX_TRAIT} characters together"
)]
pub struct InvalidTrait {
    /// The text, cut at 64 characters.
    pub name: String,
}

/// Where a node has a trait from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
pub enum TraitSource {
    /// An operator gave it.
    #[display("operator")]
    Operator,
    /// The inspection rule of this name or uuid did.
    #[display("rule {_0}")]
    Rule(Arc<str>),
    /// The agent detected it.
    #[display("detected")]
    Detected,
}

/// Traits that inspection rules give a node, with the names or uuids of the rules that give each.
pub type RuledTraits = BTreeMap<Trait, BTreeSet<Arc<str>>>;

/// What the three sources say of one node, and what an operator suppressed.
#[derive(Clone, Copy, Debug)]
pub struct TraitInputs<'a> {
    /// The operators' set, owned entry by entry.
    pub operators: &'a OwnedSet<Trait>,
    /// What rules gave, and which.
    pub ruled: &'a RuledTraits,
    /// What the agent detected.
    pub detected: &'a BTreeSet<Trait>,
    /// What does not count when it was detected or ruled.
    pub suppressed: &'a BTreeSet<Trait>,
}

/// A node's traits with where each comes from: at least one source, in the order of [`TraitSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTraits {
    sources: BTreeMap<Trait, Vec<TraitSource>>,
}

/// What a DELETE of one trait would meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal<'a> {
    /// The operators' set has it: it can be taken away there.
    Possible,
    /// Only these gave it: it can be suppressed instead.
    GivenByOthers(&'a [TraitSource]),
    /// The node does not have it.
    Absent,
}

impl Trait {
    /// Reads a name, by its form alone.
    ///
    /// # Errors
    /// [`InvalidTrait`].
    pub fn new(text: &str) -> Result<Self, InvalidTrait> {
        let form = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_uppercase());
        if begins && text.len() <= MAX_TRAIT && text.bytes().all(form) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidTrait { name: cut(text) })
        }
    }

    /// Whether it is one of the standard names.
    pub(crate) fn is_standard(&self) -> bool {
        standard().binary_search(&&*self.0).is_ok()
    }

    /// Whether it is `CUSTOM_` and something after it.
    pub fn is_custom(&self) -> bool {
        self.0.strip_prefix(CUSTOM).is_some_and(|rest| !rest.is_empty())
    }
}

impl TraitNames {
    /// The standard names and these.
    ///
    /// # Errors
    /// [`InvalidTrait`] for one that has not the form of a trait.
    pub fn with(extra: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, InvalidTrait> {
        Ok(Self { extra: extra.into_iter().map(|name| Trait::new(name.as_ref())).collect::<Result<_, _>>()? })
    }

    /// Reads a trait from outside.
    ///
    /// # Errors
    /// [`InvalidTrait`], which names it and the rule.
    pub fn parse(&self, text: &str) -> Result<Trait, InvalidTrait> {
        let name = Trait::new(text)?;
        self.check(&name).map(|()| name)
    }

    /// Checks one that was read by its form.
    ///
    /// # Errors
    /// [`InvalidTrait`].
    pub fn check(&self, name: &Trait) -> Result<(), InvalidTrait> {
        if name.is_custom() || name.is_standard() || self.extra.contains(name) {
            Ok(())
        } else {
            Err(InvalidTrait { name: cut(name) })
        }
    }
}

/// The standard names, sorted.
pub fn standard() -> &'static [&'static str] {
    static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| include_str!("standard.txt").lines().collect());
    &NAMES
}

impl TraitInputs<'_> {
    /// Whether the node has a trait: [`Self::resolve`] for one name.
    pub fn has(&self, name: &str) -> bool {
        let is_given = self.ruled.contains_key(name) || self.detected.contains(name);
        self.operators.get(name).is_some() || (is_given && !self.suppressed.contains(name))
    }

    /// Who gives a trait; where it does not count, since an operator suppressed it, who gives it all the same.
    pub(crate) fn sources_of(&self, name: &str) -> Vec<TraitSource> {
        let none = BTreeSet::new();
        let suppressed = if self.has(name) { self.suppressed } else { &none };
        TraitInputs { suppressed, ..*self }.resolve().sources.remove(name).unwrap_or_default()
    }

    /// The names that [`Self::resolve`] gives, each once, in no order.
    pub fn names(&self) -> impl Iterator<Item = &Trait> {
        let counts = |name: &&Trait| self.operators.get(*name).is_none() && !self.suppressed.contains(*name);
        let ruled = self.ruled.keys().filter(counts);
        let detected = self.detected.iter().filter(counts).filter(|name| !self.ruled.contains_key(*name));
        self.operators.members().chain(ruled).chain(detected)
    }

    /// The union of the sources, less what is suppressed.
    pub fn resolve(&self) -> NodeTraits {
        let mut sources: BTreeMap<Trait, Vec<TraitSource>> = BTreeMap::new();
        for name in self.operators.members() {
            sources.insert(name.clone(), vec![TraitSource::Operator]);
        }
        let mut add = |name: &Trait, source: TraitSource| {
            if !self.suppressed.contains(name) {
                sources.entry(name.clone()).or_default().push(source);
            }
        };
        for (name, rules) in self.ruled {
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
    /// Whether the node has it.
    pub fn has(&self, name: &str) -> bool {
        self.sources.contains_key(name)
    }

    /// The names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Trait> {
        self.sources.keys()
    }

    /// The names with where each comes from.
    pub fn sources(&self) -> &BTreeMap<Trait, Vec<TraitSource>> {
        &self.sources
    }

    /// What a DELETE of one would meet.
    pub fn removal(&self, name: &str) -> Removal<'_> {
        match self.sources.get(name) {
            None => Removal::Absent,
            Some(sources) if sources.contains(&TraitSource::Operator) => Removal::Possible,
            Some(sources) => Removal::GivenByOthers(sources),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::{Manager, OwnedMap, Said};

    fn name(text: &str) -> Trait {
        Trait::new(text).unwrap()
    }

    #[test]
    fn the_standard_names_are_sorted_and_whole() {
        assert_eq!(standard().len(), 377);
        assert!(standard().is_sorted());
        assert!(standard().iter().all(|text| Trait::new(text).is_ok_and(|name| !name.is_custom())));
    }

    #[test]
    fn a_site_may_add_names() {
        let names = TraitNames::with(["HW_SITE_X"]).unwrap();
        assert!(names.parse("HW_SITE_X").is_ok());
        assert_eq!(
            TraitNames::default().parse("HW_SITE_X").unwrap_err().to_string(),
            "\"HW_SITE_X\" is no trait: take a standard name (os-traits 3.9.0), or CUSTOM_ and then capitals, digits \
             and '_', at most 255 characters together"
        );
        assert!(TraitNames::with(["hw_x"]).is_err());
    }

    #[test]
    fn each_trait_names_its_sources_and_suppression_spares_the_operators() {
        let operators = OwnedMap::default().update(
            &Manager::new("site").unwrap(),
            &BTreeMap::from([(name("CUSTOM_A"), Said::Value(())), (name("CUSTOM_B"), Said::Value(()))]),
        );
        let rules = |names: &[&str]| names.iter().copied().map(Arc::from).collect::<BTreeSet<Arc<str>>>();
        let ruled = BTreeMap::from([(name("CUSTOM_B"), rules(&["gpu"])), (name("CUSTOM_C"), rules(&["gpu", "numa"]))]);
        let detected = BTreeSet::from([name("HW_CPU_X86_AVX2"), name("HW_CPU_X86_AVX"), name("CUSTOM_A")]);
        let suppressed = BTreeSet::from([name("HW_CPU_X86_AVX"), name("CUSTOM_A")]);
        let inputs = TraitInputs { operators: &operators, ruled: &ruled, detected: &detected, suppressed: &suppressed };
        let traits = inputs.resolve();
        let shown: Vec<_> = traits
            .sources()
            .iter()
            .map(|(name, from)| {
                format!("{name} {}", from.iter().map(ToString::to_string).collect::<Vec<_>>().join("+"))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "CUSTOM_A operator",
                "CUSTOM_B operator+rule gpu",
                "CUSTOM_C rule gpu+rule numa",
                "HW_CPU_X86_AVX2 detected"
            ]
        );
        let asked = operators.members().chain(ruled.keys()).chain(&detected).chain(&suppressed);
        asked.for_each(|name| assert_eq!(inputs.has(name), traits.has(name), "{name}"));
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
            let sources: Vec<String> = inputs.sources_of(name).iter().map(ToString::to_string).collect();
            assert_eq!(sources, given, "{name}");
        }
        assert_eq!(traits.removal("CUSTOM_B"), Removal::Possible);
        assert_eq!(traits.removal("HW_CPU_X86_AVX2"), Removal::GivenByOthers(&[TraitSource::Detected]));
        assert_eq!(traits.removal("HW_CPU_X86_AVX"), Removal::Absent);
    }
}
