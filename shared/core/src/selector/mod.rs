//! Kubernetes label selectors: `env in (prod, test), tier!=db, !debug`.
//!
//! The grammar, the matching and the canonical text are those of `k8s.io/apimachinery`, including its corner cases (`x
//! notin (a)` matches if `x` is absent, `x in ()` means the empty value). So selectors behave as in kubectl. There is
//! one extension: a term that begins with `reported:` is matched against the labels in the host's report. No other
//! decision uses the labels of a report in this form. The prefix is removed before the term is parsed.
//!
//! The length of the text and the number of terms are bounded, and the parser does not recurse.

mod labels;
mod parse;
mod term;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use labels::{LabelExpression, LabelLookup, LabelSelector};
pub use term::{LabelSource, Operator, Term};

/// Maximum length of a selector, in bytes.
pub const MAX_SELECTOR_BYTES: usize = 4096;
/// Maximum number of terms in a selector.
pub const MAX_TERMS: usize = 64;
/// The prefix of a term that is matched against the host's report.
pub const REPORTED_PREFIX: &str = "reported:";

/// Conditions on labels, all of which must hold. Without any, everything matches.
#[derive(Clone, PartialEq, Eq)]
pub struct Selector {
    /// The terms, sorted by source and key. `None` matches nothing (`null` in the object form).
    terms: Option<Vec<Term>>,
}

/// An error in a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// The text is too long.
    #[error("a selector has at most {MAX_SELECTOR_BYTES} bytes, this one {bytes}")]
    TooLong {
        /// The length of the text, in bytes.
        bytes: usize,
    },
    /// There are too many terms.
    #[error("a selector has at most {MAX_TERMS} terms")]
    TooManyTerms,
    /// There is an unexpected token.
    #[error("selector: found {found} at byte {at}, expected {expected}")]
    Unexpected {
        /// The token, quoted, or `the end`.
        found: String,
        /// The position of the token, in bytes.
        at: usize,
        /// The tokens that are possible there.
        expected: &'static str,
    },
    /// A key is not a valid label key.
    #[error("selector: {reason}")]
    Key {
        /// The reason.
        reason: String,
    },
    /// A value is not valid in Kubernetes.
    #[error(
        "selector: {value:?} is not a label value (for {key}): at most 63 letters, digits, '-', '_' or '.', \
         with a letter or digit at both ends"
    )]
    Value {
        /// The key.
        key: String,
        /// The value, cut at 64 characters.
        value: String,
    },
    /// The value after `>` or `<` is not an integer.
    #[error("selector: {key} is compared by '>' or '<', so {value:?} must be a whole number of 64 bits")]
    Number {
        /// The key.
        key: String,
        /// The value, cut at 64 characters.
        value: String,
    },
    /// The object form has an unknown operator.
    #[error("selector: {operator:?} is not an operator; matchExpressions take In, NotIn, Exists and DoesNotExist")]
    Operator {
        /// The operator, cut at 64 characters.
        operator: String,
    },
    /// The object form has no values, or values that the operator does not accept.
    #[error("selector: {key} {operator} takes {takes}")]
    Arity {
        /// The key.
        key: String,
        /// The operator.
        operator: &'static str,
        /// The expected number of values, in words.
        takes: &'static str,
    },
}

impl Selector {
    /// Parses the text form. An empty text matches everything.
    ///
    /// # Errors
    /// [`InvalidSelector`], with the position.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        parse::parse(text).map(Self::from_terms)
    }

    /// Creates a selector that matches nothing, as a missing object form does.
    pub const fn match_nothing() -> Self {
        Self { terms: None }
    }

    /// Returns the terms, sorted. Empty for [`Selector::match_nothing`].
    pub fn terms(&self) -> &[Term] {
        self.terms.as_deref().unwrap_or_default()
    }

    /// Returns whether all terms match. Terms with `reported:` are matched against `reported`, all others against
    /// `labels`. For an object without a report, `reported` is `&()`.
    pub fn matches(&self, labels: &impl LabelLookup, reported: &impl LabelLookup) -> bool {
        self.terms.as_ref().is_some_and(|terms| {
            terms.iter().all(|term| match term.source() {
                LabelSource::Effective => term.matches(labels.label(term.key())),
                LabelSource::Reported => term.matches(reported.label(term.key())),
            })
        })
    }

    /// Returns whether all terms match that do not depend on a report, for an object whose report is no longer stored.
    /// Terms with `reported:` are skipped. Terms about a label for which `is_forgotten` is true are skipped too,
    /// because the label may have come from the report.
    pub fn matches_without_report(&self, labels: &impl LabelLookup, is_forgotten: impl Fn(&str) -> bool) -> bool {
        let holds = |term: &Term| {
            term.source() == LabelSource::Reported || is_forgotten(term.key()) || term.matches(labels.label(term.key()))
        };
        self.terms.as_ref().is_some_and(|terms| terms.iter().all(holds))
    }

    fn from_terms(mut terms: Vec<Term>) -> Self {
        terms.sort_by(|one, other| (one.source(), one.key()).cmp(&(other.source(), other.key())));
        Self { terms: Some(terms) }
    }
}

impl fmt::Display for Selector {
    /// Writes the canonical text: terms and values sorted, operators as written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms().iter().enumerate() {
            write!(f, "{}{term}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_none() { f.write_str("nothing") } else { write!(f, "{:?}", self.to_string()) }
    }
}

impl FromStr for Selector {
    type Err = InvalidSelector;
    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        Self::parse(text)
    }
}

impl Serialize for Selector {
    /// Writes the canonical text, or `null` for a selector that matches nothing.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.terms.is_none() { serializer.serialize_none() } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Selector {
    /// Reads the text form, or the object form with `matchLabels` and `matchExpressions`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum SelectorForm {
            Text(String),
            Object(Option<LabelSelector>),
        }
        let result = match SelectorForm::deserialize(deserializer)? {
            SelectorForm::Text(text) => Self::parse(&text),
            SelectorForm::Object(object) => LabelSelector::compile(object.as_ref()),
        };
        result.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn selector_matches_reported_term_only_in_report() {
        let selector = Selector::parse("tier=gold, reported:rack in (r1, r2), reported:!old").unwrap();
        assert_eq!(selector.to_string(), "tier=gold,reported:!old,reported:rack in (r1,r2)");
        let gold = labels(&[("tier", "gold")]);
        assert!(selector.matches(&gold, &labels(&[("rack", "r1")])));
        assert!(!selector.matches(&gold, &labels(&[("rack", "r1"), ("old", "")])));
        assert!(!selector.matches(&labels(&[("tier", "gold"), ("rack", "r1")]), &()));
        assert!(
            selector.matches_without_report(&gold, |_| false) && !selector.matches_without_report(&(), |_| false),
            "what was reported is forgotten"
        );
        assert!(selector.matches_without_report(&(), |key| key == "tier"), "and what may have come of it");
        assert!(!Selector::match_nothing().matches_without_report(&gold, |_| true));
        assert!(!Selector::parse("tier=gold").unwrap().matches(&(), &gold));
        assert!(Selector::parse("!tier").unwrap().matches(&(), &()), "nothing has no label");
    }

    #[test]
    fn selector_is_limited_to_4096_bytes() {
        let padded = |bytes: usize| Selector::parse(&format!("{:bytes$}", "tier"));
        assert_eq!(padded(4096).unwrap().to_string(), "tier");
        assert_eq!(padded(4097).unwrap_err().to_string(), "a selector has at most 4096 bytes, this one 4097");
    }

    #[test]
    fn selector_error_gives_position() {
        for (text, says) in [
            ("x=y,", "selector: found the end at byte 4, expected a key after ','"),
            ("x in y", "selector: found \"y\" at byte 5, expected '('"),
            ("x in (a b)", "selector: found \"b\" at byte 8, expected ',' or ')'"),
            ("x=a b", "selector: found \"b\" at byte 4, expected ',' or the end"),
            ("x>a", "selector: x is compared by '>' or '<', so \"a\" must be a whole number of 64 bits"),
            ("!reported:x", "selector: a term about what hosts report begins with 'reported:', so write reported:!x"),
        ] {
            assert_eq!(Selector::parse(text).unwrap_err().to_string(), says);
        }
    }

    #[test]
    fn s52_selector_input_is_bounded() {
        assert!(matches!(Selector::parse(&"(".repeat(100_000)), Err(InvalidSelector::TooLong { bytes: 100_000 })));
        assert_eq!(Selector::parse(&vec!["x"; 65].join(",")), Err(InvalidSelector::TooManyTerms));
        assert!(Selector::parse(&vec!["x"; 64].join(",")).is_ok());
        for (labels, expressions, is_taken) in [(60, 4, true), (60, 5, false), (65, 0, false), (0, 65, false)] {
            let term = |n| LabelExpression { key: format!("e{n}"), operator: "Exists".into(), values: Vec::new() };
            let object = LabelSelector {
                match_labels: (0..labels).map(|n| (format!("k{n}"), "v".to_owned())).collect(),
                match_expressions: (0..expressions).map(term).collect(),
            };
            assert_eq!(LabelSelector::compile(Some(&object)).is_ok(), is_taken, "{labels} {expressions}");
        }
        assert!(Selector::parse(&"(".repeat(4096)).is_err());
        assert!(Selector::parse("x\0y").is_err());
    }

    #[test]
    fn selector_bound_is_exclusive() {
        for (text, value, holds) in
            [("n>4", "4", false), ("n>4", "5", true), ("n<4", "4", false), ("n<4", "3", true), ("n>4", "x", false)]
        {
            assert_eq!(Selector::parse(text).unwrap().matches(&labels(&[("n", value)]), &()), holds, "{text} {value}");
        }
    }

    #[test]
    fn selector_reads_text_and_object_form() {
        let text: Selector = serde_json::from_str("\"tier = gold\"").unwrap();
        let object: Selector = serde_json::from_str(r#"{"matchLabels": {"tier": "gold"}}"#).unwrap();
        assert_eq!(text, object);
        assert_eq!(serde_json::from_str::<Selector>("null").unwrap(), Selector::match_nothing());
        assert_eq!(serde_json::to_string(&text).unwrap(), "\"tier=gold\"");
        assert_eq!(format!("{text:?}, {:?}", Selector::match_nothing()), "\"tier=gold\", nothing");
        let reported: Selector =
            serde_json::from_str(r#"{"matchExpressions": [{"key": "reported:rack", "operator": "Exists"}]}"#).unwrap();
        assert_eq!(reported.to_string(), "reported:rack");
    }
}
