//! Where a namespace binds keys: associated with a resource type of ours, it says what the values of its properties may be there and
//! which operators a requirement may use.
//!
//! A value is checked where it is written, and then alone: a catalogue that changes later makes findings, and breaks no node. What no
//! namespace names is free.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::value::{Written, unfit};
use super::{near_key, prefix};
use crate::finding::{Finding, rule};
use crate::object::{
    AllocationSpec, Association, ClusterSpec, ClusterTemplateSpec, Inherited, Namespace, NodeGroupSpec, NodeSpec,
    Property, PropertyType,
};
use crate::ownership::{OwnedMap, Said};
use crate::requirement::{Expression, Field, Requirement, Requirements};

/// The kinds of keys that a namespace can bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// Labels.
    Label,
    /// Parameters.
    Parameter,
    /// Properties of nodes.
    Property,
    /// What hosts report.
    Fact,
}

/// The operators that a property may list.
const LISTED: [&str; 3] = ["<or>", "<in>", "<all-in>"];

impl Bound {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Label, Self::Parameter, Self::Property, Self::Fact];

    /// The resource type with which a namespace is associated to bind them.
    pub const fn resource_type(self) -> &'static str {
        match self {
            Self::Label => "Stemma::Label",
            Self::Parameter => "Stemma::Parameter",
            Self::Property => "Stemma::Property",
            Self::Fact => "Stemma::Fact",
        }
    }

    /// The word in messages.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Parameter => "parameter",
            Self::Property => "property",
            Self::Fact => "fact",
        }
    }

    /// The field of a body in which its keys stand.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Label => "labels",
            Self::Parameter => "parameters",
            Self::Property => "properties",
            Self::Fact => "facts",
        }
    }

    const fn written(self) -> Written {
        match self {
            Self::Parameter => Written::Json,
            Self::Label | Self::Property | Self::Fact => Written::Text,
        }
    }
}

/// What the catalogue says of keys.
#[derive(Clone, Debug)]
pub struct Catalog<'a>(Vec<&'a Namespace>);

/// A key that a namespace binds, and the property that says what it is.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// The namespace.
    pub namespace: &'a Namespace,
    /// The property.
    pub property: &'a Property,
}

/// A value or requirement that the catalogue does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {key}: {reason}, says namespace {namespace} of the catalogue", .bound.word())]
pub struct NotAllowed {
    /// What kind of key it is.
    pub bound: Bound,
    /// The key.
    pub key: String,
    /// Why.
    pub reason: String,
    /// The namespace that says so.
    pub namespace: String,
}

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

impl<'a> Catalog<'a> {
    /// The catalogue of these namespaces: those that bind nothing say nothing here.
    pub fn of(namespaces: impl IntoIterator<Item = &'a Arc<Namespace>>) -> Self {
        let binds = |namespace: &&Namespace| Bound::ALL.iter().any(|bound| is_bound(namespace, *bound));
        Self(namespaces.into_iter().map(|namespace| &**namespace).filter(binds).collect())
    }

    /// Whether no key is bound.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What binds a key.
    pub fn bindings(&self, bound: Bound, key: &str) -> impl Iterator<Item = Binding<'a>> {
        self.0.iter().filter(move |namespace| is_bound(namespace, bound)).flat_map(move |namespace| {
            let name = key.strip_prefix(prefix(&namespace.spec, bound.resource_type()));
            let of_objects = namespace.spec.objects.iter().map(|object| &object.properties);
            let all = std::iter::once(&namespace.spec.properties).chain(of_objects);
            let found: Vec<_> =
                name.into_iter().flat_map(|name| all.clone().filter_map(move |all| all.get(name))).collect();
            found.into_iter().map(|property| Binding { namespace, property })
        })
    }

    /// Every key that is bound.
    pub fn keys(&self, bound: Bound) -> BTreeSet<String> {
        let of_namespace = |namespace: &&'a Namespace| {
            let prefix = prefix(&namespace.spec, bound.resource_type());
            let of_objects = namespace.spec.objects.iter().flat_map(|object| object.properties.keys());
            namespace.spec.properties.keys().chain(of_objects).map(move |name| format!("{prefix}{name}"))
        };
        self.0.iter().filter(|namespace| is_bound(namespace, bound)).flat_map(of_namespace).collect()
    }

    /// The key that may have been meant by one that is not bound.
    pub fn near(&self, bound: Bound, key: &str) -> Option<String> {
        let keys = self.keys(bound);
        if keys.contains(key) { None } else { near_key(key, &keys) }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// The first namespace that does not allow it.
    pub fn check_value(&self, bound: Bound, key: &str, value: &Value) -> Result<(), NotAllowed> {
        self.each(bound, key, |property| unfit(property, value, bound.written()))
    }

    /// Checks a requirement: its operator against those that the property lists and against its type, and a plain value as one that
    /// is written.
    ///
    /// # Errors
    /// The first namespace that does not allow it.
    pub fn check_requirement(&self, requirement: &Requirement) -> Result<(), NotAllowed> {
        let Requirement::Field { field, expression } = requirement else { return Ok(()) };
        let (bound, key) = key_of(field);
        self.each(bound, key, |property| unasked(property, expression))
    }

    fn each(&self, bound: Bound, key: &str, wrong: impl Fn(&Property) -> Option<String>) -> Result<(), NotAllowed> {
        let mut bindings = self.bindings(bound, key);
        let found = bindings.find_map(|binding| Some((wrong(binding.property)?, binding.namespace)));
        found.map_or(Ok(()), |(reason, namespace)| {
            let namespace = namespace.meta.name.to_string();
            Err(NotAllowed { bound, key: key.to_owned(), reason, namespace })
        })
    }

    /// Checks what an object says now and did not say before.
    ///
    /// # Errors
    /// The first that is not allowed, with the field of a body in which it stands.
    pub fn check_said(&self, before: Sayings<'_>, after: Sayings<'_>) -> Result<(), (String, NotAllowed)> {
        if self.is_empty() {
            return Ok(());
        }
        let known: Vec<_> = before.values().collect();
        for (bound, key, value) in after.values().filter(|one| !known.contains(one)) {
            let at = |wrong| (format!("{}.{key}", bound.field()), wrong);
            self.check_value(bound, key, &value).map_err(at)?;
        }
        let known = before.requirements.map_or(&[][..], |all| &all.0);
        for requirement in after.requirements.iter().flat_map(|all| &all.0).filter(|one| !known.contains(one)) {
            self.check_requirement(requirement).map_err(|wrong| ("requirements".to_owned(), wrong))?;
        }
        Ok(())
    }

    /// What is found about what an object says: what is not allowed, and keys that are not in the catalogue and like one that is.
    pub fn findings(&self, object: &str, said: Sayings<'_>) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.is_empty() {
            return findings;
        }
        let mut keys: BTreeSet<(Bound, String)> = BTreeSet::new();
        for (bound, key, value) in said.values() {
            if let Err(wrong) = self.check_value(bound, key, &value) {
                let place = format!("{object} {}.{key}", bound.field());
                findings.push(Finding::of(rule::CATALOG_VALUE, place, wrong.to_string()));
            }
            keys.insert((bound, key.to_owned()));
        }
        for requirement in said.requirements.iter().flat_map(|all| &all.0) {
            if let Err(wrong) = self.check_requirement(requirement) {
                let place = format!("{object} requirements");
                findings.push(Finding::of(rule::CATALOG_OPERATOR, place, wrong.to_string()));
            }
            if let Requirement::Field { field, .. } = requirement {
                let (bound, key) = key_of(field);
                keys.insert((bound, key.to_owned()));
            }
        }
        for (bound, key) in keys {
            if let Some(near) = self.near(bound, &key) {
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

fn is_bound(namespace: &Namespace, bound: Bound) -> bool {
    namespace.spec.member::<Association>(bound.resource_type()).is_some()
}

fn key_of(field: &Field) -> (Bound, &str) {
    match field {
        Field::Label(key) => (Bound::Label, key.as_str()),
        Field::Parameter(key) => (Bound::Parameter, key.as_str()),
        Field::Property(name) => (Bound::Property, name),
        Field::Fact(name) => (Bound::Fact, name),
    }
}

/// Says why a requirement cannot ask so of a property; nothing where it can.
fn unasked(property: &Property, expression: &Expression) -> Option<String> {
    let is_number = matches!(property.kind, PropertyType::Integer | PropertyType::Number);
    match expression.operator() {
        Some(operator) if LISTED.contains(&operator) => {
            let listed = property.operators.as_ref()?;
            if listed.iter().any(|one| one == operator) {
                return None;
            }
            let those: Vec<&str> = listed.iter().map(String::as_str).filter(|one| LISTED.contains(one)).collect();
            let takes = if those.is_empty() { "none of <or>, <in> and <all-in>".to_owned() } else { those.join(", ") };
            Some(format!("{operator} is no operator of it: it takes {takes}"))
        }
        Some(operator) if operator.starts_with('s') => {
            let is_text = property.kind == PropertyType::String;
            (!is_text).then(|| format!("{operator} compares texts, and it is of type {}", property.kind))
        }
        Some(operator) => {
            (!is_number).then(|| format!("{operator} compares numbers, and it is of type {}", property.kind))
        }
        // A list or a map is never equal to a text.
        None if matches!(property.kind, PropertyType::Array | PropertyType::Object) => None,
        None => unfit(property, &Value::from(expression.as_str()), Written::Text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::name::NamespaceName;
    use crate::object::{Meta, Timestamp};

    fn namespace(body: Value) -> Arc<Namespace> {
        let meta = Meta::new(Uuid::nil(), NamespaceName::new("Site").unwrap(), Timestamp(0));
        Arc::new(Namespace { meta, spec: serde_json::from_value(body).unwrap() })
    }

    fn site() -> Arc<Namespace> {
        namespace(json!({
            "resource_type_associations": [{"name": "Stemma::Label", "prefix": "x/"}, {"name": "Stemma::Property"}],
            "properties": {
                "tier": {"title": "T", "type": "string", "enum": ["gold", "silver"], "operators": ["<or>"]},
                "memory_mb": {"title": "M", "type": "integer", "minimum": 1, "operators": []},
                "free": {"title": "F", "type": "string"},
            },
            "objects": [{"name": "o", "properties": {"port": {"title": "P", "type": "integer"}}}],
        }))
    }

    #[test]
    fn a_key_is_bound_with_the_prefix_of_its_resource_type() {
        let site = [site()];
        let catalog = Catalog::of(&site);
        for (bound, key, count) in [
            (Bound::Label, "x/tier", 1),
            (Bound::Label, "tier", 0),
            (Bound::Property, "tier", 1),
            (Bound::Property, "port", 1),
            (Bound::Parameter, "tier", 0),
        ] {
            assert_eq!(catalog.bindings(bound, key).count(), count, "{bound:?} {key}");
        }
        assert_eq!(catalog.near(Bound::Label, "x/tire").as_deref(), Some("x/tier"));
        assert_eq!(catalog.near(Bound::Label, "x/tier"), None);
        assert!(Catalog::of(&[namespace(json!({"properties": {"a": {"title": "A", "type": "string"}}}))]).is_empty());
    }

    #[test]
    fn a_requirement_asks_with_the_operators_that_its_property_lists() {
        let site = [site()];
        let catalog = Catalog::of(&site);
        for (text, expected) in [
            ("property:tier <or> gold <or> silver", None),
            ("property:tier <in> gold", Some("<in> is no operator of it: it takes <or>")),
            ("property:tier gold", None),
            ("property:tier plat", Some("\"plat\" is none of gold, silver")),
            ("property:tier s== gold", None),
            ("property:tier >= 3", Some(">= compares numbers, and it is of type string")),
            ("property:memory_mb >= 3", None),
            ("property:memory_mb >> 3", Some("\">> 3\" is no whole number")),
            ("property:memory_mb <or> 3", Some("<or> is no operator of it: it takes none of <or>, <in> and <all-in>")),
            ("property:memory_mb s>= 3", Some("s>= compares texts, and it is of type integer")),
            ("property:free <all-in> a b", None),
            ("property:unknown <all-in> a b", None),
            ("x/tier <in> gold", Some("<in> is no operator of it: it takes <or>")),
        ] {
            let checked = catalog.check_requirement(&Requirement::parse(text).unwrap());
            assert_eq!(checked.err().map(|wrong| wrong.reason).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn only_what_is_said_anew_is_refused_and_the_rest_is_found() {
        let site = [site()];
        let catalog = Catalog::of(&site);
        let map = |value: Value| value.as_object().cloned().unwrap();
        let (old, new) = (map(json!({"memory_mb": "x"})), map(json!({"memory_mb": "x", "tier": "gold", "teir": 1})));
        let said = |properties| Sayings { properties: Some(properties), ..Sayings::default() };
        assert_eq!(catalog.check_said(said(&old), said(&new)), Ok(()));
        let (field, wrong) = catalog.check_said(Sayings::default(), said(&new)).unwrap_err();
        assert_eq!(field, "properties.memory_mb");
        assert_eq!(
            wrong.to_string(),
            "property memory_mb: \"x\" is no whole number, says namespace Site of the catalogue"
        );
        let findings = catalog.findings("node/n", said(&new));
        let texts: Vec<String> =
            findings.iter().map(|finding| format!("{} {}", finding.code, finding.object)).collect();
        assert_eq!(texts, ["catalog.value node/n properties.memory_mb", "catalog.key node/n properties"]);
        assert!(findings[1].message.contains("teir is not in the catalogue, which has tier"), "{}", findings[1]);
    }
}
