//! The labels that a selector is matched against, and its object form.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{InvalidSelector, LabelSource, MAX_TERMS, Operator, REPORTED_PREFIX, Selector, Term};
use crate::key::LabelValue;
use crate::labels::Labels;
use crate::name::truncated;

/// The labels of an object, by key.
pub trait LabelLookup {
    /// Returns the value of a key, or `None` if it is absent.
    fn label(&self, key: &str) -> Option<&str>;
}

impl<K: Ord + Borrow<str>, V: AsRef<str>> LabelLookup for BTreeMap<K, V> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(AsRef::as_ref)
    }
}

impl LabelLookup for Labels {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(LabelValue::as_str)
    }
}

impl LabelLookup for () {
    fn label(&self, _key: &str) -> Option<&str> {
        None
    }
}

/// The object form of a selector, like Kubernetes' `LabelSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LabelSelector {
    /// The keys that must have these values.
    pub match_labels: BTreeMap<String, String>,
    /// Further terms, all of which must match.
    pub match_expressions: Vec<LabelExpression>,
}

/// A term of the object form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelExpression {
    /// The key, with the prefix `reported:` if it is a label of the host's report.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values of `In` and `NotIn`.
    #[serde(default)]
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Compiles the object form. `None` matches nothing. An object without terms matches everything.
    ///
    /// # Errors
    /// [`InvalidSelector`].
    pub fn compile(object: Option<&Self>) -> Result<Selector, InvalidSelector> {
        let Some(object) = object else { return Ok(Selector::match_nothing()) };
        if object.match_labels.len() + object.match_expressions.len() > MAX_TERMS {
            return Err(InvalidSelector::TooManyTerms);
        }
        let equal = object.match_labels.iter().map(|(key, value)| {
            let (source, key) = split_reported_prefix(key);
            Term::new(source, key, Operator::Equals, BTreeSet::from([value.clone()]))
        });
        let terms = equal.chain(object.match_expressions.iter().map(LabelExpression::compile));
        terms.collect::<Result<_, _>>().map(Selector::from_terms)
    }
}

impl LabelExpression {
    /// Compiles a term of the object form. Only `In` and `NotIn` take values, at least one.
    fn compile(&self) -> Result<Term, InvalidSelector> {
        let operator = match self.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return Err(InvalidSelector::Operator { operator: truncated(&self.operator) }),
        };
        let wants_values = matches!(operator, Operator::In | Operator::NotIn);
        if wants_values == self.values.is_empty() {
            return Err(InvalidSelector::Arity {
                key: truncated(&self.key),
                operator: if wants_values { operator.sign() } else { "by existence" },
                takes: if wants_values { "at least one value" } else { "no values" },
            });
        }
        let (source, key) = split_reported_prefix(&self.key);
        Term::new(source, key, operator, self.values.iter().cloned().collect())
    }
}

/// Returns whether a key is about the host's report, and the key without that prefix.
fn split_reported_prefix(key: &str) -> (LabelSource, &str) {
    key.strip_prefix(REPORTED_PREFIX).map_or((LabelSource::Effective, key), |key| (LabelSource::Reported, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LabelKey;
    use crate::labels::{LabelLayer, Level};
    use crate::ownership::{Intent, Manager, OwnedMap, ProvidedValue};

    #[test]
    fn label_selector_operators_match_effective_labels() {
        let tier = (LabelKey::new("tier").unwrap(), ProvidedValue::Value(LabelValue::new("gold").unwrap()));
        let provided = OwnedMap::default().update(&Manager::new("test").unwrap(), &Intent::from([tier]));
        let labels = Labels::default().with_level(Level::Node, &LabelLayer { provided: Some(provided), merge: Some(true) });
        for (key, operator, values, matches) in [
            ("tier", "In", &["gold", "silver"][..], true),
            ("tier", "In", &["silver"], false),
            ("tier", "NotIn", &["silver"], true),
            ("tier", "NotIn", &["gold"], false),
            ("tier", "Exists", &[], true),
            ("rack", "Exists", &[], false),
            ("tier", "DoesNotExist", &[], false),
            ("rack", "DoesNotExist", &[], true),
        ] {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let expression = LabelExpression { key: key.into(), operator: operator.into(), values };
            let object = LabelSelector { match_expressions: vec![expression], ..LabelSelector::default() };
            let selector = LabelSelector::compile(Some(&object)).unwrap();
            assert_eq!(selector.matches(&labels, &()), matches, "{key} {operator}");
        }
    }
}
