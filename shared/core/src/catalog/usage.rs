//! Checks the keys that objects use against the catalogue. A write of a value that the catalogue does not allow is
//! refused. A stored value that it does not allow is a finding.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::binding::{Catalog, KeyKind, NotAllowed, requirement_key};
use crate::finding::{Finding, rule};
use crate::object::{AllocationSpec, ClusterSpec, ClusterTemplateSpec, Inherited, NodeGroupSpec, NodeSpec};
use crate::ownership::{OwnedMap, ProvidedValue};
use crate::requirement::{Requirement, Requirements};

/// The keys that an object uses, with their values.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyUsage<'a> {
    /// The labels and parameters that the object provides.
    pub inherited: Option<&'a Inherited>,
    /// The properties of the node.
    pub properties: Option<&'a Map<String, Value>>,
    /// The requirements, which name keys to test.
    pub requirements: Option<&'a Requirements>,
}

/// An object that uses keys.
pub trait UsesKeys {
    /// Returns the keys that it uses.
    fn key_usage(&self) -> KeyUsage<'_>;
}

macro_rules! impl_uses_keys {
    ($($spec:ident $(with $($field:ident),+)?;)+) => {$(
        impl UsesKeys for $spec {
            fn key_usage(&self) -> KeyUsage<'_> {
                KeyUsage {
                    inherited: Some(&self.inherited),
                    $($($field: Some(&self.$field),)+)?
                    ..KeyUsage::default()
                }
            }
        }
    )+};
}

impl_uses_keys! {
    ClusterTemplateSpec;
    ClusterSpec;
    NodeGroupSpec with requirements;
    NodeSpec with properties;
}

impl UsesKeys for AllocationSpec {
    fn key_usage(&self) -> KeyUsage<'_> {
        KeyUsage { requirements: Some(&self.requirements), ..KeyUsage::default() }
    }
}

/// Cached suggestions for keys that are not in the catalogue. Many objects use the same keys, and each key is searched
/// once.
#[derive(Debug, Default)]
pub struct SuggestionCache(RefCell<BTreeMap<(KeyKind, String), Option<String>>>);

/// Maximum number of cached keys.
const MAX_CACHED_SUGGESTIONS: usize = 16_384;

impl SuggestionCache {
    /// Returns the catalogue's key that is closest to a key, from the cache if the key was searched before.
    fn closest_key(&self, catalog: &Catalog, kind: KeyKind, key: &str) -> Option<String> {
        let cache_key = (kind, key.to_owned());
        if let Some(known) = self.0.borrow().get(&cache_key) {
            return known.clone();
        }
        let near = catalog.closest_key(kind, key).map(str::to_owned);
        let mut known = self.0.borrow_mut();
        if known.len() >= MAX_CACHED_SUGGESTIONS {
            known.clear();
        }
        known.insert(cache_key, near.clone());
        near
    }
}

/// Where an object uses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageField {
    /// In the map of that kind of keys.
    Map(KeyKind),
    /// In its requirements.
    Requirements,
}

impl Catalog {
    /// Checks the keys of an object that a write changes: new keys, and keys with another value or requirement.
    ///
    /// # Errors
    /// The first key that is not allowed, and the field that uses it.
    pub fn check_changed_keys(&self, before: KeyUsage<'_>, after: KeyUsage<'_>) -> Result<(), (UsageField, NotAllowed)> {
        if self.is_empty() {
            return Ok(());
        }
        let old: BTreeMap<_, _> = before.values().map(|(kind, key, value)| ((kind, key), value)).collect();
        for (kind, key, value) in after.values() {
            if old.get(&(kind, key)) == Some(&value) {
                continue;
            }
            let at = |wrong| (UsageField::Map(kind), wrong);
            self.check_value(kind, key, &value).map_err(at)?;
        }
        let old = before.requirements.map_or(&[][..], |all| &all.0);
        for requirement in after.requirements.iter().flat_map(|all| &all.0).filter(|one| !old.contains(one)) {
            self.check_requirement(requirement).map_err(|wrong| (UsageField::Requirements, wrong))?;
        }
        Ok(())
    }

    /// Returns the findings about the keys that an object uses: values that are not allowed, and unknown keys that are
    /// similar to one in the catalogue.
    pub fn findings(&self, object: &str, usage: KeyUsage<'_>, suggestions: &SuggestionCache) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.is_empty() {
            return findings;
        }
        let mut keys: BTreeSet<(KeyKind, &str)> = BTreeSet::new();
        for (kind, key, value) in usage.values() {
            if let Err(wrong) = self.check_value(kind, key, &value) {
                let place = format!("{object} {}.{key}", kind.body_field());
                findings.push(Finding::new(rule::CATALOG_VALUE, place, wrong.to_string()));
            }
            keys.insert((kind, key));
        }
        for requirement in usage.requirements.iter().flat_map(|all| &all.0) {
            if let Err(wrong) = self.check_requirement(requirement) {
                let place = format!("{object} requirements");
                findings.push(Finding::new(rule::CATALOG_OPERATOR, place, wrong.to_string()));
            }
            if let Requirement::Field { field, .. } = requirement {
                keys.insert(requirement_key(field));
            }
        }
        for (kind, key) in keys {
            if let Some(near) = suggestions.closest_key(self, kind, key) {
                let message = format!(
                    "{} {key} is not in the catalogue, which has {near}: correct its spelling if that key is meant",
                    kind.description()
                );
                findings.push(Finding::new(rule::CATALOG_KEY, format!("{object} {}", kind.body_field()), message));
            }
        }
        findings
    }
}

impl<'a> KeyUsage<'a> {
    /// Returns the labels, parameters and properties that the object sets, without tombstones.
    fn values(self) -> impl Iterator<Item = (KeyKind, &'a str, Cow<'a, Value>)> {
        let labels = self.inherited.and_then(|own| own.labels.provided.as_ref());
        let labels = labels.into_iter().flat_map(OwnedMap::iter).filter_map(|(key, entry)| match &entry.value {
            ProvidedValue::Value(value) => Some((KeyKind::Label, key.as_str(), Cow::Owned(Value::from(value.as_str())))),
            ProvidedValue::Tombstone => None,
        });
        let parameters = self.inherited.and_then(|own| own.parameters.provided.as_ref());
        let parameters = parameters.into_iter().flat_map(OwnedMap::iter).filter_map(|(key, entry)| {
            entry.value.value().map(|value| (KeyKind::Parameter, key.as_str(), Cow::Borrowed(&**value)))
        });
        let properties = self.properties.into_iter().flatten();
        let properties = properties.map(|(key, value)| (KeyKind::Property, key.as_str(), Cow::Borrowed(value)));
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

    fn site_namespace() -> Arc<Namespace> {
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
    fn check_changed_keys_rejects_key_when_new_and_reports_old() {
        let site = [site_namespace()];
        let catalog = Catalog::new(&site);
        let map = |value: Value| value.as_object().cloned().unwrap();
        let (old, new) = (map(json!({"memory_mb": "x"})), map(json!({"memory_mb": "x", "tier": "gold", "teir": 1})));
        let said = |properties| KeyUsage { properties: Some(properties), ..KeyUsage::default() };
        assert_eq!(catalog.check_changed_keys(said(&old), said(&new)), Ok(()));
        let (place, wrong) = catalog.check_changed_keys(KeyUsage::default(), said(&new)).unwrap_err();
        assert_eq!((place, wrong.key.as_str()), (UsageField::Map(KeyKind::Property), "memory_mb"));
        assert_eq!(wrong.to_string(), "property memory_mb: \"x\" is not a whole number, says namespace Site of the catalogue");
        let findings = catalog.findings("node/n", said(&new), &SuggestionCache::default());
        let texts: Vec<String> = findings.iter().map(|finding| format!("{} {}", finding.code, finding.object)).collect();
        assert_eq!(texts, ["catalog.value node/n properties.memory_mb", "catalog.key node/n properties"]);
        assert!(findings[1].message.contains("teir is not in the catalogue, which has tier"), "{}", findings[1]);
    }

    #[test]
    fn check_changed_keys_rejects_only_new_requirement() {
        let site = [site_namespace()];
        let catalog = Catalog::new(&site);
        let asking =
            |texts: &[&str]| AllocationSpec { requirements: Requirements::parse(texts).unwrap(), ..AllocationSpec::default() };
        let (good, bad) = ("property:tier gold", "property:tier plat");
        let check =
            |before: &[&str], after: &[&str]| catalog.check_changed_keys(asking(before).key_usage(), asking(after).key_usage());
        assert_eq!(check(&[], &[good]), Ok(()));
        assert_eq!(check(&[bad], &[bad, good]), Ok(()));
        let (place, wrong) = check(&[good], &[good, bad]).unwrap_err();
        assert_eq!((place, wrong.reason.as_str()), (UsageField::Requirements, "\"plat\" is none of gold, silver"));
    }
}
