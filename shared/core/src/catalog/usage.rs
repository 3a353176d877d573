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

/// The keys that an object uses and that the catalogue may restrict, with their values.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyUsage<'a> {
    /// The labels and parameters that the object provides. `None` for an allocation or an object that does not exist.
    pub inherited: Option<&'a Inherited>,
    /// The properties of the object. `None` if the object is not a node, because only nodes have properties.
    pub properties: Option<&'a Map<String, Value>>,
    /// The requirements of the node group or allocation. `None` if the object is of another kind.
    pub requirements: Option<&'a Requirements>,
}

/// An object that uses keys which the catalogue may restrict.
pub trait UsesKeys {
    /// Returns the keys that the object uses, with their values.
    fn key_usage(&self) -> KeyUsage<'_>;
}

macro_rules! impl_uses_keys {
    ($($spec:ident $(with $($field:ident),+)?;)+) => {$(
        impl UsesKeys for $spec {
            fn key_usage(&self) -> KeyUsage<'_> {
                KeyUsage {
                    // Each level provides labels and parameters. A row of the macro names its further fields with keys.
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

/// A cache of the closest catalogue key for each key that was searched. An entry is `None` if the key is in the
/// catalogue, or if no key is similar. Many objects use the same keys, and a cached key is not searched again.
#[derive(Debug, Default)]
pub struct SuggestionCache(RefCell<BTreeMap<(KeyKind, String), Option<String>>>);

/// Maximum number of entries in a [`SuggestionCache`]. A full cache is cleared.
const MAX_CACHED_SUGGESTIONS: usize = 16_384;

impl SuggestionCache {
    /// Returns the result of [`Catalog::closest_key`], from the cache if it is there. All calls must have the same
    /// catalogue, because the cache does not distinguish catalogues.
    fn closest_key(&self, catalog: &Catalog, kind: KeyKind, key: &str) -> Option<String> {
        let cache_key = (kind, key.to_owned());
        if let Some(cached) = self.0.borrow().get(&cache_key) {
            return cached.clone();
        }
        let closest = catalog.closest_key(kind, key).map(str::to_owned);
        let mut cache = self.0.borrow_mut();
        if cache.len() >= MAX_CACHED_SUGGESTIONS {
            cache.clear();
        }
        cache.insert(cache_key, closest.clone());
        closest
    }
}

/// The field of an object in which the object uses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageField {
    /// The map with the keys of this kind, such as `labels`.
    Map(KeyKind),
    /// The field `requirements`.
    Requirements,
}

impl Catalog {
    /// Checks the keys of an object that a write changes: new keys, and keys with a new value or requirement. A value
    /// that the write does not change is not checked, so a later change of the catalogue does not block the object.
    ///
    /// # Errors
    /// The first key that the catalogue does not allow, and the field that uses the key.
    pub fn check_changed_keys(&self, old_usage: KeyUsage<'_>, new_usage: KeyUsage<'_>) -> Result<(), (UsageField, NotAllowed)> {
        if self.is_empty() {
            return Ok(());
        }
        let old_values: BTreeMap<_, _> = old_usage.values().map(|(kind, key, value)| ((kind, key), value)).collect();
        for (kind, key, value) in new_usage.values() {
            if old_values.get(&(kind, key)) == Some(&value) {
                continue;
            }
            let with_field = |error| (UsageField::Map(kind), error);
            self.check_value(kind, key, &value).map_err(with_field)?;
        }
        let old_requirements = old_usage.requirements.map_or(&[][..], |requirements| &requirements.0);
        for requirement in new_usage.requirements.iter().flat_map(|new| &new.0).filter(|new| !old_requirements.contains(new)) {
            self.check_requirement(requirement).map_err(|error| (UsageField::Requirements, error))?;
        }
        Ok(())
    }

    /// Returns the findings about the keys that an object uses: what the catalogue does not allow, and unknown keys
    /// that are similar to a key of the catalogue. `object` is the name of the object in the findings.
    pub fn findings(&self, object: &str, usage: KeyUsage<'_>, suggestions: &SuggestionCache) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.is_empty() {
            return findings;
        }
        let mut keys: BTreeSet<(KeyKind, &str)> = BTreeSet::new();
        for (kind, key, value) in usage.values() {
            if let Err(error) = self.check_value(kind, key, &value) {
                let place = format!("{object} {}.{key}", kind.body_field());
                findings.push(Finding::new(rule::CATALOG_VALUE, place, error.to_string()));
            }
            keys.insert((kind, key));
        }
        for requirement in usage.requirements.iter().flat_map(|requirements| &requirements.0) {
            if let Err(error) = self.check_requirement(requirement) {
                let place = format!("{object} requirements");
                findings.push(Finding::new(rule::CATALOG_OPERATOR, place, error.to_string()));
            }
            if let Requirement::Field { field, .. } = requirement {
                keys.insert(requirement_key(field));
            }
        }
        for (kind, key) in keys {
            if let Some(closest) = suggestions.closest_key(self, kind, key) {
                let message = format!(
                    "{} {key} is not in the catalogue, which has {closest}: correct the spelling if you want that key",
                    kind.description()
                );
                findings.push(Finding::new(rule::CATALOG_KEY, format!("{object} {}", kind.body_field()), message));
            }
        }
        findings
    }
}

impl<'a> KeyUsage<'a> {
    /// Returns the kind, key and value of each label, parameter and property that the object sets. Tombstones are
    /// omitted.
    fn values(self) -> impl Iterator<Item = (KeyKind, &'a str, Cow<'a, Value>)> {
        let labels = self.inherited.and_then(|inherited| inherited.labels.provided.as_ref());
        let labels = labels.into_iter().flat_map(OwnedMap::iter).filter_map(|(key, entry)| match &entry.value {
            ProvidedValue::Value(value) => Some((KeyKind::Label, key.as_str(), Cow::Owned(Value::from(value.as_str())))),
            ProvidedValue::Tombstone => None,
        });
        let parameters = self.inherited.and_then(|inherited| inherited.parameters.provided.as_ref());
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

    /// Returns a namespace that binds properties of nodes.
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

    /// In this test, the property `memory_mb` has an invalid value. A write that does not change the value is accepted,
    /// and a write that adds it is rejected. The findings name the invalid value, and the misspelled key `teir`.
    #[test]
    fn check_changed_keys_rejects_invalid_value_only_when_new() {
        let site = [site_namespace()];
        let catalog = Catalog::new(&site);
        let map = |value: Value| value.as_object().cloned().unwrap();
        let (old, new) = (map(json!({"memory_mb": "x"})), map(json!({"memory_mb": "x", "tier": "gold", "teir": 1})));
        let usage = |properties| KeyUsage { properties: Some(properties), ..KeyUsage::default() };
        assert_eq!(catalog.check_changed_keys(usage(&old), usage(&new)), Ok(()));
        let (place, error) = catalog.check_changed_keys(KeyUsage::default(), usage(&new)).unwrap_err();
        assert_eq!((place, error.key.as_str()), (UsageField::Map(KeyKind::Property), "memory_mb"));
        assert_eq!(
            error.to_string(),
            "property memory_mb: \"x\" is not a whole number, according to namespace Site of the catalogue"
        );
        let findings = catalog.findings("node/n", usage(&new), &SuggestionCache::default());
        let texts: Vec<String> = findings.iter().map(|finding| format!("{} {}", finding.code, finding.object)).collect();
        assert_eq!(texts, ["catalog.value node/n properties.memory_mb", "catalog.key node/n properties"]);
        assert!(findings[1].message.contains("teir is not in the catalogue, which has tier"), "{}", findings[1]);
    }

    #[test]
    fn check_changed_keys_rejects_only_new_requirement() {
        let site = [site_namespace()];
        let catalog = Catalog::new(&site);
        let allocation =
            |texts: &[&str]| AllocationSpec { requirements: Requirements::parse(texts).unwrap(), ..AllocationSpec::default() };
        let (allowed, rejected) = ("property:tier gold", "property:tier plat");
        let check = |old_texts: &[&str], new_texts: &[&str]| {
            catalog.check_changed_keys(allocation(old_texts).key_usage(), allocation(new_texts).key_usage())
        };
        assert_eq!(check(&[], &[allowed]), Ok(()));
        assert_eq!(check(&[rejected], &[rejected, allowed]), Ok(()));
        let (place, error) = check(&[allowed], &[allowed, rejected]).unwrap_err();
        assert_eq!((place, error.reason.as_str()), (UsageField::Requirements, "\"plat\" is not one of gold, silver"));
    }
}
