//! Where a namespace binds keys: associated with a resource type of ours, it says what the values of its properties may be there and
//! which operators a requirement may use.
//!
//! A value is checked where it is written, and then alone: a catalogue that changes later makes findings, and breaks no node. What no
//! namespace names is free.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::prefix;
use super::value::{Rule, Written};
use crate::name::{cut, near, suggest};
use crate::object::{Association, Namespace, Property, PropertyType};
use crate::requirement::{Expression, Field, Requirement};

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

/// What is wrong with a resource type that begins as those which bind keys do, and is none of them: its namespace would bind nothing.
pub(crate) fn odd_resource_type(name: &str) -> Option<String> {
    let types = || Bound::ALL.into_iter().map(Bound::resource_type);
    let is_of_ours = name.trim_start().to_ascii_lowercase().starts_with("stemma::");
    if !is_of_ours || types().any(|known| known == name) {
        return None;
    }
    let (meant, known) = (suggest(near(name, types())), types().collect::<Vec<_>>().join(", "));
    Some(format!("{:?} is no resource type of Stemma{meant}: they are {known}", cut(name)))
}

/// What the catalogue says of keys, made once of the namespaces that bind any: each key with what binds it, and each pattern compiled.
#[derive(Clone, Debug, Default)]
pub struct Catalog([BTreeMap<String, Vec<Arc<Binding>>>; Bound::ALL.len()]);

/// What binds a key: a property of a namespace.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The namespace.
    pub namespace: Arc<Namespace>,
    rule: Rule,
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

impl Binding {
    /// The property that says what the key is.
    pub fn property(&self) -> &Property {
        &self.rule.property
    }
}

impl Catalog {
    /// The catalogue of these namespaces: those that bind nothing say nothing here.
    pub fn of<'a>(namespaces: impl IntoIterator<Item = &'a Arc<Namespace>>) -> Self {
        let mut catalog = Self::default();
        for namespace in namespaces {
            let bounds: Vec<Bound> = Bound::ALL.into_iter().filter(|bound| is_bound(namespace, *bound)).collect();
            let of_objects = namespace.spec.objects.iter().map(|object| &object.properties);
            let all = std::iter::once(&namespace.spec.properties).chain(of_objects).flatten();
            for (name, property) in all.filter(|_| !bounds.is_empty()) {
                let binding = Arc::new(Binding { namespace: Arc::clone(namespace), rule: Rule::of(property) });
                for bound in &bounds {
                    let key = format!("{}{name}", prefix(&namespace.spec, bound.resource_type()));
                    catalog.0[*bound as usize].entry(key).or_default().push(Arc::clone(&binding));
                }
            }
        }
        catalog
    }

    /// Whether no key is bound.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeMap::is_empty)
    }

    /// What binds a key.
    pub fn bindings(&self, bound: Bound, key: &str) -> impl Iterator<Item = &Binding> {
        self.0[bound as usize].get(key).into_iter().flatten().map(Arc::as_ref)
    }

    /// The key that may have been meant by one that is not bound: the most like it.
    pub fn near(&self, bound: Bound, key: &str) -> Option<&str> {
        let keys = &self.0[bound as usize];
        if keys.contains_key(key) { None } else { near(key, keys.keys().map(String::as_str)) }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// The first namespace that does not allow it.
    pub fn check_value(&self, bound: Bound, key: &str, value: &Value) -> Result<(), NotAllowed> {
        self.each(bound, key, |rule| rule.unfit(value, bound.written()))
    }

    /// Checks a requirement: its operator against those that the property lists and against its type, and a plain value as one that
    /// is written.
    ///
    /// # Errors
    /// The first namespace that does not allow it.
    pub fn check_requirement(&self, requirement: &Requirement) -> Result<(), NotAllowed> {
        let Requirement::Field { field, expression } = requirement else { return Ok(()) };
        let (bound, key) = key_of(field);
        self.each(bound, key, |rule| unasked(rule, expression))
    }

    fn each(&self, bound: Bound, key: &str, wrong: impl Fn(&Rule) -> Option<String>) -> Result<(), NotAllowed> {
        let mut bindings = self.bindings(bound, key);
        let found = bindings.find_map(|binding| Some((wrong(&binding.rule)?, &binding.namespace)));
        found.map_or(Ok(()), |(reason, namespace)| {
            let namespace = namespace.meta.name.to_string();
            Err(NotAllowed { bound, key: key.to_owned(), reason, namespace })
        })
    }
}

fn is_bound(namespace: &Namespace, bound: Bound) -> bool {
    namespace.spec.member::<Association>(bound.resource_type()).is_some()
}

/// The key that a requirement asks of.
pub(super) fn key_of(field: &Field) -> (Bound, &str) {
    match field {
        Field::Label(key) => (Bound::Label, key.as_str()),
        Field::Parameter(key) => (Bound::Parameter, key.as_str()),
        Field::Property(name) => (Bound::Property, name),
        Field::Fact(name) => (Bound::Fact, name),
    }
}

/// Says why a requirement cannot ask so of a property; nothing where it can.
fn unasked(rule: &Rule, expression: &Expression) -> Option<String> {
    let property = &rule.property;
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
        None => rule.unfit(&Value::from(expression.as_str()), Written::Text),
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
                "flags": {"title": "L", "type": "array", "items": {"type": "string", "enum": ["aes"]}},
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
        assert_eq!(catalog.near(Bound::Label, "x/tire"), Some("x/tier"));
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
            // No list equals a text, so the text is not checked against the values of the items.
            ("property:flags mmx", None),
            ("property:unknown <all-in> a b", None),
            ("x/tier <in> gold", Some("<in> is no operator of it: it takes <or>")),
        ] {
            let checked = catalog.check_requirement(&Requirement::parse(text).unwrap());
            assert_eq!(checked.err().map(|wrong| wrong.reason).as_deref(), expected, "{text}");
        }
    }
}
