//! What objects say of keys, and what the catalogue says to that: a new value is refused, and one that stands already is a finding.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::bind::{Bound, Catalog, NotAllowed, key_of};
use crate::finding::{Finding, rule};
use crate::object::{AllocationSpec, ClusterSpec, ClusterTemplateSpec, Inherited, NodeGroupSpec, NodeSpec};
use crate::ownership::{OwnedMap, Said};
use crate::requirement::{Requirement, Requirements};

/// What an object says of keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sayings<'a> {
    /// Its labels and parameters.
    pub inherited: Option<&'a Inherited>,
    /// Its properties.
    pub properties: Option<&'a Map<String, Value>>,
    /// Its requirements.
    pub requirements: Option<&'a Requirements>,
}

/// What says something of keys.
pub trait Says {
    /// What it says.
    fn sayings(&self) -> Sayings<'_>;
}

macro_rules! says {
    ($($spec:ident $(with $($field:ident),+)?;)+) => {$(
        impl Says for $spec {
            fn sayings(&self) -> Sayings<'_> {
                Sayings {
                    inherited: Some(&self.inherited),
                    $($($field: Some(&self.$field),)+)?
                    ..Sayings::default()
                }
            }
        }
    )+};
}

says! {
    ClusterTemplateSpec;
    ClusterSpec;
    NodeGroupSpec with requirements;
    NodeSpec with properties;
}

impl Says for AllocationSpec {
    fn sayings(&self) -> Sayings<'_> {
        Sayings { requirements: Some(&self.requirements), ..Sayings::default() }
    }
}

/// The keys that may have been meant by those that are not in the catalogue: many objects say the same ones, and each is looked for once.
#[derive(Debug, Default)]
pub struct Meant(RefCell<BTreeMap<(Bound, String), Option<String>>>);

/// How many keys are remembered.
const MOST_MEANT: usize = 16_384;

impl Meant {
    fn by(&self, catalog: &Catalog, bound: Bound, key: &str) -> Option<String> {
        let at = (bound, key.to_owned());
        if let Some(known) = self.0.borrow().get(&at) {
            return known.clone();
        }
        let near = catalog.near(bound, key).map(str::to_owned);
        let mut known = self.0.borrow_mut();
        if known.len() >= MOST_MEANT {
            known.clear();
        }
        known.insert(at, near.clone());
        near
    }
}

/// Where an object says something of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaidIn {
    /// In the map of that kind of keys.
    Map(Bound),
    /// In its requirements.
    Requirements,
}

impl Catalog {
    /// Checks what an object says now and did not say before.
    ///
    /// # Errors
    /// The first that is not allowed, and where it stands.
    pub fn check_said(&self, before: Sayings<'_>, after: Sayings<'_>) -> Result<(), (SaidIn, NotAllowed)> {
        if self.is_empty() {
            return Ok(());
        }
        let known: BTreeMap<_, _> = before.values().map(|(bound, key, value)| ((bound, key), value)).collect();
        for (bound, key, value) in after.values() {
            if known.get(&(bound, key)) == Some(&value) {
                continue;
            }
            let at = |wrong| (SaidIn::Map(bound), wrong);
            self.check_value(bound, key, &value).map_err(at)?;
        }
        let known = before.requirements.map_or(&[][..], |all| &all.0);
        for requirement in after.requirements.iter().flat_map(|all| &all.0).filter(|one| !known.contains(one)) {
            self.check_requirement(requirement).map_err(|wrong| (SaidIn::Requirements, wrong))?;
        }
        Ok(())
    }

    /// What is found about what an object says: what is not allowed, and keys that are not in the catalogue and like one that is.
    pub fn findings(&self, object: &str, said: Sayings<'_>, meant: &Meant) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.is_empty() {
            return findings;
        }
        let mut keys: BTreeSet<(Bound, &str)> = BTreeSet::new();
        for (bound, key, value) in said.values() {
            if let Err(wrong) = self.check_value(bound, key, &value) {
                let place = format!("{object} {}.{key}", bound.field());
                findings.push(Finding::of(rule::CATALOG_VALUE, place, wrong.to_string()));
            }
            keys.insert((bound, key));
        }
        for requirement in said.requirements.iter().flat_map(|all| &all.0) {
            if let Err(wrong) = self.check_requirement(requirement) {
                let place = format!("{object} requirements");
                findings.push(Finding::of(rule::CATALOG_OPERATOR, place, wrong.to_string()));
            }
            if let Requirement::Field { field, .. } = requirement {
                keys.insert(key_of(field));
            }
        }
        for (bound, key) in keys {
            if let Some(near) = meant.by(self, bound, key) {
                let message = format!(
                    "{} {key} is not in the catalogue, which has {near}: mend its spelling if that is meant",
                    bound.word()
                );
                findings.push(Finding::of(rule::CATALOG_KEY, format!("{object} {}", bound.field()), message));
            }
        }
        findings
    }
}

impl<'a> Sayings<'a> {
    fn values(self) -> impl Iterator<Item = (Bound, &'a str, Cow<'a, Value>)> {
        let labels = self.inherited.and_then(|own| own.labels.provided.as_ref());
        let labels = labels.into_iter().flat_map(OwnedMap::iter).filter_map(|(key, entry)| match &entry.said {
            Said::Value(value) => Some((Bound::Label, key.as_str(), Cow::Owned(Value::from(value.as_str())))),
            Said::Tombstone => None,
        });
        let parameters = self.inherited.and_then(|own| own.parameters.provided.as_ref());
        let parameters = parameters.into_iter().flat_map(OwnedMap::iter).filter_map(|(key, entry)| {
            entry.said.value().map(|value| (Bound::Parameter, key.as_str(), Cow::Borrowed(&**value)))
        });
        let properties = self.properties.into_iter().flatten();
        let properties = properties.map(|(key, value)| (Bound::Property, key.as_str(), Cow::Borrowed(value)));
        labels.chain(parameters).chain(properties)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::name::NamespaceName;
    use crate::object::{Meta, Namespace, Timestamp};

    fn site() -> Arc<Namespace> {
        let meta = Meta::new(Uuid::nil(), NamespaceName::new("Site").unwrap(), Timestamp(0));
        let body = json!({
            "resource_type_associations": [{"name": "Stemma::Property"}],
            "properties": {
                "tier": {"title": "T", "type": "string", "enum": ["gold", "silver"]},
                "memory_mb": {"title": "M", "type": "integer", "minimum": 1},
            },
        });
        Arc::new(Namespace { meta, spec: serde_json::from_value(body).unwrap() })
    }

    #[test]
    fn only_what_is_said_anew_is_refused_and_the_rest_is_found() {
        let site = [site()];
        let catalog = Catalog::of(&site);
        let map = |value: Value| value.as_object().cloned().unwrap();
        let (old, new) = (map(json!({"memory_mb": "x"})), map(json!({"memory_mb": "x", "tier": "gold", "teir": 1})));
        let said = |properties| Sayings { properties: Some(properties), ..Sayings::default() };
        assert_eq!(catalog.check_said(said(&old), said(&new)), Ok(()));
        let (place, wrong) = catalog.check_said(Sayings::default(), said(&new)).unwrap_err();
        assert_eq!((place, wrong.key.as_str()), (SaidIn::Map(Bound::Property), "memory_mb"));
        assert_eq!(
            wrong.to_string(),
            "property memory_mb: \"x\" is no whole number, says namespace Site of the catalogue"
        );
        let findings = catalog.findings("node/n", said(&new), &Meant::default());
        let texts: Vec<String> =
            findings.iter().map(|finding| format!("{} {}", finding.code, finding.object)).collect();
        assert_eq!(texts, ["catalog.value node/n properties.memory_mb", "catalog.key node/n properties"]);
        assert!(findings[1].message.contains("teir is not in the catalogue, which has tier"), "{}", findings[1]);
    }

    #[test]
    fn only_a_requirement_that_is_new_is_refused() {
        let site = [site()];
        let catalog = Catalog::of(&site);
        let asking = |texts: &[&str]| AllocationSpec {
            requirements: Requirements::parse(texts).unwrap(),
            ..AllocationSpec::default()
        };
        let (good, bad) = ("property:tier gold", "property:tier plat");
        let check =
            |before: &[&str], after: &[&str]| catalog.check_said(asking(before).sayings(), asking(after).sayings());
        assert_eq!(check(&[], &[good]), Ok(()));
        assert_eq!(check(&[bad], &[bad, good]), Ok(()));
        let (place, wrong) = check(&[good], &[good, bad]).unwrap_err();
        assert_eq!((place, wrong.reason.as_str()), (SaidIn::Requirements, "\"plat\" is none of gold, silver"));
    }
}
