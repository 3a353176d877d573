//! Selectors over random terms and labels. Each operator matches as Kubernetes' documentation says, and the canonical
//! text parses to the same selector.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_core::selector::Selector;

const KEYS: [&str; 3] = ["tier", "example.com/zone", "n"];
const VALUES: [&str; 5] = ["a", "b", "", "7", "12"];

type Labels = BTreeMap<String, String>;

/// A random term of a selector. `kind` selects the operator: 0 and 1 equality, 2 inequality, 3 `in`, 4 `notin`, 5
/// existence, 6 absence, 7 `>` and 8 `<`. 0 to 2 use the first of `values`, 3 and 4 all, and 7 and 8 `bound`.
#[derive(Clone, Debug)]
struct GeneratedTerm {
    key: &'static str,
    kind: u8,
    values: Vec<&'static str>,
    bound: i64,
}

impl GeneratedTerm {
    /// Returns the term in the syntax of Kubernetes' label selectors.
    fn text(&self) -> String {
        let (key, first, list) = (self.key, self.values[0], self.values.join(","));
        match self.kind {
            0 => format!("{key}={first}"),
            1 => format!("{key}=={first}"),
            2 => format!("{key}!={first}"),
            3 => format!("{key} in ({list})"),
            4 => format!("{key} notin ({list})"),
            5 => key.to_owned(),
            6 => format!("!{key}"),
            7 => format!("{key}>{}", self.bound),
            _ => format!("{key}<{}", self.bound),
        }
    }

    /// Returns whether the labels meet the term by Kubernetes' documentation.
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(self.key).map(String::as_str);
        let number = value.and_then(|value| value.parse::<i64>().ok());
        match self.kind {
            0 | 1 => value == Some(self.values[0]),
            2 => value != Some(self.values[0]),
            3 => value.is_some_and(|value| self.values.contains(&value)),
            4 => value.is_none_or(|value| !self.values.contains(&value)),
            5 => value.is_some(),
            6 => value.is_none(),
            7 => number.is_some_and(|number| number > self.bound),
            _ => number.is_some_and(|number| number < self.bound),
        }
    }
}

/// Generates a term of a random kind, with one to three values.
fn term_strategy() -> impl Strategy<Value = GeneratedTerm> {
    let values = vec(prop::sample::select(VALUES.to_vec()), 1..4);
    (prop::sample::select(KEYS.to_vec()), 0..9_u8, values, 0..13_i64).prop_map(|(key, kind, values, bound)| GeneratedTerm {
        key,
        kind,
        values,
        bound,
    })
}

/// Generates up to three labels.
fn label_map() -> impl Strategy<Value = Labels> {
    let key = prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned);
    btree_map(key, prop::sample::select(VALUES.to_vec()).prop_map(str::to_owned), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn selector_matches_when_every_term_holds(terms in vec(term_strategy(), 0..5), labels in label_map()) {
        let text = terms.iter().map(GeneratedTerm::text).collect::<Vec<_>>().join(",");
        let selector = Selector::parse(&text).unwrap();
        let expected = terms.iter().all(|term| term.holds(&labels));
        prop_assert_eq!(selector.matches(&labels, &()), expected, "{} over {:?}", text, labels);
    }

    #[test]
    fn canonical_text_is_stable_when_parsed_again(terms in vec(term_strategy(), 0..5), labels in label_map()) {
        let text = terms.iter().map(GeneratedTerm::text).collect::<Vec<_>>().join(", ");
        let selector = Selector::parse(&text).unwrap();
        let canonical = selector.to_string();
        let reparsed = Selector::parse(&canonical).unwrap();
        prop_assert_eq!(&reparsed.to_string(), &canonical, "{}", text);
        prop_assert_eq!(reparsed.matches(&labels, &()), selector.matches(&labels, &()), "{} is {}", text, canonical);
    }

    /// With the prefix `reported:`, a term matches reported labels. Without the prefix, it matches effective labels.
    #[test]
    fn reported_term_reads_only_reported_labels(term in term_strategy(), effective in label_map(), reported_labels in label_map()) {
        let reported_selector = Selector::parse(&format!("reported:{}", term.text())).unwrap();
        let selector_without_prefix = Selector::parse(&term.text()).unwrap();
        prop_assert_eq!(reported_selector.matches(&effective, &reported_labels), selector_without_prefix.matches(&reported_labels, &effective));
    }
}
