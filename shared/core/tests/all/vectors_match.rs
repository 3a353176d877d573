//! Selectors compared with `k8s.io/apimachinery`, requirements with Nova, names of traits and nodes with Ironic.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;
use stemma_core::name::NodeName;
use stemma_core::requirement::{Expression, LiteralValue};
use stemma_core::selector::{LabelSelector, Selector};
use stemma_core::traits::{TraitNames, standard_names};

use crate::vectors;

type LabelMap = BTreeMap<String, String>;

#[derive(Deserialize)]
struct SelectorVectors {
    label_sets: Vec<LabelMap>,
    cases: Vec<SelectorCase>,
    match_cases: Vec<MatchCase>,
    label_selector_struct: Vec<StructCase>,
}

/// A selector as text, whether it is valid, its canonical text, its terms, and for each label set whether it matches.
#[derive(Deserialize)]
struct SelectorCase {
    selector: String,
    valid: bool,
    canonical: Option<String>,
    requirements: Option<Vec<ExpectedTerm>>,
    matches: Option<Vec<bool>>,
}

/// A term of a selector, in the form of the vectors.
#[derive(Debug, Deserialize, PartialEq)]
struct ExpectedTerm {
    key: String,
    operator: String,
    values: Vec<String>,
}

/// A selector, a label set, and whether the selector matches.
#[derive(Deserialize)]
struct MatchCase {
    selector: String,
    labels: LabelMap,
    #[serde(rename = "match")]
    matches: bool,
}

/// A selector as an object, whether it is valid, its canonical text, and for each label set whether it matches.
#[derive(Deserialize)]
struct StructCase {
    name: String,
    selector: Json,
    valid: bool,
    canonical: Option<String>,
    matches: Option<Vec<bool>>,
}

/// Returns the vectors of selectors, or `None` if their file is missing.
fn load_selectors() -> Option<SelectorVectors> {
    vectors::read_json("vectors/propagation/label_selector.json")
}

/// Converts a parsed term to the form of the vectors, in which `>` and `<` are `gt` and `lt`.
fn to_expected_term(term: &stemma_core::selector::Term) -> ExpectedTerm {
    use stemma_core::selector::Operator::{GreaterThan, LessThan};
    let operator = match term.operator() {
        GreaterThan => "gt",
        LessThan => "lt",
        operator => operator.sign(),
    };
    ExpectedTerm {
        key: term.key().to_string(),
        operator: operator.to_owned(),
        values: term.values().map(str::to_owned).collect(),
    }
}

/// Returns for each label set whether the selector matches.
fn matches_each(selector: &Selector, sets: &[LabelMap]) -> Vec<bool> {
    sets.iter().map(|labels| selector.matches(labels, &())).collect()
}

/// The canonical text has the terms in the order of their keys, and parses to the same selector.
#[test]
fn text_selectors_match_vectors() {
    let Some(file) = load_selectors() else { return };
    for case in file.cases {
        let text = &case.selector;
        let parsed = Selector::parse(text);
        assert_eq!(parsed.is_ok(), case.valid, "{text:?}: {parsed:?}");
        let Ok(selector) = parsed else { continue };
        assert_eq!(Some(selector.to_string()), case.canonical, "{text:?}");
        assert_eq!(Some(matches_each(&selector, &file.label_sets)), case.matches, "{text:?}");
        let mut expected = case.requirements.unwrap_or_default();
        expected.sort_by(|first, second| first.key.cmp(&second.key));
        assert_eq!(selector.terms().iter().map(to_expected_term).collect::<Vec<_>>(), expected, "{text:?}");
        assert_eq!(Selector::parse(&selector.to_string()).as_ref(), Ok(&selector), "{text:?} read back");
    }
    for case in file.match_cases {
        let selector = Selector::parse(&case.selector).unwrap();
        assert_eq!(selector.matches(&case.labels, &()), case.matches, "{:?} {:?}", case.selector, case.labels);
    }
}

#[test]
fn object_selectors_match_vectors() {
    let Some(file) = load_selectors() else { return };
    for case in file.label_selector_struct {
        let object: Option<LabelSelector> = serde_json::from_value(case.selector).unwrap();
        let compiled = LabelSelector::compile(object.as_ref());
        assert_eq!(compiled.is_ok(), case.valid, "{}: {compiled:?}", case.name);
        let Ok(selector) = compiled else { continue };
        assert_eq!(Some(selector.to_string()), case.canonical, "{}", case.name);
        assert_eq!(Some(matches_each(&selector, &file.label_sets)), case.matches, "{}", case.name);
    }
}

/// A requirement, a value, and whether the value meets the requirement in Nova. `matches` is `None` if Nova raises an
/// error.
#[derive(Deserialize)]
struct OperatorCase {
    value: Json,
    req: String,
    #[serde(rename = "match")]
    matches: Option<bool>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct OperatorVectors {
    vectors: Vec<OperatorCase>,
}

/// Checks for each case that the value meets the requirement in Stemma exactly if it does in Nova. A requirement that
/// Stemma rejects counts as not met. If Nova raises an error, the requirement must not be met either.
fn check_operator_cases(cases: &[OperatorCase]) {
    for OperatorCase { value, req: requirement, matches, error } in cases {
        assert!(matches.is_some() || error.is_some(), "{requirement:?} has no answer");
        let (parsed, expected) = (Expression::new(requirement), matches.unwrap_or(false));
        let literal = LiteralValue::from_json(value);
        let is_met = parsed.as_ref().is_ok_and(|expression| literal.is_some_and(|value| expression.matches(&value)));
        assert_eq!(is_met, expected, "{value} {requirement:?}: {parsed:?}");
    }
}

#[test]
fn requirement_operators_match_nova() {
    let files = ["traits/extra_specs_ops", "traits/extra_specs_ops_grid"];
    for file in files {
        let Some(cases) = vectors::read_json::<Vec<OperatorCase>>(&format!("vectors/{file}.json")) else { return };
        check_operator_cases(&cases);
    }
    if let Some(file) = vectors::read_json::<OperatorVectors>("vectors/labels/extra_specs_ops.json") {
        check_operator_cases(&file.vectors);
    }
}

#[test]
fn requirements_match_list_members() {
    let Some(cases) = vectors::read_json::<Vec<OperatorCase>>("vectors/traits/extra_specs_ops_listvalue.json") else {
        return;
    };
    check_operator_cases(&cases);
}

/// Nova raises an error for each text of the first list, whatever the value is. The texts of the second list are valid.
#[test]
fn requirement_is_rejected_when_nova_always_raises() {
    for text in ["<or>", "  <or>  ", "= a", ">= abc", "== 0x10", "<= 4GB", "!= \u{bd}"] {
        assert!(Expression::new(text).is_err(), "{text:?}");
    }
    for text in ["", "   ", "s==", "<in>", "<all-in>", "> 2", ">=4", "<is> x", "== nan", "a <or> b"] {
        assert!(Expression::new(text).is_ok(), "{text:?}");
    }
}

/// A trait name, whether Ironic accepts the name, and the reason. If `recommended_valid` is set, Stemma follows that
/// value instead.
#[derive(Deserialize)]
struct TraitCase {
    #[serde(rename = "trait")]
    name: Json,
    valid: bool,
    recommended_valid: Option<bool>,
    why: String,
}

#[test]
fn trait_names_match_ironic() {
    let Some(cases) = vectors::read_json::<Vec<TraitCase>>("vectors/traits/traits_validation.json") else { return };
    let names = TraitNames::default();
    for case in cases {
        let valid = case.name.as_str().is_some_and(|name| names.parse(name).is_ok());
        assert_eq!(valid, case.recommended_valid.unwrap_or(case.valid), "{} ({})", case.name, case.why);
    }
}

#[test]
fn standard_traits_match_os_traits() {
    let Some(text) = vectors::read_text("data/os_traits.txt") else { return };
    let names: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(standard_names(), names);
}

#[derive(Deserialize)]
struct NodeNameCase {
    name: Json,
    valid: bool,
}

/// Names that Stemma refuses for a node and Ironic accepts. They are paths below `/v1/nodes/` in the API of Ironic.
const STRICTER_PATHS: [&str; 6] = ["portgroups", "vifs", "volume", "traits", "allocation", "inventory"];

#[test]
fn node_names_match_ironic() {
    let Some(cases) = vectors::read_json::<Vec<NodeNameCase>>("vectors/traits/node_names.json") else { return };
    for NodeNameCase { name, valid } in cases {
        let text = name.as_str().unwrap_or_default();
        // S54: a URL path omits the segments `.` and `..`. Ironic's pattern also accepts some letters that are not
        // ASCII, because it ignores case: in Python, `[A-Z]` then also matches `ſ`, for example.
        let is_stricter = STRICTER_PATHS.contains(&text) || matches!(text, "." | "..") || !text.is_ascii();
        assert_eq!(NodeName::new(text).is_ok(), valid && !is_stricter, "{name}");
    }
}
