//! How a namespace of the catalogue restricts keys. A namespace that is associated with one of Stemma's resource types
//! binds the keys of that type: its properties restrict their values, and the operators that a requirement may use.
//!
//! A value is checked only when it is written. A later change of the catalogue causes findings, and breaks no node. A
//! key that no namespace names is unrestricted.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::property_prefix;
use super::value::{PropertyRule, ValueEncoding};
use crate::name::{closest_match, did_you_mean, truncated};
use crate::object::{Association, Namespace, Property, PropertyType};
use crate::requirement::{Expression, Requirement, RequirementField};

/// The kinds of keys that a namespace of the catalogue (Glance's metadata definitions) can restrict. Of facts, only the
/// requirements are checked, and not the values that hosts report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyKind {
    /// Labels.
    Label,
    /// Parameters.
    Parameter,
    /// Properties of nodes.
    Property,
    /// Facts that hosts report.
    Fact,
}

/// The operators that a requirement may use for the key of a property only if the property's `operators` list contains
/// them. A property without a list allows them all.
const LISTABLE_OPERATORS: [&str; 3] = ["<or>", "<in>", "<all-in>"];

impl KeyKind {
    /// All kinds of keys, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::Label, Self::Parameter, Self::Property, Self::Fact];

    /// Returns the resource type of Glance with which a namespace must be associated to restrict keys of this kind.
    pub const fn resource_type(self) -> &'static str {
        match self {
            Self::Label => "Stemma::Label",
            Self::Parameter => "Stemma::Parameter",
            Self::Property => "Stemma::Property",
            Self::Fact => "Stemma::Fact",
        }
    }

    /// Returns the name of this kind of key for messages.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Parameter => "parameter",
            Self::Property => "property",
            Self::Fact => "fact",
        }
    }

    /// Returns the field of a JSON body that contains keys of this kind.
    pub const fn body_field(self) -> &'static str {
        match self {
            Self::Label => "labels",
            Self::Parameter => "parameters",
            Self::Property => "properties",
            Self::Fact => "facts",
        }
    }

    /// Returns the encoding in which the values of these keys are checked.
    const fn value_encoding(self) -> ValueEncoding {
        match self {
            Self::Parameter => ValueEncoding::Json,
            Self::Label | Self::Property | Self::Fact => ValueEncoding::Text,
        }
    }
}

/// Returns an error message if a resource type begins with the prefix `Stemma::` (in any case, also after blanks) and
/// is not one of Stemma's resource types. A namespace binds the keys of the resource types that it is associated with,
/// such as labels for `Stemma::Label`. An association with an unknown type would bind no key.
pub(crate) fn resource_type_error(name: &str) -> Option<String> {
    let types = || KeyKind::ALL.into_iter().map(KeyKind::resource_type);
    let has_our_prefix = name.trim_start().to_ascii_lowercase().starts_with("stemma::");
    if !has_our_prefix || types().any(|resource_type| resource_type == name) {
        return None;
    }
    let (hint, type_names) = (did_you_mean(closest_match(name, types())), types().collect::<Vec<_>>().join(", "));
    Some(format!("{:?} is not a resource type of Stemma{hint}: the types are {type_names}", truncated(name)))
}

/// The rules of all keys that namespaces of the catalogue bind (restrict by a property), by kind of key (the index in
/// the array) and by key. The rules are built once, with the pattern of each property compiled.
#[derive(Clone, Debug, Default)]
pub struct Catalog([BTreeMap<String, Vec<Arc<Binding>>>; KeyKind::ALL.len()]);

/// A property of a namespace that restricts the values of a key.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The namespace that defines the property.
    pub namespace: Arc<Namespace>,
    rule: PropertyRule,
}

/// A value or requirement that the catalogue does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {key}: {reason}, according to namespace {namespace} of the catalogue", .kind.description())]
pub struct NotAllowed {
    /// The kind of the key.
    pub kind: KeyKind,
    /// The key whose value or requirement is not allowed.
    pub key: String,
    /// The reason why the value or requirement is not allowed.
    pub reason: String,
    /// The name of the namespace that does not allow the value or requirement.
    pub namespace: String,
}

impl Binding {
    /// Returns the property that defines the key.
    pub fn property(&self) -> &Property {
        &self.rule.property
    }
}

impl Catalog {
    /// Builds the catalogue from the properties of these namespaces and of their objects. A namespace that is
    /// associated with no resource type of Stemma is ignored.
    pub fn new<'a>(namespaces: impl IntoIterator<Item = &'a Arc<Namespace>>) -> Self {
        let mut catalog = Self::default();
        for namespace in namespaces {
            let kinds: Vec<KeyKind> = KeyKind::ALL.into_iter().filter(|key_kind| binds_keys(namespace, *key_kind)).collect();
            let object_properties = namespace.spec.objects.iter().map(|object| &object.properties);
            let properties = std::iter::once(&namespace.spec.properties).chain(object_properties).flatten();
            for (name, property) in properties.filter(|_| !kinds.is_empty()) {
                let binding = Arc::new(Binding { namespace: Arc::clone(namespace), rule: PropertyRule::new(property) });
                for kind in &kinds {
                    let key = format!("{}{name}", property_prefix(&namespace.spec, kind.resource_type()));
                    catalog.0[*kind as usize].entry(key).or_default().push(Arc::clone(&binding));
                }
            }
        }
        catalog
    }

    /// Returns whether the catalogue restricts no key.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeMap::is_empty)
    }

    /// Returns the properties that restrict a key. Each namespace that restricts the key has one, or several if its
    /// objects define a property of the same name. Empty if no namespace restricts the key.
    pub fn bindings(&self, kind: KeyKind, key: &str) -> impl Iterator<Item = &Binding> {
        self.0[kind as usize].get(key).into_iter().flatten().map(Arc::as_ref)
    }

    /// Returns the key of the catalogue that is spelled most like `key`. Returns `None` if `key` itself is in the
    /// catalogue, or if no key of the catalogue is similar.
    pub fn closest_key(&self, kind: KeyKind, key: &str) -> Option<&str> {
        let keys = &self.0[kind as usize];
        if keys.contains_key(key) { None } else { closest_match(key, keys.keys().map(String::as_str)) }
    }

    /// Checks a value of a key against every property that restricts the key.
    ///
    /// # Errors
    /// The first namespace that does not allow the value, with the reason.
    pub fn check_value(&self, kind: KeyKind, key: &str, value: &Value) -> Result<(), NotAllowed> {
        self.check_bindings(kind, key, |rule| rule.value_error(value, kind.value_encoding()))
    }

    /// Checks a requirement against every property that restricts its key. This checks the operator, or the value if
    /// the requirement has no operator. A requirement of a trait is always allowed.
    ///
    /// # Errors
    /// The first namespace that does not allow the requirement, with the reason.
    pub fn check_requirement(&self, requirement: &Requirement) -> Result<(), NotAllowed> {
        let Requirement::Field { field, expression } = requirement else { return Ok(()) };
        let (kind, key) = requirement_key(field);
        self.check_bindings(kind, key, |rule| requirement_error(rule, expression))
    }

    /// Calls `find_error` for each property that restricts a key, until one call returns the reason why the property
    /// does not allow the value or requirement. Fails with this reason and the namespace of the property.
    fn check_bindings(
        &self,
        kind: KeyKind,
        key: &str,
        find_error: impl Fn(&PropertyRule) -> Option<String>,
    ) -> Result<(), NotAllowed> {
        let mut bindings = self.bindings(kind, key);
        let first_error = bindings.find_map(|binding| Some((find_error(&binding.rule)?, &binding.namespace)));
        first_error.map_or(Ok(()), |(reason, namespace)| {
            let namespace = namespace.meta.name.to_string();
            Err(NotAllowed { kind, key: key.to_owned(), reason, namespace })
        })
    }
}

/// Returns whether a namespace is associated with the resource type of these keys, so that its properties restrict
/// them.
fn binds_keys(namespace: &Namespace, kind: KeyKind) -> bool {
    namespace.spec.item::<Association>(kind.resource_type()).is_some()
}

/// Returns the kind and the name of the key that a requirement tests.
pub(super) fn requirement_key(field: &RequirementField) -> (KeyKind, &str) {
    match field {
        RequirementField::Label(key) => (KeyKind::Label, key.as_str()),
        RequirementField::Parameter(key) => (KeyKind::Parameter, key.as_str()),
        RequirementField::Property(name) => (KeyKind::Property, name),
        RequirementField::Fact(name) => (KeyKind::Fact, name),
    }
}

/// Returns the reason why a property does not allow a requirement, or `None` if it does. An operator of
/// [`LISTABLE_OPERATORS`] must be in the list of the property, if it has one. Any other operator must fit the type, and
/// a plain value must be one that the property allows, unless the type is a list or a map.
fn requirement_error(rule: &PropertyRule, expression: &Expression) -> Option<String> {
    let property = &rule.property;
    let is_number = matches!(property.kind, PropertyType::Integer | PropertyType::Number);
    match expression.operator() {
        Some(operator) if LISTABLE_OPERATORS.contains(&operator) => {
            let list = property.operators.as_ref()?;
            if list.iter().any(|name| name == operator) {
                return None;
            }
            let names: Vec<&str> = list.iter().map(String::as_str).filter(|name| LISTABLE_OPERATORS.contains(name)).collect();
            let allowed = if names.is_empty() { "none of <or>, <in> and <all-in>".to_owned() } else { names.join(", ") };
            Some(format!("the property does not allow {operator}: it allows {allowed}"))
        }
        // The operators that compare texts begin with `s`. All others compare numbers.
        Some(operator) if operator.starts_with('s') => {
            let is_text = property.kind == PropertyType::String;
            (!is_text).then(|| format!("{operator} compares texts, but the property is of type {}", property.kind))
        }
        Some(operator) => {
            (!is_number).then(|| format!("{operator} compares numbers, but the property is of type {}", property.kind))
        }
        // A list or map is never equal to a text. The requirement is allowed, although no value meets it.
        None if matches!(property.kind, PropertyType::Array | PropertyType::Object) => None,
        None => rule.value_error(&Value::from(expression.as_str()), ValueEncoding::Text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::name::NamespaceName;
    use crate::object::{Meta, Timestamp};

    /// Returns a namespace with the name `Site` and this body.
    fn test_namespace(body: Value) -> Arc<Namespace> {
        let meta = Meta::new(Uuid::nil(), NamespaceName::new("Site").unwrap(), Timestamp(0));
        Arc::new(Namespace { meta, spec: serde_json::from_value(body).unwrap() })
    }

    /// Returns a namespace that binds labels (with the prefix `x/`) and properties.
    fn site_namespace() -> Arc<Namespace> {
        test_namespace(json!({
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

    /// A namespace binds its properties as keys of each kind that it is associated with, with the prefix of the
    /// association. A similar key is suggested. A namespace without an association binds nothing.
    #[test]
    fn key_is_bound_with_prefix_of_resource_type() {
        let site = [site_namespace()];
        let catalog = Catalog::new(&site);
        for (kind, key, count) in [
            (KeyKind::Label, "x/tier", 1),
            (KeyKind::Label, "tier", 0),
            (KeyKind::Property, "tier", 1),
            (KeyKind::Property, "port", 1),
            (KeyKind::Parameter, "tier", 0),
        ] {
            assert_eq!(catalog.bindings(kind, key).count(), count, "{kind:?} {key}");
        }
        assert_eq!(catalog.closest_key(KeyKind::Label, "x/tire"), Some("x/tier"));
        assert_eq!(catalog.closest_key(KeyKind::Label, "x/tier"), None);
        assert!(Catalog::new(&[test_namespace(json!({"properties": {"a": {"title": "A", "type": "string"}}}))]).is_empty());
    }

    #[test]
    fn requirement_is_limited_to_operators_of_property() {
        let site = [site_namespace()];
        let catalog = Catalog::new(&site);
        for (text, expected) in [
            ("property:tier <or> gold <or> silver", None),
            ("property:tier <in> gold", Some("the property does not allow <in>: it allows <or>")),
            ("property:tier gold", None),
            ("property:tier plat", Some("\"plat\" is not one of gold, silver")),
            ("property:tier s== gold", None),
            ("property:tier >= 3", Some(">= compares numbers, but the property is of type string")),
            ("property:memory_mb >= 3", None),
            // `>>` is not an operator, so the whole text is the required value.
            ("property:memory_mb >> 3", Some("\">> 3\" is not a whole number")),
            ("property:memory_mb <or> 3", Some("the property does not allow <or>: it allows none of <or>, <in> and <all-in>")),
            ("property:memory_mb s>= 3", Some("s>= compares texts, but the property is of type integer")),
            ("property:free <all-in> a b", None),
            // No list equals a text, so the text is not checked against the values of the items.
            ("property:flags mmx", None),
            ("property:unknown <all-in> a b", None),
            ("x/tier <in> gold", Some("the property does not allow <in>: it allows <or>")),
        ] {
            let checked = catalog.check_requirement(&Requirement::parse(text).unwrap());
            assert_eq!(checked.err().map(|error| error.reason).as_deref(), expected, "{text}");
        }
    }
}
