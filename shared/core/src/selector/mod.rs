//! Label selectors, as Kubernetes has them: `env in (prod, test), tier!=db, !debug`.
//!
//! The grammar, the matching and the canonical text are those of `k8s.io/apimachinery`, odd corners included
//! (`x notin (a)` holds where `x` is absent, `x in ()` means the empty value), so that what people know from kubectl
//! holds here. One thing is ours: a term may begin with `reported:`. Then it is matched against what the
//! host reports, which decides nothing anywhere else; the word is cut off before the term is parsed.
//!
//! Input is bounded in bytes and terms, and the parser does not recurse.

mod labels;
mod parse;
mod term;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use labels::{LabelExpression, LabelLookup, LabelSelector};
pub use term::{Operator, Source, Term};

/// The longest selector, in bytes.
pub const MAX_SELECTOR: usize = 4096;
/// How many terms a selector has at most.
pub const MAX_TERMS: usize = 64;
/// What a term begins with that is matched against the host's own report.
pub const REPORTED: &str = "reported:";

/// What labels must be like. All terms must hold; without any, everything matches.
#[derive(Clone, PartialEq, Eq)]
pub struct Selector {
    /// Sorted by source and key; `None` matches nothing (a `null` of the object form).
    terms: Option<Vec<Term>>,
}

/// A text or object that is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// Too long.
    #[error("a selector has at most {MAX_SELECTOR} bytes, this one {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Too many terms.
    #[error("a selector has at most {MAX_TERMS} terms")]
    TooManyTerms,
    /// Something stands where something else must.
    #[error("selector: found {found} at byte {at}, expected {expected}")]
    Unexpected {
        /// What stands there, quoted, or `the end`.
        found: String,
        /// Where.
        at: usize,
        /// What could stand there.
        expected: &'static str,
    },
    /// A key that is no label's.
    #[error("selector: {reason}")]
    Key {
        /// Why.
        reason: String,
    },
    /// A value that Kubernetes would not take.
    #[error(
        "selector: {value:?} is no label value (for {key}): at most 63 letters, digits, '-', '_' or '.', \
         with a letter or digit at both ends"
    )]
    Value {
        /// The key.
        key: String,
        /// The value, cut at 64 characters.
        value: String,
    },
    /// `>` or `<` without a whole number.
    #[error("selector: {key} is compared by '>' or '<', so {value:?} must be a whole number of 64 bits")]
    Number {
        /// The key.
        key: String,
        /// The value, cut at 64 characters.
        value: String,
    },
    /// An operator of the object form that is none.
    #[error("selector: {operator:?} is no operator; matchExpressions take In, NotIn, Exists and DoesNotExist")]
    Operator {
        /// The operator, cut at 64 characters.
        operator: String,
    },
    /// The object form, with values missing or too many.
    #[error("selector: {key} {operator} takes {takes}")]
    Arity {
        /// The key.
        key: String,
        /// The operator.
        operator: &'static str,
        /// What it takes, in words.
        takes: &'static str,
    },
}

impl Selector {
    /// Reads the text form. An empty text matches everything.
    ///
    /// # Errors
    /// [`InvalidSelector`], with the place.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        parse::parse(text).map(Self::from_terms)
    }

    /// A selector that matches nothing: what a missing object form means.
    pub const fn nothing() -> Self {
        Self { terms: None }
    }

    /// The terms, sorted; none of [`Selector::nothing`].
    pub fn terms(&self) -> &[Term] {
        self.terms.as_deref().unwrap_or_default()
    }

    /// Whether all terms hold. Terms of `reported:` look at `reported`, all others at `labels`; an object that nobody
    /// reports for has `&()` there.
    pub fn matches(&self, labels: &impl LabelLookup, reported: &impl LabelLookup) -> bool {
        self.terms.as_ref().is_some_and(|terms| {
            terms.iter().all(|term| match term.source() {
                Source::Effective => term.matches(labels.label(term.key())),
                Source::Reported => term.matches(reported.label(term.key())),
            })
        })
    }

    /// Whether all terms hold that look at no report: of an object whose host's word is forgotten. So is a label that may have come of it
    /// (`is_forgotten`).
    pub fn matches_unreported(&self, labels: &impl LabelLookup, is_forgotten: impl Fn(&str) -> bool) -> bool {
        let holds = |term: &Term| {
            term.source() == Source::Reported || is_forgotten(term.key()) || term.matches(labels.label(term.key()))
        };
        self.terms.as_ref().is_some_and(|terms| terms.iter().all(holds))
    }

    fn from_terms(mut terms: Vec<Term>) -> Self {
        terms.sort_by(|one, other| (one.source(), one.key()).cmp(&(other.source(), other.key())));
        Self { terms: Some(terms) }
    }
}

impl fmt::Display for Selector {
    /// The canonical text: terms and values sorted, operators as they were written.
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
    /// As its canonical text; one that matches nothing as `null`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.terms.is_none() { serializer.serialize_none() } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Selector {
    /// From the text form, or from the object form with `matchLabels` and `matchExpressions`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Object(Option<LabelSelector>),
        }
        let read = match Form::deserialize(deserializer)? {
            Form::Text(text) => Self::parse(&text),
            Form::Object(object) => LabelSelector::compile(object.as_ref()),
        };
        read.map_err(serde::de::Error::custom)
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
    fn a_reported_term_looks_at_the_report_alone() {
        let selector = Selector::parse("tier=gold, reported:rack in (r1, r2), reported:!old").unwrap();
        assert_eq!(selector.to_string(), "tier=gold,reported:!old,reported:rack in (r1,r2)");
        let gold = labels(&[("tier", "gold")]);
        assert!(selector.matches(&gold, &labels(&[("rack", "r1")])));
        assert!(!selector.matches(&gold, &labels(&[("rack", "r1"), ("old", "")])));
        assert!(!selector.matches(&labels(&[("tier", "gold"), ("rack", "r1")]), &()));
        assert!(
            selector.matches_unreported(&gold, |_| false) && !selector.matches_unreported(&(), |_| false),
            "what was reported is forgotten"
        );
        assert!(selector.matches_unreported(&(), |key| key == "tier"), "and what may have come of it");
        assert!(!Selector::nothing().matches_unreported(&gold, |_| true));
        assert!(!Selector::parse("tier=gold").unwrap().matches(&(), &gold));
        assert!(Selector::parse("!tier").unwrap().matches(&(), &()), "nothing has no label");
    }

    #[test]
    fn a_selector_has_4096_bytes_at_most() {
        let padded = |bytes: usize| Selector::parse(&format!("{:bytes$}", "tier"));
        assert_eq!(padded(4096).unwrap().to_string(), "tier");
        assert_eq!(padded(4097).unwrap_err().to_string(), "a selector has at most 4096 bytes, this one 4097");
    }

    #[test]
    fn an_error_says_where() {
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
    fn s52_bombs_are_bounded() {
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
    fn a_bound_is_no_greater_or_less_than_itself() {
        for (text, value, holds) in
            [("n>4", "4", false), ("n>4", "5", true), ("n<4", "4", false), ("n<4", "3", true), ("n>4", "x", false)]
        {
            assert_eq!(Selector::parse(text).unwrap().matches(&labels(&[("n", value)]), &()), holds, "{text} {value}");
        }
    }

    #[test]
    fn both_forms_are_read() {
        let text: Selector = serde_json::from_str("\"tier = gold\"").unwrap();
        let object: Selector = serde_json::from_str(r#"{"matchLabels": {"tier": "gold"}}"#).unwrap();
        assert_eq!(text, object);
        assert_eq!(serde_json::from_str::<Selector>("null").unwrap(), Selector::nothing());
        assert_eq!(serde_json::to_string(&text).unwrap(), "\"tier=gold\"");
        assert_eq!(format!("{text:?}, {:?}", Selector::nothing()), "\"tier=gold\", nothing");
        let reported: Selector =
            serde_json::from_str(r#"{"matchExpressions": [{"key": "reported:rack", "operator": "Exists"}]}"#).unwrap();
        assert_eq!(reported.to_string(), "reported:rack");
    }
}
