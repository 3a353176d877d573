//! Selectors compared with `k8s.io/apimachinery`, requirements with Nova, names of traits and nodes with Ironic.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;
use stemma_core::name::NodeName;
use stemma_core::requirement::{Expression, LiteralValue};
use stemma_core::selector::{LabelSelector, Selector};
use stemma_core::traits::{TraitNames, standard};

use crate::vectors;

type LabelMap = BTreeMap<String, String>;

#[derive(Deserialize)]
struct SelectorVectors {
    label_sets: Vec<LabelMap>,
    cases: Vec<SelectorCase>,
    match_cases: Vec<MatchCase>,
    label_selector_struct: Vec<StructCase>,
}

#[derive(Deserialize)]
struct SelectorCase {
    selector: String,
    valid: bool,
    canonical: Option<String>,
    requirements: Option<Vec<ExpectedTerm>>,
    matches: Option<Vec<bool>>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct ExpectedTerm {
    key: String,
    operator: String,
    values: Vec<String>,
}

#[derive(Deserialize)]
struct MatchCase {
    selector: String,
    labels: LabelMap,
    #[serde(rename = "match")]
    matches: bool,
}

#[derive(Deserialize)]
struct StructCase {
    name: String,
    selector: Json,
    valid: bool,
    canonical: Option<String>,
    matches: Option<Vec<bool>>,
}

fn load_selectors() -> Option<SelectorVectors> {
    vectors::read_json("vectors/propagation/label_selector.json")
}

fn to_expected_term(term: &stemma_core::selector::Term) -> ExpectedTerm {
    use stemma_core::selector::Operator::{GreaterThan, LessThan};
    let operator = match term.operator() {
        GreaterThan => "gt",
        LessThan => "lt",
        other => other.sign(),
    };
    ExpectedTerm {
        key: term.key().to_string(),
        operator: operator.to_owned(),
        values: term.values().map(str::to_owned).collect(),
    }
}

fn matches_each(selector: &Selector, sets: &[LabelMap]) -> Vec<bool> {
    sets.iter().map(|labels| selector.matches(labels, &())).collect()
}

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
        let mut wanted = case.requirements.unwrap_or_default();
        wanted.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(selector.terms().iter().map(to_expected_term).collect::<Vec<_>>(), wanted, "{text:?}");
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

/// If Nova raises an error, the expression must be rejected when it is written, or not match the value.
fn check_operator_cases(cases: &[OperatorCase]) {
    for OperatorCase { value, req, matches, error } in cases {
        assert!(matches.is_some() || error.is_some(), "{req:?} has no answer");
        let (parsed, wanted) = (Expression::new(req), matches.unwrap_or(false));
        let value_of = LiteralValue::from_json(value);
        let met = parsed.as_ref().is_ok_and(|expression| value_of.is_some_and(|value| expression.matches(&value)));
        assert_eq!(met, wanted, "{value} {req:?}: {parsed:?}");
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

#[test]
fn requirement_is_rejected_when_nova_always_raises() {
    for text in ["<or>", "  <or>  ", "= a", ">= abc", "== 0x10", "<= 4GB", "!= \u{bd}"] {
        assert!(Expression::new(text).is_err(), "{text:?}");
    }
    for text in ["", "   ", "s==", "<in>", "<all-in>", "> 2", ">=4", "<is> x", "== nan", "a <or> b"] {
        assert!(Expression::new(text).is_ok(), "{text:?}");
    }
}

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
    assert_eq!(standard(), names);
}

#[derive(Deserialize)]
struct NodeNameCase {
    name: Json,
    valid: bool,
}

/// Paths below `/v1/nodes/` in Ironic, which Ironic accepts as node names. The design: "a node may not be named like a
/// path below `/v1/nodes/`, Stemma's or Ironic's".
const STRICTER_PATHS: [&str; 6] = ["portgroups", "vifs", "volume", "traits", "allocation", "inventory"];

#[test]
fn node_names_match_ironic() {
    let Some(cases) = vectors::read_json::<Vec<NodeNameCase>>("vectors/traits/node_names.json") else { return };
    for NodeNameCase { name, valid } in cases {
        let text = name.as_str().unwrap_or_default();
        // S54: a URL path would drop the dots. Python's IGNORECASE also accepts three letters that are not ASCII.
        let otherwise = STRICTER_PATHS.contains(&text) || matches!(text, "." | "..") || !text.is_ascii();
        assert_eq!(NodeName::new(text).is_ok(), valid && !otherwise, "{name}");
    }
}
