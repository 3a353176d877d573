//! The labels that a selector is matched against, and the object form of a selector.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{InvalidSelector, LabelSource, MAX_TERMS, Operator, REPORTED_PREFIX, Selector, Term};
use crate::key::LabelValue;
use crate::labels::Labels;
use crate::name::truncated;

/// A source of label values by key, against which a selector is matched.
pub trait LabelLookup {
    /// Returns the value of the label with this key, or `None` if the object lacks the label.
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
    /// Returns `None`, because `()` is the source of an object without labels.
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

/// A term (condition on one label) of the object form of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelExpression {
    /// The label key. The prefix `reported:` selects a label from the host's report instead of an effective label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values of the operators `In` and `NotIn`. Empty for the other operators.
    #[serde(default)]
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Compiles the object form to a selector. `None` gives a selector that matches nothing. An object without terms
    /// gives a selector that matches everything, as in Kubernetes.
    ///
    /// # Errors
    /// Fails with [`InvalidSelector`] if there are too many terms or one of them is invalid.
    pub fn compile(object: Option<&Self>) -> Result<Selector, InvalidSelector> {
        let Some(object) = object else { return Ok(Selector::match_nothing()) };
        if object.match_labels.len() + object.match_expressions.len() > MAX_TERMS {
            return Err(InvalidSelector::TooManyTerms);
        }
        let match_label_terms = object.match_labels.iter().map(|(key, value)| {
            let (source, key) = split_reported_prefix(key);
            Term::new(source, key, Operator::Equals, BTreeSet::from([value.clone()]))
        });
        let terms = match_label_terms.chain(object.match_expressions.iter().map(LabelExpression::compile));
        terms.collect::<Result<_, _>>().map(Selector::from_terms)
    }
}

impl LabelExpression {
    /// Compiles a term of the object form. `In` and `NotIn` need at least one value. The other operators accept no
    /// values. Fails if the operator is unknown, or if the number of values, the key or a value is invalid.
    fn compile(&self) -> Result<Term, InvalidSelector> {
        let operator = match self.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return Err(InvalidSelector::Operator { operator: truncated(&self.operator) }),
        };
        let operator_has_values = matches!(operator, Operator::In | Operator::NotIn);
        if operator_has_values == self.values.is_empty() {
            return Err(InvalidSelector::Arity {
                key: truncated(&self.key),
                // The message calls `Exists` and `DoesNotExist` an operator "by existence".
                operator: if operator_has_values { operator.sign() } else { "by existence" },
                takes: if operator_has_values { "at least one value" } else { "no values" },
            });
        }
        let (source, key) = split_reported_prefix(&self.key);
        Term::new(source, key, operator, self.values.iter().cloned().collect())
    }
}

/// Returns the labels that a key refers to, and the key without prefix. The prefix `reported:` refers to the labels of
/// the host's report. A key without prefix refers to the effective labels.
fn split_reported_prefix(key: &str) -> (LabelSource, &str) {
    key.strip_prefix(REPORTED_PREFIX).map_or((LabelSource::Effective, key), |key| (LabelSource::Reported, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LabelKey;
    use crate::labels::{LabelLayer, Level};
    use crate::ownership::{Intent, Manager, OwnedMap, ProvidedValue};

    /// In this test, the object has the effective label `tier=gold` and no label `rack`. The last argument of `matches`
    /// contains the labels that the host reports. `&()` contains none.
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
