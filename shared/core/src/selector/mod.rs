//! Kubernetes label selectors: `env in (prod, test), tier!=db, !debug`.
//!
//! The grammar, the matching and the canonical text are those of `k8s.io/apimachinery`. So selectors behave as in
//! kubectl, also in corner cases: `x notin (a)` matches if `x` is absent, and `x in ()` means the empty value. There is
//! one extension: a term that begins with `reported:` is matched against the labels in the host's report. The parser
//! removes this prefix before it parses the term.
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

/// Maximum length of the text form of a selector, in bytes. The object form has no such limit.
pub const MAX_SELECTOR_BYTES: usize = 4096;
/// Maximum number of terms in a selector.
pub const MAX_TERMS: usize = 64;
/// The prefix of a term that is matched against the host's report.
pub const REPORTED_PREFIX: &str = "reported:";

/// A list of conditions on labels. An object matches if it meets all conditions. A selector without conditions matches
/// every object. The selector that [`Selector::match_nothing`] returns matches no object.
#[derive(Clone, PartialEq, Eq)]
pub struct Selector {
    /// The terms (conditions), sorted by source and key. `None` is a selector that matches nothing. It is serialized as
    /// `null`.
    terms: Option<Vec<Term>>,
}

/// An error in a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// The text has more than [`MAX_SELECTOR_BYTES`] bytes.
    #[error("a selector has at most {MAX_SELECTOR_BYTES} bytes, this one {bytes}")]
    TooLong {
        /// The length of the text, in bytes.
        bytes: usize,
    },
    /// The selector has more than [`MAX_TERMS`] terms.
    #[error("a selector has at most {MAX_TERMS} terms")]
    TooManyTerms,
    /// The parser found a token that is not allowed at its position.
    #[error("selector: found {found} at byte {at}, expected {expected}")]
    Unexpected {
        /// The token in quotation marks, cut at 64 characters, or `the end` at the end of the text.
        found: String,
        /// The position of the token in the selector's text, in bytes from 0.
        at: usize,
        /// The tokens that are allowed at this position, in words.
        expected: &'static str,
    },
    /// A key is not a valid label key, or the prefix `reported:` comes after `!` and not before `!`.
    #[error("selector: {reason}")]
    Key {
        /// The reason why the key is refused.
        reason: String,
    },
    /// A value is not a valid label value in Kubernetes.
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
    /// The value after `>` or `<` is not an integer, or does not fit into a signed integer of 64 bits.
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
    /// An operator of the object form has the wrong number of values.
    #[error("selector: {key} {operator} takes {takes}")]
    Arity {
        /// The key with its prefix, cut at 64 characters.
        key: String,
        /// `in` or `notin`, or the words `by existence` for `Exists` and `DoesNotExist`.
        operator: &'static str,
        /// The expected number of values, in words.
        takes: &'static str,
    },
}

impl Selector {
    /// Parses the text form. An empty text matches everything.
    ///
    /// # Errors
    /// Fails with [`InvalidSelector`] if the text is not a selector. The error names the position of a wrong token.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        parse::parse(text).map(Self::from_terms)
    }

    /// Creates a selector that matches nothing. An object form that is `null` gives the same selector.
    pub const fn match_nothing() -> Self {
        Self { terms: None }
    }

    /// Returns the terms, sorted by source and key. Empty for a selector that matches nothing or everything.
    pub fn terms(&self) -> &[Term] {
        self.terms.as_deref().unwrap_or_default()
    }

    /// Returns whether all terms match. Terms with the prefix `reported:` are matched against `reported`, the labels in
    /// the host's report. All other terms are matched against `labels`. A caller without a report passes `&()`.
    pub fn matches(&self, labels: &impl LabelLookup, reported: &impl LabelLookup) -> bool {
        self.terms.as_ref().is_some_and(|terms| {
            terms.iter().all(|term| match term.source() {
                LabelSource::Effective => term.matches(labels.label(term.key())),
                LabelSource::Reported => term.matches(reported.label(term.key())),
            })
        })
    }

    /// Returns whether an object could match, although the report of its host is no longer stored. Terms with the
    /// prefix `reported:` are skipped. A term about a key for which `may_come_from_report` is true is skipped too,
    /// because the label may have been in the lost report. All other terms must match `labels`.
    pub fn matches_without_report(&self, labels: &impl LabelLookup, may_come_from_report: impl Fn(&str) -> bool) -> bool {
        let is_skipped_or_matches = |term: &Term| {
            term.source() == LabelSource::Reported || may_come_from_report(term.key()) || term.matches(labels.label(term.key()))
        };
        self.terms.as_ref().is_some_and(|terms| terms.iter().all(is_skipped_or_matches))
    }

    /// Creates a selector from terms, and sorts them by source and key.
    fn from_terms(mut terms: Vec<Term>) -> Self {
        terms.sort_by(|left, right| (left.source(), left.key()).cmp(&(right.source(), right.key())));
        Self { terms: Some(terms) }
    }
}

impl fmt::Display for Selector {
    /// Writes the canonical text, in which terms and values are sorted. Each operator remains as its author wrote it
    /// (`=` or `==`). The text is empty for a selector that matches nothing, as for one that matches everything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms().iter().enumerate() {
            write!(f, "{}{term}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Selector {
    /// Writes the canonical text in quotation marks, or `nothing` for a selector that matches nothing.
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
    /// Reads the text form, or the object form with `matchLabels` and `matchExpressions`. The value `null` gives a
    /// selector that matches nothing.
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

    /// The first argument of `matches` has the effective labels, and the second the reported labels. `&()` has no
    /// labels. The second argument of `matches_without_report` decides which keys the lost report may have provided.
    #[test]
    fn selector_matches_reported_terms_in_report_and_others_in_labels() {
        let selector = Selector::parse("tier=gold, reported:rack in (r1, r2), reported:!old").unwrap();
        assert_eq!(selector.to_string(), "tier=gold,reported:!old,reported:rack in (r1,r2)");
        let gold_labels = labels(&[("tier", "gold")]);
        assert!(selector.matches(&gold_labels, &labels(&[("rack", "r1")])));
        assert!(!selector.matches(&gold_labels, &labels(&[("rack", "r1"), ("old", "")])));
        assert!(!selector.matches(&labels(&[("tier", "gold"), ("rack", "r1")]), &()));
        assert!(
            selector.matches_without_report(&gold_labels, |_| false) && !selector.matches_without_report(&(), |_| false),
            "terms about reported labels are skipped"
        );
        assert!(
            selector.matches_without_report(&(), |key| key == "tier"),
            "terms about labels that may come from the report are skipped"
        );
        assert!(!Selector::match_nothing().matches_without_report(&gold_labels, |_| true));
        assert!(!Selector::parse("tier=gold").unwrap().matches(&(), &gold_labels));
        assert!(Selector::parse("!tier").unwrap().matches(&(), &()), "an object without labels matches a negated term");
    }

    #[test]
    fn selector_is_limited_to_4096_bytes() {
        // White space after `tier` gives the text the length in bytes.
        let padded = |bytes: usize| Selector::parse(&format!("{:bytes$}", "tier"));
        assert_eq!(padded(4096).unwrap().to_string(), "tier");
        assert_eq!(padded(4097).unwrap_err().to_string(), "a selector has at most 4096 bytes, this one 4097");
    }

    /// The error for a wrong token has the position of the token. The error for a wrong key or value has the reason
    /// instead.
    #[test]
    fn selector_error_gives_position_or_reason() {
        for (text, message) in [
            ("x=y,", "selector: found the end at byte 4, expected a key after ','"),
            ("x in y", "selector: found \"y\" at byte 5, expected '('"),
            ("x in (a b)", "selector: found \"b\" at byte 8, expected ',' or ')'"),
            ("x=a b", "selector: found \"b\" at byte 4, expected ',' or the end"),
            ("x>a", "selector: x is compared by '>' or '<', so \"a\" must be a whole number of 64 bits"),
            ("!reported:x", "selector: a term about what hosts report begins with 'reported:', so write reported:!x"),
        ] {
            assert_eq!(Selector::parse(text).unwrap_err().to_string(), message);
        }
    }

    /// The text form of a selector has at most 4096 bytes. Both forms have at most 64 terms. In the object form, labels
    /// and expressions together count as terms.
    #[test]
    fn s52_selector_input_is_bounded() {
        assert!(matches!(Selector::parse(&"(".repeat(100_000)), Err(InvalidSelector::TooLong { bytes: 100_000 })));
        assert_eq!(Selector::parse(&vec!["x"; 65].join(",")), Err(InvalidSelector::TooManyTerms));
        assert!(Selector::parse(&vec!["x"; 64].join(",")).is_ok());
        for (label_count, expression_count, is_accepted) in [(60, 4, true), (60, 5, false), (65, 0, false), (0, 65, false)] {
            let term = |index| LabelExpression { key: format!("e{index}"), operator: "Exists".into(), values: Vec::new() };
            let object = LabelSelector {
                match_labels: (0..label_count).map(|index| (format!("k{index}"), "v".to_owned())).collect(),
                match_expressions: (0..expression_count).map(term).collect(),
            };
            assert_eq!(LabelSelector::compile(Some(&object)).is_ok(), is_accepted, "{label_count} {expression_count}");
        }
        // These texts are short enough. The parser rejects them without a crash.
        assert!(Selector::parse(&"(".repeat(4096)).is_err());
        assert!(Selector::parse("x\0y").is_err());
    }

    /// A value that is equal to the bound, or is not an integer, does not match.
    #[test]
    fn selector_bound_is_exclusive() {
        for (text, value, is_match) in
            [("n>4", "4", false), ("n>4", "5", true), ("n<4", "4", false), ("n<4", "3", true), ("n>4", "x", false)]
        {
            assert_eq!(Selector::parse(text).unwrap().matches(&labels(&[("n", value)]), &()), is_match, "{text} {value}");
        }
    }

    /// Both forms give equal selectors. Each selector is written in the text form, and `null` is a selector that
    /// matches nothing.
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
